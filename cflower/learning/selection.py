"""Selects the model that serves a client best, by its own held-out examples (section V-C)."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cflower.learning.classes import measured
from cflower.pooled import counts_of

MetricsAndCounts = dict[str, Any]
"""Metrics, and counts if they are asked for."""

WORST = 1e6
"""Loss in nats of a model with predictions that are not finite."""


class Judged(NamedTuple):
    """How the models on a client's path serve it."""

    levels: dict[str, MetricsAndCounts]
    """Metrics of each model on all examples."""
    best: MetricsAndCounts
    """The chosen level; if these examples choose it themselves, measured by two-fold cross-fitting:
    each half of them is judged by the level that the other half chooses."""
    ensemble: MetricsAndCounts
    """Their predicted probabilities averaged, on all examples."""
    best_level: str
    """The level to use from now on: the given one, or that which all examples choose."""


def judge_path(
    logits: Mapping[str, NDArray[np.floating]],
    labels: NDArray[np.integer],
    rng: np.random.Generator,
    level: int | None = None,
    *,
    counts: bool = False,
) -> Judged:
    """Judge the models on a client's path, their best and their ensemble.

    The logits, shape (n, num_classes), are those of each model on the same n >= 1 examples, the
    most general model first. ``rng`` halves the examples. ``level`` is the best model's position,
    which other examples chose; if not given, these choose. With ``counts``, the metrics include
    those that `cflower.pooled` adds up.
    """

    def mean(losses: NDArray[np.floating]) -> float:
        return float(losses.mean())

    def judged(logits: NDArray[np.floating], loss: float) -> MetricsAndCounts:
        return {**measured(logits, labels, loss), **(counts_of(logits, labels) if counts else {})}

    names, every = list(logits), np.arange(len(labels))
    log_p = log_probabilities(logits)
    with np.errstate(over="ignore", invalid="ignore"):
        mixed = np.logaddexp.reduce(log_p, axis=0) - np.log(len(names))  # shape: (n, num_classes)
    losses = -log_p[:, every, labels]  # shape: (levels, n)
    best = chosen_by_others(losses, rng) if level is None else level
    return Judged(
        {n: judged(log_p[i], mean(losses[i])) for i, n in enumerate(names)},
        judged(log_p[best, every], mean(losses[best, every])),
        judged(mixed, mean(-mixed[every, labels])),
        names[choose(losses) if level is None else level],
    )


def losses_of(
    logits: Mapping[str, NDArray[np.floating]], labels: NDArray[np.integer]
) -> NDArray[np.floating]:
    return -log_probabilities(logits)[:, np.arange(len(labels)), labels]


def log_probabilities(logits: Mapping[str, NDArray[np.floating]]) -> NDArray[np.floating]:
    stacked = np.stack([one.astype(np.float64) for one in logits.values()])
    with np.errstate(over="ignore", invalid="ignore"):  # a model that diverged: NaN stays NaN
        shifted = stacked - stacked.max(axis=2, keepdims=True)
        logs: NDArray[np.floating] = shifted - np.log(np.exp(shifted).sum(axis=2, keepdims=True))
    return logs


def chosen_by_others(losses: NDArray[np.floating], rng: np.random.Generator) -> NDArray[np.integer]:
    """For each half of the examples the level that the other half chooses, shape (n,).

    So every example judges, and none judges a choice that it had a part in.
    """
    half = rng.permutation(losses.shape[1]) < losses.shape[1] // 2
    return np.where(half, choose(losses[:, ~half]), choose(losses[:, half]))


def choose(losses: NDArray[np.floating]) -> int:
    """The most general model that is as good as the best one, to within one standard error.

    ``losses`` are those of each model on each example, shape (levels, n), the most general first.
    The rule of Breiman et al., Classification and Regression Trees (1984), for choosing the
    smallest tree: here "small" is general, and the standard error is that of the mean of the
    paired differences. So models without a significant difference are decided for the one that
    more clients trained.

    >>> choose(np.array([[0.9, 1.1, 1.0], [0.1, 0.2, 0.1]]))
    1
    >>> choose(np.array([[0.1, 2.0, 0.2], [0.3, 0.2, 0.3]]))
    0
    """
    num_examples = losses.shape[1]
    if num_examples < 2:
        return 0
    losses = np.nan_to_num(losses, nan=WORST, posinf=WORST)
    worse_by = losses - losses[losses.mean(axis=1).argmin()]
    error = worse_by.std(axis=1, ddof=1) / np.sqrt(num_examples)
    return int((worse_by.mean(axis=1) <= error).argmax())
