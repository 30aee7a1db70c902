"""The values of one column, as it comes from a file: NumPy's or Arrow's."""

from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from cflower.settings import require_data

Column: TypeAlias = "NDArray[Any] | pa.ChunkedArray"

ALIASES = "null", "bool", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"
NUMBERS = frozenset(map(pa.type_for_alias, ALIASES))
"""Arrow's types of numbers; a column without any value has the type null."""


def axes_of(column: Column) -> int:
    """Axes of one row's numbers: 0 for one number, 2 for a grey image; -1 if they are none.

    >>> axes_of(np.zeros((5, 8, 8))), axes_of(pa.chunked_array([["a", "b"]]))
    (2, -1)
    """
    if isinstance(column, np.ndarray):
        return column.ndim - 1 if column.dtype.kind in "buif" else -1
    kind, axes = column.type, 0
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    while is_list(kind):
        kind, axes = kind.value_type, axes + 1
    return axes if kind in NUMBERS else -1


def is_list(kind: pa.DataType) -> bool:
    return isinstance(kind, pa.ListType | pa.LargeListType | pa.FixedSizeListType)


def numbers(column: Column, name: str, source: str) -> NDArray[Any]:
    """A column of numbers or equally nested lists of numbers as one array, shape (n, ...), NaN if
    missing.
    """
    if isinstance(column, np.ndarray):
        return column
    # Each chunk by itself: joined, Arrow's offsets into lists would end at 2³¹ values.
    parts = [_chunk_numbers(chunk, name, source) for chunk in column.chunks if len(chunk)]
    if len(parts) < 2:
        return parts[0] if parts else np.zeros(0, np.float32)  # no copy
    require_data(len({part.shape[1:] for part in parts}) == 1, _unequal(name, source))
    return np.concatenate(parts)


def _chunk_numbers(values: pa.Array, name: str, source: str) -> NDArray[Any]:
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    shape = [len(values)]
    while is_list(values.type):
        lengths = pc.unique(pc.list_value_length(values)).to_pylist()
        require_data(len(lengths) == 1 and None not in lengths, _unequal(name, source))
        shape.append(lengths[0])
        values = values.flatten()
    require_data(
        not values.null_count or len(shape) == 1,
        f"{source} has {values.null_count} missing values in column {name!r}: fill or remove them.",
    )
    if pa.types.is_null(values.type):
        return np.full(shape, np.nan, np.float32)
    if pa.types.is_boolean(values.type):
        values = values.cast(pa.uint8())
    if values.null_count or not len(values):
        # Imports pandas: half a second, which the usual table does without.
        return np.asarray(values.to_numpy(zero_copy_only=False)).reshape(shape)
    return np.from_dlpack(values).reshape(shape)


def _unequal(name: str, source: str) -> str:
    return (
        f"{source} has images of different sizes or missing ones in column {name!r}: bring them "
        "all to one size."
    )


def values_of(column: Column) -> list[Any]:
    values: list[Any] = column.tolist() if isinstance(column, np.ndarray) else column.to_pylist()
    return values


def is_value(column: Column) -> bool:
    """Whether a column has one number, text or date in a row, and no list, file or mapping.

    >>> is_value(np.array(["a"], object)), is_value(pa.chunked_array([[[1, 2]]]))
    (True, False)
    """
    if isinstance(column, np.ndarray):
        some = next((value for value in column if value is not None), "")
        return column.ndim == 1 and not isinstance(some, dict | list | tuple | bytes | np.ndarray)
    kind = column.type
    return not (pa.types.is_nested(kind) or pa.types.is_binary(kind) or is_list(kind))
