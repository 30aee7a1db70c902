"""Between Flower's records and the algorithm's vectors."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from cflower.algorithm.difference import SMALL, Difference, Update
from cflower.algorithm.projection import Projection
from cflower.algorithm.tree import Weights
from cflower.errors import ConfigError, FederationError
from cflower.messages.arrays import record_of, values_of
from cflower.messages.claims import listed

UNTRAINED = (
    "*running_mean",
    "*running_var",
    "*num_batches_tracked",
    "*moving_mean*",
    "*moving_var*",
)
"""Entries that are averaged but not learned, by PyTorch's and Keras' names."""


def is_trained(key: str, dtype: np.dtype[Any], untrained: Iterable[str]) -> bool:
    """Whether an array is learned: a floating one that none of these patterns names.

    >>> is_trained("bn.weight", np.dtype("f4"), UNTRAINED)
    True
    >>> is_trained("bn.running_mean", np.dtype("f4"), UNTRAINED)
    False
    """
    return dtype.kind == "f" and not any(fnmatch(key, pattern) for pattern in untrained)


class BadArraysError(FederationError):
    """Arrays that do not fit the reference model, or are not finite."""


class Entry(NamedTuple):
    """One array of the reference model and where it lies in its vector."""

    key: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    trained: bool
    place: slice


@dataclass(frozen=True)
class Layout:
    """How the reference model's arrays are laid out in `Weights`, in its own key order.

    Replies may hold their arrays in any order: they are read by key.
    """

    entries: tuple[Entry, ...]
    dtype: np.dtype[Any]
    """Of the trained vector: float32, or float64 if the model has float64 entries."""

    @classmethod
    def of(cls, reference: ArrayRecord, untrained: Sequence[str] = UNTRAINED) -> "Layout":
        """The layout of a model.

        Parameters
        ----------
        reference : ArrayRecord
        untrained : sequence of str
            Patterns (``*``, ``?``) of floating entries that are not learned. Integer and
            boolean entries never are.

        Raises
        ------
        ConfigError
            If there is nothing to train in it.
        """
        entries, ends, dtypes = [], {True: 0, False: 0}, [np.dtype(np.float32)]
        for key, array in reference.items():
            dtype = np.dtype(array.dtype)
            learned = is_trained(key, dtype, untrained)
            size = int(np.prod(array.shape, dtype=int))
            place = slice(ends[learned], ends[learned] + size)
            ends[learned] = place.stop
            entries.append(Entry(key, tuple(array.shape), dtype, learned, place))
            if learned:
                dtypes.append(dtype)
        if not ends[True]:
            raise ConfigError(
                f"The initial model has {len(entries)} array(s) and none of them is trained: it "
                "needs at least one floating-point array that no `untrained` pattern matches."
            )
        return cls(tuple(entries), np.result_type(*dtypes))

    @property
    def num_trained(self) -> int:
        """d, the length of the trained vector."""
        return sum(e.place.stop - e.place.start for e in self.entries if e.trained)

    @property
    def num_carried(self) -> int:
        """The length of the vector of entries that are not trained."""
        return sum(e.place.stop - e.place.start for e in self.entries if not e.trained)

    def mask(self, pattern: str) -> NDArray[np.bool_] | None:
        """Which trained entries a comma-separated list of key patterns names; None: all.

        Raises
        ------
        ConfigError
            If the patterns name no trained entry.
        """
        patterns = [part.strip() for part in pattern.split(",")]
        mask = np.zeros(self.num_trained, dtype=bool)
        for entry in self.entries:
            if entry.trained and any(fnmatch(entry.key, p) for p in patterns):
                mask[entry.place] = True
        if not mask.any():
            keys = ", ".join(e.key for e in self.entries if e.trained)
            raise ConfigError(
                f"Got similarity-layers={pattern!r}, which names none of the "
                f"trained arrays: {keys}."
            )
        return None if mask.all() else mask

    def projection(self, length: int, seed: int, similarity_layers: str) -> Projection:
        """What is kept and compared of updates of this model; see `Projection` and `mask`."""
        return Projection(self.num_trained, length, seed, self.mask(similarity_layers))

    def weights(self, arrays: ArrayRecord) -> Weights:
        """The vectors of a model that came from outside.

        Raises
        ------
        BadArraysError
            For missing or additional arrays, other shapes or kinds of dtype, NaN or infinity.
        """
        weights = Weights(np.empty(self.num_trained, self.dtype), np.empty(self.num_carried))
        for entry, values in self._read(arrays):
            check_finite(entry, values)
            part_of(weights, entry)[:] = values.reshape(-1)
        return weights

    def update(self, arrays: ArrayRecord, origin: Weights) -> Update:
        """Δ_i = θ_i − θ_c of a model that came from outside.

        Whether its trained entries are finite its norm tells, in a fraction of the time; if that is
        not, ask `check`.

        Raises
        ------
        BadArraysError
            As `weights`.
        """
        learned, carried = [], np.empty(self.num_carried)
        with np.errstate(over="ignore", invalid="ignore"):
            for entry, values in self._read(arrays):
                if not entry.trained or values.dtype != entry.dtype:
                    check_finite(entry, values)
                if entry.trained:
                    learned.append(values)
                else:
                    old = origin.carried[entry.place]
                    np.subtract(values.reshape(-1), old, out=carried[entry.place])
            trained = Difference(learned, origin.trained)
            small = len(trained) <= SMALL or self.dtype != np.float32
            return Update(np.asarray(trained) if small else trained, carried)

    def check(self, arrays: ArrayRecord) -> None:
        """Raise `BadArraysError` for what is not finite."""
        for entry, values in self._read(arrays):
            check_finite(entry, values)

    def _read(self, arrays: ArrayRecord) -> Iterator[tuple[Entry, NDArray[Any]]]:
        """The values of every entry, of the right shape and kind."""
        expected = {entry.key for entry in self.entries}
        if missing := expected - set(arrays):
            raise BadArraysError(f"lacks the array(s) {listed(sorted(missing))}")
        if extra := set(arrays) - expected:
            raise BadArraysError(f"has the unknown array(s) {listed(sorted(extra))}")
        for entry in self.entries:
            yield entry, checked(entry, arrays[entry.key])

    def record(self, weights: Weights) -> ArrayRecord:
        """The model as Flower's record, every array in its own dtype; a new one at each call."""
        return record_of(self.arrays(weights))

    def arrays(self, weights: Weights) -> Mapping[str, NDArray[Any]]:
        """The model's arrays by key, in their own shapes and dtypes (integers rounded)."""
        arrays = {}
        for entry in self.entries:
            vector = part_of(weights, entry)
            if entry.dtype.kind != "f":
                vector = np.rint(vector)
            arrays[entry.key] = vector.astype(entry.dtype).reshape(entry.shape)
        return arrays

    def as_sent(self, weights: Weights) -> Weights:
        """The weights as clients will see them: rounded to the arrays' own dtypes."""
        exact = all(e.dtype == self.dtype if e.trained else e.dtype == float for e in self.entries)
        if exact:
            return weights
        sent = Weights(weights.trained.copy(), weights.carried.copy())
        arrays = self.arrays(weights)
        for entry in self.entries:
            part_of(sent, entry)[:] = arrays[entry.key].reshape(-1)
        return sent


def checked(entry: Entry, array: Array) -> NDArray[Any]:
    """The values of one array of a reply.

    Raises
    ------
    BadArraysError
        If it has another shape than the reference, is of another kind, or cannot be read.
    """
    try:
        values = values_of(array)
    except Exception as error:  # bytes from outside can fail to be an array in any way
        raise BadArraysError(f"has an array {entry.key} that cannot be read: {error}") from None
    if values.shape != entry.shape:
        raise BadArraysError(f"has {entry.key} of shape {values.shape}, not {entry.shape}")
    if values.dtype.kind != entry.dtype.kind:
        raise BadArraysError(f"has {entry.key} of dtype {values.dtype}, not {entry.dtype}")
    return values


def check_finite(entry: Entry, values: NDArray[Any]) -> None:
    """Raise `BadArraysError` for what is not finite in the reference's precision."""
    with np.errstate(over="ignore"):
        finite = np.isfinite(values.astype(entry.dtype, copy=False)).all()
    if not finite:
        raise BadArraysError(f"has NaN or infinity in {entry.key}")


def part_of(weights: Weights, entry: Entry) -> NDArray[Any]:
    """The entry's place in its vector, as a view."""
    return (weights.trained if entry.trained else weights.carried)[entry.place]
