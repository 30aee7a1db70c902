"""How alike the clients' updates are: eq. 44, for all pairs in one matrix product.

Of many clients the matrix of all pairs is never made. What a decision asks of it are sums over
parts, and those are inner products with the parts' sums of vectors, see `Points`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cflower.seeding import generator

Matrix = NDArray[np.floating]
Blocks = Iterator[tuple[slice, NDArray[Any]]]
"""Runs of consecutive members, and what is asked of each of them, one a row."""

LARGE = 2_000
"""Of more members than this no matrix of all pairs is made (docs/performance.md)."""
ROUNDING = 1e-6
"""A cosine of float32 vectors is not known better than this."""
BLOCK_ENTRIES = 2**22
"""Entries of the vectors that are looked at together for their products."""
CACHED = 2**17
"""Where it is memory that takes time: these stay in the processor's cache."""
PASSED = 2**19
"""Where every row is looked at once."""

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


def cosines_to(update: NDArray[Any], others: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Cosine of one update to each of some others, shape (m,), as `cosine_similarity` has it.

    >>> cosines_to(np.array([2.0, 0.0]), [np.array([1.0, 1.0]), np.zeros(2)]).round(3)
    array([0.707, 0.   ])
    """
    rows = np.stack([update, *others])
    peak = np.abs(rows).max(axis=1, initial=0.0, keepdims=True)
    rows = rows / np.where(peak > 0, peak, 1)
    lengths = np.linalg.norm(rows, axis=1)
    cosines = rows[1:] @ rows[0] / np.where(lengths > 0, lengths, 1)[1:] / (lengths[0] or 1)
    return np.asarray(np.clip(cosines, -1.0, 1.0))


class Similarities(Protocol):
    """The similarities of every pair of m members, asked for in sums.

    A label below 0 means that a member is in no part.
    """

    @property
    def diagonal(self) -> NDArray[Any]:
        """Of every member with itself, shape (m,)."""

    def sums(self, labels: NDArray[np.integer]) -> tuple[NDArray[Any], Callable[[], Blocks]]:
        """From parts to parts, shape (parts, parts); and from members, each (b, parts)."""

    def squares(self) -> float:
        """Sum of the squares over all ordered pairs of two members."""

    def among(self, some: NDArray[np.integer]) -> Matrix:
        """The matrix of some of the members."""


@dataclass(frozen=True)
class Gram:
    """Similarities whose matrix is at hand."""

    matrix: Matrix

    @property
    def diagonal(self) -> NDArray[Any]:
        """See `Similarities`."""
        return np.diag(self.matrix)

    def sums(self, labels: NDArray[np.integer]) -> tuple[NDArray[Any], Callable[[], Blocks]]:
        """See `Similarities`; everyone must be in a part."""
        sizes = np.bincount(labels)
        # O(m²), where a product with the (m, parts) matrix of who belongs where takes O(m² parts).
        by_part, starts = np.argsort(labels, kind="stable"), np.cumsum(sizes) - sizes
        sums = np.add.reduceat(self.matrix[by_part], starts, axis=0, dtype=np.float64).T
        totals = np.add.reduceat(sums[by_part], starts, axis=0)
        return totals, lambda: iter([(slice(0, len(labels)), sums)])

    def squares(self) -> float:
        """See `Similarities`."""
        squares = np.einsum("ij,ij->", self.matrix, self.matrix, dtype=np.float64)
        return float(squares - (self.diagonal**2).sum())

    def among(self, some: NDArray[np.integer]) -> Matrix:
        """See `Similarities`."""
        return np.asarray(self.matrix[np.ix_(some, some)])


@dataclass(frozen=True)
class Points:
    """Similarities as inner products of vectors: (rows[members] + shift) * scale."""

    rows: NDArray[Any]
    members: NDArray[np.integer]
    """Which rows, shape (m,)."""
    shift: NDArray[np.float32]
    """Shape (k,)."""
    scale: NDArray[np.float32]
    """Shape (m,)."""
    diagonal: NDArray[Any]
    """See `Similarities`."""

    @classmethod
    def of(cls, rows: NDArray[Any], members: NDArray[np.integer], shift: NDArray[Any]) -> "Points":
        """Those of scale 1."""
        ones = np.ones(len(members), np.float32)
        points = cls(rows, members, shift.astype(np.float32), ones, ones)
        squares = [np.einsum("ij,ij->i", vectors, vectors) for _, vectors in points.blocks()]
        return replace(points, diagonal=np.concatenate(squares).astype(float))

    def scaled(self, scale: NDArray[Any]) -> "Points":
        """Those of another scale."""
        together = self.scale * scale.astype(np.float32)
        return replace(self, scale=together, diagonal=self.diagonal * scale**2)

    def cosines(self) -> "Points":
        """Those whose inner products are cosines; a zero vector's are 0."""
        lengths = np.sqrt(self.diagonal)
        return self.scaled(np.divide(1, lengths, where=lengths > 0, out=lengths))

    def blocks(self, entries: int = CACHED) -> Blocks:
        """The vectors themselves, shape (b, k)."""
        for part in blocks(len(self.members), self.rows.shape[1], entries):
            yield part, self._vectors(part)

    def _vectors(self, which: slice | NDArray[np.integer]) -> NDArray[np.float32]:
        rows = widened(self.rows[self.members[which]])
        vectors: NDArray[np.float32] = rows.astype(np.float32, copy=False)
        vectors += self.shift
        vectors *= self.scale[which, None]
        return vectors

    def sums(self, labels: NDArray[np.integer]) -> tuple[NDArray[Any], Callable[[], Blocks]]:
        """See `Similarities`: s_ip is u_i times the sum of the vectors of p."""
        parts, placed = np.arange(labels.max() + 1)[:, None], np.flatnonzero(labels >= 0)
        of_parts = np.zeros((len(parts), self.rows.shape[1]))
        for part in blocks(len(placed), self.rows.shape[1], CACHED):
            some = placed[part]
            of_parts += (labels[some] == parts).astype(np.float32) @ self._vectors(some)
        single = of_parts.T.astype(np.float32)
        return of_parts @ of_parts.T, lambda: ((part, u @ single) for part, u in self.blocks())

    def squares(self) -> float:
        """See `Similarities`: ‖U Uᵀ‖² = ‖Uᵀ U‖², whichever of the two is smaller."""
        own = float((self.diagonal**2).sum())
        if len(self.members) >= self.rows.shape[1]:
            product = sum(vectors.T @ vectors for _, vectors in self.blocks(BLOCK_ENTRIES))
            return float(np.square(product, dtype=np.float64).sum()) - own
        total = 0.0
        for part, vectors in self.blocks(BLOCK_ENTRIES):
            for other, against in self.blocks(BLOCK_ENTRIES):
                if other.start <= part.start:
                    square = np.einsum("ij->", np.square(vectors @ against.T), dtype=np.float64)
                    total += float(square) * (1 + (other.start < part.start))
        return total - own

    def among(self, some: NDArray[np.integer]) -> Matrix:
        """See `Similarities`."""
        vectors = self._vectors(some)
        return np.asarray(vectors @ vectors.T)

    def strongest(
        self, of: NDArray[np.intp], among: NDArray[np.bool_]
    ) -> tuple[NDArray[np.intp], NDArray[Any]]:
        """The member, of those ``among``, that each of ``of`` is most similar to, and how much.

        Nobody is a neighbour of its own.
        """
        partner, strength = np.zeros(len(of), np.intp), np.full(len(of), -np.inf)
        for other in blocks(int(among.sum()), self.rows.shape[1]):
            others = np.flatnonzero(among)[other]
            against = self._vectors(others).T
            for part in blocks(len(of), self.rows.shape[1]):
                found = self._vectors(of[part]) @ against
                found[of[part][:, None] == others] = -np.inf
                place = found.argmax(axis=1)
                reached = found[np.arange(len(place)), place]
                better = reached > strength[part]
                strength[part][better] = reached[better]
                partner[part][better] = others[place[better]]
        return partner, strength


def blocks(size: int, width: int, entries: int = BLOCK_ENTRIES) -> Iterator[slice]:
    """Runs of rows of a matrix that are looked at together.

    >>> [part.stop - part.start for part in blocks(5000, 2048)]
    [2048, 2048, 904]
    """
    step = max(1, entries // max(1, width))
    for start in range(0, size, step):
        yield slice(start, min(start + step, size))


def weighted_sum(weights: NDArray[Any], rows: NDArray[Any]) -> NDArray[Any]:
    """Σ w_i row_i, shape (k,), without a second copy of the rows; blocks add up in float64."""
    total = np.zeros(rows.shape[1])
    for part in blocks(len(rows), rows.shape[1], PASSED):
        block = widened(rows[part])
        total += weights[part].astype(block.dtype) @ block
    return total


def row_lengths(rows: NDArray[Any]) -> NDArray[Any]:
    """Euclidean norms, shape (m,), without a second copy of the rows."""
    some = (widened(rows[part]) for part in blocks(len(rows), rows.shape[1], PASSED))
    return np.concatenate([np.sqrt(np.einsum("ij,ij->i", part, part)) for part in some])


def widened(rows: NDArray[Any]) -> NDArray[Any]:
    """Finite values of half precision in single precision, several times as fast as ``astype``.

    Its bits are moved to where single precision has them; what is then off is the exponent, by 112.
    All others are returned as they are.

    >>> widened(np.float16([-1.5, 6e-8, 0.0])).tolist()
    [-1.5, 5.960464477539063e-08, 0.0]
    """
    if rows.dtype != np.float16:
        return rows
    bits = rows.view(np.int16).astype(np.int32)
    bits <<= 13
    bits &= ~(7 << 28)
    values = bits.view(np.float32)
    values *= np.float32(2.0**112)
    return values


def marks_of(rows: NDArray[Any]) -> NDArray[np.uint64]:
    """A number of every row, shape (m,), the same for two rows only if all their bits are."""
    bits = np.ascontiguousarray(rows).view(f"u{rows.dtype.itemsize}")
    key = generator(0, "distinct").integers(2**64, size=bits.shape[1], dtype=np.uint64)
    return np.concatenate(
        [np.einsum("ij,j->i", bits[part], key) for part in blocks(len(bits), bits.shape[1], PASSED)]
    )
