"""Simulated replies to a vote: which splits are made?

    python scripts/run.py votes --seeds 0-9 --out outputs/votes

Every client measures two models, its part's own and the common one, on the same ten examples that
decide, by accuracy and by loss; what it reports is drawn here, so nothing is trained. Cases:

- ``neutral``: no gain for anybody, 6 to 40 clients;
- ``sacrifice``: 14 clients gain one point, 6 lose 2, 10 or 30;
- ``gain``: 20 clients of two groups gain 3, 10 or 30 points, alone or with 1, 2, 4 liars among them
  who say the opposite as strongly as they can, on three times the examples;
- ``for``: liars who say so of a neutral split, to have it made.

`parts_made` is all that knows the vote of this version.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import command
import numpy as np
import pandas as pd
import typer
from command import ALL, chosen, numbers
from numpy.typing import NDArray
from records import Job, Record, run_all
from tables import Row, show, table_of, write_table

from cflower.seeding import generator


class Vote(NamedTuple):
    """What one client reports."""

    part: str
    own: Mapping[str, float]
    common: Mapping[str, float]
    num_examples: int


def parts_made(votes: Sequence[Vote]) -> dict[str, bool]:
    """For each part whether it gets a model of its own."""
    from cflower.algorithm.change import Answer
    from cflower.algorithm.state import Ask, Reply, Role
    from cflower.changes.vote import verdict_of
    from cflower.metric import Metric

    pairs = []
    for vote in votes:
        ask = Ask("", vote.part, Role.OWN, 1, "evaluate")
        replies = (Reply(ask, vote.num_examples, metrics) for metrics in (vote.own, vote.common))
        pairs.append(tuple(replies))
    verdict = verdict_of(Answer(tuple(pairs), Metric()))
    return {part: verdict.vote.likely and part not in verdict.losers for part in verdict.parts}


@dataclass(frozen=True)
class Case:
    """A split that is put to the vote."""

    sizes: tuple[int, ...]
    """Clients of each part."""
    gains: tuple[float, ...]
    """What the own model is better by, for each part."""
    examples: int = 10
    spread: float = 0.0
    """Standard deviation of a client's gain; 0: that of so many examples, in whole examples."""
    liars: int = 0
    """So many, of all parts in turn, report a loss where their part gains, else a gain."""


ACCURACY, LOSS, DISCORDANT = 0.85, 0.5, 0.06
"""Of a model that serves its clients; the share of examples on which two such models differ."""
FURTHEST = {True: ((1.0, 0.001), (0.0, 900.0)), False: ((0.0, 900.0), (1.0, 0.001))}
"""Accuracy and loss of the own and the common model as a liar reports them, for a split or against
it."""
CASES = {
    **{f"neutral-{n}": Case((n // 2, n // 2), (0.0, 0.0)) for n in (6, 10, 20, 40)},
    **{
        f"sacrifice-{loss}": Case((14, 6), (0.01, -loss / 100), examples=20, spread=0.03)
        for loss in (2, 10, 30)
    },
    **{
        f"gain-{gain}-liars-{liars}": Case((10, 10), (gain / 100,) * 2, liars=liars)
        for gain in (3, 10, 30)
        for liars in (0, 1, 2, 4)
    },
    **{f"for-liars-{liars}": Case((10, 10), (0.0, 0.0), liars=liars) for liars in (1, 2, 4)},
}


def votes(
    cases: Annotated[str, typer.Option(help="all, or some; commas.")] = ALL,
    trials: Annotated[int, typer.Option(min=1, help="Of a case and seed.")] = 200,
    seeds: command.Seeds = "0-1",
    out: command.Out = Path("outputs/votes"),
    workers: command.Workers = None,
    table: command.TableOnly = False,
) -> None:
    """Simulate, print the table and write ``votes.csv``."""
    jobs = (
        Job({"case": name, "seed": seed}, {"trials": trials, **asdict(CASES[name])})
        for name in chosen("case", cases, CASES)
        for seed in numbers(seeds)
    )
    run_all(jobs, run_one, sentence, report, out, workers, table)


def run_one(job: Job) -> Record:
    """How many of a case's votes ended in which way."""
    name, trials = job.what["case"], job.settings["trials"]
    rng = generator(job.what["seed"], "votes", name)
    size = sum(CASES[name].sizes)
    ends = [parts_made(reported(CASES[name], rng.normal(size=(size, 2)))) for _ in range(trials)]
    return {
        "trials": trials,
        "made": sum(any(end.values()) for end in ends),
        "all parts": sum(all(end.values()) for end in ends),
        "last part": sum(bool(list(end.values())[-1]) for end in ends),
        "refused": sum(not any(end.values()) for end in ends),
    }


def parts_of(case: Case) -> list[str]:
    """The part of every client."""
    return [f"0.{i}" for i, size in enumerate(case.sizes) for _ in range(size)]


def reported(case: Case, chance: NDArray[np.floating]) -> list[Vote]:
    """The clients' votes, given their standard normal chance gains, shape (m, 2)."""
    parts, gains = parts_of(case), np.repeat(case.gains, case.sizes)
    if case.spread:
        accuracy = gains + case.spread * chance[:, 0]
        loss = -3 * gains - case.spread * chance[:, 0]
    else:
        exact = gains + np.sqrt(DISCORDANT / case.examples) * chance[:, 0]
        accuracy = np.round(exact * case.examples) / case.examples
        loss = -3 * gains - 0.05 * (0.6 * chance[:, 0] + 0.8 * chance[:, 1])
    most = max(*case.gains, 0.0)
    common = {"accuracy": ACCURACY - most, "loss": LOSS + 3 * most}
    honest = [
        Vote(
            part,
            {"accuracy": min(max(common["accuracy"] + a, 0.0), 1.0), "loss": common["loss"] + b},
            common,
            case.examples,
        )
        for part, a, b in zip(parts, accuracy, loss, strict=True)
    ]
    return with_liars(honest, case.liars, in_favour=max(case.gains) <= 0)


def with_liars(honest: Sequence[Vote], count: int, in_favour: bool) -> list[Vote]:
    """The last clients of each part in turn lie, on three times the examples."""
    lies = [dict(zip(("accuracy", "loss"), pair, strict=True)) for pair in FURTHEST[in_favour]]
    later = [sum(other.part == vote.part for other in honest[i:]) for i, vote in enumerate(honest)]
    last = sorted(range(len(honest)), key=later.__getitem__)
    liars = set(last[:count])
    return [
        Vote(vote.part, *lies, 3 * vote.num_examples) if i in liars else vote
        for i, vote in enumerate(honest)
    ]


def sentence(record: Record) -> str:
    """A case in a few words."""
    return f"made {record['made']} of {record['trials']}"


def report(records: list[Record], out: Path) -> None:
    """A row for each case, over its seeds."""
    runs = table_of(records, case=CASES)
    rows = [row_of(str(name), some) for name, some in runs.groupby("case", sort=False)]
    write_table(rows, out / "votes.csv")
    show(rows)
    print(
        "Per cent of the votes. made: for any part; last part: of those that lose, where some do."
    )


def row_of(name: str, runs: pd.DataFrame) -> Row:
    """The shares of a case."""
    shares = ("made", "all parts", "last part", "refused")
    total: dict[str, Any] = {"case": name, "votes": runs["trials"].sum()}
    return total | {key: 100 * runs[key].sum() / total["votes"] for key in shares}
