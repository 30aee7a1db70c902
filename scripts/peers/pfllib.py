"""PFLlib's own federations (Zhang et al., JMLR 2025; TsingZ0/PFLlib, commit d832e76).

20 clients share 4,000 MNIST images as ``separate_data`` in ``dataset/utils/dataset_utils.py``
does, a quarter of each client's to test on; its model 784-100-10, 20 rounds of 2 epochs, SGD with
rate 0.1 and batches of 20, everyone in every round:

- ``pfllib-pat``: the default, two classes a client in shares of random size. Clients of the same
  two classes are a group.
- ``pfllib-dir``: by Dirichlet distributions with parameter 0.1, its default; no groups.
- ``pfllib-dir-rotation`` and ``pfllib-iid-rotation``: by Dirichlet distributions with parameter
  0.5, and evenly; client i sees its images turned by i mod 4 quarter turns.

Differences: random numbers are this project's; a client has at least 40 images, where PFLlib
demands at most 40 of 4,000; a tenth of each client's are for cflower to decide by, and for the
other methods to train on.
"""

from pathlib import Path

import numpy as np
from families.planted import Keys
from numpy.typing import NDArray
from torch import nn

from cflower.seeding import generator
from peers.levels import images_of
from peers.unseen import Labels, written

CLIENTS, EXAMPLES, CLASSES, LEAST = 20, 4_000, 10, 40
HELD = 2
"""Classes of a client by default."""
KEYS: Keys = {
    "model": "peers.pfllib:dnn",
    "num-server-rounds": 20,
    "local-epochs": 2,
    "batch-size": 20,
    "learning-rate": 0.1,
    "learning-rate-decay": 1.0,
    "momentum": 0.0,
    "validation-fraction": 0.35,
    "decide-fraction": 0.1 / 0.35,
}
NAMES = ("pfllib-pat", "pfllib-dir", "pfllib-dir-rotation", "pfllib-iid-rotation")
Places = list[NDArray[np.int64]]
"""For each client the places of its images."""


def federation(name: str, folder: str, seed: int, place: Path) -> Keys:
    """The run config of one of `NAMES`, whose examples are then in the folder `place`."""
    images, labels = images_of(Path(folder))
    rng = generator(seed, name)
    used = rng.permutation(len(labels))[:EXAMPLES]
    images, labels = images[used].astype(np.float32) / 255, labels[used]
    if name == "pfllib-pat":
        places = by_classes(labels, rng)
        groups = [int(labels[mine].min()) // HELD for mine in places]
    else:
        places = evenly(rng) if "iid" in name else by_dirichlet(labels, name, rng)
        groups = [client % 4 if name.endswith("rotation") else 0 for client in range(CLIENTS)]
    turns = groups if name.endswith("rotation") else [0] * CLIENTS
    made = [
        (np.rot90(images[mine], turn, (1, 2)), labels[mine], group)
        for mine, turn, group in zip(places, turns, groups, strict=True)
    ]
    return KEYS | written(sorted(made, key=lambda client: client[2]), place)


def by_classes(labels: Labels, rng: np.random.Generator) -> Places:
    """``partition = "pat"``: every class to the next clients that have room, in uneven shares."""
    room, places = [HELD] * CLIENTS, [np.zeros(0, np.int64)] * CLIENTS
    for label in range(CLASSES):
        here = np.flatnonzero(labels == label)
        holders = [c for c in range(CLIENTS) if room[c]][: CLIENTS * HELD // CLASSES]
        usual = len(here) / len(holders)
        shares = rng.integers(max(usual / 10, LEAST / CLASSES), usual, len(holders) - 1)
        for client, part in zip(holders, np.split(here, np.cumsum(shares)), strict=True):
            places[client] = np.concatenate([places[client], part])
            room[client] -= 1
    return places


def by_dirichlet(labels: Labels, name: str, rng: np.random.Generator) -> Places:
    """``partition = "dir"``: drawn until everyone has enough; who has its share gets no more."""
    alpha = 0.5 if name.endswith("rotation") else 0.1
    places: Places = []
    while not places or min(map(len, places)) < LEAST:
        places = [np.zeros(0, np.int64)] * CLIENTS
        for label in range(CLASSES):
            here = rng.permutation(np.flatnonzero(labels == label))
            shares = rng.dirichlet(np.full(CLIENTS, alpha))
            shares *= [len(mine) < EXAMPLES / CLIENTS for mine in places]
            ends = (np.cumsum(shares / shares.sum()) * len(here)).astype(int)[:-1]
            parts = np.split(here, ends)
            places = [np.concatenate(pair) for pair in zip(places, parts, strict=True)]
    return places


def evenly(rng: np.random.Generator) -> Places:
    """``niid = False``: as many images of each class for everyone, here by chance."""
    return np.array_split(rng.permutation(EXAMPLES), CLIENTS)


def dnn(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """PFLlib's `DNN`, without the softmax at its end, which its loss has already."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(int(np.prod(input_shape)), 100),
        nn.ReLU(),
        nn.Linear(100, num_classes),
    )
