"""The FedAvg notebook: what averaging does to models, and its grid, on MNIST and HAM10000."""

from collections.abc import Mapping
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

import numpy as np

from cflower.runs.plots import COLORS, new_figure, save
from reproduction.experiment import Experiment, Results, Setting, read_config, simulate

if TYPE_CHECKING:
    from flwr.app import Context, Message

    from cflower.data.examples import Examples

SEEDS = 3
TEST_EXAMPLES = 10_000
QUICK = {"model": "cnn"}
"""The digits are too small for the notebook's CNN."""


def starting_apart(message: "Message", context: "Context") -> "Message":
    """Cflower's ClientApp, for a client that trains a first model of its own, not the received."""
    from flwr.app import RecordDict

    from cflower.client_app import app, client_name, data_of
    from cflower.config import RunConfig
    from cflower.learning.models import arrays_of, build_model
    from cflower.messages.arrays import record_of
    from cflower.seeding import torch_seed

    if message.metadata.message_type == "train":
        config = RunConfig.read(context.run_config)
        data = data_of(config, context).train
        seed = torch_seed(config.seed, "own start", client_name(context))
        own = build_model(config.model, data.input_shape, data.num_classes, seed)
        message.content = RecordDict({**message.content, "arrays": record_of(arrays_of(own))})
    return app(message, context)


def run_averaging(setting: Setting) -> Results:
    """Pairs from different and from common first models, then the grid."""
    from reproduction.evaluation import unseen

    seeds = range(setting.seed, setting.seed + (1 if setting.quick else SEEDS))
    source = "digits" if setting.quick else setting.source("mnist")
    keys = read_config("notebook-averaging") | {"dataset": source}
    keys |= QUICK | {"dataset-size": 600} if setting.quick else {}
    models, points, rounds = [2, 3, 5], [25, 50, 100, 200, 500], 5
    if setting.quick:
        models, points, rounds = [2], [25, 50], 2
    results: Results = {"seeds": list(seeds), "pairs": [], "grid": []}
    for seed in seeds:
        examples = unseen(source, seed, 500 if setting.quick else TEST_EXAMPLES)
        results["pairs"].append(pair(setting, keys | {"seed": seed}, examples))
        grid = keys | {"seed": seed, "num-server-rounds": rounds, "local-epochs": 5}
        results["grid"] += run_grid(setting, "notebook-grid", grid, models, points, examples)
    return results


def pair(setting: Setting, keys: Mapping[str, Any], examples: "Examples") -> Results:
    """Accuracy of two clients' models and of their average, for both ways to start."""
    results: Results = {}
    for start, client in (("different", starting_apart), ("common", None)):
        name = f"notebook-pair-{start}-{keys['seed']}"
        # The same training twice: once the models stay apart, once they are averaged.
        apart, averaged = (
            simulate(setting, f"{name}-{method}", {**keys, "method": method}, client=client)
            for method in ("isolated", "federated")
        )
        clusters = [c["cluster"] for _, c in sorted(apart.summary["clients"].items())]
        results[start] = {
            "models": [accuracy(apart, cluster, examples) for cluster in clusters],
            "average": accuracy(averaged, "0", examples),
        }
    return results


def run_grid(
    setting: Setting,
    name: str,
    keys: Mapping[str, Any],
    models: list[int],
    points: list[int],
    examples: "Examples",
) -> list[Results]:
    """Accuracy of the averaged model for so many clients with so many training points each."""
    cells = []
    for clients in models:
        for count in points:
            size = {"min-available-nodes": clients, "dataset-size": clients * round(count / 0.8)}
            place = f"{name}-{keys['seed']}-{clients}-{count}-{keys['learning-rate']}"
            run = simulate(setting, place, {**keys, **size})
            cell = {"seed": keys["seed"], "models": clients, "points": count}
            cells.append(cell | {"accuracy": accuracy(run, "0", examples)})
    return cells


def accuracy(run: Any, cluster: str, examples: "Examples") -> float:
    """Of a cluster's saved model."""
    from cflower.learning import evaluate
    from reproduction.evaluation import saved_model

    return evaluate(saved_model(run, cluster, examples), examples)["accuracy"]


def draw_averaging(results: Results, path: Path) -> None:
    """Both pairs before and after averaging, and the grid."""
    with new_figure(9, 3.4) as figure:
        left, right = figure.subplots(1, 2)
        for i, start in enumerate(("different", "common")):
            found = np.array(
                [[*pair[start]["models"], pair[start]["average"]] for pair in results["pairs"]]
            )
            places = np.arange(3) + 4 * i
            left.bar(places, found.mean(axis=0), color=COLORS[i], label=f"{start} first weights")
            left.plot(np.tile(places, (len(found), 1)), found, ".", color="black")
        names = ["model A", "model B", "average"]
        left.set_xticks([0, 1, 2, 4, 5, 6], names * 2, rotation=20)
        left.set(ylabel="accuracy", ylim=(0, 1))
        left.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
        draw_grid(right, results["grid"])
        save(figure, path)


