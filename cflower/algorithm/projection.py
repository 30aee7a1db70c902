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

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from cflower.seeding import generator

Vector = NDArray[np.floating]

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

    def _sketch(self, vector: Vector) -> Vector:
        turned = np.zeros(2 * self.length, vector.dtype)
        places = zip(self._shifts, self._turns, strict=True)
        for start in range(0, len(vector), len(self._signs)):
            part = vector[start : start + len(self._signs)]
            signed = part * self._signs[: len(part)]
            for first in range(0, len(signed), self.length):
                stretch, (shift, turn) = signed[first : first + self.length], next(places)
                place = turned[shift : shift + len(stretch)]
                (np.add if turn > 0 else np.subtract)(place, stretch, out=place)
        return turned[: self.length] + turned[self.length :]
