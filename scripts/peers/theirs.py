"""Federations of other papers: IFCA's rotated images and PACFL's label skew; FLUX's are `levels`.

IFCA (Ghosh et al., NeurIPS 2020; jichan3751/ifca, commit 61e44b8). MNIST in four rotations, a model
of one hidden layer, ten steps of all examples in a round:

- ``rotated-mnist``: a tenth of the 1,200 clients, 15 rounds, every image in one rotation.
- ``rotated-mnist-1200``: all clients, a tenth of them in each of 30 rounds, where the authors have
  everyone in 300; every image in all four rotations, as theirs. 200 examples to train on, and 33
  held out, because the test images are dealt out too.

And CIFAR-10 in two, ``rotated-cifar``: every image upright and turned by 180 degrees, 200 clients
of 500 examples (and 100 held out), a tenth of them in each round, 5 epochs with batches of 50.
Smaller: FLUX's LeNet5 instead of the TensorFlow tutorial's network of 1.1 million weights, 30
rounds instead of 600, no random crops, flips or contrasts.

PACFL (Vahidian et al., AAAI 2023; MMorafah/PACFL, commit 7ef000d, ``noniid-#label2`` in
``src/utils/utils.py``): ``skew-2`` and ``skew-3``, "20 %" and "30 %". Client i has class i mod 10
and one or two others at random; each class is shared out evenly among those who have it, and a
client is judged on classes of its own. Clients of the same classes are a true group: most are one
alone. As theirs a LeNet5, a part of the clients in a round, momentum 0.5. Smaller: 40 clients of
500 examples, ten of them in each of 30 rounds of 2 epochs, where the authors have 100 of 600, ten
in each of 200 rounds of 10 epochs; batches of 20 and learning rate 0.02 instead of 10 and 0.01.
"""

from collections import Counter
from pathlib import Path

import numpy as np
from families.planted import Keys
from numpy.typing import NDArray

from cflower.seeding import generator
from peers.levels import Images, Level, images_of, saved

NAMES = ("rotated-mnist", "rotated-mnist-1200", "rotated-cifar", "skew-2", "skew-3")
CLIENTS, EXAMPLES, CLASSES = 40, 500, 10
"""Of the label skew; a fifth of the examples is held out."""
IFCA: Keys = {
    "num-groups": 4,
    "model": "peers.levels:one_hidden_layer",
    "local-epochs": 10,
    "batch-size": 200,  # all of them, so ten steps a round
    "learning-rate": 0.1,
    "learning-rate-decay": 1.0,
    "momentum": 0.0,
}
IFCA_CIFAR: Keys = {
    "num-server-rounds": 30,
    "fraction-train": 0.1,
    "validation-fraction": 1 / 6,
    "model": "peers.levels:lenet5",
    "local-epochs": 5,
    "batch-size": 50,
    "learning-rate": 0.02,
    "learning-rate-decay": 0.99,
    "momentum": 0.9,
}
PACFL: Keys = {
    "num-server-rounds": 30,
    "fraction-train": 0.25,
    "model": "peers.levels:lenet5",
    "local-epochs": 2,
    "batch-size": 20,
    "learning-rate": 0.02,
    "learning-rate-decay": 1.0,
    "momentum": 0.5,
}


def federation(name: str, folder: str, seed: int, place: Path) -> Keys:
    """The run config of one of `NAMES`, whose examples may then be in the folder `place`."""
    if name == "rotated-mnist":
        keys = {"dataset": folder, "dataset-size": 30_000, "shift": "rotation"}  # 200 and 50 each
        return IFCA | keys | {"min-available-nodes": 120, "num-server-rounds": 15}
    images, labels = images_of(Path(folder))
    if name == "rotated-mnist-1200":
        keys = {"num-server-rounds": 30, "fraction-train": 0.1, "validation-fraction": 1 / 7}
        return IFCA | saved(rotations(images, labels, (0, 1, 2, 3), 300), place) | keys
    if name == "rotated-cifar":
        return IFCA_CIFAR | saved(rotations(images, labels, (0, 2), 100), place)
    return PACFL | saved(skewed(images, labels, int(name.removeprefix("skew-")), seed), place)


def rotations(
    images: Images, labels: NDArray[np.int64], turns: tuple[int, ...], clients: int
) -> Level:
    """Every image in each rotation (quarter turns), and so many clients for each of them."""
    turned = np.concatenate([np.rot90(images, quarters, (1, 2)) for quarters in turns])
    topic = np.repeat([f"group {group:02}" for group in range(len(turns))], len(labels))
    return Level(turned, np.tile(labels, len(turns)), topic, (clients,) * len(turns))


def skewed(images: Images, labels: NDArray[np.int64], held: int, seed: int) -> Level:
    """Clients of so many classes each."""
    rng = generator(seed, "skew", held)
    clients = [tuple(sorted(classes_of(client, held, rng))) for client in range(CLIENTS)]
    holders = Counter(label for own in clients for label in own)
    shares = {
        label: iter(np.array_split(found[: CLIENTS * EXAMPLES // CLASSES], holders[label]))
        for label in range(CLASSES)
        for found in [rng.permutation(np.flatnonzero(labels == label))]
    }
    parts: dict[tuple[int, ...], list[NDArray[np.int64]]] = {}
    for own in clients:
        parts.setdefault(own, []).append(np.concatenate([next(shares[label]) for label in own]))
    groups = sorted(parts.values(), key=lambda some: -sum(map(len, some)))
    places = [np.concatenate(some) for some in groups]
    names = [f"group {number:02}" for number in range(len(groups))]
    everything = np.concatenate(places)
    topic = np.repeat(names, [len(some) for some in places])
    return Level(images[everything], labels[everything], topic, tuple(map(len, groups)))


def classes_of(client: int, held: int, rng: np.random.Generator) -> set[int]:
    """A client's classes: one in turn, the others by chance."""
    first = client % CLASSES
    others = np.delete(np.arange(CLASSES), first)
    return {first, *rng.choice(others, held - 1, replace=False).tolist()}
