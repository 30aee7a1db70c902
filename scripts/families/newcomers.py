"""Does a client that was not there find its group afterwards?

    python scripts/run.py newcomers --data digits,mnist=/data/mnist --seeds 0-4
    python scripts/run.py newcomers --data wrists=/data/wrists --seeds 0-4

Clients are taken out of a federation, it trains without them, and then each of them is assigned to
one of its clusters by `cflower.assign`. By default one client of every group is taken out at once,
and every client is once; with `--strangers` a whole group, so that all newcomers are strangers. Of
the wrists a person's two arms are taken out.

Right is an assignment into a leaf all of whose members are of the newcomer's true group. Strangers
are the same newcomers with labels at random: they belong nowhere, and `assign` should say so.
"""

from collections.abc import Collection, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import command
import numpy as np
import pandas as pd
import typer
from command import folders, numbers
from records import Job, Record, run_all
from reproduction.wrists import KEYS as WRISTS
from tables import Row, show

from cflower.config import RunConfig

SHIFTS = ("rotation", "label-permutation", "label-swap")
CLIENTS, GROUPS, ROUNDS = 20, 4, 8
"""Of each federation; as many rounds as the last split needs."""
EXAMPLES = 100
"""A client's, where there are more than enough."""
DATA = ("digits", "mnist", "wrists")
# What the split of the wrists brings comes after its trial, so that it is final here.
NATURAL = {"wrists": {**WRISTS, "dataset-size": 0, "trial-rounds": 0}}
"""Data with groups that nobody made; clients 2p and 2p + 1 are a person's."""

FOUND = ("known", "right", "familiar", "noise_is_familiar")
"""Of a newcomer, as far as it was placed."""


def newcomers(
    data: Annotated[
        str, typer.Option(help=f"NAME=FOLDER, or digits alone; NAME of: {', '.join(DATA)}.")
    ] = "digits",
    seeds: command.Seeds = "0-4",
    shifts: Annotated[str, typer.Option(help="Some of them.")] = ",".join(SHIFTS),
    strangers: Annotated[bool, typer.Option("--strangers", help="One group at a time.")] = False,
    most: Annotated[int, typer.Option(min=1, help="Absences of each seed, in turn.")] = 1000,
    out: command.Out = Path("outputs/newcomers"),
    workers: command.Workers = None,
    table: command.TableOnly = False,
) -> None:
    """Measure, then print the table over all records in the folder."""
    jobs = (
        job_of(name, config_of(name, folder, shift, seed), absent)
        for name, folder in folders(data, DATA).items()
        for everyone in [absences(strangers, pairs=name in NATURAL)]
        for turn in range(min(most, len(everyone)))  # a part of it is of every seed and kind
        for seed in numbers(seeds)
        for absent in [everyone[(seed + turn) % len(everyone)]]
        for shift in (shifts.split(",") if name not in NATURAL else ("none",))
    )
    run_all(jobs, measured, sentence, report, out, workers, table)


def absences(strangers: bool = False, pairs: bool = False) -> list[tuple[int, ...]]:
    """Who is taken out of each federation: in the end every client once.

    >>> absences()[0]
    (0, 5, 10, 15)
    >>> absences(strangers=True)[0]
    (0, 1, 2, 3, 4)
    """
    size = 2 if pairs else CLIENTS // GROUPS
    if strangers or pairs:
        return [tuple(range(first, first + size)) for first in range(0, CLIENTS, size)]
    return [tuple(range(first, CLIENTS, size)) for first in range(size)]


def config_of(data: str, folder: str, shift: str, seed: int) -> dict[str, Any]:
    """The run config of the federation with all of its clients."""
    keys = {
        "dataset": folder or data,
        "dataset-size": 0 if data == "digits" else EXAMPLES * CLIENTS,
        "model": "mlp",  # a small one: hundreds of federations are trained
        "shift": shift,
        "num-groups": GROUPS,
        "seed": seed,
        "num-server-rounds": ROUNDS,
        "min-available-nodes": CLIENTS,
    }
    return RunConfig.read(keys | NATURAL.get(data, {})).as_keys()


def job_of(data: str, config: dict[str, Any], absent: Iterable[int]) -> Job:
    """One federation and who is not in it."""
    what = {"data": data, "shift": config["shift"], "seed": config["seed"]}
    return Job({**what, "absent": "-".join(map(str, absent))}, config)


