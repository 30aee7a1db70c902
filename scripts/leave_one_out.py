"""Does a client that was not there find its group afterwards, with labels and without? Measured.

    python scripts/leave_one_out.py --data digits,mnist=/data/mnist --seeds 0-4 --out outputs/loo
    python scripts/leave_one_out.py --data wrists=/data/wrists --seeds 0-4 --out outputs/loo

Clients are taken out of a federation, it trains without them, and then each of them is assigned to
one of its clusters by `cflower.assign`. By default one client of every group is taken out at once,
and every client is once; `--literally` takes out one client at a time, and `--strangers` a whole
group, so that all newcomers are strangers. Of the wrists a person's two arms are taken out. Every
federation goes
through cflower's own ServerApp and ClientApp and leaves one JSON in the output folder: stop the
script whenever you like and start it again, and only what is missing is run. The table at the end
is over all records in that folder.

Right is an assignment into a leaf all of whose members are of the newcomer's true group. Strangers
are the same newcomers with labels at random: they belong nowhere, and `assign` should say so.
Without labels a newcomer is placed, ambiguous between several leaves, or a stranger;
right is then also a cluster all of whose members are of its group, and wrong is only what is placed
elsewhere. A federation whose clusters are not those of the groups does not count there.
"""

import json
import os
import shutil
import time
from collections.abc import Collection, Iterable
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import typer
from battery import folders, numbers
from command import quieten_flower, start, write_record
from rich.console import Console
from rich.table import Table

from cflower.config import RunConfig, read_overrides

SHIFTS = ("rotation", "label-permutation", "label-swap")
GROUPS = 4
EXAMPLES = 100
"""A client's, where there are more than enough."""
MODELS = {"digits": "mlp", "mnist": "mlp", "wrists": "mlp"}
"""Small ones: hundreds of federations are trained."""
NATURAL = {
    "wrists": {
        "dataset-size": 0,
        "shift": "none",
        "partitioner": "natural-id",
        "natural-id-column": "client",
        "group-column": "group",
        "label-column": "label",
        "series-channels": 6,  # acceleration and rotation in three directions
        "trial-rounds": 0,  # see docs/reproduction.md: what the split brings comes after its trial
        "inner-interval": 0,
    }
}
"""Data with groups that nobody made; clients 2p and 2p + 1 are a person's."""

UNPLACED = ("ambiguous", "stranger")

Record = dict[str, Any]


def leave_one_out(
    data: Annotated[
        str, typer.Option(help=f"NAME=FOLDER, or digits alone; NAME of: {', '.join(MODELS)}.")
    ] = "digits",
    seeds: Annotated[str, typer.Option(help='Such as "0-4" or "0,2,5-7".')] = "0-4",
    clients: Annotated[int, typer.Option(min=4, help="Of each federation, all of them.")] = 20,
    rounds: Annotated[int, typer.Option(min=1, help="Enough for the last split.")] = 8,
    more: Annotated[str, typer.Option("--set", help='Run config: "key=value ...".')] = "",
    shifts: Annotated[str, typer.Option(help="Some of them.")] = ",".join(SHIFTS),
    literally: Annotated[bool, typer.Option(help="One client at a time.")] = False,
    strangers: Annotated[bool, typer.Option(help="One group at a time.")] = False,
    most: Annotated[int, typer.Option(min=1, help="Absences of each seed, in turn.")] = 1000,
    out: Annotated[Path, typer.Option(help="Where the records go.")] = Path("outputs/loo"),
    table: Annotated[bool, typer.Option("--table", help="Run nothing.")] = False,
) -> None:
    """Measure, then print the table."""
    out = out.expanduser().absolute()
    out.mkdir(parents=True, exist_ok=True)
    keys = read_overrides([more]) if more else {}
    if not table:
        jobs = [
            (name, config_of(name, folder, shift, seed, clients, rounds, keys), absent)
            for name, folder in folders(data, MODELS).items()
            for everyone in [absences(clients, literally, strangers, pairs=name in NATURAL)]
            for turn in range(min(most, len(everyone)))  # a part of it is of every seed and kind
            for seed in numbers(seeds)
            for absent in [everyone[(seed + turn) % len(everyone)]]
            for shift in (shifts.split(",") if name not in NATURAL else ("none",))
        ]
        for count, (name, config, absent) in enumerate(jobs, start=1):
            left = "-".join(map(str, absent))
            path = out / f"{name}--{config['shift']}--{config['seed']}--{left}.json"
            if not is_done(path, config):
                record = {
                    "data": name,
                    **federation_without(absent, config, out / "runs" / path.stem),
                }
                write_record(record, path)
                right = sum(n["right"] for n in record["newcomers"])
                result = f"{right} of {len(absent)} right, {record['seconds']} s"
                print(f"[{count}/{len(jobs)}] {path.stem}: {result}", flush=True)
    Console(width=180).print(report([json.loads(p.read_text()) for p in out.glob("*--*.json")]))


