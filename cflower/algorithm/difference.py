"""A large update without a copy of its own.

Of millions of entries, a pass through memory takes longer than the arithmetic in it. So Δ = θ − θ_c
is made in blocks that stay in the processor's cache, from θ as it came, whenever it is looked at.
"""

from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.floating]

SMALL = 2**17
"""Entries up to which an update is made whole: all of it stays in the cache."""
BLOCK = 2**16
"""Entries of a block, about."""
TOGETHER = 4
"""Updates that are looked at in one pass: so much less is read of the model that they changed and
of their sum, and not much more memory is held than the sum takes."""


class Difference:
    """Δ = θ − θ_c, shape (d,), of θ in arrays one after another; ``np.asarray`` makes it whole.

    >>> np.asarray(Difference([np.array([1.0, 2.0]), np.array([[3.0]])], np.ones(3)))
    array([0., 1., 2.])

    Attributes
    ----------
    presumed : Presumed or None
        The sum that this update is a term of.
    """

    def __init__(self, arrays: Sequence[NDArray[Any]], origin: Vector) -> None:
        self._arrays, self._origin = [array.reshape(-1) for array in arrays], origin
        self.dtype = origin.dtype
        self.presumed: Presumed | None = None

    def __len__(self) -> int:
        return len(self._origin)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Vector:
        whole = np.empty(len(self), self.dtype)
        self.put(0, whole)
        return whole.astype(dtype or self.dtype, copy=False)

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *accumulate(map(len, self._arrays))]

    def put(self, start: int, out: Vector) -> None:
        """Write the entries from ``start`` on into ``out``."""
        number, stop, here = bisect_right(self._starts, start) - 1, start + len(out), start
        while here < stop:
            array, first = self._arrays[number], self._starts[number]
            end = min(stop, first + len(array))
            np.subtract(
                array[here - first : end - first],
                self._origin[here:end],
                out=out[here - start : end - start],
            )
            number, here = number + 1, end


class Presumed(NamedTuple):
    """Σ w_i Δ_i of updates that were looked at together, made in the same pass."""

    total: Vector
    weights: tuple[float, ...]
    """Presumed before the norms were known; if others turn out to count, the sum is of no use."""


class Update(NamedTuple):
    """What a client's training changed: Δ_i = θ_i − θ_c, as `Weights` has the models."""

    trained: Vector | Difference
    carried: Vector
