"""The clients' updates of a cluster in one: their mean (eq. 2), median or trimmed mean."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from cflower.algorithm.weights import LARGE, Difference, Update, Vector, Weights, blocks

Aggregation = Literal["fedavg", "fedmedian", "fedtrimmedavg"]
AGGREGATIONS: tuple[Aggregation, ...] = ("fedavg", "fedmedian", "fedtrimmedavg")
"""By the names of Flower's strategies."""
MEDIAN = 0.5
"""The share to trim that leaves the median."""

BLOCK = 2**14
"""Coordinates that are sorted at once, in the processor's cache."""


class WeightedMean:
    """Σ w_i Δ_i / Σ w_i; its memory does not grow with the number of updates.

    A vector of more than `LARGE` entries in single precision is summed in its own precision, as
    FedAvg does: in float64 the sums of large models would take most of a round's time.
    """

    def __init__(self) -> None:
        self._weight, self._sums, self._dtypes = 0.0, list[Vector](), list[Any]()

    def add(self, update: Weights | Update, weight: float, scale: float = 1.0) -> None:
        """Add an update with this weight, shortened by a factor."""
        self._sums = self._sums or [*map(empty_sum, update)]
        self._dtypes = [part.dtype for part in update]
        for total, part in zip(self._sums, update, strict=True):
            add_scaled(total, part, weight * scale)
        self._weight += weight

    def merge(self, other: "WeightedMean") -> None:
        """Add all updates of another one."""
        self._dtypes = other._dtypes
        self._sums = self._sums or [np.zeros_like(total) for total in other._sums]
        for total, more in zip(self._sums, other._sums, strict=True):
            total += more
        self._weight += other._weight

    def mean(self) -> Weights:
        """The mean, in the updates' own precision."""
        pairs = zip(self._sums, self._dtypes, strict=True)
        means = ((total / self._weight).astype(dtype, copy=False) for total, dtype in pairs)
        return Weights(*means)


class TrimmedMean:
    """The coordinate-wise trimmed mean (`trimmed_mean`), which needs all updates in memory.

    Weights do not count, as in Flower's ``FedMedian`` and ``FedTrimmedAvg``.
    """

    def __init__(self, trim: float) -> None:
        self._trim = trim
        self._updates: list[Weights] = []

    def add(self, update: Weights | Update, weight: float, scale: float = 1.0) -> None:
        self._updates.append(Weights(*(np.asarray(p) * p.dtype.type(scale) for p in update)))

    def merge(self, other: "TrimmedMean") -> None:
        self._updates += other._updates

    def mean(self) -> Weights:
        parts = zip(*self._updates, strict=True)
        return Weights(*(trimmed_mean(part, self._trim) for part in parts))


Sum = WeightedMean | TrimmedMean


def trimmed_mean(vectors: Sequence[Vector], trim: float) -> Vector:
    """Mean of each coordinate of vectors of shape (d,), without its largest and smallest values.

    ``trim`` is the share of values that is left out at each end, in (0, 0.5], rounded down; 0.5:
    the median. Yin et al., arXiv 1803.01498.

    >>> vectors = np.array([[1.0], [2.0], [3.0], [4.0], [1000.0]])
    >>> trimmed_mean(vectors, 0.2), trimmed_mean(vectors, MEDIAN)
    (array([3.]), array([3.]))
    """
    size, length, dtype = len(vectors), len(vectors[0]), vectors[0].dtype
    cut, mean = min(int(trim * size), (size - 1) // 2), np.empty(length, dtype)
    for start in range(0, length, BLOCK):
        block = np.stack([vector[start : start + BLOCK] for vector in vectors])
        block.partition((cut, size - 1 - cut), axis=0)
        mean[start : start + BLOCK] = block[cut : size - cut].mean(axis=0, dtype=np.float64)
    return mean


def empty_sum(like: Vector | Difference) -> Vector:
    """Zeros to sum vectors of this kind in."""
    single = like.dtype == np.float32 and len(like) > LARGE
    return np.zeros(len(like), np.float32 if single else np.float64)


def add_scaled(total: Vector, vector: Vector | Difference, scale: float) -> None:
    """Add a multiple of a vector to a sum, in place.

    >>> total = np.array([1.0, 2.0])
    >>> add_scaled(total, np.array([10.0, 20.0]), 0.5)
    >>> total
    array([ 6., 12.])
    """
    for place, block in blocks(vector):
        if total.dtype == np.float64:
            total[place] += scale * np.asarray(block, np.float64)
        else:
            from scipy.linalg.blas import saxpy

            saxpy(block, total[place], a=scale)
