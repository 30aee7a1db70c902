"""Updates kept short: a seeded random projection that preserves norms and cosines.

A count sketch (Charikar, Chen, Farach-Colton, 2002; feature hashing, Weinberger et al., arXiv
0902.2206): every entry is added, with a random sign, to one of k places. Inner products are
preserved in expectation; the error of a cosine has a standard deviation of at most
``sqrt(2 / k)``, whatever the length of the updates: 0.011 for k = 16,384.

Entry i = q k + r (stretch q, offset r < k) is added to place h(i) with sign s(i):

    h(i) = (r + shift_q) mod k
    s(i) = flip_q · sign_(q mod AT_ONCE, r)

``shift_q`` is uniform over the k places; ``flip_q`` and the signs are ±1, all independent. So a
sketch is a sum of shifted slices, and the signs, drawn for `AT_ONCE` stretches only, stay in the
processor's cache. Two entries fall on one place with probability 1/k if they are of different
stretches, and never if they are of the same one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from cflower.algorithm.difference import BLOCK, Difference, Presumed, Vector
from cflower.seeding import generator

SIGNS = np.array([-1, 1], np.float32)
STATE_BUDGET = 2 * 10**9
"""Bytes of memory for what is kept of all clients' updates."""
COPIES = 4
"""Of each client's update in single precision: the last known one, the average, its successor while
it is made, and the one that the client sent before its cluster was split."""
LEAST_LENGTH = 256
"""Shorter ones tell too little apart, whatever they would save."""
AT_ONCE = 8
"""Stretches that signs are drawn for and multiplied with together."""


