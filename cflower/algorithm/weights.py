"""Models and updates as plain vectors."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.floating]
LARGE = 2**17
"""Entries of a vector of which single precision adds up the squares to a millionth; the sum of 10⁹
is short by a fortieth."""


class Weights(NamedTuple):
    """One model θ, or one update Δ, flattened in the reference model's key order."""

    trained: Vector
    """Shape (d,): the learned entries; norms and similarities see only these."""
    carried: Vector
    """Shape (e,): entries that are averaged along (BatchNorm statistics, counters, integers)."""


Rounding = Callable[[Weights], Weights]
"""Rounds a model to the precision that clients receive (integers, half precision)."""


def norm(vector: Vector) -> float:
    """Euclidean norm as a plain number; infinite where the precision cannot hold it.

    >>> norm(np.array([3.0, 4.0])), norm(np.float32([3e38, 3e38]))
    (5.0, inf)
    """
    with np.errstate(over="ignore"):
        if len(vector) <= LARGE or vector.dtype != np.float32:
            return float(np.linalg.norm(vector))
        blocks = (vector[start : start + LARGE] for start in range(0, len(vector), LARGE))
        return math.sqrt(sum(float(block @ block) for block in blocks))
