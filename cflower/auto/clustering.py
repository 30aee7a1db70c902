"""A division of a cluster's members into parts, and the margin of their similarities.

Not in the paper: its bipartition (Algorithm 1) cuts in two but does not measure significance. Here
the similarity of two members is modelled as one mean per pair of parts plus noise; the residuals
estimate this noise for any model, data and number of entries.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cflower.algorithm.constants import FEW, LEAST_NEXT_TO_ONE
from cflower.algorithm.similarity import ROUNDING, Matrix

Labels = NDArray[np.int32]

MAX_REASSIGNMENTS = 20
"""Most passes of reassignment, and of leaving members out, a limit of work: one or two suffice, but
two members might swap for ever."""


class Clustering(NamedTuple):
    """A division of m members into parts, without those that belong to none for sure."""

    labels: Labels
    """The part of every member, numbered in order of appearance, shape (m,); -1 for none."""
    errors: NDArray[np.float64]
    """Margin, in standard errors, by which each member is nearer to its own part than to the next,
    shape (m,); 0 for members alone in their part, between two parts, or left out."""
    errors_needed: float
    """The margin that makes a member sure."""


@dataclass(frozen=True)
class Parts:
    """Mean similarities of members to parts, without those of vectors to themselves."""

    labels: Labels
    """The part of every member, shape (m,)."""
    sizes: NDArray[np.int64]
    """Number of members, shape (parts,)."""
    pairs: NDArray[np.int64]
    """Number of ordered pairs of members, shape (parts, parts)."""
    means: NDArray[np.float64]
    """Their mean similarity, shape (parts, parts); 0 within a part of one."""
    nearness: NDArray[np.float64]
    """s_ip - s_pp / 2, shape (m, parts): s_ip is the mean similarity of i to p, s_pp within p.

    For unit vectors -‖u_i - g_p‖²/2 up to a term of i, with no vector compared to itself, so
    that small parts are not favoured.
    """

    @classmethod
    def of(cls, similarity: Matrix, labels: Labels) -> "Parts":
        """Average the similarities, shape (m, m), by these labels."""
        diagonal, sizes = np.diag(similarity), np.bincount(labels)
        own = np.arange(len(labels)), labels
        # O(m²), where a product with the (m, parts) indicator matrix takes O(m² parts).
        by_part, starts = np.argsort(labels, kind="stable"), np.cumsum(sizes) - sizes
        sums = np.add.reduceat(similarity[by_part], starts, axis=0, dtype=np.float64).T
        totals = np.add.reduceat(sums[by_part], starts, axis=0)
        pairs = np.outer(sizes, sizes) - np.diag(sizes)
        means = (totals - np.diag(np.bincount(labels, diagonal))) / np.maximum(pairs, 1)
        to_parts = sums / sizes
        to_parts[own] = (sums[own] - diagonal) / np.maximum(sizes[labels] - 1, 1)
        # A part of one has no s_pp: use that of the part it is compared with.
        within = np.diag(means)
        within = np.where(sizes == 1, within[labels, None], within)
        return cls(labels, sizes, pairs, means, to_parts - within / 2)

    @property
    def grouped(self) -> NDArray[np.bool_]:
        """Mask of the members that are not alone in their part, shape (m,)."""
        return np.asarray(self.sizes[self.labels] > 1)


def sure_clustering(similarity: Matrix, noise: NDArray[np.float64], level: float) -> Clustering:
    """Divide the members with `best_parts`, without those that belong to no part for sure.

    Members with a vector of noise alone are left out, and those that are not sure of their part;
    the others are divided again, as long as most members are left. ``noise`` is the expected
    contribution of chance to each squared length, which is 1, shape (m,), and ``level`` the
    probability that chance alone does not make a member sure.

    >>> rows = np.repeat([[1.0, 0.0], [0.0, 1.0]], 3, axis=0) + 0.1 * np.eye(6, 2)
    >>> sure_clustering(rows @ rows.T, np.zeros(6), 0.99).labels
    array([0, 0, 0, 1, 1, 1], dtype=int32)
    """
    size, kept, alone = len(similarity), noise < 1, None
    if 2 * kept.sum() < size:  # most members are at rest
        kept[:] = True
    labels, errors, needed = np.full(size, -1, np.int32), np.zeros(size), 0.0
    for _ in range(MAX_REASSIGNMENTS):
        members = np.flatnonzero(kept)
        if len(members) < FEW:
            break
        among = similarity[np.ix_(members, members)]
        parts = best_parts(among)
        margins, freedom = margin_errors(among, parts)
        from scipy.special import stdtrit

        needed = float(stdtrit(freedom, level))
        if alone is None:  # later, members are alone because the others of their part are left out
            alone = np.isin(np.arange(size), members[~parts.grouped])
        may_be_alone = alone[members] & is_distinct(parts, noise[members])
        usual = np.array([np.median(margins[parts.labels == p]) for p in range(len(parts.sizes))])
        margins[margins < usual[parts.labels] / 2] = 0.0  # they are between two parts
        sure = np.where(parts.grouped, margins > needed, may_be_alone)
        labels, errors = np.full(size, -1, np.int32), np.zeros(size)
        labels[members[sure]] = in_appearance(parts.labels[sure])
        errors[members] = margins
        if sure.all() or 2 * sure.sum() < size:
            break
        kept = labels >= 0
    return Clustering(labels, errors, needed)


def best_parts(similarity: Matrix) -> Parts:
    """The parts of `ward_parts`, reassigned as in k-means: a tree's merges are never undone."""
    parts = Parts.of(similarity, ward_parts(similarity))
    for _ in range(MAX_REASSIGNMENTS):
        nearest = parts.nearness.argmax(axis=1)
        # Members alone in their part stay there.
        labels = in_appearance(np.where(parts.grouped, nearest, parts.labels))
        if np.array_equal(labels, parts.labels):
            break
        parts = Parts.of(similarity, labels)
    return parts