def measured(job: Job) -> Record:
    """One federation, and then its newcomers."""
    config, absent = dict(job.settings), tuple(map(int, job.what["absent"].split("-")))
    with TemporaryDirectory() as folder:
        summary = trained_without(absent, config | {"output-dir": folder})
        found = newcomers_of(Path(folder) / summary["run_id"], summary, config, absent)
    unsplit = [{"client": client, "known": True, "right": False} for client in absent]
    return {
        "exact": summary["adjusted_rand_index"] == 1.0,
        "last_split": max((s["round"] for s in summary["splits"]), default=None),
        "newcomers": found or unsplit,
    }


def sentence(record: Record) -> str:
    """One federation in a few words."""
    return f"{share(pd.DataFrame(record['newcomers'])['right'])} right"


def newcomers_of(
    path: Path, summary: Record, config: dict[str, Any], absent: tuple[int, ...]
) -> list[Record]:
    """Each absent client assigned to a cluster of a run that was split; else nobody."""
    from cflower import assign
    from cflower.data.client_data import load_client_data
    from cflower.data.settings import DataSettings

    settings, truth = RunConfig.read(config).part(DataSettings), summary["groups"]
    newcomers = []
    for client in absent if summary["splits"] else ():
        examples = load_client_data(settings, client, config["min-available-nodes"])
        found = assign(path, examples)
        noise = assign(path, with_random_labels(examples, client))
        newcomers.append(
            {
                "client": client,
                "group": examples.group,
                "cluster": found.cluster,
                "known": examples.group in truth.values(),
                "right": groups_in(summary["clusters"], truth, found.cluster) == {examples.group},
                "familiar": found.stranger_at is None,
                "noise_is_familiar": noise.stranger_at is None,
            }
        )
    return newcomers


def groups_in(clusters: dict[str, list[str]], truth: Record, cluster: str) -> set[Any]:
    """The true groups of all clients in a cluster, or in the leaves below it."""
    below = [leaf for leaf in clusters if f"{leaf}.".startswith(f"{cluster}.")]
    return {truth[name] for leaf in below for name in clusters[leaf]}


def trained_without(absent: Collection[int], config: dict[str, Any]) -> Record:
    """The summary of a federation whose data are dealt out to all, but some are not there."""
    from flwr.app import Message

    from cflower import simulate
    from cflower.client_app import app
    from cflower.messages.client_names import FACTS
    from cflower.server_app import run
    from cflower.simulation.inline_grid import FIRST_NODE_ID, InlineGrid

    class WithoutThem(InlineGrid):
        """Deals the data out to all clients, but some of them are not there."""

        def get_node_ids(self) -> Iterable[int]:
            return [n for n in super().get_node_ids() if n - FIRST_NODE_ID not in absent]

        def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
            replies = list(super().pull_messages(message_ids))
            for reply in replies:
                # Or the server would wait for all that the data were dealt out to.
                reply.content.config_records.get(FACTS, {}).pop("num-partitions", None)
            return replies

    clients = config["min-available-nodes"]
    theirs = config | {"min-available-nodes": clients - len(absent)}
    server = partial(run, say=lambda text: None)
    return simulate(app, clients, server_app=server, run_config=theirs, grid_type=WithoutThem)


def with_random_labels(data: Any, client: int) -> Any:
    """The same examples with labels that say nothing about them."""
    from cflower.seeding import generator

    labels = generator(client, "stranger").integers(data.train.num_classes, size=len(data.train))
    return replace(data, train=replace(data.train, labels=labels))


def report(records: list[Record], out: Path) -> None:
    """The table."""
    show(lines_of(records), "clients assigned afterwards")


def lines_of(records: list[Record]) -> list[Row]:
    """Shares over all newcomers of each data set and shift."""
    run = ["data", "shift", "seed", "absent", "exact", "last_split"]
    everyone = pd.json_normalize(records, "newcomers", run).reindex(columns=[*run, *FOUND])
    everyone = everyone.astype({"exact": bool, "last_split": float})
    everyone["shift"] += np.where(everyone["known"], "", " that was not there")
    kinds = everyone.groupby(["data", "shift"])
    return [{"data": data, "shift": shift, **shares(some)} for (data, shift), some in kinds]


def shares(newcomers: pd.DataFrame) -> Row:
    """How many were placed rightly."""
    federations = newcomers.drop_duplicates(["seed", "absent"])
    exactly = newcomers[newcomers["exact"]]
    return {
        "federations": len(federations),
        "of them exact": federations["exact"].sum(),
        "last split": federations["last_split"].max(),
        "newcomers right": share(newcomers["right"]),
        "where exact": share(exactly["right"]),
        "members taken for strangers": share(1 - newcomers["familiar"]),
        "strangers recognised": share(1 - newcomers["noise_is_familiar"]),
    }


def share(cases: pd.Series) -> str:
    """How many of how many that are known."""
    return f"{cases.sum():.0f} of {cases.count()}"
