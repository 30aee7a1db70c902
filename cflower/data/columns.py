"""Tables as they come from files, and the role of each of their columns by the settings."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cflower.data.settings import DataSettings
from cflower.errors import DataError
from cflower.ordering import listed
from cflower.settings import did_you_mean, require_data
from cflower.tables.files import ROW_NUMBERS
from cflower.tables.values import (
    Column,
    axes_of,
    is_value,
    numbers,
    values_of,
)

LABEL_COLUMNS = (
    "label", "labels", "fine_label", "target", "y", "class", "character", "digit",
)  # fmt: skip
IMAGE_COLUMNS = ("image", "img", "x", "pixels", "images", "inputs")
MANY_CLASSES, MANY_NUMBERS = 1000, 100
"""With more different labels than this, most must occur more than once or twice to be classes; the
second is for labels that are numbers."""
ROWS_PER_CLASS = 3
ORIGINS = "file", "folder"
"""Columns that `cflower.data.folders` adds: the file and the folder that a row comes from."""
NUMBERS_TOO = "or set task = 'regression' to predict numbers"


@dataclass(frozen=True, eq=False)
class Table:
    """Columns of equal length by name."""

    name: str
    """Its origin, for errors."""
    columns: Mapping[str, Column]
    """Shape (n, ...) each; of Arrow also lists of numbers and stored image files."""
    classes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Class names of the columns that hold positions in them."""
    images: tuple[str, ...] = ()
    """Columns of stored image files: mappings or structs of ``bytes`` and ``path``."""

    @classmethod
    def of(cls, name: str, table: pa.Table) -> "Table":
        """The columns of an Arrow table, without those by which pandas numbers rows; classes and
        images as `datasets` notes them in it.
        """
        columns = dict(zip(table.column_names, table.columns, strict=True))
        if len(columns) < table.num_columns:
            twice = next(key for key in columns if table.column_names.count(key) > 1)
            raise DataError(f"{name} has two columns named {twice!r}: rename one of them.")
        columns = {key: column for key, column in columns.items() if not ROW_NUMBERS.fullmatch(key)}
        notes = json.loads((table.schema.metadata or {}).get(b"huggingface", b"{}"))
        features = notes.get("info", {}).get("features", {})
        types = {n: kind.get("_type") for n, kind in features.items() if isinstance(kind, dict)}
        classes = {n: tuple(features[n]["names"]) for n in types if types[n] == "ClassLabel"}
        return cls(name, columns, classes, tuple(n for n in types if types[n] == "Image"))

    def find(self, name: str, key: str) -> str:
        """The name of a column that a setting asks for."""
        if name not in self.columns:
            hint = did_you_mean(name, self.columns) or "."
            columns = listed(self.columns)
            raise DataError(
                f"{key} = {name!r} is no column of {self.name}{hint} Its columns are {columns}."
            )
        return name

    def axes(self, name: str) -> int:
        """Axes of a row's numbers: 0 for one number, 2 or 3 for an image; -1 if they are none."""
        return 3 if name in self.images else axes_of(self.columns[name])

    def is_value(self, name: str) -> bool:
        return name not in self.images and is_value(self.columns[name])

    @cached_property
    def places(self) -> list[str]:
        """Each row in words, as an editor counts the lines of its file.

        >>> Table("", {"file": np.array(["a", "b", "b"], object)}).places
        ['row 2 of a', 'row 2 of b', 'row 3 of b']
        """
        files, first = self.columns.get("file"), dict[Any, int]()
        if not isinstance(files, np.ndarray):  # one file, or a column of the data
            return [f"row {row + 2}" for row in range(len(next(iter(self.columns.values()))))]
        return [f"row {n - first.setdefault(one, n) + 2} of {one}" for n, one in enumerate(files)]


def label_column(table: Table, settings: DataSettings) -> str:
    """Name of the label column: the wanted one, else the first with classes, else a usual name."""
    wanted = settings.label_column
    usual = (wanted,) if wanted else (*table.classes, *LABEL_COLUMNS)
    existing = [name for name in usual if name in table.columns]
    existing.sort(key=settings.metadata.__contains__)  # those with another role come last
    if existing:
        return existing[0]
    if wanted:
        return table.find(wanted, "label-column")
    raise DataError(
        f"{table.name} has no labels: its columns are {listed(table.columns)}; name the label "
        "column with label-column, or put the images into one folder per class."
    )


