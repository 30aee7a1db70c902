"""FLUX's federations: ten clients, four kinds of shift, levels of heterogeneity from 1 to 8.

Fenoglio et al. (NeurIPS 2025) make them with ANDA (alfredoLimo/ANDA, commit 05d0dfb; levels as in
dariofenoglio98/FLUX, commit 43aadbe, ``public/generate_datasets.py``). Every client draws at
random what it has:

- ``px``, P(X): a rotation of 2, 3, 4 or 5 (levels 1 to 4), from level 5 on with one of 3 colours;
- ``py``, P(Y): one of 5 random sets of 11 - level classes;
- ``pyx``, P(Y|X): a permutation of its own among as many labels as the level says;
- ``pxy``, P(X|Y): for as many classes as the level says, a quarter turn of its own each.

So groups are as many as there were different draws: at level 8 of the last two nearly every client
is a group of one.

As theirs: LeNet5, 10 rounds of 2 epochs, momentum 0.9, everyone in every round. Smaller: batches
of 16 instead of 64, so half as many steps, each twice as long (learning rate 0.01, not 0.005).

Differences: a client has 750 examples, not 6,000 (7,000 with the test images, from which all here
are drawn too); those of ``py`` are all different, where ANDA repeats what a client has until it
is as many as before, also on both sides of the division into what is trained on and held out.
"""

from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq
from families.planted import Keys
from numpy.typing import NDArray
from PIL import Image
from torch import nn

from cflower.seeding import generator

CLIENTS, BANK, ANGLES = 10, 5, 4
KINDS = {"px": "P(X)", "py": "P(Y)", "pyx": "P(Y|X)", "pxy": "P(X|Y)"}
LEVELS = tuple(f"flux-{kind}-{level}" for level in range(1, 9) for kind in KINDS)
"""The names of the families."""
EXAMPLES = 750
"""A client's; a fifth is held out."""
COLOURS = (0, 2, 1)
"""The channels that are filled: red, blue and green."""
Images = NDArray[np.uint8]


class Level(NamedTuple):
    """One federation: what each group has, the largest groups first."""

    inputs: Images
    labels: NDArray[np.int64]
    topic: NDArray[Any]
    """The group of every example, by a name."""
    sizes: tuple[int, ...]
    """Clients in each group."""


def written(folder: Path, kind: str, level: int, seed: int, place: Path) -> Keys:
    """The run config of a federation, whose examples are then in the folder `place`."""
    return saved(federation(*images_of(folder), kind, level, EXAMPLES, seed), place) | {
        "num-server-rounds": 10,
        "model": "peers.levels:lenet5",
        "local-epochs": 2,
        "batch-size": 16,
        "learning-rate": 0.01,
        "learning-rate-decay": 1.0,
        "momentum": 0.9,
    }


def saved(made: Level, place: Path) -> Keys:
    """The run-config keys of the clients, whose examples are then in the folder `place`."""
    place.mkdir(parents=True, exist_ok=True)
    np.savez(place / "train.npz", x=made.inputs, y=made.labels, topic=made.topic)
    return {
        "dataset": str(place),
        "shift": "topic",
        "num-groups": len(made.sizes),
        "group-sizes": ",".join(map(str, made.sizes)),
        "min-available-nodes": sum(made.sizes),
    }


@cache
def images_of(folder: Path, files: str = "*.parquet") -> tuple[Images, NDArray[np.int64]]:
    """Every image of a data set in Parquet files, those to test with too, and their labels."""
    tables = [pq.ParquetFile(path).read() for path in sorted(folder.expanduser().glob(files))]
    key = next(name for name in ("image", "img") if name in tables[0].column_names)
    images = [image["bytes"] for table in tables for image in table[key].to_pylist()]
    labels = np.concatenate([table["label"].to_numpy() for table in tables])
    return np.stack([np.asarray(Image.open(BytesIO(file))) for file in images]), labels


