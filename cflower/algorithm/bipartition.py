"""Algorithm 1: the two sides whose closest members are as unlike as possible."""

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

Linkage = Literal["single", "complete"]
LINKAGES: tuple[Linkage, ...] = ("single", "complete")


class Bipartition(NamedTuple):
    """Two non-empty sides that together hold every client once."""

    first: tuple[int, ...]
    """Positions in the matrix, ascending; the side of position 0."""
    second: tuple[int, ...]
    alpha_cross: float
    """Largest similarity between clients of different sides, eq. 17."""


def bipartition(similarity: ArrayLike, linkage: Linkage = "single") -> Bipartition:
    """Split the clients in two by the cosine matrix of their updates, Algorithm 1.

    Parameters
    ----------
    similarity : array_like, shape (m, m), m >= 2
        Cosine matrix, symmetric.
    linkage : {"single", "complete"}
        ``"single"`` is Algorithm 1: it merges along the largest similarities until two sides
        are left, which minimises ``alpha_cross`` over all bipartitions (eq. 25): it cuts the
        weakest edge of the maximum spanning tree. ``"complete"`` is what the authors' code
        does; it does not minimise ``alpha_cross`` but tells noisy groups apart more often.

    Returns
    -------
    Bipartition
        With ``alpha_cross`` of the sides found, whichever the linkage.

    Raises
    ------
    ValueError
        If there are fewer than two clients.

    Notes
    -----
    The sides are read off the last merge of the dendrogram. Cutting it by a threshold
    (``fcluster``) returns an empty side when similarities tie.

    Examples
    --------
    >>> bipartition([[1.0, 0.9, -0.8], [0.9, 1.0, -0.7], [-0.8, -0.7, 1.0]])
    Bipartition(first=(0, 1), second=(2,), alpha_cross=-0.7)
    """
    # Loads for a second, and a client, which never gets here, starts anew for every message.
    from scipy.cluster.hierarchy import linkage as hierarchy
    from scipy.cluster.hierarchy import to_tree
    from scipy.spatial.distance import squareform

    matrix = np.asarray(similarity)
    if len(matrix) < 2:
        raise ValueError(f"Got {len(matrix)} client(s), but a bipartition needs at least 2.")
    distance = np.maximum(1.0 - matrix, 0.0)
    np.fill_diagonal(distance, 0.0)
    root = to_tree(hierarchy(squareform(distance, checks=False), method=linkage))
    left, right = root.get_left(), root.get_right()
    assert left is not None and right is not None  # a root of m >= 2 leaves has two children
    first, second = sorted(tuple(sorted(side.pre_order())) for side in (left, right))
    return Bipartition(first, second, float(matrix[np.ix_(first, second)].max()))


def largest_safe_gamma(alpha_cross: float) -> float:
    """Right side of eq. 39: the split is correct for every ``gamma_max`` below this.

    >>> largest_safe_gamma(-1.0), round(largest_safe_gamma(0.5), 3)
    (1.0, 0.5)
    """
    return float(np.sqrt((1.0 - alpha_cross) / 2.0))


def separation_gap(similarity: ArrayLike, groups: ArrayLike) -> float:
    """Separation gap g(alpha) of eqs. 28, 48; above 0 the bipartition is correct (Remark 2).

    Parameters
    ----------
    similarity : array_like, shape (m, m)
    groups : array_like, shape (m,)
        The true group of each client. Used to judge, never to decide.

    Examples
    --------
    >>> round(separation_gap([[1.0, 0.9, -0.8], [0.9, 1.0, -0.7], [-0.8, -0.7, 1.0]], [0, 0, 1]), 2)
    1.6
    """
    matrix, labels = np.asarray(similarity), np.asarray(groups)
    intra = matrix[labels[:, None] == labels[None, :]].min()
    return float(intra - bipartition(matrix).alpha_cross)
