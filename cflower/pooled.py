"""Figures of all clients' held-out examples together, from counts that the clients send.

A mean over clients cannot show how well a rare class is found: a client without an example of it
has nothing to find. So each client counts, and the server adds the counts up. Two lists of a
client's metrics are such counts, also those of any other app:

- ``confusion``: how many examples of each class got which predicted class, row by row;
- ``score_counts``, of two classes: how many examples of the first class, then of the second, have
  their log-odds of the second class in each of `BINS` bins.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

Counts = dict[str, list[int]]
Interval = list[float]

CONFUSION, SCORES = "confusion", "score_counts"
COUNTS = frozenset({CONFUSION, SCORES})
POOLED = ("f1", "auc")
"""Metrics whose mean over clients is not the figure of all examples."""
MOST_CLASSES = 30
"""Classes up to which clients send counts."""
BINS, WIDTH = 500, 0.05
"""Bins of the log-odds, from -12.5 to 12.5; the first and the last have no end."""
NORMAL = 1.959963984540054
"""The 97.5 % quantile of the normal distribution."""
DRAWS = 1000


@dataclass(frozen=True)
class Share:
    """A figure with its 95 % interval."""

    value: float
    interval: Interval


@dataclass(frozen=True)
class OfClass:
    """How well one class is found among all others; None where there is nothing to count."""

    examples: int
    """Examples of the class."""
    clients: int
    """Clients with an example of it."""
    sensitivity: Share | None
    """Share of its examples that are found (recall)."""
    specificity: Share | None
    """Share of the other examples that are not taken for it."""
    precision: Share | None
    """Share of the predictions of this class that are right."""
    f1: float | None


@dataclass(frozen=True)
class Pooled:
    """The figures of several clients' examples together."""

    examples: int
    clients: int
    confusion: list[list[int]]
    """Row: true class; column: predicted class."""
    accuracy: Share
    f1: Share
    """Macro F1: the mean over the classes that have examples."""
    auc: Share | None
    """Of two classes."""
    classes: list[OfClass]


