"""Conversion between Flower's records and the algorithm's vectors."""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from fnmatch import fnmatch
from math import prod
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from cflower.algorithm.projection import OutputLayer, Projection
from cflower.algorithm.weights import Difference, Update, Weights
from cflower.errors import ConfigError
from cflower.messages.arrays import record_of, values_of
from cflower.messages.failures import BadReplyError
from cflower.ordering import counted, line, listed
from cflower.settings import require

UNTRAINED = (
    "*running_mean",
    "*running_var",
    "*num_batches_tracked",
    "*moving_mean*",
    "*moving_var*",
)
"""Patterns of entries that are sent but not trained, by PyTorch's and Keras' names."""

HUGE = 2**23
"""Entries of a client's update, 32 MB, above which it is not kept: the system maps the memory of
larger arrays anew each time, which takes longer than to compute the update twice."""
LONGEST_DTYPE = 20
"""Characters of the name of an array's dtype."""
MOST_AXES = 64
"""Maximum number of axes of a NumPy array."""
STAY = (
    "arrays that stay on the clients, as in FedBN, are left out of the first model too, or by most "
    "clients"
)


def is_trained(key: str, dtype: np.dtype[Any], untrained: Iterable[str]) -> bool:
    """Whether an array is trained: floating-point, and matched by none of the patterns.

    >>> is_trained("bn.weight", np.dtype("f4"), UNTRAINED)
    True
    >>> is_trained("bn.running_mean", np.dtype("f4"), UNTRAINED)
    False
    """
    return dtype.kind == "f" and not matches(key, untrained)


def matches(key: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch(key, pattern.strip()) for pattern in patterns)


class Entry(NamedTuple):
    """One array of the reference model, and its place in its vector."""

    key: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    trained: bool
    place: slice

    def of(self, weights: Weights) -> NDArray[Any]:
        return (weights.trained if self.trained else weights.carried)[self.place]

    def rounded(self, weights: Weights) -> NDArray[Any]:
        """The array in its own dtype, flat; integers are rounded. A view where that is possible."""
        vector = self.of(weights)
        rounded = vector if self.dtype.kind == "f" else np.rint(vector)
        return rounded.astype(self.dtype, copy=False)

    def check_finite(self, values: NDArray[Any]) -> None:
        """`BadReplyError` for values that are not finite in the reference's precision."""
        with np.errstate(over="ignore"):
            finite = np.isfinite(values.astype(self.dtype, copy=False)).all()
        if not finite:
            raise BadReplyError(f"has NaN or infinity in {self.key}")

    def read(self, array: Array) -> NDArray[Any]:
        """The values of this array in a reply; `BadReplyError` if they do not fit."""
        # NumPy takes half a minute for a dtype of a million fields, and a shape can be as long.
        if len(array.dtype) > LONGEST_DTYPE:
            raise BadReplyError(
                f"has {self.key} of dtype {line(array.dtype, 60)}, not {self.dtype}"
            )
        if len(array.shape) > MOST_AXES:
            raise BadReplyError(f"has {self.key} with {len(array.shape)} axes, not {self.shape}")
        try:
            values = values_of(array)
        except Exception as error:  # bytes from outside can fail to be an array in any way
            raise BadReplyError(f"has an array {self.key} that cannot be read: {error}") from None
        if values.shape != self.shape:
            raise BadReplyError(f"has {self.key} of shape {values.shape}, not {self.shape}")
        if values.dtype.kind != self.dtype.kind:
            raise BadReplyError(f"has {self.key} of dtype {values.dtype}, not {self.dtype}")
        return values


