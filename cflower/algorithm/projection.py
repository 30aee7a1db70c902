"""Updates kept short: a seeded random projection that preserves norms and cosines.

A count sketch (Charikar, Chen, Farach-Colton, 2002; feature hashing, Weinberger et al., arXiv
0902.2206): every entry is added, with a random sign, to one of k places. Inner products are
preserved in expectation; the error of a cosine has a standard deviation of at most
``sqrt(2 / k)``, whatever the length of the updates: 0.011 for k = 16,384.

Entry i = q k + r (stretch q, offset r < k) is added to place h(i) with sign s(i):

    h(i) = (r + shift_q) mod k
    s(i) = flip_q · sign_(q mod SIGNED_STRETCHES, r)

``shift_q`` is uniform over the k places; ``flip_q`` and the signs are ±1, all independent. So a
sketch is a sum of shifted slices, and the signs, drawn for `SIGNED_STRETCHES` stretches only, stay
in the processor's cache. Two entries fall on one place with probability 1/k if they are of
different stretches, and never if they are of the same one.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cflower.algorithm.weights import Difference, Vector, blocks, norm, squared
from cflower.seeding import generator

SIGNS = np.array([-1, 1], np.float32)
SIGNED_STRETCHES = 8
"""Number of stretches with signs of their own."""


class OutputLayer(NamedTuple):
    """A classifier's last two trained arrays: the weights and the biases of C classes."""

    num_classes: int
    width: int
    """h, the number of weights for each class."""
    classes_first: bool = True
    """Whether the weights have shape (C, h), as in PyTorch, or (h, C), as in Keras."""

    @property
    def size(self) -> int:
        """Number of entries."""
        return self.num_classes * (self.width + 1)

    def rows(self, vector: Vector) -> Vector:
        """The layer at the end of a vector, shape (C, h + 1): each class's weights, then its bias.

        >>> OutputLayer(2, 3, classes_first=False).rows(np.arange(9))
        array([[1, 3, 5, 7],
               [2, 4, 6, 8]])
        """
        entries, classes = vector[-self.size :], self.num_classes
        order: Literal["C", "F"] = "C" if self.classes_first else "F"
        weights = entries[:-classes].reshape((classes, -1), order=order)
        return np.column_stack([weights, entries[-classes:]])


@dataclass(frozen=True)
class Projection:
    """From the d trained entries to what is kept of them for comparing clients."""

    num_trained: int
    """The number d of trained entries."""
    length: int = 0
    """The number k of entries kept of an update; 0 keeps all. Shorter updates are kept as are."""
    seed: int = 0
    """The seed of the projection, the same for all clients and rounds of a run."""
    mask: NDArray[np.bool_] | None = None
    """The entries that similarity looks at, shape (d,); all if not given."""
    output: OutputLayer | None = None
    """The output layer, of which updates are also kept as they are."""

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
    def _stretches(self) -> list[tuple[int, int]]:
        """The shift and the flip of each stretch."""
        number = -(-self.num_trained // self.length)
        shifts = generator(self.seed, "projection", "shifts").integers(self.length, size=number)
        flips = generator(self.seed, "projection", "turns").choice(SIGNS, size=number)
        return list(zip(shifts.tolist(), flips.astype(int).tolist(), strict=True))

    @cached_property
    def _signs(self) -> NDArray[np.float32]:
        size = min(SIGNED_STRETCHES * self.length, self.num_trained)
        return generator(self.seed, "projection", "signs").choice(SIGNS, size=size)

    def seen(self, vector: Vector) -> Vector:
        """The part of a kept vector that similarity looks at."""
        if self.keeps_all:
            return vector if self.mask is None else vector[self.mask]
        return vector[: self.length]

    def keep(self, vector: Vector | Difference) -> Vector:
        """What is kept of an update of shape (d,): itself, or its projection and output layer."""
        return self.measured(vector)[1]

    def projected(self, kept: Vector) -> Vector:
        """The part of what is kept that `project` makes."""
        return kept if self.keeps_all or not self.output else kept[: -self.output.size]

    def project(self, vector: Vector) -> Vector:
        """A vector of shape (d,) itself, or its projection.

        The projection has shape (k,), or (2k,) with a mask: the entries that similarity sees,
        then the others. Norms of the whole are preserved.

        >>> projection = Projection(num_trained=10_000, length=1_000)
        >>> update = generator(0, "doctest").normal(size=10_000)
        >>> kept = projection.project(update)
        >>> len(kept), bool(abs(np.linalg.norm(kept) / np.linalg.norm(update) - 1) < 0.1)
        (1000, True)
        """
        return self.projected(self.keep(vector))

    def measured(self, vector: Vector | Difference) -> tuple[float, Vector]:
        """The norm of an update of shape (d,) and what is kept of it, in one pass over it."""
        if self.keeps_all:
            whole = np.asarray(vector)
            return norm(whole), whole
        squares, signed = 0.0, np.empty(len(self._signs), vector.dtype)
        folded = np.zeros((1 if self.mask is None else 2, 2 * self.length), vector.dtype)
        for place, block in blocks(vector, SIGNED_STRETCHES * self.length):
            squares += squared(block)
            number, part = place.start // self.length, signed[: len(block)]
            np.multiply(block, self._signs[: len(block)], out=part)
            parts = [part]
            if self.mask is not None:
                # What similarity does not look at goes into a second half: it counts in distances.
                seen = self.mask[place]
                parts = [np.where(seen, part, 0), np.where(seen, 0, part)]
            for entries, half in zip(parts, folded, strict=True):
                self._fold(number, entries, half)
        kept = (folded[:, : self.length] + folded[:, self.length :]).reshape(-1)
        if self.output:
            kept = np.concatenate([kept, vector[slice(-self.output.size, None)]])
        return math.sqrt(squares), kept

    def _fold(self, number: int, signed: Vector, folded: Vector) -> None:
        """Add entries with their signs to a sketch of shape (2k,), from this stretch on."""
        for start in range(0, len(signed), self.length):
            stretch, (shift, flip) = signed[start : start + self.length], self._stretches[number]
            place = folded[shift : shift + len(stretch)]
            (np.add if flip > 0 else np.subtract)(place, stretch, out=place)
            number += 1
