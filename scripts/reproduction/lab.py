"""The classroom lab: label shift, label shift with rotation, and what clustering mends."""

from base64 import b64decode
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import mean, pstdev
from typing import TYPE_CHECKING, Any

import numpy as np

from cflower.runs.record import RunRecord
from reproduction.experiment import Experiment, Results, Setting, read_config, simulate
from reproduction.pictures import COLORS, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
        "seed": run.summary["seed"],
        "accuracy": run.summary["metrics"]["accuracy"],
        "mean_accuracy": mean(c["accuracy"] for c in run.summary["clients"].values()),
        "clusters": run.summary["clusters"],
        "splits": run.summary["splits"],
        "adjusted_rand_index": run.summary["adjusted_rand_index"],
        "clients": run.summary["clients"],
        "rounds": rounds(run),
        "classes": run.data["class_names"],
        "label_counts": {n: c["label_counts"] for n, c in run.data["clients"].items()},
        # One client of each group, as the lab shows them.
        "samples": {n: run.data["clients"][n] for n in ("partition-0", "partition-5")},
        "thresholds": {key: run.config[key] for key in ("eps1", "eps2")}
        if run.config["method"] == "clustered"
        else {},
    }


def outcome(run: RunRecord) -> dict[str, Any]:
    """The recorded result of one seed."""
    accuracies = [client["accuracy"] for client in run.summary["clients"].values()]
    return {
        "seed": run.summary["seed"],
        "mean_accuracy": round(mean(accuracies), 4),
        "split_rounds": [split["round"] for split in run.summary["splits"]],
        "adjusted_rand_index": run.summary["adjusted_rand_index"],
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
        for line in run.lines
    ]


def draw_lab(results: Results, path: Path) -> None:
    """Accuracy and norms by round; label histogram and sample images."""
    with new_figure(9, 6, path) as figure:
        axes = figure.subplot_mosaic([["accuracy", "norms"], ["labels", "samples"]])
        draw_rounds(axes["accuracy"], axes["norms"], results)
        draw_labels(axes["labels"], results)
        draw_samples(axes["samples"], results)


def draw_rounds(left: "Axes", right: "Axes", results: Results) -> None:
    """Mean ± std of the clients' accuracies; norm of the mean update, and the largest norm."""
    names = list(dict.fromkeys(line["cluster"] for line in results["rounds"]))
    for color, name in zip(COLORS, names, strict=False):
        lines = [line for line in results["rounds"] if line["cluster"] == name]
        by_round, middle, std, mean_norm, max_norm = (
            np.array([line[key] for line in lines])
            for key in ("round", "accuracy", "std", "mean_norm", "max_norm")
        )
        left.plot(by_round, middle, color=color, label=f"cluster {name}, mean ± std")
        left.fill_between(by_round, middle - std, middle + std, color=color, alpha=0.2, lw=0)
        right.plot(by_round, mean_norm, color=color, label=f"cluster {name}: ‖mean update‖")
        right.plot(by_round, max_norm, ":", color=color, label="largest ‖update‖")
    last = results["rounds"][-1]["round"]
    for key, value in results["thresholds"].items():
        right.axhline(value, color="black", ls="--", lw=1)
        right.text(last, value, f"{key} = {value}", ha="right", va="bottom")
    for axes in (left, right):
        for split in results["splits"]:
            axes.axvline(split["round"], color="black", ls=(0, (1, 2)), lw=1)
    left.set(xlabel="round", ylabel="accuracy", ylim=(max(0, left.get_ylim()[0]), 1))
    right.set(xlabel="round", ylabel="norm", ylim=(0, None))
    left.legend(loc="lower right")
    right.legend(loc="upper right", fontsize=7)


def draw_labels(axes: "Axes", results: Results) -> None:
    """How many training examples of each class every client has, stacked."""
    below = np.zeros(len(results["classes"]))
    for i, (name, counts) in enumerate(results["label_counts"].items()):
        group = results["clients"][name]["cluster"]
        hue = list(results["clusters"]).index(group)
        shade = 0.35 + 0.6 * (i / len(results["label_counts"]))
        axes.bar(results["classes"], counts, bottom=below, color=COLORS[hue], alpha=shade, lw=0)
        below += np.array(counts)
    axes.set(xlabel="class", ylabel="training examples, stacked by client")


def draw_samples(axes: "Axes", results: Results) -> None:
    """A row of images of each of two clients."""
    rows = []
    for sample in results["samples"].values():
        shape = (-1, *sample["sample_shape"])
        images = np.frombuffer(b64decode(sample["sample_images"]), np.uint8).reshape(shape)
        rows.append(np.hstack(list(images[..., 0])))
    height = rows[0].shape[0]
    axes.imshow(np.vstack(rows), cmap="Greys")
    axes.grid(visible=False)
    axes.set_yticks([height * (i + 0.5) for i in range(len(rows))], list(results["samples"]))
    axes.set_xticks([])


def lab(name: str, table: int, what: str) -> Experiment:
    """One of the lab's tables."""
    return Experiment(name, f"lab, Table {table}", what, partial(run_lab, name), draw_lab)


EXPERIMENTS = (
    lab("lab-label-shift", 1, "one model for clients with unevenly spread labels"),
    lab("lab-rotation", 2, "half of them also see their images upside down"),
    lab("lab-cfl", 3, "the same, split into clusters by eps 0.4 / 1.6"),
)