def federation(
    images: Images, labels: NDArray[np.int64], kind: str, level: int, examples: int, seed: int
) -> Level:
    """The examples of ten clients.

    Parameters
    ----------
    images : ndarray, shape (n, height, width) or (n, height, width, 3)
    labels : ndarray, shape (n,)
    kind : str
        One of `KINDS`.
    level : int
        1 to 8.
    examples : int
        Of each client.
    seed : int
    """
    rng = generator(seed, "flux", kind, level)
    count = int(labels.max()) + 1
    bank = [frozenset(rng.choice(count, 11 - level, replace=False).tolist()) for _ in range(BANK)]
    chosen = rng.choice(count, level, replace=False)  # the classes that are mixed or turned
    draws = [drawn(rng, kind, level, bank, chosen) for _ in range(CLIENTS)]
    groups = sorted(set(draws), key=lambda draw: (-draws.count(draw), draws.index(draw)))
    free = rng.permutation(len(labels))
    parts: list[tuple[Images, NDArray[np.int64]]] = []
    for draw in groups:
        allowed = np.isin(labels[free], draw) if kind == "py" else np.ones(len(free), bool)
        mine = free[allowed][: examples * draws.count(draw)]
        free = free[~np.isin(free, mine)]
        parts.append(shifted(images[mine], labels[mine], kind, level, draw, chosen))
    topic = np.repeat(np.arange(len(groups)), [len(part[1]) for part in parts])
    return Level(
        np.concatenate([inputs for inputs, _ in parts]),
        np.concatenate([theirs for _, theirs in parts]),
        np.array([f"group {group:02}" for group in topic]),
        tuple(draws.count(draw) for draw in groups),
    )


def drawn(
    rng: np.random.Generator,
    kind: str,
    level: int,
    bank: list[frozenset[int]],
    chosen: NDArray[np.int64],
) -> tuple[Any, ...]:
    """What one client draws of its kind."""
    if kind == "px":
        return int(rng.integers((level - 1) % 4 + 2)), int(rng.integers(3 if level > 4 else 1))
    if kind == "py":
        return tuple(sorted(bank[rng.integers(BANK)]))
    if kind == "pyx":
        return tuple(rng.permutation(chosen).tolist())
    return tuple(rng.integers(ANGLES, size=level).tolist())


def shifted(
    images: Images,
    labels: NDArray[np.int64],
    kind: str,
    level: int,
    draw: tuple[Any, ...],
    chosen: NDArray[np.int64],
) -> tuple[Images, NDArray[np.int64]]:
    """The examples of one group as it sees them."""
    if kind == "px":
        turn, colour = draw
        inputs = rotated(images, 360 * turn / ((level - 1) % 4 + 2))
        if level > 4:
            inputs = inputs if inputs.ndim == 4 else np.repeat(inputs[..., None], 3, axis=3)
            inputs[..., COLOURS[colour]] = 255
        return inputs, labels
    if kind == "pyx":
        mapping = np.arange(int(labels.max()) + 1)
        mapping[chosen] = draw
        return images, mapping[labels]
    inputs = images.copy()
    if kind == "pxy":
        for label, turn in zip(chosen, draw, strict=True):
            inputs[labels == label] = rotated(images[labels == label], 360 * turn / ANGLES)
    return inputs, labels


def rotated(images: Images, degrees: float) -> Images:
    """Turned as ANDA does: Pillow's nearest pixel, the size kept."""
    turned = [np.asarray(Image.fromarray(image).rotate(degrees)) for image in images]
    return np.array(turned, np.uint8).reshape(images.shape)  # also of no image at all


def lenet5(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """FLUX's model; the last of its parts is what comes after the latent vectors."""
    side = (input_shape[1] // 2 - 4) // 2
    return nn.Sequential(
        nn.Conv2d(input_shape[0], 6, 5, padding=2),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Sequential(
            nn.Linear(16 * side * side, 120),
            nn.ReLU(),
            nn.Linear(120, 84),
            nn.ReLU(),
            nn.Linear(84, num_classes),
        ),
    )


def one_hidden_layer(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """IFCA's model of the rotated MNIST: one hidden layer of 200 units."""
    features = input_shape[0] * input_shape[1] * input_shape[2]
    return nn.Sequential(
        nn.Flatten(), nn.Linear(features, 200), nn.ReLU(), nn.Linear(200, num_classes)
    )
