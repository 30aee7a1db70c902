"""Groups that nobody made: exercises as a watch feels them on the left and on the right arm.

The data are those of the folder ``wrists``: 10 people's two arms are 20 clients (column client),
two seconds of six axes are an example, which of 7 exercises it is is the label. Left and right are
mirror images of each other. Nothing but the judging of a run sees the column group.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from cflower.runs.record import RunRecord
from reproduction.experiment import Experiment, Results, Setting, simulate, summary_of

AXES = 6
"""Acceleration and rotation in three directions each."""
SEEDS = range(5)
PEOPLE = 10

KEYS: Mapping[str, Any] = {
    "partitioner": "natural-id",
    "natural-id-column": "client",
    "group-column": "group",
    "label-column": "label",
    "shift": "none",
    "series-channels": AXES,
}
MODELS: Mapping[str, Mapping[str, Any]] = {
    "mlp": {"model": "mlp"},
    "conv1d": {"model": "conv1d", "similarity-layers": "conv*", "num-server-rounds": 15},
}
BASELINES = ("federated", "isolated")


def run(setting: Setting) -> Results:
    """CFL with ``auto`` and each model, conventional FL, every client alone."""
    people = 3 if setting.quick else PEOPLE
    folder = mirrored(setting.out / "mirrored") if setting.quick else setting.source("wrists")
    keys = {**KEYS, "dataset": str(folder), "min-available-nodes": 2 * people}
    short = {"num-server-rounds": 2} if setting.quick else {}
    keys["num-server-rounds"] = 30
    results: Results = {"models": {}}
    for name, more in MODELS.items():
        runs: dict[str, list[RunRecord]] = {}
        for method in ("clustered", *BASELINES):
            for seed in list(SEEDS)[: 1 if setting.quick else None]:
                runs.setdefault(method, []).append(
                    simulate(
                        replace(setting, seed=seed),
                        f"wrists-{name}-{method}-{seed}",
                        {**keys, **more, "method": method, **short},
                    )
                )
        results["models"][name] = comparison(runs)
    return results


def comparison(runs: Mapping[str, list[RunRecord]]) -> Results:
    """What several seeds' runs of every method found, and how they compare, client by client."""
    found = [summary_of(run) for run in runs["clustered"]]
    return {
        "rounds": found[0]["rounds"],
        "exact": sum(summary["adjusted_rand_index"] == 1.0 for summary in found),
        "split_rounds": [[split["round"] for split in summary["splits"]] for summary in found],
        "accuracy": {
            method: [round(summary_of(run)["metrics"]["accuracy"], 4) for run in theirs]
            for method, theirs in runs.items()
        },
        "clients": {
            method: compared(found, [summary_of(run) for run in runs[method]])
            for method in BASELINES
        },
    }


def compared(found: list[Any], others: list[Any]) -> dict[str, Any]:
    """The same clients with the own model and with another, over all seeds.

    The mean difference's interval of 95 % is Student's over clients, each one's seeds averaged.
    """
    from scipy.stats import t

    gains = np.array(
        [
            [
                own["clients"][name]["accuracy"] - other["clients"][name]["accuracy"]
                for name in own["clients"]
            ]
            for own, other in zip(found, others, strict=True)
        ]
    )  # shape: (seeds, clients)
    each = gains.mean(axis=0)
    half = t.ppf(0.975, len(each) - 1) * each.std(ddof=1) / np.sqrt(len(each))
    return {
        "better": int((gains > 0).sum()),
        "equal": int((gains == 0).sum()),
        "worse": int((gains < 0).sum()),
        "mean": round(float(each.mean()), 4),
        "interval": [round(float(each.mean() - half), 4), round(float(each.mean() + half), 4)],
    }


def mirrored(folder: Path) -> Path:
    """Three people's two arms doing one of two exercises, for ``--quick``."""
    rng = np.random.default_rng(0)
    rows = []
    for n in range(120):
        side, label = n % 2, n // 2 % 2
        wave = np.sin(np.arange(16)[:, None] * (label + 1) + rng.uniform(0, 6, AXES))
        values = (wave * (1 - 2 * side) + 1 - 2 * side).ravel()
        row = {"client": f"person-{n % 6 // 2}-side-{side}", "group": f"side-{side}"}
        rows.append({**row, "label": label, **{f"s{j:03}": v for j, v in enumerate(values)}})
    folder.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(rows).to_parquet(folder / "train.parquet", index=False)
    return folder


EXPERIMENTS = (Experiment("wrists", "natural groups", "10 people's left and right arms", run),)
