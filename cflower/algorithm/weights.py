"""Models and updates as plain vectors."""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.floating]
LARGE = 2**17
"""Entries of a vector of which single precision adds up the squares to a millionth; the sum of 10⁹
is short by a fortieth. Vectors are gone through in blocks of as many, half a megabyte, which stay
in the processor's cache."""


class Weights(NamedTuple):
    """One model θ, or one update Δ, flattened in the reference model's key order."""

    trained: Vector
    """Shape (d,): the learned entries; norms and similarities see only these."""
    carried: Vector
    """Shape (e,): entries that are not trained (BatchNorm statistics, counters, integers)."""


class Difference:
    """The vector θ_i − θ_c, shape (d,), times a factor, of a model as it was received.

    What is read of it is computed then, so that no pass over its `blocks` has all of it in memory.
    """

    def __init__(self, received: Sequence[NDArray[Any]], origin: Vector, factor: float = 1.0):
        self._received, self._origin, self._factor = received, origin, factor
        self._ends = [*accumulate(map(len, received))]
        self.dtype = origin.dtype

    def __len__(self) -> int:
        return len(self._origin)

    def __getitem__(self, place: slice) -> Vector:
        start, stop, _ = place.indices(len(self))
        difference = np.empty(max(stop - start, 0), self.dtype)
        number, at = bisect_right(self._ends, start), start
        with np.errstate(over="ignore", invalid="ignore"):
            while at < stop:
                end = min(self._ends[number], stop)
                begin = at - self._ends[number] + len(self._received[number])
                values = self._received[number][begin : begin + end - at]
                out = difference[at - start : end - start]
                np.subtract(values, self._origin[at:end], out=out, casting="same_kind")
                number, at = number + 1, end
            if self._factor != 1:
                difference *= self.dtype.type(self._factor)
        return difference

    def __mul__(self, factor: float | np.floating) -> "Difference":
        return Difference(self._received, self._origin, self._factor * float(factor))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return self[:].astype(dtype or self.dtype, copy=False)


class Update(NamedTuple):
    """Δ_i of one client, as `Weights`; a large one is computed when it is read."""

    trained: Vector | Difference
    carried: Vector


Rounding = Callable[[Weights], Weights]
"""Rounds a model to the precision that clients receive (integers, half precision)."""


def blocks(vector: Vector | Difference, size: int = LARGE) -> Iterator[tuple[slice, Vector]]:
    """The vector in parts of so many entries, with the place of each.

    >>> [(place.start, len(block)) for place, block in blocks(np.zeros(LARGE + 1))]
    [(0, 131072), (131072, 1)]
    """
    for start in range(0, len(vector), size):
        place = slice(start, min(start + size, len(vector)))
        yield place, vector[place]


def squared(vector: Vector) -> float:
    """The sum of a vector's squares; infinite where its precision cannot hold it."""
    with np.errstate(over="ignore"):
        return float(vector @ vector)


def norm(vector: Vector | Difference) -> float:
    """Euclidean norm as a plain number; infinite where the precision cannot hold it.

    >>> norm(np.array([3.0, 4.0])), norm(np.float32([3e38, 3e38]))
    (5.0, inf)
    """
    return math.sqrt(sum(squared(block) for _, block in blocks(vector)))
