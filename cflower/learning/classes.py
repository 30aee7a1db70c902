"""How good predicted classes are."""

import numpy as np
from numpy.typing import NDArray

Scores = dict[str, float]
"""``accuracy``: share of right predictions, in [0, 1]; ``f1``: `macro_f1`, and ``auc``: `auc`, both
only if there are examples of two classes; ``loss``: mean cross entropy, in nats."""


def measured(logits: NDArray[np.floating], labels: NDArray[np.integer], loss: float) -> Scores:
    """The metrics of logits, shape (n, classes), or log-probabilities, with their mean loss.

    Examples of one class only have neither an AUC nor an F1: a client without examples of a rare
    class would count as if it recognised all of them.
    """
    predicted = logits.argmax(axis=1)
    metrics = {"accuracy": float((predicted == labels).mean()), "loss": loss}
    if (labels != labels[0]).any():
        metrics["f1"] = macro_f1(predicted, labels)
        if logits.shape[1] == 2:
            metrics["auc"] = auc(logits[:, 1] - logits[:, 0], labels)
    return metrics


def auc(scores: NDArray[np.floating], labels: NDArray[np.integer]) -> float:
    """The area under the ROC curve of scores for class 1 of two, as `sklearn.metrics`.

    >>> auc(np.array([0.1, 0.4, 0.35, 0.8]), np.array([0, 0, 1, 1]))
    0.75
    """
    scores = np.nan_to_num(scores)
    first, second = np.sort(scores[labels == 0]), scores[labels == 1]
    below, upto = (np.searchsorted(first, second, side) for side in ("left", "right"))
    return float((below + upto).sum() / (2 * len(first) * len(second)))


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
