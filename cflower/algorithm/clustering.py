"""The parts that a cluster's members fall into, and how far and how surely they are apart.

Not in the paper: its bipartition (Algorithm 1) says how to cut in two, not whether the parts are
more than chance. Here two members' similarity is taken to be one mean per pair of parts and
chance around it; what is left of the similarities after these means tells how much chance there
is, whatever the model, the data and the number of entries.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import fcluster
from scipy.cluster.hierarchy import linkage as hierarchy
from scipy.spatial.distance import squareform

from cflower.algorithm.similarity import Matrix

Labels = NDArray[np.int32]

MAX_REASSIGNMENTS = 20
"""Most passes of reassignment: one or two suffice, but two members might swap for ever."""
ROUNDING = 1e-6
"""A cosine of float32 vectors is not known better than this."""


class Clustering(NamedTuple):
    """A division of a cluster's members into parts, and how good it looks."""

    labels: Labels
    """The part of every member, numbered in order of appearance, shape (m,)."""
    companions: float
    """Share of the members that are not alone in their part."""
    apart: float
    """Over members with company: the least margin by which they are nearer to their own part
    than to the next."""
    standard_errors: float
    """The least margin again, each measured in standard errors of itself."""
    freedom: int
    """Degrees of freedom that the standard error rests on, 0 if there is none."""


class PartStatistics(NamedTuple):
    """The members seen from each of the parts."""

    labels: Labels
    """The part of every member, shape (m,)."""
    sizes: NDArray[np.int64]
    """Of the parts, shape (parts,)."""
    nearness: NDArray[np.float64]
    """s_ip - s_pp / 2, shape (m, parts): s_ip is the mean similarity of i to p, s_pp that within
    p. For unit vectors -‖u_i - g_p‖²/2 up to a term of i, with no vector compared to itself, so
    that small parts are not favoured."""
    pairs: NDArray[np.int64]
    """Number of ordered pairs of members, shape (parts, parts)."""
    means: NDArray[np.float64]
    """Their mean similarity, shape (parts, parts); 0 within a part of one."""


def best_clustering(similarity: Matrix) -> Clustering:
    """Ward's tree of m >= 3 members, cut at the largest drop between two merges, then mended.

    Agglomerative merges are never undone. So every member is then moved to its nearest part, as
    in k-means, until no member moves.

    >>> best_clustering(np.array([[1.0, 0.8, -0.7], [0.8, 1.0, -0.6], [-0.7, -0.6, 1.0]])).labels
    array([0, 0, 1], dtype=int32)
    """
    squares = np.diag(similarity)[:, None] + np.diag(similarity) - 2.0 * similarity
    distances = np.sqrt(np.maximum(squareform(squares, checks=False), 0.0))
    merges = hierarchy(distances, "ward")
    heights = merges[:, 2]
    widest = int(np.argmax(np.diff(heights)))
    middle = (heights[widest] + heights[widest + 1]) / 2
    labels = in_appearance(fcluster(merges, middle, criterion="distance"))
    sight = part_statistics(similarity, labels)
    for _ in range(MAX_REASSIGNMENTS):
        labels, alone = sight.labels, sight.sizes[sight.labels] == 1
        nearest = in_appearance(np.where(alone, labels, sight.nearness.argmax(axis=1)))
        if np.array_equal(nearest, labels):
            break
        sight = part_statistics(similarity, nearest)
    return score(similarity, sight)


def part_statistics(similarity: Matrix, labels: Labels) -> PartStatistics:
    """Means of the similarities between the parts' members, no member with itself."""
    sizes = np.bincount(labels)
    own = np.arange(len(labels)), labels
    # O(m²), where a product with the (m, parts) matrix of who belongs where takes O(m² parts).
    by_part, starts = np.argsort(labels, kind="stable"), np.cumsum(sizes) - sizes
    sums = np.add.reduceat(similarity[by_part], starts, axis=0, dtype=np.float64).T
    sums[own] -= np.diag(similarity)
    others = np.tile(sizes, (len(labels), 1))
    others[own] -= 1
    pairs = np.outer(sizes, sizes) - np.diag(sizes)
    means = np.add.reduceat(sums[by_part], starts, axis=0) / np.maximum(pairs, 1)
    within = np.diag(means)
    # A part of one says nothing of its s_pp: let it be that of the part it is compared with.
    within = np.where(sizes == 1, within[labels][:, None], within)
    return PartStatistics(labels, sizes, sums / np.maximum(others, 1) - within / 2, pairs, means)


def score(similarity: Matrix, sight: PartStatistics) -> Clustering:
    """How far and how surely the parts seen are apart."""
    labels, sizes, nearness, pairs, means = sight
    company = sizes[labels] > 1
    companions = float(company.mean())
    if len(sizes) < 2 or not company.any():
        return Clustering(labels, companions, 0.0, 0.0, 0)
    own = np.arange(len(labels)), labels
    elsewhere = nearness.copy()
    elsewhere[own] = -np.inf
    next_part = elsewhere.argmax(axis=1)
    margins = nearness[own] - elsewhere.max(axis=1)
    squares = np.einsum("ij,ij->", similarity, similarity, dtype=np.float64)
    squares -= float((np.diag(similarity) ** 2).sum())
    left = max(0.0, squares - float((pairs * means**2).sum())) / 2
    freedom = int(pairs.sum() - (pairs > 0).sum() - (sizes > 1).sum()) // 2
    scatter = max(np.sqrt(left / freedom), ROUNDING)
    errors = scatter * np.sqrt(1 / np.maximum(sizes[labels] - 1, 1) + 1 / sizes[next_part])
    least = float(margins[company].min()), float((margins / errors)[company].min())
    return Clustering(labels, companions, *least, freedom)


def in_appearance(labels: NDArray[Any]) -> Labels:
    """Labels renumbered 0, 1, ... in order of appearance, so that equal cuts look equal.

    >>> in_appearance(np.array([7, 7, 3, 7, 5]))
    array([0, 0, 1, 0, 2], dtype=int32)
    """
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int32)
    rank[np.argsort(first)] = np.arange(len(first), dtype=np.int32)
    return rank[inverse]