def draw_grid(axes: Any, grid: list[Results]) -> None:
    """A line for each number of models: mean over the seeds, from lowest to highest."""
    for color, models in zip(COLORS, sorted({cell["models"] for cell in grid}), strict=False):
        points = sorted({cell["points"] for cell in grid})
        found = [
            [c["accuracy"] for c in grid if (c["models"], c["points"]) == (models, count)]
            for count in points
        ]
        axes.plot(points, list(map(mean, found)), "o-", color=color, label=f"{models} models")
        lowest, highest = list(map(min, found)), list(map(max, found))
        axes.fill_between(points, lowest, highest, color=color, alpha=0.15, lw=0)
    axes.set(xlabel="training points per model", ylabel="accuracy of the average")
    axes.set(xscale="log", ylim=(0, 1))
    axes.set_xticks(points, points)
    axes.minorticks_off()
    axes.legend(loc="lower right")


PUBLISHED = {"akiec": 327, "bcc": 514, "bkl": 1099, "df": 115, "mel": 1113, "nv": 6705, "vasc": 142}
"""Images by diagnosis in HAM10000 (Tschandl, Rosendahl, Kittler, 2018)."""


def make_stand_in(folder: Path, source: str, seed: int, share: float) -> None:
    """Images of another source in HAM10000's folder layout.

    Class k of the source stands for the k-th diagnosis; each has its published number of
    images, times ``share``.
    """
    from PIL import Image

    from cflower.data.sources import load_source

    everything = load_source(source, seed=seed)
    labels = everything.labels
    parts = [folder / f"HAM10000_images_part_{n}" for n in (1, 2)]
    for part in parts:
        part.mkdir(parents=True, exist_ok=True)
    rows = ["lesion_id,image_id,dx,dx_type,age,sex,localization"]
    for label, (diagnosis, count) in enumerate(PUBLISHED.items()):
        chosen = np.flatnonzero(labels == label)[: round(count * share)]
        for pixels in everything.take(chosen).examples().inputs:
            name = f"ISIC_{len(rows):07}"
            grey_or_rgb = np.rint(255 * np.broadcast_to(pixels, (3, *pixels.shape[1:])))
            image = Image.fromarray(grey_or_rgb.astype(np.uint8).transpose(1, 2, 0))
            image.resize((80, 60)).save(parts[len(rows) % 2] / f"{name}.jpg", quality=95)
            rows.append(f"HAM_{len(rows):07},{name},{diagnosis},histo,50,unknown,unknown")
    (folder / "HAM10000_metadata.csv").write_text("\n".join([*rows, ""]))


def run_ham10000(setting: Setting) -> Results:
    """The stand-in folder, and the notebook's grid on it with two learning rates."""
    from reproduction.evaluation import unseen

    folder = setting.out / f"ham10000-stand-in-{setting.seed}"
    if not (folder / "HAM10000_metadata.csv").exists():
        source = "digits" if setting.quick else setting.source("cifar10")
        make_stand_in(folder, source, setting.seed, 0.02 if setting.quick else 0.25)
    source = f"ham10000:{folder}"
    keys = read_config("notebook-ham10000") | {"dataset": source, "seed": setting.seed}
    examples = unseen(source, setting.seed, 50 if setting.quick else 500)
    counts = np.bincount(examples.labels, minlength=examples.num_classes)
    results: Results = {
        "seed": setting.seed,
        "images": sum(1 for _ in folder.rglob("*.jpg")),
        "test_examples": len(examples),
        "largest_class": counts.max() / counts.sum(),
        "grid": [],
    }
    models, points = ([2], [50]) if setting.quick else ([2, 3], [50, 200, 500])
    for rate in (0.01,) if setting.quick else (0.01, 0.1):
        cells = run_grid(
            setting, "notebook-ham", keys | {"learning-rate": rate}, models, points, examples
        )
        results["grid"] += [cell | {"learning_rate": rate} for cell in cells]
    return results


def draw_ham10000(results: Results, path: Path) -> None:
    """The grid by learning rate, and the share of the largest class."""
    rates = sorted({cell["learning_rate"] for cell in results["grid"]})
    with new_figure(4.2 * len(rates), 3.2) as figure:
        for axes, rate in zip(figure.subplots(1, len(rates), squeeze=False)[0], rates, strict=True):
            share = results["largest_class"]
            axes.axhline(share, color="black", ls="--", lw=1, label="largest class's share")
            draw_grid(axes, [c for c in results["grid"] if c["learning_rate"] == rate])
            axes.set(title=f"learning rate {rate}")
        save(figure, path)


EXPERIMENTS = (
    Experiment(
        "notebook-averaging",
        "notebook",
        "the average of models with different and with common first weights; the grid",
        run_averaging,
        draw_averaging,
    ),
    Experiment(
        "notebook-ham10000",
        "notebook",
        "the grid on a stand-in in HAM10000's folder layout",
        run_ham10000,
        draw_ham10000,
    ),
)
