"""Every family of federations, many seeds, any criterion, every core.

    python scripts/run.py battery --criterion norms,oracle,federated --seeds 0-4

Every run goes through cflower's own ServerApp and ClientApp. Then it prints the table and writes
`battery.csv` and `battery.png` over all runs in the folder. Runs with `--set` belong in a folder of
their own. `leaf_accuracy` is without the personal step; `--set "baselines=true"` counts the clients
that would be served better alone.

MNIST, Fashion-MNIST and CIFAR-10 come from local folders that `datasets.load_dataset` reads:
`--data digits,mnist=/data/mnist,fashion-mnist=/data/fashion-mnist,cifar10=/data/cifar10`.
"""

import json
import time
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import command
import pandas as pd
import typer
from command import ALL, chosen, folders, numbers
from records import Job, Record, jobs_of, run_all
from tables import Row, draw, gaps_to_oracle, show, table_of, write_table

from cflower.config import read_overrides
from families.planted import (
    CRITERIA,
    FAMILIES,
    MODELS,
    OneView,
    Oracle,
    judge,
    run_config,
    truth_of,
)

COLUMNS = (
    "data", "family", "criterion", "seed", "rounds", "groups", "clusters", "exact", "splits",
    "undone", "moves", "false_splits", "adjusted_rand_index", "last_split", "accuracy",
    "leaf_accuracy", "alone", "worse_than_alone", "judged", "seconds",
)  # fmt: skip


def battery(
    criterion: Annotated[str, typer.Option(help=f"Of: {', '.join(CRITERIA)}.")] = "norms",
    data: command.Data = "digits",
    families: Annotated[str, typer.Option(help=f"Of: {', '.join(FAMILIES)}.")] = ALL,
    seeds: command.Seeds = "0-4",
    out: command.Out = Path("outputs/battery"),
    more: command.More = "",
    workers: command.Workers = None,
    table: command.TableOnly = False,
) -> None:
    """Measure; options that name several things take commas, criteria and families also "all"."""
    keys, places = read_overrides([more], "--set"), folders(data, MODELS)
    jobs = jobs_of(
        lambda data, **what: run_config(data, places[data], *what.values(), keys),
        data=places,
        family=chosen("family", families, FAMILIES),
        criterion=chosen("criterion", criterion, CRITERIA),
        seed=numbers(seeds),
    )
    run_all(jobs, run_one, sentence, report, out, workers, table)


def run_one(job: Job) -> Record:
    """The figures of one run through cflower's own apps."""
    from cflower import simulate
    from cflower.client_app import app as client_app
    from cflower.data.client_data import load_client_data
    from cflower.server_app import run

    began, truth = time.monotonic(), truth_of(job.settings)
    rules = {"oracle": Oracle(truth), "auto-one-view": OneView()}
    server = partial(run, say=lambda text: None, criterion=rules.get(job.what["criterion"]))
    with TemporaryDirectory() as folder:
        config = {**job.settings, "output-dir": folder}
        summary = simulate(client_app, len(truth), server_app=server, run_config=config)
        tree = json.loads((Path(folder) / summary["run_id"] / "tree.json").read_text())
    load_client_data.cache_clear()  # another seed's examples: of no use to the next run
    return {
        "rounds": summary["rounds"],
        **judge(summary, tree, config),
        "seconds": round(time.monotonic() - began, 1),
        "found": summary["clusters"],
        "split_lines": summary["splits"],
    }


def sentence(record: Record) -> str:
    """One run in a few words."""
    right = "exact" if record["exact"] else f"ARI {record['adjusted_rand_index']:.2f}"
    wrong = f", {record['false_splits']} false" if record["false_splits"] else ""
    wrong += f", {record['moves']} moves" if record["moves"] else ""
    alone = f" (alone {record['alone']:.4f})" if "alone" in record else ""
    return (
        f"{right}, {record['clusters']} clusters in {record['splits']} splits{wrong}, "
        f"accuracy {record['accuracy']:.4f}{alone}, {record['seconds']:.0f} s"
    )


def report(records: list[Record], out: Path) -> None:
    """Table, CSV and picture of all records."""
    runs = table_of(records, data=MODELS, family=FAMILIES, criterion=CRITERIA)
    runs["gap"] = gaps_to_oracle(runs, "criterion")
    for data, some in runs.groupby("data", sort=False):
        cells = some.groupby(["family", "criterion"], sort=False)
        show([{"family": f, "criterion": c, **figures(cell)} for (f, c), cell in cells], str(data))
    print("last split: mean round. accuracy: of judged clients, held-out examples.")
    write_table(runs, out / "battery.csv", COLUMNS)
    draw(runs, "criterion", out / "battery.png")
    print(f"Written: {out / 'battery.csv'}, {out / 'battery.png'}")


def figures(runs: pd.DataFrame) -> Row:
    """Those of a family and a criterion; against the oracle only on seeds that both have run."""
    return {
        "runs": len(runs),
        "exact": runs["exact"].sum(),
        "false splits": runs["false_splits"].sum(),
        "ARI": runs["adjusted_rand_index"].mean(),
        "last split": runs["last_split"].mean(),
        "accuracy": runs["accuracy"].mean(),
        "points above the oracle": runs["gap"].mean(),
    }
