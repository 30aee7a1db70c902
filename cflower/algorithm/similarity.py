"""How alike the clients' updates are: eq. 44, for all pairs in one matrix product."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

Matrix = NDArray[np.floating]

LEAST_SQUARE = 1e-24
"""Squared lengths from here to its inverse are safe in single precision."""


def cosine_similarity(updates: ArrayLike) -> Matrix:
    """Cosine of every pair of updates, eq. 44.

    Parameters
    ----------
    updates : array_like, shape (m, d)
        One flattened update a row.

    Returns
    -------
    ndarray, shape (m, m)
        Symmetric, within [-1, 1], ones on the diagonal. A zero update points nowhere: its
        similarity to every other client is 0, never NaN.

    Examples
    --------
    >>> cosine_similarity([[1.0, 0.0], [2.0, 0.0], [0.0, 0.0], [-3.0, 0.0]])
    array([[ 1.,  1.,  0., -1.],
           [ 1.,  1.,  0., -1.],
           [ 0.,  0.,  1.,  0.],
           [-1., -1.,  0.,  1.]])
    """
    matrix = np.atleast_2d(np.asarray(updates))
    matrix = matrix.astype(np.result_type(matrix, np.float32), copy=False)
    with np.errstate(over="ignore", invalid="ignore"):
        similarity: Matrix = matrix @ matrix.T
    squares = np.diag(similarity)
    if not np.all((squares > LEAST_SQUARE) & (squares < 1 / LEAST_SQUARE)):
        # Zero, or so small or large that squares of its entries leave the range of floats.
        peak = np.abs(matrix).max(axis=1, initial=0.0, keepdims=True)
        matrix = matrix / np.where(peak > 0, peak, 1)
        similarity = matrix @ matrix.T
    lengths = np.sqrt(np.diag(similarity))
    lengths[lengths == 0] = 1
    # A product of a matrix with its own transpose may still differ in the last bit.
    similarity += similarity.T
    similarity /= 2 * np.outer(lengths, lengths)
    np.clip(similarity, -1.0, 1.0, out=similarity)
    np.fill_diagonal(similarity, 1.0)
    return similarity
