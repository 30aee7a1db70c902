"""A source of labelled examples with its inputs as they are stored; rows are decoded on request."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cflower.data.columns import Table, input_columns, label_column, labels_of, targets_of
from cflower.data.decoding import as_series, decoded
from cflower.data.examples import Examples
from cflower.data.settings import DataSettings
from cflower.errors import DataError
from cflower.ordering import only
from cflower.settings import require_data
from cflower.tables import MOST_COLUMNS
from cflower.tables.values import numbers, values_of

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True, eq=False)
class Stored:
    """Labelled examples, not decoded yet."""

    name: str
    """The source, for errors, like the names of its columns."""
    inputs: NDArray[Any] | pa.ChunkedArray
    """Numbers, shape (n, ...), or n stored image files; see `cflower.data.decoding.decoded`."""
    all_labels: NDArray[Any]
    """Positions in `class_names`, shape (n,); of sequences (n, length); or numbers to predict."""
    class_names: tuple[str, ...]
    """All classes of the source; none where numbers are predicted."""
    rows: NDArray[np.int64]
    """The selected examples, in order, shape (m,)."""
    metadata: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """Columns that describe each example and are no inputs, such as its writer, shape (n,) each."""
    column_names: tuple[str, ...] = ()
    input_names: tuple[str, ...] = ("x",)
    series_channels: int = 0
    """Numbers per moment, if rows of numbers are time series; else 0."""
    table: Table | None = None
    """The source, if its columns of one value each are to be prepared (`cflower.tables`)."""

    @classmethod
    def of(cls, table: Table, settings: DataSettings) -> "Stored":
        label = label_column(table, settings)
        inputs = input_columns(table, settings, label)
        metadata = metadata_of(table, settings)
        lengths = {name: len(table.columns[name]) for name in (*inputs, label, *metadata)}
        require_data(
            len(set(lengths.values())) == 1,
            f"{table.name} has columns of different lengths "
            f"({', '.join(f'{name} {length}' for name, length in lengths.items())}): expected one "
            "row for each example.",
        )
        values = all(table.axes(name) <= 0 for name in inputs)
        prepared = values and not settings.series_channels and len(inputs) <= MOST_COLUMNS
        if not prepared:
            inputs = [name for name in inputs if table.axes(name) >= 0]
        labels: NDArray[Any]
        classes: tuple[str, ...]
        if settings.is_regression:
            labels, classes = targets_of(table, label), ()
        else:
            labels, classes = labels_of(table, label)
        return cls(
            table.name,
            np.zeros(0) if prepared else _inputs(table, inputs),
            labels,
            classes,
            np.arange(lengths[label]),
            metadata,
            tuple(table.columns),
            tuple(inputs),
            settings.series_channels,
            table if prepared else None,
        )

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, positions: NDArray[np.int64]) -> "Stored":
        return replace(self, rows=self.rows[positions])

    @property
    def labels(self) -> NDArray[Any]:
        """The selected ones of `all_labels`, shape (m,); of sequences (m, length)."""
        return self.all_labels[self.rows]

    def metadata_of(self, column: str) -> NDArray[Any]:
        """A column of `metadata` for the selected examples, shape (m,)."""
        return self.metadata[column][self.rows]

    def columns(self) -> "DataFrame":
        """The columns of the selected examples as they are, each row named by its place."""
        from pandas import DataFrame

        assert self.table is not None
        places = [self.table.places[row] for row in self.rows.tolist()]
        chosen, rows = {}, pa.array(self.rows)
        for name in self.input_names:
            column = self.table.columns[name]
            whole = isinstance(column, np.ndarray)
            chosen[name] = column[self.rows] if whole else column.take(rows).to_pandas().array
        return DataFrame(chosen, index=places)

    def described(self, train: NDArray[np.int64]) -> dict[str, Any] | None:
        """The description of a table's columns for the server; None if the data are no table.

        Statistics are of the selected examples at the positions ``train``.
        """
        if self.table is None:
            return None
        from cflower.tables.description import describe  # loads pandas and scikit-learn

        try:
            return describe(self.columns(), train)
        except DataError as error:
            raise DataError(f"{self.name}: {error}.") from None

    def examples(self, preparation: str = "") -> Examples:
        """All of them, decoded; those of a table by a preparation (`cflower.tables`).

        Without one, by what these examples alone show, and not scaled.
        """
        if self.table:
            from cflower.tables.agreement import alone
            from cflower.tables.preparation import inputs_of

            known = json.loads(preparation) if preparation else None
            try:
                known = known or alone(self.described(np.arange(len(self))))
                inputs = inputs_of(known, self.columns())
            except ValueError as error:
                raise DataError(f"{self.name}: {error}; correct it.") from None
            return Examples(inputs, self.labels, self.class_names)
        inputs = decoded(self.inputs, self.rows, self.name, self.input_names)
        if self.series_channels:
            inputs = as_series(inputs, self.series_channels, self.name)
        return Examples(inputs, self.labels, self.class_names)

    @cached_property
    def input_shape(self) -> tuple[int, ...]:
        return self.take(np.zeros(1, np.int64)).examples().input_shape


def metadata_of(table: Table, settings: DataSettings) -> dict[str, NDArray[Any]]:
    """The columns that describe examples. Raises a DataError without the group column."""
    if settings.group_column:
        table.find(settings.group_column, "group-column")
    columns = only(table.columns, settings.metadata)
    return {n: np.array(values_of(column), dtype=object) for n, column in columns.items()}


def _inputs(table: Table, names: list[str]) -> NDArray[Any] | pa.ChunkedArray:
    """Stored image files, one array of several axes, or a matrix of one column per name."""
    first = table.columns[names[0]]
    if names[0] in table.images:
        return first
    if table.axes(names[0]) > 0:
        return numbers(first, names[0], table.name)
    # One block, each column as it is: rows of it are taken at once.
    matrix = np.empty((len(first), len(names)), np.float32)
    for place, name in enumerate(names):
        matrix[:, place] = numbers(table.columns[name], name, table.name)
    return matrix


def usual_value(groups: Iterable[Any]) -> str:
    """The most frequent group, as text; among equally frequent ones the first by name.

    >>> usual_value(["b", "a", "b", "a", "c"])
    'a'
    """
    names, counts = np.unique([str(group) for group in groups], return_counts=True)
    return str(names[counts.argmax()])
