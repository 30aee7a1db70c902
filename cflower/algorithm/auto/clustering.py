"""The parts that a cluster's members fall into, and how far and how surely they are apart.

Not in the paper: its bipartition (Algorithm 1) says how to cut in two, not whether the parts are
more than chance. Here two members' similarity is taken to be one mean per pair of parts and
chance around it; what is left of the similarities after these means tells how much chance there
is, whatever the model, the data and the number of entries.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import fcluster
from scipy.cluster.hierarchy import linkage as hierarchy
from scipy.spatial.distance import squareform

from cflower.algorithm.similarity import LARGE, ROUNDING, Blocks, Gram, Matrix, Similarities
from cflower.seeding import generator

Labels = NDArray[np.int32]

MAX_REASSIGNMENTS = 20
"""Most passes of reassignment: one or two suffice, but two members might swap for ever."""
MAX_ROUNDS_OF_ALL = 5
"""The same for a large cluster, whose parts a sample has found: where they are apart, two do."""
MOST_PARTS = 200
"""That a large cluster is cut into at once: of a sample, smaller ones would have few members."""


class Clustering(NamedTuple):
    """A division of a cluster's members into parts, and how good it looks."""

    labels: Labels
    """The part of every member, numbered in order of appearance, shape (m,)."""
    grouped_share: float
    """Share of the members that are not alone in their part."""
    margin: float
    """Over members with company: the least margin by which they are nearer to their own part
    than to the next."""
    margin_errors: float
    """The least margin again, each measured in standard errors of itself."""
    freedom: int
    """Degrees of freedom that the standard error rests on, 0 if there is none."""


@dataclass(frozen=True)
class Parts:
    """The members seen from each of the parts; no vector is compared to itself."""

    labels: Labels
    """The part of every member, shape (m,); below 0: in none yet."""
    sizes: NDArray[np.int64]
    """Of the parts, shape (parts,)."""
    pairs: NDArray[np.int64]
    """Number of ordered pairs of members, shape (parts, parts)."""
    means: NDArray[np.float64]
    """Their mean similarity, shape (parts, parts); 0 within a part of one."""
    diagonal: NDArray[Any]
    """Of every member's similarity to itself, shape (m,)."""
    sums: Callable[[], Blocks]
    """Of the members' similarities to those of each part, (b, parts) a block."""

    @property
    def company(self) -> NDArray[np.bool_]:
        """Which members are not alone in their part, shape (m,)."""
        return np.asarray(self.sizes[self.labels] > 1)

    @classmethod
    def of(cls, similarity: Similarities, labels: Labels) -> "Parts":
        """Of members with these labels."""
        placed, diagonal = labels >= 0, similarity.diagonal
        sizes = np.bincount(labels[placed])
        totals, sums = similarity.sums(labels)
        totals = totals - np.diag(np.bincount(labels[placed], diagonal[placed]))
        pairs = np.outer(sizes, sizes) - np.diag(sizes)
        return cls(labels, sizes, pairs, totals / np.maximum(pairs, 1), diagonal, sums)

    def nearness(self) -> Blocks:
        """s_ip - s_pp / 2, shape (b, parts): s_ip is the mean similarity of i to p, s_pp within p.

        For unit vectors -‖u_i - g_p‖²/2 up to a term of i, with no vector compared to itself, so
        that small parts are not favoured.
        """
        single = self.sizes == 1
        within = np.diag(self.means)
        # A part of one says nothing of its s_pp: let it be that of the part it is compared with.
        usual = float(within[~single].mean()) if not single.all() else 0.0
        home = np.where(self.labels < 0, usual, within[self.labels])
        for block, sums in self.sums():
            placed = np.flatnonzero(self.labels[block] >= 0)
            own = placed, self.labels[block][placed]
            means = sums / self.sizes
            others = np.maximum(self.sizes[own[1]] - 1, 1)
            means[own] = (sums[own] - self.diagonal[block][placed]) / others
            yield block, means - np.where(single, home[block, None], within) / 2


