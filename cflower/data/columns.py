"""Tables as they come from files, and which of their columns is what."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from cflower.data.values import Column, as_numpy, is_nested, is_number, numbers
from cflower.errors import DataError

LABEL_COLUMNS = (
    "label", "labels", "fine_label", "target", "y", "class", "character", "digit",
)  # fmt: skip
IMAGE_COLUMNS = ("image", "img", "x", "pixels", "images", "inputs")
MANY_CLASSES = 1000
"""Beyond so many different labels, most must occur more than once or twice to count as classes."""
ROWS_PER_CLASS = 3
SHOWN = 20


@dataclass(frozen=True)
class Roles:
    """Which column is what, by name; empty: found by its type or by a usual name.

    The last three say how the rows are read.

    Attributes
    ----------
    label, inputs, group, natural_id : str
        The run-config keys ``label-column``, ``input-columns`` (separated by commas),
        ``group-column`` and ``natural-id-column``.
    topic : str
        A column that tells the topic of an example; empty if nobody asks.
    tokens : str
        Of texts: one of `cflower.data.options.TOKENS`; empty: of words, if there are texts.
    series_channels : int
        Of rows of numbers that are a time series: how many belong to one moment; else 0.
    unlabelled : bool
        Labels are not looked at, and need not be there.
    """

    label: str = ""
    inputs: str = ""
    group: str = ""
    natural_id: str = ""
    topic: str = ""
    tokens: str = ""
    series_channels: int = 0
    unlabelled: bool = False

    @property
    def told(self) -> tuple[str, ...]:
        """Columns that say something of an example and are never an input."""
        return tuple(dict.fromkeys(filter(None, (self.group, self.natural_id, self.topic))))


FOUND = Roles()
"""Every column found by its type or name."""


@dataclass(frozen=True, eq=False)
class Table:
    """Columns of equal length by name.

    Attributes
    ----------
    name : str
        Where they come from, for errors.
    columns : mapping of str to ndarray or pyarrow.ChunkedArray
        Shape (n, ...) each; of Arrow also lists of numbers and stored image files.
    classes : mapping of str to tuple of str
        Names of the classes, of columns that hold positions in them.
    images : frozenset of str
        Columns of stored image files: mappings or structs of ``bytes`` and ``path``.
    """

    name: str
    columns: Mapping[str, Column]
    classes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    images: frozenset[str] = frozenset()

    @classmethod
    def of(
        cls,
        name: str,
        table: pa.Table,
        classes: Mapping[str, tuple[str, ...]] | None = None,
        images: Iterable[str] = (),
    ) -> "Table":
        """The columns of an Arrow table.

        Raises
        ------
        DataError
            If two have one name.
        """
        names = table.column_names
        twice = sorted({name for name in names if names.count(name) > 1}) if _double(names) else []
        if twice:
            raise DataError(f"{name} has two columns named {twice[0]!r}: rename one of them.")
        columns = dict(zip(names, table.columns, strict=True))
        return cls(name, columns, classes or {}, frozenset(images))

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def find(self, name: str, key: str) -> str:
        """The name of a column that a setting asks for.

        Raises
        ------
        DataError
            If there is none; names those that there are, and the nearest.
        """
        if name in self.columns:
            return name
        near = get_close_matches(name, self.columns, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise DataError(
            f"{key} = {name!r} is no column of {self.name}: {hint}Its columns are "
            f"{listed(self.columns)}."
        )


def _double(names: list[str]) -> bool:
    return len(set(names)) < len(names)


def label_column(table: Table, roles: Roles) -> str:
    """Name of the label column: the wanted one, else the first with classes, else a usual name.

    Empty if there is none and none is needed.

    Raises
    ------
    DataError
        If there is none; names the columns found.
    """
    usual = (roles.label,) if roles.label else (*table.classes, *LABEL_COLUMNS)
    found = [name for name in usual if name in table.columns]
    if roles.unlabelled and not found:
        return ""
    if roles.label:
        return table.find(roles.label, "label-column")
    if not found:
        raise DataError(
            f"{table.name} has no labels: its columns are {listed(table.columns)}; name the label "
            "column with label-column, or put the images into one folder per class; only cflower "
            "assign --unlabelled does without."
        )
    return next((name for name in found if name not in roles.told), found[0])


def labels_of(table: Table, column: str) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Labels as positions in their classes, shape (n,), and the names of all classes.

    Call it on the whole source: a partition need not have every class.

    Raises
    ------
    DataError
        If a label is missing, or the labels are measurements or names of rows, no classes.
    """
    stored = table.columns[column]
    if column in table.classes:
        return numbers(stored, column, table.name).astype(np.int64), table.classes[column]
    what = f"{table.name} has %s in its label column {column!r}: %s."
    distinct, places = _distinct(stored, what)
    if len(distinct) > MANY_CLASSES and ROWS_PER_CLASS * len(distinct) > len(places):
        raise DataError(
            f"{table.name} has {len(distinct):,} different labels in its label column {column!r} "
            f"for {len(places):,} rows: these are no classes; name the right one with label-column."
        )
    if any(isinstance(value, float) and not value.is_integer() for value in distinct):
        raise DataError(what % ("fractional numbers", "expected classes (text or whole numbers)"))
    names = [str(int(value)) if isinstance(value, float) else str(value) for value in distinct]
    return places.astype(np.int64), tuple(names)