def counts_of(logits: NDArray[np.floating], labels: NDArray[np.integer]) -> Counts:
    """The counts of one client, from logits, shape (n, classes), and labels, shape (n,).

    None for more than `MOST_CLASSES` classes.

    >>> counts_of(np.array([[2.0, 0.0], [0.0, 1.0]]), np.array([0, 0]))["confusion"]
    [1, 1, 0, 0]
    """
    classes = logits.shape[1]
    if not 1 < classes <= MOST_CLASSES:
        return {}
    cells = labels * classes + logits.argmax(axis=1)
    counts = {CONFUSION: np.bincount(cells, minlength=classes**2).tolist()}
    if classes == 2:
        odds = np.nan_to_num(np.subtract(logits[:, 1], logits[:, 0], dtype=np.float64))
        bins = np.clip(np.floor(odds / WIDTH) + BINS // 2, 0, BINS - 1).astype(np.int64)
        counts[SCORES] = np.bincount(labels * BINS + bins, minlength=2 * BINS).tolist()
    return counts


def pooled(clients: Iterable[Mapping[str, Any]]) -> Pooled | None:
    """The figures of these clients, from their metrics; None if none of them sent counts.

    Counts that are negative, fractional or of another length than most clients' are left out.
    """
    every = list(clients)
    confusions = usable([one.get(CONFUSION) for one in every])
    if not confusions or isqrt(len(confusions[0])) ** 2 != len(confusions[0]):
        return None
    size = isqrt(len(confusions[0]))
    each = np.array(confusions, np.int64).reshape(-1, size, size)
    matrix = each.sum(axis=0)
    if matrix.sum() == 0:
        return None
    scores = usable([one.get(SCORES) for one in every], 2 * BINS) if size == 2 else []
    holding = (each.sum(axis=2) > 0).sum(axis=0).tolist()
    return Pooled(
        int(matrix.sum()),
        len(each),
        matrix.tolist(),
        share(int(np.trace(matrix)), int(matrix.sum())) or Share(0.0, [0.0, 1.0]),
        f1_of(matrix),
        auc_of(*np.array(scores, np.int64).sum(axis=0).reshape(2, BINS)) if scores else None,
        [of_class(matrix, label, holding[label]) for label in range(size)],
    )


def usable(lists: Sequence[Any], length: int = 0) -> list[list[int]]:
    """The lists of whole numbers of one length, most clients' unless it is given."""
    whole = [
        one
        for one in lists
        if isinstance(one, list) and one and all(type(n) is int and 0 <= n < 2**32 for n in one)
    ]
    lengths = [len(one) for one in whole]
    length = length or max(set(lengths), key=lengths.count, default=0)
    return [one for one in whole if len(one) == length]


def of_class(matrix: NDArray[np.int64], label: int, clients: int) -> OfClass:
    """The figures of one class of a confusion matrix."""
    right, total = int(matrix[label, label]), int(matrix.sum())
    actual, predicted = int(matrix[label].sum()), int(matrix[:, label].sum())
    specificity = share(total - actual - predicted + right, total - actual)
    f1 = 2 * right / (actual + predicted) if actual else None
    return OfClass(actual, clients, share(right, actual), specificity, share(right, predicted), f1)


def share(part: int, whole: int) -> Share | None:
    """A share of examples with Wilson's interval; None of none.

    >>> [round(bound, 3) for bound in share(1, 18).interval]
    [0.01, 0.258]
    """
    if not whole:
        return None
    value, z2 = part / whole, NORMAL**2
    middle, scale = (value + z2 / (2 * whole)) / (1 + z2 / whole), 1 + z2 / whole
    half = NORMAL * (value * (1 - value) / whole + z2 / (4 * whole**2)) ** 0.5 / scale
    return Share(value, [max(0.0, middle - half), min(1.0, middle + half)])


def f1_of(matrix: NDArray[np.int64]) -> Share:
    """Macro F1 over the classes with examples, as `sklearn.metrics.f1_score` of these ``labels``.

    The interval is of `DRAWS` from the posterior of how each class is predicted, with Jeffreys'
    prior: unlike resampling, it has a width also where none of three examples was found.
    """
    value, held = float(macro_f1(matrix[None])[0]), matrix.sum(axis=1, keepdims=True)
    rng = np.random.default_rng(0)
    draws = rng.gamma(matrix + 0.5, size=(DRAWS, *matrix.shape))
    draws *= held / draws.sum(axis=2, keepdims=True)
    low, high = np.quantile(macro_f1(draws), (0.025, 0.975))
    return Share(value, [min(float(low), value), max(float(high), value)])


def macro_f1(matrices: NDArray[Any]) -> NDArray[np.floating]:
    right = matrices.diagonal(axis1=1, axis2=2)
    actual, predicted = matrices.sum(axis=2), matrices.sum(axis=1)
    f1 = 2 * right / np.where(actual > 0, actual + predicted, 1)
    mean: NDArray[np.floating] = (f1 * (actual > 0)).sum(axis=1) / (actual > 0).sum(axis=1)
    return mean


def auc_of(first: NDArray[np.integer], second: NDArray[np.integer]) -> Share | None:
    """The area under the ROC curve of counts by score, the lowest first; None without both classes.

    The probability that an example of the second class scores higher than one of the first, where
    equal scores count half.

    >>> auc_of(np.array([1, 1, 0]), np.array([0, 1, 1])).value
    0.875
    """
    sizes = int(first.sum()), int(second.sum())
    if not all(sizes):
        return None
    below = np.cumsum(first) - first / 2  # examples of the first class, for a score of each bin
    value = float(below @ second / sizes[0] / sizes[1])
    return Share(value, auc_interval(value, *sizes))


def auc_interval(value: float, first: int, second: int) -> Interval:
    """The 95 % interval of an AUC of so many examples of each class.

    Newcombe's score interval (Statistics in Medicine 25, 2006, method 5): the values whose own
    variance, that of Hanley and McNeil, explains the observed one. It has a width also where all
    examples are in order, or a class has one example.
    """
    theta = np.linspace(0, 1, 10_001)[1:-1]
    half = (first + second) / 2 - 1
    spread = 1 + half * ((1 - theta) / (2 - theta) + theta / (1 + theta))
    error = np.sqrt(theta * (1 - theta) * spread / first / second)
    inside = theta[np.abs(value - theta) <= NORMAL * error]
    return [min(float(inside.min()), value), max(float(inside.max()), value)]
