"""The Flower article: three silos that each lack three digits, alone and federated."""

import numpy as np
from numpy.typing import NDArray
from safetensors.torch import load_file
from sklearn.metrics import confusion_matrix
from torch import nn

from cflower.data.examples import Examples
from cflower.data.settings import DataSettings
from cflower.data.sources import load_source
from cflower.learning.models import build_model
from cflower.learning.training import predict
from cflower.runs.record import RunRecord
from reproduction.experiment import Experiment, Results, Setting, read_config, simulate, summary_of

TEST_EXAMPLES = 10_000


def unseen(source: str, seed: int, size: int) -> Examples:
    """The last examples in the order in which runs of this seed take theirs from the source.

    A run with a ``dataset-size`` of at most the others has none of them.
    """
    ordered = load_source(DataSettings(dataset=source, seed=seed))
    return ordered.take(np.arange(len(ordered) - size, len(ordered))).examples()


def saved_model(run: RunRecord, cluster: str, examples: Examples) -> nn.Module:
    """The model of a cluster as the run left it, for examples like these."""
    model = build_model(run.config["model"], examples.input_shape, examples.num_classes, seed=0)
    model.load_state_dict(load_file(run.path / "models" / f"{cluster}.safetensors"))
    return model


def run_silos(setting: Setting) -> Results:
    """Both runs; every model on examples of all digits."""
    source = "digits" if setting.quick else setting.source("mnist")
    small = {"dataset-size": 1297} if setting.quick else {}  # of 1,797 digits
    alone, federated = (
        simulate(setting, name, read_config(name) | {"dataset": source} | small)
        for name in ("article-alone", "article-federated")
    )
    examples = unseen(source, setting.seed, 500 if setting.quick else TEST_EXAMPLES)
    missing = [part.split(",") for part in alone.config["missing-labels"].split(";")]
    own = sorted((name, client["cluster"]) for name, client in summary_of(alone)["clients"].items())
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
