"""Clients that leave for good after one round: do the others still get the models of their groups?

    python scripts/run.py leavers --data mnist=/data/mnist --seeds 0-2 --out outputs/leavers

18 clients of three label permutations, of which so many train once and are never connected again;
or 18 that stay, and three more in every round under new names, which train once each. Accuracies
and groups are those of the clients that stay.
"""

from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import command
import numpy as np
import typer
from command import ALL, DATA, chosen, folders, numbers
from records import Job, Record, jobs_of, run_all
from tables import show, table_of, write_table

from cflower.config import read_overrides
from families.participation import Presence, simulated
from families.planted import Keys, found_in, run_of

GROUPS, PER_GROUP = 3, 6
LEAVING = {"0": 0, "3": 3, "4": 4, "6": 6, "3-renamed": 0}
"""By name: the clients that leave after one round."""
COLUMNS = "data", "family", "seed", "exact", "clusters", "split", "leaf", "accuracy"


class Leavers(Presence):
    """The groups are blocks of clients; the first ones of each leave, further ones come once."""

    def __init__(self, family: str, rounds: int) -> None:
        super().__init__(0, 1, rounds)
        leaving = LEAVING[family]
        self.size = PER_GROUP + rounds * family.endswith("renamed")
        self.leaving = {self.size * (i % GROUPS) + i // GROUPS for i in range(leaving)}

    @property
    def staying(self) -> Iterable[int]:
        """The clients that are always there."""
        everyone = range(GROUPS * self.size)
        return [i for i in everyone if i % self.size < PER_GROUP and i not in self.leaving]

    def is_away(self, client: int) -> bool:
        """Whether a client is not there now; before the first round it is as in that."""
        now, place = max(self.now, 1), client % self.size
        return (
            now > 1
            if client in self.leaving
            else place >= PER_GROUP and now != 1 + place - PER_GROUP
        )


def leavers(
    families: Annotated[str, typer.Option(help=f"Of: {', '.join(LEAVING)}.")] = ALL,
    data: command.Data = "digits",
    seeds: command.Seeds = "0-2",
    rounds: Annotated[int, typer.Option(min=1)] = 25,
    more: command.More = "",
    out: command.Out = Path("outputs/leavers"),
    workers: command.Workers = None,
    table: command.TableOnly = False,
) -> None:
    """Measure, print the table and write ``leavers.csv``."""
    keys, places = read_overrides([more], "--set"), folders(data)
    jobs = jobs_of(
        lambda data, family, seed: config_of(places[data] or data, family, rounds, seed, keys),
        data=places,
        family=chosen("family", families, LEAVING),
        seed=numbers(seeds),
    )
    run_all(jobs, run_one, sentence, report, out, workers, table)


def config_of(data: str, family: str, rounds: int, seed: int, more: Keys) -> Keys:
    """The whole run config of one run; some of its clients come later."""
    keys = {
        "shift": "label-permutation",
        "num-groups": GROUPS,
        "min-available-nodes": GROUPS * PER_GROUP,
        "node-timeout": 5.0,
    }
    return run_of(data, GROUPS * Leavers(family, rounds).size, rounds, seed, keys | more)


def run_one(job: Job) -> Record:
    """The figures of one run."""
    presence = Leavers(job.what["family"], job.settings["num-server-rounds"])
    with TemporaryDirectory() as folder:
        config = job.settings | {"output-dir": folder}
        summary = simulated(config, presence, GROUPS * presence.size)
    truth = {f"partition-{i}": i // presence.size for i in presence.staying}
    return {**found_in(summary, truth), "split_lines": summary["splits"]}


def sentence(record: Record) -> str:
    """One run in a few words."""
    right = "exact" if record["exact"] else "not exact"
    return f"{right}, {record['clusters']} clusters, leaf {np.mean(record['leaves']):.4f}"


def report(records: list[Record], out: Path) -> None:
    """Every run, and the means as a table; ``leavers.csv``."""
    runs = table_of(records, data=DATA, family=LEAVING)
    runs["leaf"], runs["accuracy"] = (runs[key].map(np.mean) for key in ("leaves", "accuracies"))
    runs["split"] = [lines[0]["round"] if lines else None for lines in runs["split_lines"]]
    write_table(runs, out / "leavers.csv", COLUMNS)
    cells = runs.groupby(["data", "family"], sort=False)
    rows = cells.agg(
        {"exact": ["sum", "count"], "split": "mean", "leaf": "mean", "accuracy": "mean"}
    )
    rows.columns = ["exact", "runs", "split", "leaf", "accuracy"]
    show(rows.reset_index().to_dict("records"))
    print("split: round of the first one. leaf: without the personal step.")
