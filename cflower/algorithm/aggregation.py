"""The clients' mean update (eq. 2), summed as the replies arrive."""

from collections.abc import Mapping

import numpy as np

from cflower.algorithm.weights import Vector, Weights

LARGE = 2**17
"""Entries from which a vector in single precision is summed in its own precision, as FedAvg does:
in float64 the sums of large models would take most of a round's time."""


class WeightedMean:
    """Σ w_i Δ_i / Σ w_i of every cluster; its memory does not grow with the number of replies.

    Parameters
    ----------
    models : mapping of str to Weights
        The clusters' models by name, for the shapes.
    """

    def __init__(self, models: Mapping[str, Weights]) -> None:
        self._models = models
        self._sums: dict[str, Weights] = {}
        self._weights = dict.fromkeys(models, 0.0)

    def add(self, cluster: str, update: Weights, weight: float, scale: float = 1.0) -> None:
        """Add a member's update with this weight, shortened by a factor."""
        if cluster not in self._sums:
            self._sums[cluster] = Weights(*map(empty_sum, self._models[cluster]))
        for total, part in zip(self._sums[cluster], update, strict=True):
            add_scaled(total, part, weight * scale)
        self._weights[cluster] += weight

    def mean(self, cluster: str) -> Weights:
        """The weighted mean of a cluster; empty vectors if it has no reply."""
        if cluster not in self._sums:
            return Weights(np.zeros(0), np.zeros(0))
        trained, carried = (
            (total / self._weights[cluster]).astype(model.dtype, copy=False)
            for total, model in zip(self._sums[cluster], self._models[cluster], strict=True)
        )
        return Weights(trained, carried)


def empty_sum(like: Vector) -> Vector:
    """Zeros to sum vectors of this kind in."""
    single = like.dtype == np.float32 and len(like) > LARGE
    return np.zeros(len(like), np.float32 if single else np.float64)


def add_scaled(total: Vector, vector: Vector, scale: float) -> None:
    """Add a multiple of a vector to a sum, in place.

    >>> total = np.array([1.0, 2.0])
    >>> add_scaled(total, np.array([10.0, 20.0]), 0.5)
    >>> total
    array([ 6., 12.])
    """
    if total.dtype == np.float64:
        total += scale * np.asarray(vector, np.float64)
        return
    # scipy.linalg takes half a second to load, and a client, which starts anew for every message,
    # never gets here.
    from scipy.linalg.blas import saxpy

    saxpy(vector, total, a=scale)
