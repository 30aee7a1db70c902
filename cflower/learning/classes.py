"""How good predicted classes are."""

import numpy as np
from numpy.typing import NDArray

Metrics = dict[str, float]
"""``accuracy``: share of right predictions, in [0, 1]; ``f1``: `macro_f1`; ``loss``: mean cross
entropy, in nats."""


def measured(predicted: NDArray[np.integer], labels: NDArray[np.integer], loss: float) -> Metrics:
    """The metrics of predictions, shape (n,), with their mean loss."""
    accuracy = float((predicted == labels).mean())
    return {"accuracy": accuracy, "f1": macro_f1(predicted, labels), "loss": loss}


def macro_f1(predicted: NDArray[np.integer], labels: NDArray[np.integer]) -> float:
    """The mean of each class's F1, 2 tp / (2 tp + fp + fn), over the classes among the labels.

    A rare class counts as much as a frequent one. As `sklearn.metrics.f1_score` with
    ``average="macro"`` and these classes as ``labels``.

    >>> macro_f1(np.array([0, 0, 0, 0]), np.array([0, 0, 0, 1]))
    0.42857142857142855
    """
    most = 1 + max(predicted.max(), labels.max())
    right = np.bincount(labels[predicted == labels], minlength=most)
    held, said = (np.bincount(one, minlength=most) for one in (labels, predicted))
    return float(np.mean((2 * right / np.maximum(held + said, 1))[held > 0]))
