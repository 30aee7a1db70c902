"""How alike the clients' updates are: eq. 44, for all pairs in one matrix product."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

Matrix = NDArray[np.floating]


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
    # Scaling by the largest entry first keeps squares of very small or large updates finite.
    peak = np.abs(matrix).max(axis=1, initial=0.0, keepdims=True)
    scaled = matrix / np.where(peak > 0, peak, 1)
    lengths = np.linalg.norm(scaled, axis=1, keepdims=True)
    directions = scaled / np.where(lengths > 0, lengths, 1)
    similarity = np.clip(directions @ directions.T, -1.0, 1.0)
    # A product of a matrix with its own transpose may still differ in the last bit.
    similarity = (similarity + similarity.T) / 2
    np.fill_diagonal(similarity, 1.0)
    return similarity
