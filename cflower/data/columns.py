"""The columns of a data set: which hold the labels and which the inputs."""

from collections.abc import Sequence
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from cflower.errors import DataError

LABEL_COLUMNS = (
    "label", "labels", "fine_label", "target", "y", "class", "character", "digit",
)  # fmt: skip
IMAGE_COLUMNS = ("image", "img", "x", "pixels")


def label_column(dataset: datasets.Dataset, source: str) -> str:
    """Name of the label column: the first ClassLabel, else the first usual name.

    Raises
    ------
    DataError
        If there is none; names the columns found in `source`.
    """
    for name, feature in dataset.features.items():
        if isinstance(feature, datasets.ClassLabel):
            return str(name)
    for name in LABEL_COLUMNS:
        if name in dataset.features:
            return name
    raise DataError(
        f"{source} has no labels: its columns are {listed(dataset.column_names)}; name the "
        f"label column 'label' or put the images into one folder per class."
    )


def with_classes(dataset: datasets.Dataset, source: str) -> datasets.Dataset:
    """`dataset` with its label column as a ClassLabel over all labels that occur in it.

    Call it on the whole source: a partition need not have every class.

    Raises
    ------
    DataError
        If there is no label column, a label is missing, there are fewer than two classes,
        or the labels are measurements rather than classes.
    """
    column = label_column(dataset, source)
    feature = dataset.features[column]
    if isinstance(feature, datasets.ClassLabel):
        return dataset
    labels = dataset.select_columns([column]).with_format("arrow")[:][column].combine_chunks()
    if pa.types.is_nested(labels.type):
        raise DataError(
            f"{source} has lists in its label column {column!r}: expected one class per row."
        )
    if labels.null_count:
        raise DataError(
            f"{source} has {labels.null_count} rows without a value in its label column "
            f"{column!r}: remove or label them."
        )
    values = sorted(pc.unique(labels).to_pylist())
    if any(isinstance(value, float) and not value.is_integer() for value in values):
        raise DataError(
            f"{source} has fractional numbers in its label column {column!r}: expected classes "
            "(text or whole numbers)."
        )
    names = [str(int(value)) if isinstance(value, float) else str(value) for value in values]
    places = pc.index_in(labels, value_set=pa.array(values, type=labels.type))
    class_label = datasets.ClassLabel(names=names)
    encoded = places.to_numpy(zero_copy_only=False).astype(np.int64)
    without = dataset.remove_columns([column])
    return without.add_column(column, encoded, feature=class_label)


def class_names(dataset: datasets.Dataset, source: str, *, least: int = 2) -> tuple[str, ...]:
    """Names of all classes of a source prepared by `with_classes`; at least so many."""
    feature = dataset.features[label_column(dataset, source)]
    # A list of labels: one for each place of a sequence.
    names = tuple((feature.feature if isinstance(feature, datasets.List) else feature).names)
    if len(names) < least:
        raise DataError(
            f"{source} has only {len(names)} class ({listed(names)}): learning to tell classes "
            "apart needs at least 2."
        )
    return names


def labels_of(dataset: datasets.Dataset, source: str) -> NDArray[np.int64]:
    """Labels as class positions, shape (n,); of sequences (n, length)."""
    column = label_column(dataset, source)
    table = dataset.select_columns([column]).with_format("arrow")[:]
    return column_array(table[column], column, source).astype(np.int64)


def input_columns(dataset: datasets.Dataset, source: str, exclude: Sequence[str] = ()) -> list[str]:
    """The image column, else every column of numbers that is neither label nor in `exclude`.

    Raises
    ------
    DataError
        If there is nothing to learn from; names the columns found in `source`.
    """
    for name, feature in dataset.features.items():
        if isinstance(feature, datasets.Image):
            return [str(name)]
    taken = {label_column(dataset, source), *exclude}
    for name in IMAGE_COLUMNS:
        if name in dataset.features and name not in taken and _is_numeric(dataset, name):
            return [name]
    numeric = [name for name in dataset.column_names if name not in taken]
    numeric = [name for name in numeric if _is_number(dataset.features[name])]
    if not numeric:
        raise DataError(
            f"{source} has no images or numbers to learn from: its columns are "
            f"{listed(dataset.column_names)}; name the image column 'image'."
        )
    return numeric


def column_array(column: pa.ChunkedArray, name: str, source: str) -> NDArray[Any]:
    """An Arrow column of numbers or equally nested lists of numbers as one array."""
    values = column.combine_chunks()
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    shape = [len(values)]
    while (
        pa.types.is_list(values.type)
        or pa.types.is_large_list(values.type)
        or (pa.types.is_fixed_size_list(values.type))
    ):
        lengths = pc.unique(pc.list_value_length(values)).to_pylist()
        if len(lengths) > 1 or None in lengths:
            raise DataError(
                f"{source} has images of different sizes or missing ones in column {name!r}: "
                "bring them all to one size."
            )
        shape.append(lengths[0] if lengths else 0)
        values = values.flatten()
    if values.null_count:
        raise DataError(
            f"{source} has {values.null_count} missing values in column {name!r}: fill or "
            "remove them."
        )
    return np.asarray(values.to_numpy(zero_copy_only=False)).reshape(shape)


def _is_number(feature: Any) -> bool:
    kinds = ("int", "uint", "float", "bool")
    return isinstance(feature, datasets.Value) and feature.dtype.startswith(kinds)


def _is_numeric(dataset: datasets.Dataset, name: str) -> bool:
    """Whether a column holds nested numbers, as an image does."""
    feature = dataset.features[name]
    while isinstance(feature, datasets.List | datasets.LargeList):
        feature = feature.feature
    arrays = datasets.Array2D | datasets.Array3D
    return isinstance(dataset.features[name], arrays) or (
        feature is not dataset.features[name] and _is_number(feature)
    )


def listed(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) else "none"
