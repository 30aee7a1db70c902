"""The clients' mean update (eq. 2), summed as replies arrive."""

from collections.abc import Mapping

import numpy as np

from cflower.algorithm.tree import Vector, Weights


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

    def add(self, leaf: str, update: Weights, weight: float, scale: float = 1.0) -> None:
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
            (total.value() / weight).astype(part.dtype)
            for total, part in zip(self._sums[leaf], self._models[leaf], strict=True)
        )
        return Weights(trained, carried)


class StreamingSum:
    """A weighted sum of vectors, in float64.

    For vectors in single precision of more than `SMALL` entries that would take most of a
    round's time: `AT_ONCE` of them after another are summed in their own precision first.

    >>> total = StreamingSum(np.zeros(2))
    >>> total.add(np.array([1.0, 2.0]), 3.0)
    >>> total.add(np.array([1.0, 0.0]), 1.0)
    >>> total.value()
    array([4., 6.])
    """

    SMALL, AT_ONCE = 2**17, 64

    def __init__(self, like: Vector) -> None:
        self._total = np.zeros(len(like))
        large = like.dtype == np.float32 and len(like) > self.SMALL
        self._latest = np.zeros(len(like) if large else 0, np.float32)
        self._count = 0

    def add(self, vector: Vector, weight: float) -> None:
        """Add ``weight`` times a vector."""
        if not len(self._latest):
            self._total += weight * vector.astype(np.float64)
            return
        # Loads for half a second; a client never gets here, and starts anew for every message.
        from scipy.linalg.blas import saxpy

        saxpy(vector, self._latest, a=weight)  # in place
        self._count += 1
        if self._count == self.AT_ONCE:
            self.value()

    def value(self) -> Vector:
        """The sum so far."""
        if self._count:
            self._total += self._latest
            self._latest[:] = 0
            self._count = 0
        return self._total
