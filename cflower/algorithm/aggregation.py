"""The clients' updates of a cluster in one: their mean (eq. 2), median or trimmed mean."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import mul
from typing import Any, Literal

import numpy as np

from cflower.algorithm.weights import LARGE, Difference, Update, Vector, Weights, blocks
from cflower.settings import Checked, check_choice, number

Aggregation = Literal["fedavg", "fedmedian", "fedtrimmedavg"]
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


class Collected:
    """Updates in memory, for an aggregator that needs all of them at once."""

    def __init__(self, mean: Callable[[Sequence[Vector], Vector], Vector]) -> None:
        self._mean, self._updates, self._weights = mean, list[Weights](), list[float]()

    def add(self, update: Weights | Update, weight: float, scale: float = 1.0) -> None:
        self._updates.append(Weights(*(np.asarray(p) * p.dtype.type(scale) for p in update)))
        self._weights.append(weight)

    def merge(self, other: "Collected") -> None:
        self._updates += other._updates
        self._weights += other._weights

    def mean(self) -> Weights:
        weights = np.array(self._weights) / sum(self._weights)
        parts = zip(*self._updates, strict=True)
        return Weights(*(self._mean(part, weights) if part[0].size else part[0] for part in parts))


Sum = WeightedMean | Collected


class Aggregator(ABC):
    """How the updates of a cluster's members become one; `mean` is all that a rule needs."""

    weighted = True
    """Whether clients with more examples count for more, if the run's ``weighting`` says so."""

    @abstractmethod
    def mean(self, vectors: Sequence[Vector], weights: Vector) -> Vector:
        """The vector in place of these, of the same precision.

        Parameters
        ----------
        vectors : sequence of arrays of shape (d,)
            Each client's update, or its projection, which shows how far the cluster still moves.
            Entries that are not trained are aggregated by themselves.
        weights : array of shape (m,)
            What each client counts for, with a sum of 1.
        """

    def empty(self) -> Sum:
        """A sum to which the updates of a round are added."""
        return Collected(self.mean)


class Average(Aggregator):
    """The weighted mean (eq. 2), for which no update has to be kept."""

    def empty(self) -> Sum:
        return WeightedMean()

    def mean(self, vectors: Sequence[Vector], weights: Vector) -> Vector:
        return sum(map(mul, weights, vectors), np.zeros(len(vectors[0])))


@dataclass(frozen=True)
class TrimmedMean(Checked, Aggregator):
    """The `trimmed_mean` of each coordinate, for which all clients count alike."""

    weighted = False
    beta: float = number(0.2, above=0, most=MEDIAN)

    def mean(self, vectors: Sequence[Vector], weights: Vector) -> Vector:
        return trimmed_mean(vectors, self.beta)


def aggregator_of(name: str, beta: float) -> Aggregator:
    """The rule of Flower's strategy of this name, which trims a share of ``beta`` if it trims."""
    average, median, trimmed = Average(), TrimmedMean(MEDIAN), TrimmedMean(beta)
    rules = {"fedavg": average, "fedmedian": median, "fedtrimmedavg": trimmed}
    return rules[check_choice("aggregation", name, rules)]


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
