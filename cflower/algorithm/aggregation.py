"""The clients' mean update (eq. 2), summed as replies arrive."""

from collections.abc import Mapping

import numpy as np

from cflower.algorithm.difference import (
    BLOCK,
    SMALL,
    TOGETHER,
    Difference,
    Presumed,
    Update,
    Vector,
)
from cflower.algorithm.tree import Weights


class WeightedMean:
    """Σ w_i Δ_i / Σ w_i of every leaf, summed as replies arrive.

    The memory that it takes does not depend on the number of replies.

    Parameters
    ----------
    models : mapping of str to Weights
        Of the leaves by name; give the shapes.
    """

    def __init__(self, models: Mapping[str, Weights]) -> None:
        self._models = models
        self._sums: dict[str, tuple[StreamingSum, StreamingSum]] = {}
        self._weights = dict.fromkeys(models, 0.0)

    def add(self, leaf: str, update: Weights | Update, weight: float, scale: float = 1.0) -> None:
        """Add the update of one member of a leaf, shortened by a factor."""
        if leaf not in self._sums:
            trained, carried = self._models[leaf]
            self._sums[leaf] = StreamingSum(trained), StreamingSum(carried)
        for total, part in zip(self._sums[leaf], update, strict=True):
            total.add(part, weight * scale)
        self._weights[leaf] += weight

    def mean(self, leaf: str) -> Weights:
        """The weighted mean of a leaf; empty vectors if nobody was heard from."""
        if leaf not in self._sums:
            return Weights(np.zeros(0), np.zeros(0))
        weight = self._weights[leaf]
        trained, carried = (
            np.divide(total.value(), weight, np.empty_like(part), casting="same_kind")
            for total, part in zip(self._sums[leaf], self._models[leaf], strict=True)
        )
        return Weights(trained, carried)


class StreamingSum:
    """A weighted sum of vectors, in float64.

    For vectors in single precision of more than `SMALL` entries that would take most of a
    round's time: `AT_ONCE` of them after another are summed in their own precision first, a few in
    one pass, unless that was done when they were looked at, see `Presumed`.

    >>> total = StreamingSum(np.zeros(2))
    >>> total.add(np.array([1.0, 2.0]), 3.0)
    >>> total.add(np.array([1.0, 0.0]), 1.0)
    >>> total.value()
    array([4., 6.])
    """

    AT_ONCE = 64

    def __init__(self, like: Vector) -> None:
        self._total = np.zeros(len(like))
        large = like.dtype == np.float32 and len(like) > SMALL
        self._latest = np.zeros(len(like) if large else 0, np.float32)
        self._waiting: list[tuple[Vector | Difference, float]] = []
        self._count = 0

    def add(self, vector: Vector | Difference, weight: float) -> None:
        """Add ``weight`` times a vector."""
        if not len(self._latest):
            self._total += weight * np.asarray(vector, np.float64)
            return
        waits = self._waiting
        if waits and presumed_of(waits[0][0]) is not presumed_of(vector):
            self._add_waiting()
        waits.append((vector, weight))
        if len(waits) == TOGETHER:
            self._add_waiting()

    def _add_waiting(self) -> None:
        presumed, weights = presumed_of(self._waiting[0][0]), [w for _, w in self._waiting]
        self._count += len(weights)
        if presumed is not None and presumed.weights == tuple(weights):
            self._latest += presumed.total
        else:
            self._add_each()
        self._waiting.clear()
        if self._count >= self.AT_ONCE:
            self.value()

    def _add_each(self) -> None:
        # Loads for half a second; a client never gets here, and starts anew for every message.
        from scipy.linalg.blas import saxpy

        buffer = np.empty(BLOCK, np.float32)
        for start in range(0, len(self._latest), BLOCK):
            latest = self._latest[start : start + BLOCK]
            for vector, weight in self._waiting:
                block = buffer[: len(latest)]
                if isinstance(vector, Difference):
                    vector.put(start, block)
                else:
                    block = vector[start : start + BLOCK]
                saxpy(block, latest, a=weight)  # in place

    def value(self) -> Vector:
        """The sum so far."""
        if self._waiting:
            self._add_waiting()
        if self._count:
            self._total += self._latest
            self._latest[:] = 0
            self._count = 0
        return self._total


def presumed_of(vector: Vector | Difference) -> Presumed | None:
    """The sum that was made when a vector was first looked at."""
    return vector.presumed if isinstance(vector, Difference) else None