def _distinct(labels: Column, what: str) -> tuple[list[Any], NDArray[Any]]:
    """The different labels in their order, and which of them each row has."""
    nested = labels.ndim > 1 if isinstance(labels, np.ndarray) else pa.types.is_nested(labels.type)
    if nested:
        raise DataError(what % ("lists", "expected one class per row"))
    if isinstance(labels, np.ndarray):
        missing = sum(label is None or label != label for label in labels.tolist())
    else:
        missing = labels.null_count
    if missing:
        raise DataError(what % (f"{missing} rows without a value", "remove or label them"))
    if isinstance(labels, np.ndarray):
        values, positions = np.unique(labels, return_inverse=True)
        return values.tolist(), positions.reshape(-1)
    if pa.types.is_dictionary(labels.type):
        labels = labels.cast(labels.type.value_type)
    distinct = pc.unique(labels)
    ordered = distinct.take(pc.array_sort_indices(distinct))
    places = [as_numpy(chunk) for chunk in pc.index_in(labels, value_set=ordered).chunks]
    return ordered.to_pylist(), np.concatenate([np.zeros(0, np.int32), *places])


def check_classes(names: tuple[str, ...], source: str) -> None:
    """Refuse a source with fewer than two classes.

    Raises
    ------
    DataError
    """
    if len(names) < 2:
        raise DataError(
            f"{source} has only {len(names)} class ({listed(names)}): learning to tell classes "
            "apart needs at least 2."
        )


def input_columns(table: Table, roles: Roles, label: str) -> list[str]:
    """The columns to learn from: the wanted ones, else the image column, else all numbers.

    Raises
    ------
    DataError
        If there is nothing to learn from, or a wanted column is no input.
    """
    taken = {label, *roles.told}
    if roles.inputs:
        return _wanted_inputs(table, roles, taken)
    for name in table.columns:
        if name in table.images:
            return [name]
    for name in IMAGE_COLUMNS:
        if name in table.columns and name not in taken and is_nested(table.columns[name]):
            return [name]
    found = [n for n in table.columns if n not in taken and is_number(table.columns[n])]
    if not found:
        raise DataError(
            f"{table.name} has no images or numbers to learn from: its columns are "
            f"{listed(table.columns)}; name the image column 'image', or the columns of numbers "
            "with input-columns."
        )
    return found


def _wanted_inputs(table: Table, roles: Roles, taken: set[str]) -> list[str]:
    names = [table.find(name.strip(), "input-columns") for name in roles.inputs.split(",")]
    for name in names:
        if name in taken:
            raise DataError(
                f"input-columns names {name!r}, which is the label, group, topic or natural id of "
                f"{table.name}: a model must not see it; leave it out."
            )
        whole = name in table.images or is_nested(table.columns[name])
        if not whole and not is_number(table.columns[name]):
            raise DataError(
                f"input-columns names {name!r}, but {table.name} has no numbers or images in it: "
                "leave it out, or turn it into numbers."
            )
        if whole and len(names) > 1:
            raise DataError(
                f"input-columns names {name!r}, whose rows are images or lists, together with "
                "others: expected one such column, or columns of one number each."
            )
    return names


def listed(names: Iterable[str]) -> str:
    """Names in a sentence, not more than it bears.

    >>> listed(["a", "b"])
    'a, b'
    """
    told = list(names)
    more = f" and {len(told) - SHOWN:,} more" if len(told) > SHOWN else ""
    return (", ".join(told[:SHOWN]) or "none") + more