def affordable_length(length: int, clients: int) -> int:
    """The length of projections with which so many clients' updates fit in `STATE_BUDGET`.

    At most ``length``. The error of one cosine grows to ``sqrt(2 / k)``; that of a mean over many
    pairs, which decisions rest on, is smaller, by the root of their number where errors are
    independent. 0, which keeps updates whole, stays 0.

    >>> [affordable_length(16_384, clients) for clients in (100, 10_000, 100_000, 10**6)]
    [16384, 12500, 1250, 256]
    """
    return min(length, max(LEAST_LENGTH, STATE_BUDGET // (4 * COPIES * max(1, clients))))


@dataclass(frozen=True)
class Projection:
    """From the d trained entries to what is kept of them for comparing clients.

    Parameters
    ----------
    num_trained : int
        d.
    length : int
        k: how much of an update is kept; 0 keeps all of it. Shorter updates are kept as they
        are.
    seed : int
        Of the projection, the same for all clients and rounds of a run.
    mask : ndarray of bool, shape (d,), optional
        The entries that similarity looks at; all if not given.
    """

    num_trained: int
    length: int = 0
    seed: int = 0
    mask: NDArray[np.bool_] | None = None

    @property
    def keeps_all(self) -> bool:
        """Whether vectors are kept as they are, masked or not."""
        return not 0 < self.length < self.num_seen

    @property
    def num_seen(self) -> int:
        """The number of entries that similarity looks at."""
        return self.num_trained if self.mask is None else int(self.mask.sum())

    @property
    def num_compared(self) -> int:
        """The length of the vectors that are compared, see `seen`."""
        return self.num_seen if self.keeps_all else self.length

    @cached_property
    def _shifts(self) -> list[int]:
        rng = generator(self.seed, "projection", "shifts")
        shifts: list[int] = rng.integers(
            self.length, size=-(-self.num_trained // self.length)
        ).tolist()
        return shifts

    @cached_property
    def _signs(self) -> NDArray[np.float32]:
        rng = generator(self.seed, "projection", "signs")
        return rng.choice(SIGNS, size=min(AT_ONCE * self.length, self.num_trained))

    @cached_property
    def _turns(self) -> list[float]:
        rng = generator(self.seed, "projection", "turns")
        turns: list[float] = rng.choice(SIGNS, size=len(self._shifts)).tolist()
        return turns

    def seen(self, vector: Vector) -> Vector:
        """The part of a kept vector that similarity looks at."""
        if self.keeps_all:
            return vector if self.mask is None else vector[self.mask]
        return vector[: self.length]

    def keep(self, vector: Vector) -> Vector:
        """What is kept of a vector of shape (d,): itself, or its projection.

        The projection has shape (k,), or (2k,) with a mask: the entries that similarity sees,
        then the others.

        >>> projection = Projection(num_trained=10_000, length=1_000)
        >>> update = generator(0, "doctest").normal(size=10_000)
        >>> kept = projection.keep(update)
        >>> len(kept), bool(abs(np.linalg.norm(kept) / np.linalg.norm(update) - 1) < 0.1)
        (1000, True)
        """
        if self.keeps_all:
            return vector
        if self.mask is None:
            return self._sketch(vector)
        # What similarity does not look at goes into a second half: it counts in distances.
        halves = np.where(self.mask, vector, 0), np.where(self.mask, 0, vector)
        return np.concatenate([self._sketch(half) for half in halves])

    def measure(
        self, updates: Sequence[Vector | Difference], weights: Sequence[float]
    ) -> list[tuple[float, Vector]]:
        """The Euclidean norm of each update and what is kept of it.

        Those of one model that are no copies are looked at in one pass, which also sums them, see
        `Presumed`. A norm is infinite, or NaN, where its precision does not hold it.

        Parameters
        ----------
        updates : sequence of ndarray or Difference, shape (d,)
            All of the same kind, and of the same model.
        weights : sequence of float
            What each will count for if nothing speaks against it.
        """
        together = [update for update in updates if isinstance(update, Difference)]
        if self.keeps_all or self.mask is not None or not together:
            wholes = [np.asarray(update) for update in updates]
            return [(norm(whole), self.keep(whole)) for whole in wholes]
        # Loads for half a second; a client never gets here, and starts anew for every message.
        from scipy.linalg.blas import saxpy

        squares = np.zeros(len(together), np.float32)
        turned = np.zeros((len(together), 2 * self.length), np.float32)
        presumed = Presumed(np.zeros(self.num_trained, np.float32), tuple(weights))
        buffer = np.empty((len(together), self._width), np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            for start in range(0, self.num_trained, self._width):
                total = presumed.total[start : start + self._width]
                blocks, signs = buffer[:, : len(total)], self._signs_from(start)[: len(total)]
                for i, (update, block) in enumerate(zip(together, blocks, strict=True)):
                    update.put(start, block)
                    squares[i] += block.dot(block)
                    saxpy(block, total, a=weights[i])  # in place
                    block *= signs
                self._turn(start, blocks, turned)
            norms, kept = np.sqrt(squares), turned[:, : self.length] + turned[:, self.length :]
        for update in together:
            update.presumed = presumed
        return list(zip(norms.tolist(), kept, strict=True))

    @cached_property
    def _width(self) -> int:
        """Of the blocks that are looked at together: whole stretches, whose signs are drawn."""
        return self.length * next(
            n for n in (8, 4, 2, 1) if n * self.length <= max(BLOCK, self.length)
        )

    def _signs_from(self, start: int) -> NDArray[np.float32]:
        return self._signs[start % (AT_ONCE * self.length) :]

    def _sketch(self, vector: Vector) -> Vector:
        turned = np.zeros(2 * self.length, vector.dtype)
        for start in range(0, len(vector), self._width):
            part = vector[start : start + self._width]
            self._turn(start, part * self._signs_from(start)[: len(part)], turned)
        return turned[: self.length] + turned[self.length :]

    def _turn(self, start: int, signed: Vector, turned: Vector) -> None:
        """Add stretches to their places, of one vector or of several."""
        for first in range(0, signed.shape[-1], self.length):
            stretch = signed[..., first : first + self.length]
            number = (start + first) // self.length
            shift = self._shifts[number]
            place = turned[..., shift : shift + stretch.shape[-1]]
            (np.add if self._turns[number] > 0 else np.subtract)(place, stretch, out=place)


def norm(vector: Vector) -> float:
    """Euclidean norm as a plain number; infinite where the precision does not hold it.

    >>> norm(np.array([3.0, 4.0])), norm(np.float32([3e38, 3e38]))
    (5.0, inf)
    """
    with np.errstate(over="ignore"):
        return float(np.linalg.norm(vector))
