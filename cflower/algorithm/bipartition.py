"""Algorithm 1: the two sides whose closest members are as unlike as possible."""

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Linkage = Literal["single", "complete"]
LINKAGES: tuple[Linkage, ...] = ("single", "complete")
Sides = tuple[tuple[int, ...], tuple[int, ...]]


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

    Examples
    --------
    >>> bipartition([[1.0, 0.9, -0.8], [0.9, 1.0, -0.7], [-0.8, -0.7, 1.0]])
    Bipartition(first=(0, 1), second=(2,), alpha_cross=-0.7)
    """
    matrix = np.asarray(similarity)
    if len(matrix) < 2:
        raise ValueError(f"Got {len(matrix)} client(s), but a bipartition needs at least 2.")
    first, second = single_sides(matrix) if linkage == "single" else complete_sides(matrix)
    return Bipartition(first, second, float(matrix[np.ix_(first, second)].max()))


def single_sides(similarity: NDArray[np.floating]) -> Sides:
    """What is left of the maximum spanning tree without its weakest edge, in O(m²).

    Prim's algorithm adds the clients to the tree from position 0 on, each by the strongest edge
    that leads out of it. So it takes the weakest edge of all only when every client that a
    stronger one could reach is in: the order up to there is one side, the rest the other.
    """
    size = len(similarity)
    order, strength = np.zeros(size, int), np.full(size, np.inf)
    reach = similarity[0].copy()  # the strongest edge from the tree to each client
    taken = np.zeros(size, similarity.dtype)  # -inf for those in the tree
    taken[0] = -np.inf
    for step in range(1, size):
        reach += taken
        order[step] = nearest = reach.argmax()
        strength[step] = reach[nearest]
        taken[nearest] = -np.inf
        np.maximum(reach, similarity[nearest], out=reach)
    weakest = int(strength.argmin())
    return as_sides(order[:weakest], order[weakest:])


def complete_sides(similarity: NDArray[np.floating]) -> Sides:
    """The last merge of complete linkage.

    Cutting its dendrogram by a threshold (``fcluster``) returns an empty side on ties.
    """
    # Loads for a second, and a client, which never gets here, starts anew for every message.
    from scipy.cluster.hierarchy import linkage
    from scipy.spatial.distance import squareform

    merges = linkage(squareform(1.0 - similarity, checks=False), "complete")[:, :2].astype(int)
    size = len(similarity)
    side = np.zeros(2 * size - 1, int)  # of every client, then of every merge
    side[merges[-1]] = 0, 1
    for merge, parts in zip(range(2 * size - 3, size - 1, -1), merges[-2::-1], strict=True):
        side[parts] = side[merge]
    return as_sides(*(np.flatnonzero(side[:size] == i) for i in (0, 1)))


def as_sides(one: NDArray[np.intp], other: NDArray[np.intp]) -> Sides:
    """The positions of both sides, ascending; that of position 0 first."""
    first, second = sorted(tuple(np.sort(side).tolist()) for side in (one, other))
    return first, second


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