def is_done(path: Path, config: dict[str, Any]) -> bool:
    """Whether a record is there and of this run config."""
    return path.exists() and json.loads(path.read_text())["config"] == config


def absences(
    clients: int, literally: bool, strangers: bool = False, pairs: bool = False
) -> list[tuple[int, ...]]:
    """Who is taken out of each federation: in the end every client once.

    >>> absences(8, literally=False)
    [(0, 2, 4, 6), (1, 3, 5, 7)]
    >>> absences(8, literally=False, strangers=True)
    [(0, 1), (2, 3), (4, 5), (6, 7)]
    """
    size = 1 if literally else 2 if pairs else clients // GROUPS
    if literally or strangers or pairs:
        return [tuple(range(first, first + size)) for first in range(0, clients, size)]
    return [tuple(range(first, size * GROUPS, size)) for first in range(size)]


def config_of(
    data: str,
    folder: str,
    shift: str,
    seed: int,
    clients: int,
    rounds: int,
    more: dict[str, Any],
) -> dict[str, Any]:
    """The run config of the federation with all of its clients; ``more`` has the last word."""
    keys = {
        "dataset": folder or data,
        "dataset-size": 0 if data == "digits" else EXAMPLES * clients,
        "model": MODELS[data],
        "shift": shift,
        "num-groups": GROUPS,
        "seed": seed,
        "num-server-rounds": rounds,
        "min-available-nodes": clients,
    }
    return RunConfig.read(keys | NATURAL.get(data, {}) | more).as_keys()


def federation_without(absent: tuple[int, ...], config: dict[str, Any], folder: Path) -> Record:
    """One federation, and then its newcomers."""
    began = time.monotonic()
    summary = trained_without(absent, config, folder)
    trained = time.monotonic()
    newcomers = newcomers_of(folder / summary["run_id"], summary, config, absent)
    shutil.rmtree(folder)
    unsplit = [{"client": client, "known": True, "right": False} for client in absent]
    return {
        "shift": config["shift"],
        "seed": config["seed"],
        "clients": config["min-available-nodes"],
        "config": config,
        "absent": absent,
        "exact": summary["adjusted_rand_index"] == 1.0,
        "last_split": max((s["round"] for s in summary["splits"]), default=None),
        "newcomers": newcomers or unsplit,
        "seconds": round(time.monotonic() - began, 1),
        "seconds_training": round(trained - began, 1),
    }


def newcomers_of(
    path: Path, summary: Record, config: dict[str, Any], absent: tuple[int, ...]
) -> list[Record]:
    """Each absent client assigned to a cluster of a run that was split; else nobody."""
    from cflower import assign, assign_unlabelled
    from cflower.data.client_data import load_client_data
    from cflower.data.settings import DataSettings

    settings, truth = RunConfig.read(config).part(DataSettings), summary["groups"]
    newcomers = []
    for client in absent if summary["splits"] else ():
        examples = load_client_data(settings, client, config["min-available-nodes"])
        found, unlabelled = assign(path, examples), assign_unlabelled(path, examples)
        there = partial(groups_in, summary["clusters"], truth)
        newcomers.append(
            {
                "client": client,
                "group": examples.group,
                "cluster": found.cluster,
                "known": examples.group in truth.values(),
                "right": there(found.cluster) == {examples.group},
                **steps_of(found),
                "unlabelled": {
                    "outcome": unlabelled.outcome,
                    "cluster": unlabelled.cluster,
                    "right": there(unlabelled.cluster) == {examples.group},
                    "leaves": [leaf._asdict() for leaf in unlabelled.candidates],
                },
                "stranger": steps_of(assign(path, with_random_labels(examples, client))),
            }
        )
    return newcomers


