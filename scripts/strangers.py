"""What does a group that was not there get from the common model? Measured.

    python scripts/strangers.py --out outputs/strangers

Of each family of federations one true group is taken out, every group in its turn; the others
train; and at the end the root's model is judged by all held-out examples of the group that was not
there. It is the model for those who resemble nobody. Every federation leaves one JSON in the
output folder: what is there is not run again.
"""

import json
import os
import shutil
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from battery import chosen, numbers
from command import start, write_record
from federations.planted import FAMILIES, run_config, truth_of
from leave_one_out import is_done, trained_without
from rich.console import Console
from rich.table import Table

WAYS: dict[str, dict[str, Any]] = {
    "frozen at the split": {"inner-interval": 0, "trial-rounds": 0},
    "after the trial": {"inner-interval": 0},
    "inner-interval=10": {"inner-interval": 10},
    "conventional FL": {"method": "federated"},
}
DEFAULT = "rotation-4,label-swap-4,label-permutation-4,three-groups,nested"
"""Those with two groups have nothing to split when one of them is taken out."""


def strangers(
    families: Annotated[str, typer.Option(help="Of the battery's, with three groups.")] = DEFAULT,
    model: Annotated[str, typer.Option(help="Of every family.")] = "mlp",
    rounds: Annotated[int, typer.Option(min=1, help="Of every family.")] = 40,
    seeds: Annotated[str, typer.Option(help='Such as "0-4" or "0,2,5-7".')] = "0",
    out: Annotated[Path, typer.Option(help="Where the records go.")] = Path("outputs/strangers"),
) -> None:
    """Measure, then print the table."""
    out = out.expanduser().absolute()
    out.mkdir(parents=True, exist_ok=True)
    table = Table(title="accuracy of the root's model for the group that was not there")
    for heading in ("family", "federations", "split", *WAYS):
        table.add_column(heading)
    for family in chosen("family", families, FAMILIES):
        by_way: dict[str, list[dict[str, Any]]] = {}
        for way, keys in WAYS.items():
            for seed in numbers(seeds):
                more = {"model": model, "num-server-rounds": rounds, **keys}
                config = run_config("digits", "", family, "auto", seed, more)
                groups = truth_of(config).values()
                for group in sorted(set(groups)):
                    absent = [i for i, one in enumerate(groups) if one == group]
                    name = f"{family}--{way.replace(' ', '-')}--{seed}--{group}"
                    by_way.setdefault(way, []).append(measured(absent, config, out, name))
        ours = by_way["inner-interval=10"]
        means = [float(np.mean([record["accuracy"] for record in by_way[way]])) for way in WAYS]
        split = sum(record["clusters"] > 1 for record in ours)
        table.add_row(family, str(len(ours)), str(split), *(f"{mean:.4f}" for mean in means))
    Console(width=120).print(table)


def measured(absent: list[int], config: dict[str, Any], out: Path, name: str) -> dict[str, Any]:
    """The record of one federation, which is run if it is not there."""
    from cflower.config import RunConfig
    from cflower.data.client_data import load_client_data
    from cflower.data.settings import DataSettings
    from cflower.learning.training import evaluate
    from cflower.newcomers.pytorch_run import SavedRun

    path, folder = out / f"{name}.json", out / "runs" / name
    if not is_done(path, config):
        summary = trained_without(absent, config, folder)
        saved = SavedRun.read(folder / summary["run_id"])
        model = saved.module(saved.tree.root.grown.model)
        settings = RunConfig.read(config).part(DataSettings)
        right = examples = 0.0
        for client in absent:
            data = load_client_data(settings, client, config["min-available-nodes"]).report
            right += evaluate(model, data)["accuracy"] * len(data)
            examples += len(data)
        shutil.rmtree(folder)
        record = {
            "config": config,
            "absent": absent,
            "clusters": len(summary["clusters"]),
            "accuracy": right / examples,
        }
        write_record(record, path)
        print(f"{name}: {record['accuracy']:.4f}, {record['clusters']} clusters", flush=True)
    return dict(json.loads(path.read_text()))


if __name__ == "__main__":
    # One core each; read when the libraries are loaded, which is later.
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    start(lambda: typer.run(strangers))
