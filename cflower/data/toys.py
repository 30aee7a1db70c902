"""Toy problems in the plane (the paper's figures 1 and 2): blobs, two classes, two topics.

- ``xor``: blobs at the corners of a square, the label is whether the coordinates differ in sign.
  One line separates the labels of either topic (upper and lower half), none those of both.
- ``axes``: blobs where the axes meet the unit circle, the label is whether x + y > 0. Each
  topic (first and second axis) leaves open what the other decides; one line fits both.
"""

import numpy as np

from cflower.data.columns import Table
from cflower.seeding import generator

TOYS = {
    # centre x, y, label, topic
    "xor": ((-1, 1, 1, "upper"), (1, 1, 0, "upper"), (-1, -1, 0, "lower"), (1, -1, 1, "lower")),
    "axes": ((1, 0, 1, "first"), (-1, 0, 0, "first"), (0, 1, 1, "second"), (0, -1, 0, "second")),
}
PER_BLOB = 100
SPREAD = 0.2
"""Standard deviation of a blob; neighbouring centres are 2 or 1.4 apart."""


def toy(name: str, seed: int) -> Table:
    """One of `TOYS`: 400 points, drawn from the seed, with a column ``topic``."""
    noise = generator(seed, name).normal(0, SPREAD, (len(TOYS[name]), PER_BLOB, 2))
    centres = np.array([blob[:2] for blob in TOYS[name]], dtype=float)
    points = (centres[:, None] + noise).reshape(-1, 2).astype(np.float32)
    labels = np.repeat([blob[2] for blob in TOYS[name]], PER_BLOB)
    topics = np.array([blob[3] for blob in TOYS[name] for _ in range(PER_BLOB)], dtype=object)
    columns = {"image": points, "label": labels, "topic": topics}
    return Table(name, columns, {"label": ("0", "1")})