def labels_of(table: Table, column: str) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Labels as positions in their classes, shape (n,), and the names of all classes of the whole
    source.
    """
    if column in table.classes:
        labels = numbers(table.columns[column], column, table.name)
        return labels.astype(np.int64), table.classes[column]
    values, where = values_of(table.columns[column]), f"in its label column {column!r}"
    values = [value.strip() if isinstance(value, str) else value for value in values]
    missing = sum(value is None or value != value for value in values)
    require_data(
        not missing,
        f"{table.name} has {missing} rows without a value {where}: remove or label them.",
    )
    try:
        distinct = sorted(set(values))
    except TypeError:
        raise DataError(
            f"{table.name} has lists, or both numbers and texts, {where}: expected one class, of "
            "one kind, per row."
        ) from None
    require_data(
        all(value.is_integer() for value in distinct if isinstance(value, float)),
        f"{table.name} has fractional numbers {where}: expected classes (text or whole numbers), "
        f"{NUMBERS_TOO}.",
    )
    most = MANY_NUMBERS if isinstance(next(iter(distinct), ""), int | float) else MANY_CLASSES
    require_data(
        len(distinct) <= most or ROWS_PER_CLASS * len(distinct) <= len(values),
        f"{table.name} has {len(distinct):,} different labels {where} for {len(values):,} rows: "
        f"these are no classes; name the right column with label-column, {NUMBERS_TOO}.",
    )
    places = {value: place for place, value in enumerate(distinct)}
    labels = np.array([places[value] for value in values], np.int64)
    return labels, tuple(str(int(v) if isinstance(v, float) else v) for v in distinct)


def targets_of(table: Table, column: str) -> NDArray[np.float32]:
    """The numbers to predict, shape (n,). Raises a DataError unless there is one in every row."""
    values = numbers(table.columns[column], column, table.name) if table.axes(column) == 0 else None
    require_data(
        values is not None and bool(np.isfinite(values).all()),
        f"{table.name} has texts, lists or missing values in its label column {column!r}: expected "
        "one number per row for task = 'regression'.",
    )
    return np.asarray(values, np.float32)


def check_classes(names: tuple[str, ...], source: str) -> None:
    require_data(
        len(names) > 1,
        f"{source} has only {len(names)} class ({listed(names)}): training a classifier needs at "
        "least 2.",
    )


def input_columns(table: Table, settings: DataSettings, label: str) -> list[str]:
    """The columns to learn from: the wanted ones, else the image column, else all of one value."""
    taken = {label, *settings.metadata}
    if settings.input_columns:
        return _wanted_inputs(table, settings.input_columns, taken)
    free = [name for name in table.columns if name not in taken]
    for name in (*table.images, *IMAGE_COLUMNS):
        if name in free and table.axes(name) > 0:
            return [name]
    inputs = [n for n in free if table.axes(n) == 0 or (table.is_value(n) and n not in ORIGINS)]
    require_data(
        len(inputs) > 0,
        f"{table.name} has no images, numbers or texts to learn from: its columns are "
        f"{listed(table.columns)}; name the image column 'image', or the columns to learn from "
        "with input-columns.",
    )
    return inputs


def _wanted_inputs(table: Table, wanted: str, taken: set[str]) -> list[str]:
    names = [table.find(name.strip(), "input-columns") for name in wanted.split(",")]
    for name in names:
        require_data(
            name not in taken,
            f"input-columns names {name!r}, which is the label, group, topic or natural id of "
            f"{table.name}: a model must not see it; leave it out.",
        )
        require_data(
            table.axes(name) >= 0 or table.is_value(name),
            f"input-columns names {name!r}, but {table.name} has no numbers, texts or images in "
            "it: leave it out, or turn it into numbers.",
        )
        require_data(
            len(names) == 1 or table.axes(name) <= 0,
            f"input-columns names {name!r}, a column of images or lists, together with "
            "others: expected one such column, or columns of one value each.",
        )
    return names
