"""FedDrift's streams: every client has fresh examples in every step, of the concept it then has.

Jothimurugesan et al. (AISTATS 2023; microsoft/FedDrift, commit e4ac32f). Labels by concept:

- ``sea``: 1 if the second and third of three numbers from 0 to 10 sum to more than 8, 9, 7 or 9; a
  tenth of the labels is wrong. (In the authors' files the fourth concept is the second again.)
- ``sine``: 1 if y <= sin x, of numbers from 0 to 1; the other way round under the second concept.
- ``circle``: 1 outside of a circle; another one under the second concept.
- images: concepts 1, 2 and 3 swap the labels 1 and 2, 3 and 4, 5 and 6.

As theirs: ten clients, one hidden layer, for the first three twice as wide as the inputs are many.
Differences: SGD in place of Adam, in rounds of two epochs, so `sea` is divided by ten; 500 examples
of a step to train on and 125 held out of the same step, where the authors test on the next one's.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from peers.levels import images_of
from torch import nn

from cflower.seeding import generator
from families.drifting import Table
from families.planted import Keys

STREAM = "stream"
"""In place of a shift."""
CONCEPT = "concept"
"""The column that judges, and shows that a run config is of a stream."""
EXAMPLES = 625
"""Of a client in a step; a fifth is held out."""
THRESHOLDS = (0.8, 0.9, 0.7, 0.9)
CIRCLES = ((0.2, 0.5, 0.15), (0.6, 0.5, 0.25))
"""Centre and radius."""
SWAPS = ((0, 0), (1, 2), (3, 4), (5, 6))
Points = tuple[NDArray[Any], NDArray[Any]]
"""A client's examples of one step, and their labels."""


def sea(concept: int, rng: np.random.Generator) -> Points:
    """By the sum of two of three numbers, a tenth of them wrong."""
    x = rng.random((EXAMPLES, 3)).astype(np.float32)
    return x, (x[:, 1] + x[:, 2] > THRESHOLDS[concept]) ^ (rng.random(EXAMPLES) < 0.1)


def sine(concept: int, rng: np.random.Generator) -> Points:
    """Below the curve, or above it."""
    x = rng.random((EXAMPLES, 2)).astype(np.float32)
    return x, (x[:, 1] <= np.sin(x[:, 0])) ^ (False, True)[concept]


def circle(concept: int, rng: np.random.Generator) -> Points:
    """Outside of a circle."""
    x, (left, low, radius) = rng.random((EXAMPLES, 2)).astype(np.float32), CIRCLES[concept]
    return x, np.hypot(x[:, 0] - left, x[:, 1] - low) > radius


GENERATED = {"sea": sea, "sine": sine, "circle": circle}


def written(data: str, folder: str, scheme: Table, seed: int, place: Path) -> Keys:
    """The run config of a stream, whose steps are then the folders ``place / "0"``, ...

    ``data`` is one of `GENERATED`, or the name of the images in `folder`; ``scheme`` has the
    clients' concepts.
    """
    rng = generator(seed, "stream", data)
    unused = rng.permutation(0 if data in GENERATED else len(images_of(Path(folder))[1]))
    for step, concepts in enumerate(scheme):
        parts = []
        for concept in concepts:
            mine, unused = unused[:EXAMPLES], unused[EXAMPLES:]
            made = GENERATED.get(data)
            parts.append(made(concept, rng) if made else swapped(folder, concept, mine))
        (place / str(step)).mkdir(parents=True, exist_ok=True)
        np.savez(
            place / str(step) / "train.npz",
            x=np.concatenate([x for x, _ in parts]),
            y=np.concatenate([y for _, y in parts]).astype(np.int64),
            client=np.repeat(np.arange(len(concepts)), EXAMPLES),
            **{CONCEPT: np.repeat(np.array([f"concept {c}" for c in concepts]), EXAMPLES)},
        )
    return {
        "model": f"{__name__}:twice_as_wide" if data in GENERATED else "mlp",
        "dataset": str(place / "0"),
        "shift": "none",
        "partitioner": "natural-id",
        "natural-id-column": "client",
        "group-column": CONCEPT,
        "local-epochs": 2,
        "batch-size": 50,
        "learning-rate": 0.3 if data in GENERATED else 0.1,
        "learning-rate-decay": 1.0,
        "momentum": 0.5,
    }


def swapped(folder: str, concept: int, mine: NDArray[np.int64]) -> Points:
    """These images, two of their labels swapped."""
    images, labels = images_of(Path(folder))
    mapping = np.arange(int(labels.max()) + 1)
    mapping[list(SWAPS[concept])] = SWAPS[concept][::-1]
    return images[mine], mapping[labels[mine]]


def as_of(config: Mapping[str, Any], server_round: int, rounds: int, steps: int) -> dict[str, Any]:
    """The run config in a round, with so many steps of so many rounds; no stream's changes."""
    if config["group-column"] != CONCEPT:
        return dict(config)
    step = min(max(server_round - 1, 0) // rounds, steps - 1)
    return {**config, "dataset": str(Path(config["dataset"]).with_name(str(step)))}


def twice_as_wide(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """One hidden layer of twice as many units as there are inputs."""
    return nn.Sequential(
        nn.Linear(input_shape[0], 2 * input_shape[0]),
        nn.ReLU(),
        nn.Linear(2 * input_shape[0], num_classes),
    )