def ward_parts(similarity: Matrix, number: int = 0) -> Labels:
    """Ward's tree of the members, cut into a number of parts or at the largest drop of merges."""
    squares = np.diag(similarity)[:, None] + np.diag(similarity) - 2.0 * similarity
    from scipy.cluster.hierarchy import fcluster, ward
    from scipy.spatial.distance import squareform

    distances = np.sqrt(np.maximum(squareform(squares, checks=False), 0.0))
    merges = ward(distances)
    if number:
        return in_appearance(fcluster(merges, number, criterion="maxclust"))
    heights = merges[:, 2]
    widest = int(np.argmax(np.diff(heights)))
    middle = (heights[widest] + heights[widest + 1]) / 2
    return in_appearance(fcluster(merges, middle, criterion="distance"))


def with_nearest(similarity: Matrix, labels: Labels) -> Labels:
    """These labels, with the nearest part for each member without one (-1).

    >>> rows = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [0.9, 0.1]])
    >>> with_nearest(rows @ rows.T, np.array([0, 0, 1, 1, -1], np.int32))
    array([0, 0, 1, 1, 0], dtype=int32)
    """
    sure = np.flatnonzero(labels >= 0)
    parts = Parts.of(similarity[np.ix_(sure, sure)], labels[sure])
    belongs = labels[sure][:, None] == np.arange(len(parts.sizes))
    nearness = similarity[:, sure] @ belongs / parts.sizes - np.diag(parts.means) / 2
    return np.where(labels < 0, nearness.argmax(axis=1), labels).astype(np.int32)


def margin_errors(similarity: Matrix, parts: Parts) -> tuple[NDArray[np.float64], int]:
    """Each member's margin in standard errors, shape (m,), and the degrees of freedom of these.

    Members alone in their part, or all of them if there is one part, have a margin of 0.
    """
    labels, sizes, pairs, grouped = parts.labels, parts.sizes, parts.pairs, parts.grouped
    errors = np.zeros(len(labels))
    if len(sizes) < 2 or not grouped.any():
        return errors, 1
    nearness, mine = parts.nearness[grouped], labels[grouped]
    own = np.arange(len(mine)), mine
    near = nearness[own]
    nearness[own] = -np.inf
    margins = near - nearness.max(axis=1)
    standard = np.sqrt(1 / (sizes[mine] - 1) + 1 / sizes[nearness.argmax(axis=1)])
    squares = np.einsum("ij,ij->", similarity, similarity, dtype=np.float64)
    squares -= (np.diag(similarity) ** 2).sum()
    residual = max(0.0, float(squares - (pairs * parts.means**2).sum())) / 2
    freedom = max(1, int(pairs.sum() - (pairs > 0).sum() - (sizes > 1).sum()) // 2)
    errors[grouped] = margins / standard / max(np.sqrt(residual / freedom), ROUNDING)
    return errors, freedom


def is_distinct(parts: Parts, noise: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Mask of the members that may be a part of their own, shape (m,).

    Only next to a single part of two or more, if that has `LEAST_NEXT_TO_ONE` members: Algorithm 4
    finds the place of any other. And noise must be less than half of its squared distance.
    """
    large = np.flatnonzero(parts.sizes > 1)
    if len(large) != 1 or parts.sizes[large[0]] < LEAST_NEXT_TO_ONE:
        return np.zeros(len(noise), dtype=bool)
    return np.asarray(~parts.grouped & (1 - 2 * parts.nearness[:, large[0]] > 2 * noise))


def in_appearance(labels: NDArray[Any]) -> Labels:
    """Labels renumbered 0, 1, ... in order of appearance, so that equal cuts look equal.

    >>> in_appearance(np.array([7, 7, 3, 7, 5]))
    array([0, 0, 1, 0, 2], dtype=int32)
    """
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int32)
    rank[np.argsort(first)] = np.arange(len(first), dtype=np.int32)
    return rank[inverse]
