"""A source of labelled examples, its inputs as they are stored: decoded for who asks for them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cflower.data.columns import Roles, Table, input_columns, label_column, labels_of
from cflower.data.decoding import as_series, decoded
from cflower.data.examples import Examples
from cflower.data.values import numbers as numbers_of
from cflower.data.values import values_of


@dataclass(frozen=True, eq=False)
class Stored:
    """Labelled examples, not decoded yet.

    Attributes
    ----------
    name : str
        Of the source, for errors.
    inputs : ndarray, shape (n, ...), or pyarrow.ChunkedArray
        Numbers, or stored image files; see `cflower.data.decoding.decoded`.
    all_labels : NDArray[np.int64], shape (n,); of sequences (n, length)
        Positions in `class_names`.
    class_names : tuple of str
        All classes of the source.
    told : mapping of str to ndarray, shape (n,)
        What else is known of every example and is no input, such as who wrote it.
    column_names : tuple of str
        All columns of the source, for errors.
    input_names : tuple of str
        The columns that `inputs` come from, for errors.
    image_size : int or None
        Pixels that stored images are resized to; None where they stay as they are.
    series_channels : int
        See `cflower.data.columns.Roles`.
    rows : NDArray[np.int64], shape (m,)
        Which of the n are meant, in which order.
    """

    name: str
    inputs: NDArray[Any] | pa.ChunkedArray
    all_labels: NDArray[np.int64]
    class_names: tuple[str, ...]
    rows: NDArray[np.int64]
    told: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    column_names: tuple[str, ...] = ()
    input_names: tuple[str, ...] = ("x",)
    image_size: int | None = None
    series_channels: int = 0

    @classmethod
    def of(cls, table: Table, roles: Roles, image_size: int | None = None) -> "Stored":
        """The examples of a table.

        Raises
        ------
        DataError
            If it has no labels or inputs, or lacks a column that `roles` names.
        """
        label = label_column(table, roles)
        nothing = np.zeros(len(table), np.int64), ("",)
        labels, names = nothing if roles.unlabelled else labels_of(table, label)
        if roles.group:
            table.find(roles.group, "group-column")
        inputs = input_columns(table, roles, label)
        first = table.columns[inputs[0]]
        stored: NDArray[Any] | pa.ChunkedArray
        if inputs[0] in table.images:
            stored = first
        elif len(inputs) == 1 and (array := numbers_of(first, inputs[0], table.name)).ndim > 1:
            stored = array
        else:
            # One block, each column as it is: rows of it are taken at once.
            stored = np.empty((len(table), len(inputs)), np.float32)
            for place, name in enumerate(inputs):
                stored[:, place] = numbers_of(table.columns[name], name, table.name)
        return cls(
            table.name,
            stored,
            labels,
            names,
            np.arange(len(labels)),
            {name: values_of(table.columns[name]) for name in roles.told if name in table.columns},
            tuple(table.columns),
            tuple(inputs),
            image_size,
            roles.series_channels,
        )

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, positions: NDArray[np.int64]) -> "Stored":
        """The examples at these positions, in that order; nothing is copied."""
        return replace(self, rows=self.rows[positions])

    @property
    def labels(self) -> NDArray[np.int64]:
        """Positions in `class_names`, shape (m,); of sequences (m, length)."""
        return self.all_labels[self.rows]

    def tell(self, column: str) -> NDArray[Any]:
        """What a column of `told` says of every example, shape (m,)."""
        return self.told[column][self.rows]

    def examples(self) -> Examples:
        """All of them, decoded.

        Raises
        ------
        DataError
            If an input cannot be decoded, they differ in shape, or are no time series where
            they ought to be.
        """
        inputs = decoded(self.inputs, self.rows, self.name, self.input_names, self.image_size)
        if self.series_channels:
            inputs = as_series(inputs, self.series_channels, self.name)
        return Examples(inputs, self.labels, self.class_names)

    @cached_property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of the first input, such as (channels, height, width)."""
        return self.take(np.zeros(1, np.int64)).examples().input_shape


def most_common(groups: Iterable[Any]) -> str:
    """The most frequent group, as text; among equally frequent ones the first by name.

    >>> most_common(["b", "a", "b", "a", "c"])
    'a'
    """
    names, counts = np.unique([str(group) for group in groups], return_counts=True)
    return str(names[counts.argmax()])
