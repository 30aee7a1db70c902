"""Algorithm 1: the two sides whose closest members are as unlike as possible."""

from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cflower.algorithm.similarity import LARGE, ROUNDING, Points
from cflower.seeding import generator

Linkage = Literal["single", "complete"]
LINKAGES: tuple[Linkage, ...] = ("single", "complete")
MOST_PAIRS = 2 * 10**8
"""That are looked at in search of a better tree."""
Sides = tuple[tuple[int, ...], tuple[int, ...]]


class Bipartition(NamedTuple):
    """Two non-empty sides that together hold every client once."""

    first: tuple[int, ...]
    """Positions in the matrix, ascending; the side of position 0."""
    second: tuple[int, ...]
    alpha_cross: float
    """Largest similarity between clients of different sides, eq. 17."""
    loss: float = 0.0
    """``alpha_cross`` is at most so much above the least of all bipartitions."""


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
        With ``alpha_cross`` of the sides found, whichever the linkage; ``loss`` is of single
        linkage only.

    Raises
    ------
    ValueError
        If there are fewer than two clients.

    Examples
    --------
    >>> bipartition([[1.0, 0.9, -0.8], [0.9, 1.0, -0.7], [-0.8, -0.7, 1.0]])
    Bipartition(first=(0, 1), second=(2,), alpha_cross=-0.7, loss=0.0)
    """
    matrix = np.asarray(similarity)
    if len(matrix) < 2:
        raise ValueError(f"Got {len(matrix)} client(s), but a bipartition needs at least 2.")
    first, second = single_sides(matrix) if linkage == "single" else complete_sides(matrix)
    return Bipartition(first, second, float(matrix[np.ix_(first, second)].max()))


def single_sides(similarity: NDArray[np.floating]) -> Sides:
    """What is left of the maximum spanning tree without its weakest edge, in O(m²).

    Prim's algorithm takes the weakest edge of all only when every client that a stronger one could
    reach is in: the order up to there is one side, the rest the other.
    """
    order, strength = spanned(similarity)
    weakest = int(strength.argmin())
    return as_sides(order[:weakest], order[weakest:])


def spanned(similarity: NDArray[np.floating]) -> tuple[NDArray[np.intp], NDArray[Any]]:
    """The maximum spanning tree by Prim's algorithm: whom it adds, and by how strong an edge.

    From position 0 on, each by the strongest edge that leads out of those before; that of 0 is
    infinite.
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
    return order, strength


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


def certified_bipartition(points: Points) -> Bipartition:
    """Algorithm 1 for many clients, by single linkage, without the matrix of all pairs.

    The weakest edge of any spanning tree is a lower bound of ``alpha_cross``. So a tree is made of
    the best edges within a sample, from every client to the sample, and from those worst served by
    it to anyone. As long as an edge that crosses its weakest one is stronger, the best such edges
    join the tree; this ends, at a ``loss`` that is known, once `MOST_PAIRS` were looked at.

    Parameters
    ----------
    points : Points
        Whose inner products are the cosines of the clients' updates.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components, minimum_spanning_tree

    size = len(points.members)
    sample = np.sort(generator(0, "tree", size).choice(size, min(size, LARGE), replace=False))
    everyone, inside = np.arange(size), np.zeros(size, bool)
    inside[sample] = True
    among = points.among(sample)
    order, strengths = spanned(among)
    nearest_before = [among[new, order[:i]].argmax() for i, new in enumerate(order[1:], 1)]
    edges = [(sample[order[1:]], sample[order[nearest_before]], strengths[1:])]
    best: Bipartition | None = None
    looked = 0

    def nearest(of: NDArray[np.intp], among: NDArray[np.bool_]) -> None:
        """Add the strongest edge from each of these to one of those."""
        partner, strength = points.strongest(of, among)
        edges.append((of, partner, strength))

    nearest(everyone[~inside], inside)
    nearest(everyone[~inside][np.argsort(edges[-1][2])[:LARGE]], np.ones(size, bool))
    while True:
        one, other, strength = (np.concatenate(column) for column in zip(*edges, strict=True))
        # An edge that is there twice would count as their sum, and one of length 0 as none.
        keep = np.unique(np.minimum(one, other) * size + np.maximum(one, other), return_index=True)
        one, other, strength = (column[keep[1]] for column in (one, other, strength))
        graph = coo_array((2.0 - strength.astype(float), (one, other)), (size, size))
        tree = minimum_spanning_tree(graph.tocsr()).tocoo()
        weakest = int(tree.data.argmax())
        edges = [(tree.row, tree.col, 2.0 - tree.data)]
        bound = float(2.0 - tree.data[weakest])
        tree.data[weakest] = 0.0
        tree.eliminate_zeros()
        if best is not None and best.alpha_cross - bound < ROUNDING:
            return best
        side = connected_components(tree, directed=False)[1] == 0
        side = side if 2 * side.sum() <= size else ~side
        nearest(everyone[side], ~side)
        alpha_cross = float(edges[-1][2].max())
        if best is None or alpha_cross < best.alpha_cross:
            best = Bipartition(*as_sides(everyone[side], everyone[~side]), alpha_cross)
        looked += int(side.sum())
        loss = max(0.0, best.alpha_cross - bound)
        if loss < ROUNDING or looked * size > MOST_PAIRS:
            return best._replace(loss=loss if loss >= ROUNDING else 0.0)


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