def best_clustering(similarity: Similarities, most_parts: int | None = None) -> Clustering:
    """Ward's tree of m >= 3 members, cut at the largest drop between two merges, then mended.

    Agglomerative merges are never undone. So every member is then moved to its nearest part, as
    in k-means, until no member moves. Of more than `LARGE` members a sample makes the parts, and
    all others join them in the same way; how far apart the parts are is then measured on all. So a
    poor sample can miss groups, but never make parts that are none.

    Parameters
    ----------
    similarity : Similarities
        Of every pair of the members.
    most_parts : int, optional
        So many parts at most.

    Examples
    --------
    >>> matrix = np.array([[1.0, 0.8, -0.7], [0.8, 1.0, -0.6], [-0.7, -0.6, 1.0]])
    >>> best_clustering(Gram(matrix)).labels
    array([0, 0, 1], dtype=int32)
    """
    return score(similarity, best_parts(similarity, most_parts))


def best_parts(similarity: Similarities, most_parts: int | None = None) -> Parts:
    """The parts of `best_clustering`, not yet measured."""
    size, passes = len(similarity.diagonal), MAX_REASSIGNMENTS
    if size > LARGE:
        passes = MAX_ROUNDS_OF_ALL
        sample = np.sort(generator(0, "sample", size).choice(size, LARGE, replace=False))
        labels = np.full(size, -1, np.int32)
        labels[sample] = best_parts(Gram(similarity.among(sample)), MOST_PARTS).labels
    else:
        labels = ward_parts(similarity.among(np.arange(size)), most_parts)
    before, parts = None, Parts.of(similarity, labels)
    for left in reversed(range(passes)):
        labels = nearest_parts(parts)
        if np.array_equal(labels, parts.labels):
            break
        if before and np.array_equal(labels, before.labels):
            # Some would swap to the end: who moves back in this pass, moves again in the next.
            return parts if left % 2 else before
        before, parts = parts, Parts.of(similarity, labels)
    return parts


def ward_parts(similarity: Matrix, most: int | None = None) -> Labels:
    """Ward's tree of the members, cut at the largest drop between two merges."""
    squares = np.diag(similarity)[:, None] + np.diag(similarity) - 2.0 * similarity
    distances = np.sqrt(np.maximum(squareform(squares, checks=False), 0.0))
    merges = hierarchy(distances, "ward")
    heights = merges[-most:, 2] if most else merges[:, 2]
    widest = int(np.argmax(np.diff(heights)))
    middle = (heights[widest] + heights[widest + 1]) / 2
    return in_appearance(fcluster(merges, middle, criterion="distance"))


def nearest_parts(parts: Parts) -> Labels:
    """The part that every member is nearest to; who is alone stays so."""
    labels = parts.labels.copy()
    for block, nearness in parts.nearness():
        mine = labels[block]
        alone = (mine >= 0) & (parts.sizes[mine] == 1)
        labels[block] = np.where(alone, mine, nearness.argmax(axis=1))
    return in_appearance(labels)


def score(similarity: Similarities, parts: Parts) -> Clustering:
    """How far and how surely the parts are apart."""
    labels, sizes, pairs = parts.labels, parts.sizes, parts.pairs
    company = parts.company
    grouped_share = float(company.mean())
    if len(sizes) < 2 or not company.any():
        return Clustering(labels, grouped_share, 0.0, 0.0, 0)
    apart = surely = np.inf
    for block, nearness in parts.nearness():
        nearness, mine = nearness[company[block]], labels[block][company[block]]
        own = np.arange(len(mine)), mine
        near = nearness[own]
        nearness[own] = -np.inf
        margins = near - nearness.max(axis=1)
        errors = np.sqrt(1 / (sizes[mine] - 1) + 1 / sizes[nearness.argmax(axis=1)])
        apart = min(apart, float(margins.min(initial=np.inf)))
        surely = min(surely, float((margins / errors).min(initial=np.inf)))
    left = max(0.0, similarity.squares() - float((pairs * parts.means**2).sum())) / 2
    freedom = int(pairs.sum() - (pairs > 0).sum() - (sizes > 1).sum()) // 2
    scatter = max(np.sqrt(left / freedom), ROUNDING)
    return Clustering(labels, grouped_share, apart, float(surely / scatter), freedom)


def in_appearance(labels: NDArray[Any]) -> Labels:
    """Labels renumbered 0, 1, ... in order of appearance, so that equal cuts look equal.

    >>> in_appearance(np.array([7, 7, 3, 7, 5]))
    array([0, 0, 1, 0, 2], dtype=int32)
    """
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int32)
    rank[np.argsort(first)] = np.arange(len(first), dtype=np.int32)
    return rank[inverse]
