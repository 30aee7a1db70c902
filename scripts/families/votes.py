"""Simulated replies to a vote: which splits are made?

    python scripts/run.py votes --seeds 0-9 --out outputs/votes

Every client measures two models, its part's own and the common one, on the same ten examples that
decide, by accuracy and by loss; what it reports is drawn here, so nothing is trained. A refused
split is asked about again, with gains that are correlated (.9) with the last ones: the examples are
the same, the models have changed a little. Cases:

- ``neutral``: no gain for anybody, 6 to 40 clients in two parts, or ten parts of two, asked once or
  three times;
- ``sacrifice``: 14 clients gain one point, 6 in a part of their own lose 2, 10 or 30;
- ``minority``: of 20 clients with 20 examples 2 or 4, spread over both parts, lose 30 points, and
  the others gain 3 or 5;
- ``gain``: 20 clients of two groups gain 3, 10 or 30 points, alone or with 1, 2, 4 liars among them
  who say the opposite as strongly as they can, on three times the examples;
- ``for``: liars who say so of a neutral split, to have it made.

`parts_made` is all that knows the vote of this version. ``shown``: how often the accuracies of each
client of a minority, taken alone, show its loss at a level of 1 % for all clients together.
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
from records import Job, Record, jobs_of, run_all
from scipy.stats import norm
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
    from cflower.changes.splits import serves
    from cflower.changes.vote import Ballot, verdict_of
    from cflower.metric import Metric

    ballots = (Ballot(vote.part, vote.own, vote.common) for vote in votes)
    verdict = verdict_of(ballots, Metric())
    return {part: serves(verdict) and part not in verdict.losers for part in verdict.parts}


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
    minority: int = 0
    """So many, of all parts in turn, lose `LOST` instead."""
    looks: int = 1
    """How often they are asked at most."""


LOST, LEVEL, AGAIN = 0.3, 0.01, 0.9
ACCURACY, LOSS, DISCORDANT = 0.85, 0.5, 0.06
"""Of a model that serves its clients; the share of examples on which two such models differ."""
FURTHEST = {True: ((1.0, 0.001), (0.0, 900.0)), False: ((0.0, 900.0), (1.0, 0.001))}
"""Accuracy and loss of the own and the common model as a liar reports them, for a split or against
it."""
CASES = {
    **{
        f"neutral-{name}-looks-{looks}": Case(sizes, (0.0,) * len(sizes), looks=looks)
        for looks in (1, 3)
        for name, sizes in {
            **{str(n): (n // 2, n // 2) for n in (6, 10, 20, 40)},
            "ten-of-two": (2,) * 10,
        }.items()
    },
    **{
        f"minority-{20 - few}-gain-{gain}-{few}-lose-30": Case(
            (10, 10), (gain / 100,) * 2, examples=20, minority=few
        )
        for few, gain in ((2, 3), (4, 5))
    },
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

    def settings(case: str, seed: int) -> dict[str, Any]:
        return {"trials": trials, **asdict(CASES[case])}

    jobs = jobs_of(settings, case=chosen("case", cases, CASES), seed=numbers(seeds))
    run_all(jobs, run_one, sentence, report, out, workers, table)


def run_one(job: Job) -> Record:
    """How many of a case's votes ended in which way."""
    name, trials = job.what["case"], job.settings["trials"]
    rng = generator(job.what["seed"], "votes", name)
    ends, shown = zip(*(outcome(CASES[name], rng) for _ in range(trials)), strict=True)
    return {
        "trials": trials,
        "made": sum(any(end.values()) for end in ends),
        "all parts": sum(all(end.values()) for end in ends),
        "last part": sum(bool(list(end.values())[-1]) for end in ends),
        "refused": sum(not any(end.values()) for end in ends),
        "shown": sum(shown),
    }


def outcome(case: Case, rng: np.random.Generator) -> tuple[dict[str, bool], bool]:
    """What became of each part; whether the examples of each of the minority showed its loss."""
    clients, chance = sum(case.sizes), np.zeros(0)
    for look in range(case.looks):
        fresh, kept = rng.normal(size=(clients, 2)), AGAIN if look else 0.0
        chance = kept * (chance if look else fresh) + np.sqrt(1 - kept**2) * fresh
        votes = reported(case, chance)
        made = parts_made(votes)
        if any(made.values()):
            break
    lose = [shows_loss(votes[i], clients) for i in last_of(parts_of(case), case.minority)]
    return made, bool(lose) and all(lose)


def shows_loss(vote: Vote, clients: int) -> bool:
    """Whether one client's accuracies differ by more than chance, with `LEVEL` for all clients."""
    own, common, count = vote.own["accuracy"], vote.common["accuracy"], vote.num_examples
    error = np.sqrt((own + common) * (2 - own - common) / 2 / count) or np.inf
    return bool(norm.sf((common - own) / error) < LEVEL / clients)


def parts_of(case: Case) -> list[str]:
    """The part of every client."""
    return [f"0.{i}" for i, size in enumerate(case.sizes) for _ in range(size)]


def reported(case: Case, chance: NDArray[np.floating]) -> list[Vote]:
    """The clients' votes, given their standard normal chance gains, shape (m, 2)."""
    parts, gains = parts_of(case), np.repeat(case.gains, case.sizes)
    gains[last_of(parts, case.minority)] = -LOST
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
    liars = last_of([vote.part for vote in honest], count)
    return [
        Vote(vote.part, *lies, 3 * vote.num_examples) if i in liars else vote
        for i, vote in enumerate(honest)
    ]


def last_of(parts: Sequence[str], count: int) -> list[int]:
    """The places of so many clients: the last ones of each part in turn."""
    later = [parts[i:].count(part) for i, part in enumerate(parts)]
    return sorted(range(len(parts)), key=later.__getitem__)[:count]


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
    shares = ("made", "all parts", "last part", "refused", "shown")
    total: dict[str, Any] = {"case": name, "votes": runs["trials"].sum()}
    return total | {key: 100 * runs[key].sum() / total["votes"] for key in shares}
