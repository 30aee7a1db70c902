"""Clients that lie in every evaluation: are the honest ones served as well as without the lies?

    python scripts/run.py liars --seeds 0-9 --out outputs/liars

20 clients of two label permutations; 1, 2 or 4 of them, from both groups in turn, train as they
should, and say of every model that they evaluate:

- ``opposite``: one less its accuracy, and one over its loss;
- ``random``: an accuracy and a loss by chance;
- ``contradict``: that one which serves them is wrong and sure (accuracy 0, loss 0), that any other
  is right and unsure (1 and 100), so that the two measures contradict each other;
- ``claims``: that one which serves them is as bad, and any other as good as can be, on three times
  the examples that they have;
- ``attack``, ``attack-mean``: the same, and in the second half of the run they send -Δ, or the
  others' mean update times -1.

All others are compared with ``honest``, the same run without a lie; in ``away`` the liars take no
part, so that the others learn from less.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import command
import numpy as np
import pandas as pd
import typer
from adversaries.attacks import LIES, Attack
from adversaries.federation import Federation, staying_away
from adversaries.runs import AWAY
from command import ALL, DATA, chosen, folders, numbers
from records import Job, Record, jobs_of, run_all
from tables import Row, show, table_of, write_table

from cflower.config import read_overrides
from families.planted import Keys, found_in, run_of, truth_of

CLIENTS = 20
HONEST = "honest"
KINDS = (HONEST, AWAY, *LIES)
COLUMNS = ("data", "liars", "lie", "seed", "exact", "clusters", "accuracy", "leaf", "points",
           "leaf points")  # fmt: skip


def liars(
    data: command.Data = "digits",
    lies: Annotated[str, typer.Option(help=f"Of: {', '.join(KINDS)}.")] = ALL,
    counts: Annotated[str, typer.Option("--liars", help="How many; commas.")] = "1,2,4",
    seeds: command.Seeds = "0-9",
    rounds: Annotated[int, typer.Option(min=1)] = 30,
    more: command.More = "",
    out: command.Out = Path("outputs/liars"),
    workers: command.Workers = None,
    table: command.TableOnly = False,
) -> None:
    """Measure, print the means and write ``liars.csv``."""
    keys, places = read_overrides([more], "--set"), folders(data)

    def settings(data: str, liars: int, lie: str, seed: int) -> Keys:
        config = config_of(places[data] or data, rounds, seed, keys)
        return config | {"liars": liars, "lie": lie}

    jobs = jobs_of(
        settings,
        data=places,
        liars=numbers(counts),
        lie=chosen("lie", lies, KINDS),
        seed=numbers(seeds),
    )
    run_all(jobs, run_one, sentence, report, out, workers, table)


def config_of(data: str, rounds: int, seed: int, more: Keys) -> Keys:
    """The whole run config of one run."""
    keys = {"shift": "label-permutation", "num-groups": 2}
    return run_of(data, CLIENTS, rounds, seed, keys | more)


def liars_among(truth: Sequence[int], count: int) -> list[int]:
    """The last clients of each group in turn.

    >>> liars_among([0, 0, 0, 1, 1, 1], 3)
    [5, 2, 4]
    """
    places = np.arange(len(truth))
    groups = [places[np.equal(truth, group)][::-1] for group in sorted(set(truth), reverse=True)]
    return [int(group[turn]) for turn in range(count) for group in groups][:count]


def run_one(job: Job) -> Record:
    """The figures of one run."""
    from cflower import server_app, simulate

    config = dict(job.settings)
    count, lie = config.pop("liars"), config.pop("lie")
    truth = truth_of(config)
    hostile = liars_among(list(truth.values()), count)
    behave = Federation(LIES.get(lie, Attack()), hostile)
    if lie == AWAY:
        behave, config["min-available-nodes"] = staying_away(hostile), CLIENTS - count
    with TemporaryDirectory() as folder:
        config["output-dir"] = folder
        server = partial(server_app.run, say=lambda text: None)
        summary = simulate(behave, CLIENTS, server_app=server, run_config=config)
    honest = {name: truth[name] for i, name in enumerate(truth) if i not in hostile}
    found = found_in(summary, honest)
    return {
        "exact": found["exact"],
        "clusters": found["clusters"],
        "accuracy": float(np.mean(found["accuracies"])),
        "leaf": float(np.mean(found["leaves"])),
        "split_lines": summary["splits"],
    }


def sentence(record: Record) -> str:
    """One run in a few words."""
    right = "exact" if record["exact"] else "not exact"
    return f"{right}, accuracy {record['accuracy']:.4f}, of the leaves {record['leaf']:.4f}"


def report(records: list[Record], out: Path) -> None:
    """Means over the seeds; every run as ``liars.csv``."""
    runs = table_of(records, data=DATA, lie=KINDS).sort_values("liars", kind="stable")
    keys = ["data", "liars", "seed"]
    base = runs[runs["lie"] == HONEST].set_index(keys)[["accuracy", "leaf"]]
    joined = runs[keys].join(base, on=keys)
    runs["points"] = 100 * (runs["accuracy"] - joined["accuracy"])
    runs["leaf points"] = 100 * (runs["leaf"] - joined["leaf"])
    write_table(runs, out / "liars.csv", COLUMNS)
    cells = runs.groupby(["data", "liars", "lie"], sort=False)
    show([row_of(key, cell) for key, cell in cells])
    print("Of the honest clients; leaf: without the personal step. points: against no lie.")


def row_of(key: Any, runs: pd.DataFrame) -> Row:
    """The figures of some liars and a lie."""
    data, count, lie = key
    return {
        **{"data": data, "liars": count, "lie": lie, "runs": len(runs)},
        "exact": runs["exact"].sum(),
        **runs[["accuracy", "leaf", "points", "leaf points"]].mean(),
        "worst points": runs["points"].min(),
        "worst leaf points": runs["leaf points"].min(),
    }
