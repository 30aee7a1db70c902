"""Updates kept short: a seeded random projection that preserves norms and cosines.

A count sketch (Charikar, Chen, Farach-Colton, 2002; feature hashing, Weinberger et al., arXiv
0902.2206): every entry is added, with a random sign, to one of k places. Inner products are
preserved in expectation; the error of a cosine has a standard deviation of at most
``sqrt(2 / k)``, whatever the length of the updates: 0.011 for k = 16,384.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from cflower.seeding import generator

Vector = NDArray[np.floating]


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
    def _places(self) -> NDArray[np.intp]:
        rng = generator(self.seed, "projection", "places")
        places = rng.integers(self.length, size=self.num_trained)
        # The entries that similarity does not look at go into a second half: they count in
        # norms and distances.
        return places if self.mask is None else np.where(self.mask, places, places + self.length)

    @cached_property
    def _signs(self) -> NDArray[np.float32]:
        rng = generator(self.seed, "projection", "signs")
        return rng.choice(np.array([-1, 1], np.float32), size=self.num_trained)

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
        size = self.length if self.mask is None else 2 * self.length
        return np.bincount(self._places, self._signs * vector, size).astype(vector.dtype)
