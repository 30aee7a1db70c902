"""Cosine similarity of the clients' updates, eq. 44."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Matrix = NDArray[np.floating]

ROUNDING = 1e-6
"""Precision of the cosine of two float32 vectors."""


def cosine_similarity(updates: ArrayLike) -> Matrix:
    """Cosine of every pair of updates, shape (m, d), eq. 44.

    Symmetric, within [-1, 1], ones on the diagonal, shape (m, m). The similarity of a zero update
    to every other update is 0, never NaN.

    >>> cosine_similarity([[1.0, 0.0], [2.0, 0.0], [0.0, 0.0], [-3.0, 0.0]])
    array([[ 1.,  1.,  0., -1.],
           [ 1.,  1.,  0., -1.],
           [ 0.,  0.,  1.,  0.],
           [-1., -1.,  0.,  1.]])
    """
    matrix = rescaled(np.atleast_2d(np.asarray(updates)))
    similarity: Matrix = matrix @ matrix.T
    lengths = np.sqrt(np.diag(similarity))
    lengths[lengths == 0] = 1
    # A product of a matrix with its own transpose may still differ in the last bit.
    similarity += similarity.T
    similarity /= 2 * np.outer(lengths, lengths)
    np.clip(similarity, -1.0, 1.0, out=similarity)
    np.fill_diagonal(similarity, 1.0)
    return similarity


def cosines_to(update: NDArray[Any], others: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Cosine of one update to each of several others, shape (m,), with 0 for zero updates.

    >>> cosines_to(np.array([2.0, 0.0]), [np.array([1.0, 1.0]), np.zeros(2)]).round(3)
    array([0.707, 0.   ])
    """
    rows = rescaled(np.stack([update, *others]))
    lengths = np.linalg.norm(rows, axis=1)
    lengths[lengths == 0] = 1
    return np.asarray(np.clip(rows[1:] @ rows[0] / lengths[1:] / lengths[0], -1.0, 1.0))


def rescaled(rows: NDArray[Any]) -> Matrix:
    """The rows times a power of two each, which is exact, so that no square leaves the range."""
    floats = rows.astype(np.result_type(rows, np.float32), copy=False)
    largest = np.maximum(floats.max(axis=1, initial=0), -floats.min(axis=1, initial=0))
    return np.asarray(np.ldexp(floats, -np.frexp(largest)[1][:, None]))