@dataclass(frozen=True)
class Layout:
    """The places of the reference model's arrays in `Weights`, in its own key order."""

    entries: tuple[Entry, ...]
    dtype: np.dtype[Any]
    """The dtype of the trained vector: float32, or float64 if the model has float64 entries."""
    num_trained: int = 0
    """d, the length of the trained vector."""
    num_carried: int = 0
    """The length of the vector of entries that are not trained."""

    @classmethod
    def of(cls, reference: ArrayRecord, untrained: Sequence[str] = UNTRAINED) -> "Layout":
        """The layout of a model; integers and floats that match ``untrained`` are not trained.

        `ConfigError` if no entry is trained.
        """
        entries, ends = [], {True: 0, False: 0}
        for key, array in reference.items():
            dtype, shape = np.dtype(array.dtype), tuple(array.shape)
            require(
                dtype.kind in "fiub" and dtype.itemsize <= 8,
                f"The initial model's array {key!r} has dtype {dtype}: expected floating-point "
                "numbers, integers or booleans of at most 64 bits.",
            )
            trained = is_trained(key, dtype, untrained)
            place = slice(ends[trained], ends[trained] + prod(shape))
            ends[trained] = place.stop
            entries.append(Entry(key, shape, dtype, trained, place))
        if not ends[True]:
            raise ConfigError(
                "Models without weights, such as the decision trees of XGBoost, cannot be "
                "clustered by their updates: none of the initial model's "
                f"{counted(len(entries), 'array')} is trained. It needs at least one of "
                "floating-point numbers that no `untrained` pattern matches."
            )
        dtypes = [entry.dtype for entry in entries if entry.trained]
        return cls(tuple(entries), np.result_type(np.float32, *dtypes), ends[True], ends[False])

    @property
    def keys(self) -> frozenset[str]:
        return frozenset(entry.key for entry in self.entries)

    @property
    def by_number(self) -> bool:
        """Whether the arrays have numbers in place of names, as ``ArrayRecord([array, ...])``."""
        return all(entry.key.isdigit() for entry in self.entries)

    def mask(self, pattern: str) -> NDArray[np.bool_] | None:
        """Mask of the trained entries that comma-separated key patterns match; None: all.

        `ConfigError` if they match none.
        """
        places = {entry.key: entry.place for entry in self.entries if entry.trained}
        mask = np.zeros(self.num_trained, dtype=bool)
        for key, place in places.items():
            mask[place] = matches(key, pattern.split(","))
        if not mask.any():
            raise ConfigError(
                f"Got similarity-layers={pattern!r}, which names none of the trained arrays: "
                f"{', '.join(places)}."
            )
        return None if mask.all() else mask

    @property
    def output_layer(self) -> OutputLayer | None:
        """The output layer of a classifier, by its shape; None if there is none.

        The last two trained arrays are weights and biases of two or more classes: shapes (C, h) and
        (C,), as in PyTorch, or (h, C) and (C,), as in Keras. C = h shows no orientation.
        """
        match [entry.shape for entry in self.entries if entry.trained][-2:]:
            case [(rows, columns), (classes,)] if classes > 1:
                if (rows == classes) != (columns == classes):
                    width = rows * columns // classes
                    return OutputLayer(classes, width, classes_first=rows == classes)
        return None

    def projection(
        self, length: int, seed: int, similarity_layers: str, *, output: bool = False
    ) -> Projection:
        """The projection of this model's updates for comparisons; see `Projection` and `mask`.

        ``output`` keeps the updates of the output layer, if similarity looks at all of it and it
        is no longer than the projection.
        """
        mask, layer = self.mask(similarity_layers), self.output_layer if output else None
        if layer:
            compared = mask is None or mask[-layer.size :].all()
            layer = layer if compared and layer.size <= (length or layer.size) else None
        return Projection(self.num_trained, length, seed, mask, layer)

    def weights(self, arrays: ArrayRecord, local: Set[str] = frozenset()) -> Weights:
        """The vectors of a received model, with zeros for arrays that are ``local``.

        `BadReplyError` for missing or additional arrays, other shapes or kinds of dtype, NaN or
        infinity.
        """
        origin = Weights(np.zeros(self.num_trained, self.dtype), np.zeros(self.num_carried))
        weights = Weights(*map(np.asarray, self.update(arrays, origin, local)))
        for entry in self.entries:
            entry.check_finite(entry.of(weights))
        return weights

    def update(self, arrays: ArrayRecord, origin: Weights, local: Set[str] = frozenset()) -> Update:
        """Δ_i = θ_i − θ_c of a model from outside; `BadReplyError` as in `weights`.

        It is zero for ``local`` arrays, which stay on the clients. The norm of the trained entries
        shows whether they are finite; if it is not finite, `weights` names the array. An update of
        more than `HUGE` entries is computed when it is read.
        """
        expected, received = self.keys, set(arrays)
        if missing := sorted(expected - received - local):
            raise BadReplyError(f"lacks the array(s) {listed(missing)}: {STAY}")
        if unknown := sorted(received - expected):
            raise BadReplyError(f"has the unknown array(s) {listed(unknown)}")
        parts: dict[bool, list[NDArray[Any]]] = {True: [], False: []}
        for entry in self.entries:
            values = entry.of(origin) if entry.key in local else entry.read(arrays[entry.key])
            if entry.key not in local and (not entry.trained or values.dtype != entry.dtype):
                entry.check_finite(values)
            parts[entry.trained].append(values.reshape(-1))
        trained = Difference(parts[True], origin.trained)
        carried = Difference(parts[False], origin.carried)[:]
        return Update(trained if len(trained) > HUGE else trained[:], carried)

    def record(self, weights: Weights) -> ArrayRecord:
        """The model as Flower's record, every array in its own dtype; a new one at each call."""
        return record_of({e.key: e.rounded(weights).reshape(e.shape) for e in self.entries})

    def arrays(self, weights: Weights) -> Mapping[str, NDArray[Any]]:
        return {e.key: np.array(e.rounded(weights)).reshape(e.shape) for e in self.entries}

    def as_sent(self, weights: Weights) -> Weights:
        """The weights as clients receive them: rounded to the arrays' own dtypes."""
        if all(entry.trained and entry.dtype == weights.trained.dtype for entry in self.entries):
            return weights
        sent = Weights(np.empty_like(weights.trained), np.empty_like(weights.carried))
        for entry in self.entries:
            entry.of(sent)[:] = entry.rounded(weights)
        return sent
