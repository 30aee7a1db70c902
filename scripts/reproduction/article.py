"""The Flower article: three silos that each lack three digits, alone and federated."""

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import confusion_matrix

from cflower.learning.training import predict
from reproduction.experiment import Experiment, Results, Setting, read_config, simulate

TEST_EXAMPLES = 10_000


def run_silos(setting: Setting) -> Results:
    """Both runs; every model on examples of all digits."""
    from reproduction.evaluation import saved_model, unseen

    source = "digits" if setting.quick else setting.source("mnist")
    small = {"dataset-size": 1297} if setting.quick else {}  # of 1,797 digits
    alone, federated = (
        simulate(setting, name, read_config(name) | {"dataset": source} | small)
        for name in ("article-alone", "article-federated")
    )
    examples = unseen(source, setting.seed, 500 if setting.quick else TEST_EXAMPLES)
    missing = [part.split(",") for part in alone.config["missing-labels"].split(";")]
    own = sorted((name, client["cluster"]) for name, client in alone.summary["clients"].items())
    models = {
        f"client {i} alone": saved_model(alone, cluster, examples)
        for i, (_, cluster) in enumerate(own, start=1)
    }
    models["federated"] = saved_model(federated, "0", examples)
    return {
        "seed": setting.seed,
        "test_examples": len(examples),
        "classes": list(examples.class_names),
        "missing": missing,
        "models": {
            name: figures(examples.labels, predict(model, examples).argmax(axis=1), missing)
            for name, model in models.items()
        },
    }


def figures(
    labels: NDArray[np.int64], predicted: NDArray[np.int64], missing: list[list[str]]
) -> Results:
    """Accuracy on all digits and on those that each client lacks; true class by predicted class."""
    confusion = confusion_matrix(labels, predicted, labels=range(10))
    right, there = confusion.diagonal(), confusion.sum(axis=1)
    digits = [[int(digit) for digit in part] for part in missing]
    return {
        "accuracy": right.sum() / there.sum(),
        "accuracy_on_missing": [right[part].sum() / there[part].sum() for part in digits],
        "confusion": confusion.tolist(),
    }


EXPERIMENTS = (
    Experiment(
        "article-silos",
        "article",
        "three clients that each lack three digits: each alone, then federated",
        run_silos,
    ),
)
