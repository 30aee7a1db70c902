"""The values of one column, as it comes from a file: NumPy's or Arrow's."""

from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from cflower.errors import DataError

Column: TypeAlias = "NDArray[Any] | pa.ChunkedArray"


def numbers(column: Column, name: str, source: str) -> NDArray[Any]:
    """A column of numbers or equally nested lists of numbers as one array, shape (n, ...).

    Missing numbers of a plain column are NaN.

    Raises
    ------
    DataError
        If its lists have different lengths or missing values.
    """
    if isinstance(column, np.ndarray):
        return column
    if not column.num_chunks:
        return np.zeros(0, np.float32)
    parts = [_chunk_numbers(chunk, name, source) for chunk in column.chunks]
    if len({part.shape[1:] for part in parts if len(part)}) > 1:
        raise _unequal(name, source)
    # Each chunk by itself: joined, Arrow's offsets into lists would end at 2³¹ values.
    return parts[0] if len(parts) == 1 else np.concatenate([part for part in parts if len(part)])


def _chunk_numbers(values: pa.Array, name: str, source: str) -> NDArray[Any]:
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    shape = [len(values)]
    while is_list(values.type):
        lengths = pc.unique(pc.list_value_length(values)).to_pylist()
        if len(lengths) > 1 or None in lengths:
            raise _unequal(name, source)
        shape.append(lengths[0] if lengths else 0)
        values = values.flatten()
    if values.null_count and len(shape) > 1:
        raise DataError(
            f"{source} has {values.null_count} missing values in column {name!r}: fill or "
            "remove them."
        )
    if pa.types.is_null(values.type):
        return np.full(shape, np.nan, np.float32)
    return as_numpy(values).reshape(shape)


def as_numpy(values: pa.Array) -> NDArray[Any]:
    """Plain values as NumPy has them; where some are missing, as floats."""
    if pa.types.is_boolean(values.type) and not values.null_count:
        values = values.cast(pa.uint8())
    if values.null_count or not len(values):
        # Imports pandas: half a second, which the usual table does without.
        return np.asarray(values.to_numpy(zero_copy_only=False))
    return np.from_dlpack(values)


def _unequal(name: str, source: str) -> DataError:
    return DataError(
        f"{source} has images of different sizes or missing ones in column {name!r}: bring them "
        "all to one size."
    )


def values_of(column: Column) -> NDArray[Any]:
    """A column as an array of Python values, None where there is none."""
    listed = column.tolist() if isinstance(column, np.ndarray) else column.to_pylist()
    values = np.empty(len(listed), dtype=object)
    values[:] = listed
    return values


def is_list(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )


def is_number(column: Column) -> bool:
    """Whether it holds one number per row; an empty column is one of missing numbers."""
    if isinstance(column, np.ndarray):
        return column.ndim == 1 and column.dtype.kind in "buif"
    kind = column.type
    tests = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_null)
    return any(test(kind) for test in tests)


def is_nested(column: Column) -> bool:
    """Whether it holds nested numbers, as an image is."""
    if isinstance(column, np.ndarray):
        return column.ndim > 1 and column.dtype.kind in "buif"
    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    nested = is_list(kind)
    while is_list(kind):
        kind = kind.value_type
    return nested and bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    )
