"""The classroom lab: label shift, label shift with rotation, and what clustering mends."""

from dataclasses import replace
from functools import partial
from statistics import mean, pstdev
from typing import Any

from cflower.runs.record import RunRecord
from cflower.runs.records import Line
from reproduction.experiment import Experiment, Results, Setting, read_config, simulate, summary_of

QUICK = {"dataset": "digits", "dataset-size": 400, "model": "cnn", "num-server-rounds": 3}
SEEDS = 5


def run_lab(name: str, setting: Setting) -> Results:
    """``scripts/experiments/NAME.toml``: the first seed in full, of every seed its result."""
    keys = read_config(name)
    keys |= QUICK if setting.quick else {"dataset": setting.source("mnist")}
    seeds = range(setting.seed, setting.seed + (1 if setting.quick else SEEDS))
    runs = [simulate(replace(setting, seed=seed), name, keys) for seed in seeds]
    run = runs[0]
    return {
        "seeds": [outcome(run) for run in runs],
        "seed": summary_of(run)["seed"],
        "accuracy": summary_of(run)["metrics"]["accuracy"],
        "mean_accuracy": mean(c["accuracy"] for c in summary_of(run)["clients"].values()),
        "clusters": summary_of(run)["clusters"],
        "splits": summary_of(run)["splits"],
        "adjusted_rand_index": summary_of(run)["adjusted_rand_index"],
        "clients": summary_of(run)["clients"],
        "rounds": rounds(run),
        "thresholds": {key: run.config[key] for key in ("eps1", "eps2")}
        if run.config["method"] == "clustered"
        else {},
    }


def outcome(run: RunRecord) -> dict[str, Any]:
    """The recorded result of one seed."""
    accuracies = [client["accuracy"] for client in summary_of(run)["clients"].values()]
    return {
        "seed": summary_of(run)["seed"],
        "mean_accuracy": round(mean(accuracies), 4),
        "split_rounds": [split["round"] for split in summary_of(run)["splits"]],
        "adjusted_rand_index": summary_of(run)["adjusted_rand_index"],
    }


def rounds(run: RunRecord) -> list[dict[str, Any]]:
    """Per round and cluster: both norms, and accuracy over its clients before training."""
    return [
        {
            "round": line["round"],
            "cluster": line["cluster"],
            "mean_norm": round(line["mean_norm"], 4),
            "max_norm": round(line["max_norm"], 4),
            "accuracy": round(mean(c["accuracy"] for c in line["clients"].values()), 4),
            "std": round(pstdev(c["accuracy"] for c in line["clients"].values()), 4),
        }
        for line in map(Line.model_dump, run.lines)
    ]


def lab(name: str, table: int, what: str) -> Experiment:
    """One of the lab's tables."""
    return Experiment(name, f"lab, Table {table}", what, partial(run_lab, name))


EXPERIMENTS = (
    lab("lab-label-shift", 1, "one model for clients with unevenly spread labels"),
    lab("lab-rotation", 2, "half of them also see their images upside down"),
    lab("lab-cfl", 3, "the same, split into clusters by eps 0.4 / 1.6"),
)
