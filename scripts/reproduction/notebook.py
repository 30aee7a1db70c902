"""The FedAvg notebook: the mean of two models, FedAvg by clients and examples, and HAM10000."""

import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from cflower.data.settings import DataSettings
from cflower.data.sources import load_source
from cflower.learning.models import build_model
from cflower.learning.settings import TrainingSettings
from cflower.learning.training import evaluate, train
from cflower.seeding import generator
from reproduction.article import saved_model, unseen
from reproduction.experiment import Experiment, Results, Setting, simulate
from reproduction.layouts import HAM10000_NAMES

MODEL = "cnn"
TRAINING = TrainingSettings(
    local_epochs=10, batch_size=50, learning_rate=0.05, learning_rate_decay=1.0, momentum=0.0
)
"""The notebook's batches and epochs; it does not give its learning rate."""
TO_TEST = 5_000
HELD_OUT = 0.2


def run_average(setting: Setting) -> Results:
    """Two models of 600 examples each and their mean, begun apart and begun alike."""
    source = "digits" if setting.quick else setting.source("mnist")
    each = 100 if setting.quick else 600
    settings = replace(TRAINING, local_epochs=1) if setting.quick else TRAINING
    known = load_source(DataSettings(dataset=source, seed=setting.seed))
    parts = [known.take(np.arange(i * each, (i + 1) * each)).examples() for i in range(2)]
    test = unseen(source, setting.seed, 300 if setting.quick else TO_TEST)
    results: Results = {"examples": each, "test_examples": len(test)}
    for name, starts in {"begun apart": (0, 1), "begun alike": (0, 0)}.items():
        models = [build_model(MODEL, *test.sizes, setting.seed + start) for start in starts]
        for number, (model, examples) in enumerate(zip(models, parts, strict=True)):
            train(model, examples, settings, server_round=1, seed=number)
        middle = build_model(MODEL, *test.sizes, seed=0)
        arrays = [model.state_dict() for model in models]
        middle.load_state_dict({key: sum(a[key] for a in arrays) / 2 for key in arrays[0]})
        accuracies = [evaluate(model, test)["accuracy"] for model in (*models, middle)]
        results[name] = dict(zip(("first", "second", "mean"), accuracies, strict=True))
    return results


def run_fedavg(setting: Setting) -> Results:
    """FedAvg of 2, 3 and 5 clients with 25 to 500 examples each, 5 rounds of 5 epochs."""
    source = "digits" if setting.quick else setting.source("mnist")
    counts, sizes = ((2,), (25,)) if setting.quick else ((2, 3, 5), (25, 50, 100, 200, 500))
    return study(setting, source, counts, sizes, rounds=5, epochs=5)


def run_ham10000(setting: Setting) -> Results:
    """FedAvg of 2 and 3 clients on HAM10000, 3 rounds of 3 epochs."""
    folder = lesions(setting.out / "ham10000") if setting.quick else setting.source("ham10000")
    counts, sizes = ((2,), (20,)) if setting.quick else ((2, 3), (50, 200, 500))
    os.environ["HAM10000"] = str(folder)
    return study(setting, "reproduction.layouts:ham10000", counts, sizes, rounds=3, epochs=3)


def study(
    setting: Setting,
    source: str,
    counts: tuple[int, ...],
    sizes: tuple[int, ...],
    rounds: int,
    epochs: int,
) -> Results:
    """The common model's accuracy on examples that no client has, by clients and examples."""
    test = unseen(source, setting.seed, 40 if setting.quick else 2_000)
    accuracy = {}
    for clients in counts:
        for size in sizes:
            keys = {
                "dataset": source,
                "dataset-size": round(clients * size / (1 - HELD_OUT)),
                "shift": "none",
                "model": MODEL,
                "method": "federated",
                "weighting": "uniform",
                "min-available-nodes": clients,
                "validation-fraction": HELD_OUT,
                "num-server-rounds": rounds,
                "local-epochs": epochs,
                "batch-size": TRAINING.batch_size,
                "learning-rate": TRAINING.learning_rate,
                "learning-rate-decay": 1.0,
                "momentum": 0.0,
            }
            name = f"notebook-{re.split('[/:]', source)[-1]}-{clients}-{size}"
            run = simulate(setting, name, keys)
            measured = evaluate(saved_model(run, "0", test), test)["accuracy"]
            accuracy[f"{clients} clients of {size}"] = round(measured, 4)
    most = np.bincount(test.labels).max() / len(test)
    return {"accuracy": accuracy, "test_examples": len(test), "largest_class": round(most, 4)}


def lesions(folder: Path) -> Path:
    """A folder in HAM10000's published layout: noise with the mean of its diagnosis."""
    rows, rng = ["lesion_id,image_id,dx"], generator(0, "lesions")
    for number in range(140):
        part = folder / f"HAM10000_images_part_{1 + number % 2}"
        part.mkdir(parents=True, exist_ok=True)
        kind = number % len(HAM10000_NAMES)
        pixels = np.clip(rng.normal(30 + 30 * kind, 20, (45, 60, 3)), 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(part / f"ISIC_{number:07}.jpg")
        rows.append(f"HAM_{number:07},ISIC_{number:07},{HAM10000_NAMES[kind]}")
    (folder / "HAM10000_metadata.csv").write_text("\n".join(rows) + "\n")
    return folder


EXPERIMENTS = (
    Experiment(
        "notebook-average",
        "notebook, the failure experiment",
        "the mean of two models, begun apart and begun alike",
        run_average,
    ),
    Experiment(
        "notebook-fedavg",
        "notebook, the federated study",
        "FedAvg by clients and examples",
        run_fedavg,
    ),
    Experiment(
        "notebook-ham10000",
        "notebook, HAM10000",
        "FedAvg on skin lesions in their published layout",
        run_ham10000,
    ),
)
