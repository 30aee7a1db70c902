"""Hostile clients that spoil what is averaged and not trained, such as BatchNorm's statistics.

    python scripts/run.py statistics --seeds 0-4

Each row is a program (`adversaries.programs`) on 20 clients with the digits. ``points`` is the
accuracy that the honest clients lose against the same run in which the hostile ones behave, with
the models of their clusters; ``served`` is that after the personal step, and ``without`` the
accuracy of the run in which they behave. A run that ends early counts as an accuracy of 0.
"""

import logging
from pathlib import Path
from typing import Annotated

import command
import pandas as pd
import typer
from command import ALL, chosen, numbers, quieten_flower
from records import Job, Record, run_all
from tables import show, write_table

from adversaries.programs import OWN, Program
from adversaries.search import LEAF, behaving, cost, unharmed

BATCHNORM = f"{OWN}:batchnorm"
ONE = Program(BATCHNORM, "", 1.0, "fedavg+fedavg", 1, "last group", "always", "one statistic",
              "own", "constant", -3.0, 1.0, "honest", "own", "", "")  # fmt: skip
"""One client pulls the variance of one channel down, by three usual changes of the array."""
ALL_OF_THEM = ONE._replace(arrays="statistics", direction="even noise", length=3.0)
ROWS = {
    "1 of 20": ONE,
    "2 of 20": ONE._replace(hostile=2),
    "4 of 20": ONE._replace(hostile=4),
    "1 in a group of 6": ONE._replace(groups="14,6"),
    "1 in a group of 3": ONE._replace(groups="17,3"),
    "1 of 20, a tenth a round": ONE._replace(fraction=0.1),
    "2 of 20, a tenth a round": ONE._replace(fraction=0.1, hostile=2),
    "4 of 20, a tenth a round": ONE._replace(fraction=0.1, hostile=4),
    "1 of 20, input normaliser": ONE._replace(model=f"{OWN}:normalised"),
    "4 of 20, input normaliser": ONE._replace(model=f"{OWN}:normalised", hostile=4),
    "4 of 20, noise in all": ALL_OF_THEM._replace(hostile=4),
    "2 of 20, noise in all, a tenth a round": ALL_OF_THEM._replace(fraction=0.1, hostile=2),
    "1 of 20, 1e30 in all, a tenth a round": ALL_OF_THEM._replace(fraction=0.1, length=1e30),
}


def statistics(
    rows: Annotated[str, typer.Option(help="all, or some names; between semicolons.")] = ALL,
    seeds: command.Seeds = "0-4",
    out: command.Out = Path("outputs/statistics"),
    workers: command.Workers = None,
    table: command.TableOnly = False,
) -> None:
    """Measure the rows, print the means and write ``statistics.csv``."""
    names = chosen("row", rows, ROWS, between=";")
    jobs = [
        Job({"row": name, "seed": seed}, ROWS[name]._asdict())
        for seed in numbers(seeds)
        for name in names
    ]
    run_all(jobs, measured, sentence, report, out, workers, table)


def measured(job: Job) -> Record:
    """The figures of one row and seed."""
    quieten_flower(logging.ERROR)
    program, seed = ROWS[job.what["row"]], job.what["seed"]
    points, served = cost(program, seed)
    return {"points": points, "served": served, "without": unharmed(behaving(program), seed)[LEAF]}


def sentence(record: Record) -> str:
    """One run in a few words."""
    return f"{record['points']:.1f} points"


def report(records: list[Record], out: Path) -> None:
    """Means over the seeds by row, and the worst seed."""
    runs = pd.DataFrame(records).drop(columns="config")
    write_table(runs, out / "statistics.csv")
    rows = runs.groupby("row", sort=False).agg(
        seeds=("seed", "count"),
        points=("points", "mean"),
        worst=("points", "max"),
        served=("served", "mean"),
        without=("without", "mean"),
    )
    show(rows.loc[[n for n in ROWS if n in rows.index]].round(3).reset_index().to_dict("records"))
