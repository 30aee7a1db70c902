"""The Flower article: three silos that each lack three digits, alone and federated."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cflower.runs.plots import new_figure, save
from reproduction.experiment import Experiment, Results, Setting, read_config, simulate

TEST_EXAMPLES = 10_000


def run_silos(setting: Setting) -> Results:
    """Both runs; every model on examples of all digits."""
    from reproduction.evaluation import confusion_matrix, saved_model, unseen

    source = "digits" if setting.quick else setting.source("mnist")
    small = {"dataset-size": 1297} if setting.quick else {}  # of 1,797 digits
    alone, federated = (
        simulate(setting, name, read_config(name) | {"dataset": source} | small)
        for name in ("article-alone", "article-federated")
    )
    examples = unseen(source, setting.seed, 500 if setting.quick else TEST_EXAMPLES)
    missing = [part.split(",") for part in alone.config["missing-labels"].split(";")]
    own = sorted((name, client["cluster"]) for name, client in alone.summary["clients"].items())
    models = {f"client {i} alone": (alone, cluster) for i, (_, cluster) in enumerate(own, start=1)}
    models["federated"] = (federated, "0")
    return {
        "seed": setting.seed,
        "test_examples": len(examples),
        "classes": list(examples.class_names),
        "missing": missing,
        "models": {
            name: figures(confusion_matrix(saved_model(*model, examples), examples), missing)
            for name, model in models.items()
        },
    }


def figures(confusion: NDArray[np.int64], missing: list[list[str]]) -> Results:
    """Accuracy on all digits, and on those that each client lacks."""
    right, there = confusion.diagonal(), confusion.sum(axis=1)
    digits = [[int(digit) for digit in part] for part in missing]
    return {
        "accuracy": right.sum() / there.sum(),
        "accuracy_on_missing": [right[part].sum() / there[part].sum() for part in digits],
        "confusion": confusion.tolist(),
    }


def draw_silos(results: Results, path: Path) -> None:
    """The confusion matrices, each row in shares of its true class."""
    with new_figure(12, 3.4) as figure:
        for axes, (name, scores) in zip(
            figure.subplots(1, len(results["models"])), results["models"].items(), strict=True
        ):
            confusion = np.array(scores["confusion"])
            axes.imshow(confusion / confusion.sum(axis=1, keepdims=True), cmap="Blues", vmax=1)
            for row, column in zip(*np.nonzero(confusion), strict=True):
                share = confusion[row, column] / confusion[row].sum()
                axes.text(
                    column,
                    row,
                    confusion[row, column],
                    ha="center",
                    va="center",
                    fontsize=4.5,
                    color="white" if share > 0.5 else "black",
                )
            axes.set_xticks(range(len(results["classes"])), results["classes"])
            axes.set_yticks(range(len(results["classes"])), results["classes"])
            axes.grid(visible=False)
            axes.set(title=f"{name}: {scores['accuracy']:.1%}", xlabel="predicted", ylabel="true")
        save(figure, path)


EXPERIMENTS = (
    Experiment(
        "article-silos",
        "article",
        "three clients that each lack three digits: each alone, then federated",
        run_silos,
        draw_silos,
    ),
)
