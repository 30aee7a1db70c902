"""Algorithm 1: the bipartition with the least similarity between its sides."""

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

    @property
    def safe_gamma(self) -> float:
        """Right side of eq. 39: the split is correct for every ``gamma_max`` below this.

        >>> Bipartition((0,), (1,), -1.0).safe_gamma, Bipartition((0,), (1,), 1.0).safe_gamma
        (1.0, 0.0)
        """
        return float(np.sqrt((1.0 - self.alpha_cross) / 2.0))


def bipartition(similarity: ArrayLike, linkage: Linkage = "single") -> Bipartition:
    """Split the clients in two by the cosine matrix of their updates, Algorithm 1.

    Parameters
    ----------
    similarity : array_like, shape (m, m), m >= 2
        Cosine matrix, symmetric.
    linkage : {"single", "complete"}
        ``"single"`` is Algorithm 1: it merges along the largest similarities until two sides
        are left, which minimises ``alpha_cross`` over all bipartitions (eq. 25): it cuts the
        weakest edge of the maximum spanning tree. ``"complete"`` is the linkage of the authors'
        code; it does not minimise ``alpha_cross`` but separates noisy groups more often.

    Examples
    --------
    >>> bipartition([[1.0, 0.9, -0.8], [0.9, 1.0, -0.7], [-0.8, -0.7, 1.0]])
    Bipartition(first=(0, 1), second=(2,), alpha_cross=-0.7)
    """
    from scipy.cluster.hierarchy import linkage as merges
    from scipy.cluster.hierarchy import to_tree
    from scipy.spatial.distance import squareform

    matrix = np.asarray(similarity)
    distances = squareform(1.0 - matrix.astype(np.float64), checks=False)
    last = to_tree(merges(distances, linkage))  # fcluster fails on ties
    first, second = sorted(tuple(sorted(side.pre_order())) for side in (last.left, last.right))
    return Bipartition(first, second, float(matrix[np.ix_(first, second)].max()))
