"""A toy problem in the plane (the paper's figure 1): four blobs, two classes, two topics."""

from typing import Any

import numpy as np

from cflower.seeding import generator

PER_BLOB = 100
CENTRES = np.array([(-1, 1), (1, 1), (-1, -1), (1, -1)], float)


def xor() -> dict[str, Any]:
    """The columns of 400 points; the label is whether the coordinates of a centre differ in sign.

    One line separates the labels of either topic (upper and lower half), none those of both.
    """
    noise = generator(0, "xor").normal(0, 0.2, (len(CENTRES), PER_BLOB, 2))
    return {
        "image": (CENTRES[:, None] + noise).reshape(-1, 2).astype(np.float32),
        "label": np.repeat([1, 0, 0, 1], PER_BLOB),
        "topic": np.repeat(["upper", "upper", "lower", "lower"], PER_BLOB),
    }
