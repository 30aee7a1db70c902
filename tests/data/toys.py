"""Toy problems in the plane (the paper's figures 1 and 2): blobs, two classes, two topics."""

from typing import Any

import numpy as np

from cflower.seeding import generator

PER_BLOB = 100
SPREAD = 0.2
"""Standard deviation of a blob; neighbouring centres are 2 or 1.4 apart."""
Blob = tuple[float, float, int, str]
"""x and y of the centre, label, topic."""


def xor() -> dict[str, Any]:
    """Blobs at the corners of a square; the label is whether the coordinates differ in sign.

    One line separates the labels of either topic (upper and lower half), none those of both.
    """
    return _points(
        "xor", (-1, 1, 1, "upper"), (1, 1, 0, "upper"), (-1, -1, 0, "lower"), (1, -1, 1, "lower")
    )


def _points(name: str, *blobs: Blob) -> dict[str, Any]:
    """The columns of 400 points."""
    noise = generator(0, name).normal(0, SPREAD, (len(blobs), PER_BLOB, 2))
    centres = np.array([blob[:2] for blob in blobs], dtype=float)
    return {
        "image": (centres[:, None] + noise).reshape(-1, 2).astype(np.float32),
        "label": np.repeat([blob[2] for blob in blobs], PER_BLOB),
        "topic": np.repeat([blob[3] for blob in blobs], PER_BLOB),
    }
