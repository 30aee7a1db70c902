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
import shutil
import time
from functools import partial
from pathlib import Path
from typing import Annotated

import pandas as pd
import typer
from command import ALL, chosen, folders, numbers, out_folder
from records import Job, Record, read_all, run_all
from tables import Row, draw, gaps_to_oracle, show, table_of, write_table

from cflower.config import read_overrides
from families.planted import (
    CRITERIA,
    DRIFTING,
    EVERY,
    FAMILIES,
    MODELS,
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
    data: Annotated[
        str, typer.Option(help=f"NAME=FOLDER, or digits alone; NAME of: {', '.join(MODELS)}.")
    ] = "digits",
    families: Annotated[
        str, typer.Option(help=f"Of: {', '.join(EVERY)}; all: not {', '.join(DRIFTING)}.")
    ] = ALL,
    seeds: Annotated[str, typer.Option(help='Such as "0-4" or "0,2,5-7".')] = "0-4",
    out: Annotated[Path, typer.Option(help="Where the records go.")] = Path("outputs/battery"),
    rounds: Annotated[int | None, typer.Option(min=1, help="Instead of each family's own.")] = None,
    more: Annotated[str, typer.Option("--set", help='Run config: "key=value ...".')] = "",
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; one per core.")] = None,
    keep: Annotated[bool, typer.Option(help="Keep the run folders, in OUT/runs.")] = False,
    table: Annotated[bool, typer.Option("--table", help="Run nothing.")] = False,
) -> None:
    """Measure; options that name several things take commas, criteria and families also "all"."""
    out = out_folder(out)
    failed = 0
    if not table:
        keys = read_overrides([more]) if more else {}
        if rounds is not None:
            keys["num-server-rounds"] = rounds
        jobs = [
            Job(
                {"data": name, "family": family, "criterion": rule, "seed": seed},
                run_config(name, folder, family, rule, seed, keys),
            )
            for seed in numbers(seeds)
            for name, folder in folders(data, MODELS).items()
            for family in chosen("family", families, FAMILIES if families == ALL else EVERY)
            for rule in chosen("criterion", criterion, CRITERIA)
        ]
        measure = partial(run_one, out=out, keep=keep)
        failed = run_all(jobs, measure, out, sentence, workers)
    report(out)
    raise typer.Exit(1 if failed else 0)


def run_one(job: Job, out: Path, keep: bool) -> Record:
    """The figures of one run through cflower's own apps."""
    from cflower import simulate
    from cflower.client_app import app as client_app
    from cflower.data.client_data import load_client_data
    from cflower.server_app import run

    began, folder = time.monotonic(), out / "runs" / job.name
    shutil.rmtree(folder, ignore_errors=True)
    config = {**job.settings, "output-dir": str(folder)}
    truth = truth_of(config)
    rule = Oracle(truth) if job.what["criterion"] == "oracle" else None
    server = partial(run, say=lambda text: None, criterion=rule)
    summary = simulate(client_app, len(truth), server_app=server, run_config=config)
    tree = json.loads((folder / summary["run_id"] / "tree.json").read_text())
    load_client_data.cache_clear()  # another seed's examples: of no use to the next run
    if not keep:
        shutil.rmtree(folder)
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


def report(out: Path) -> None:
    """Table, CSV and picture of all records in ``out``."""
    runs = table_of(read_all(out), data=MODELS, family=EVERY, criterion=CRITERIA)
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