def groups_in(clusters: dict[str, list[str]], truth: Record, cluster: str) -> set[Any]:
    """The true groups of all clients in a cluster, or in the leaves below it."""
    below = [leaf for leaf in clusters if f"{leaf}.".startswith(f"{cluster}.")]
    return {truth[name] for leaf in below for name in clusters[leaf]}


def trained_without(absent: Collection[int], config: dict[str, Any], folder: Path) -> Record:
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

    quieten_flower()
    clients = config["min-available-nodes"]
    shutil.rmtree(folder, ignore_errors=True)
    theirs = config | {"min-available-nodes": clients - len(absent), "output-dir": str(folder)}
    server = partial(run, say=lambda text: None)
    return simulate(app, clients, server_app=server, run_config=theirs, grid_type=WithoutThem)


def steps_of(found: Any) -> Record:
    """The figures of an assignment."""
    steps = [level.step for level in found.levels if level.step is not None]
    return {
        "familiar": found.stranger_at is None,
        "accuracies": [level.metrics["accuracy"] for level in found.levels],
        "steps": [
            {
                "similarities": dict(step.similarities),
                "margin": step.margin,
                "bar": step.bar,
            }
            for step in steps
        ],
    }


def with_random_labels(data: Any, client: int) -> Any:
    """The same examples with labels that say nothing about them."""
    from cflower.seeding import generator

    labels = generator(client, "stranger").integers(data.train.num_classes, size=len(data.train))
    return replace(data, train=replace(data.train, labels=labels))


def report(records: list[Record]) -> Table:
    """Shares over all newcomers of each data set and shift."""
    table = Table(title="clients assigned afterwards")
    for heading in ("data", "shift"):
        table.add_column(heading)
    for heading in (
        "federations",
        "of them exact",
        "last split",
        "newcomers right",
        "where exact",
        "members taken for strangers",
        "strangers recognised",
        "least margin",
        "no labels: right",
        "ambiguous",
        "stranger",
        "wrong",
    ):
        table.add_column(heading, justify="right")

    def kind(record: Record) -> tuple[str, str]:
        group = "" if all(n["known"] for n in record["newcomers"]) else " that was not there"
        return record["data"], record["shift"] + group

    for key, group in groupby(sorted(records, key=kind), kind):
        theirs = list(group)
        everyone = [n for record in theirs for n in record["newcomers"]]
        exactly = [n for record in theirs if record["exact"] for n in record["newcomers"]]
        placed = [n for n in everyone if "steps" in n]
        unlabelled = [n["unlabelled"] for n in exactly if "unlabelled" in n]
        table.add_row(
            *key,
            str(len(theirs)),
            str(sum(record["exact"] for record in theirs)),
            str(max((r["last_split"] or 0 for r in theirs), default=0)),
            share(n["right"] for n in everyone),
            share(n["right"] for n in exactly),
            share(not n["familiar"] for n in placed),
            share(not n["stranger"]["familiar"] for n in placed),
            f"{min((s['margin'] for n in placed for s in n['steps']), default=0):.2f}",
            share(t["outcome"] == "placed" and t["right"] for t in unlabelled),
            *(str(sum(t["outcome"] == words for t in unlabelled)) for words in UNPLACED),
            str(sum(t["outcome"] == "placed" and not t["right"] for t in unlabelled)),
        )
    return table


def share(cases: Iterable[bool]) -> str:
    """How many of how many."""
    found = list(cases)
    return f"{sum(found)} of {len(found)}"


if __name__ == "__main__":
    # One core each; read when the libraries are loaded, which is later.
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    start(lambda: typer.run(leave_one_out))
