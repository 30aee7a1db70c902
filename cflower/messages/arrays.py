"""Conversion between Flower's arrays and NumPy's.

Flower's own parsing and copying of replies takes longer than their aggregation, and its way of
making a record of arrays longer than a small model's training step.
"""

from collections.abc import Mapping
from copy import copy
from functools import lru_cache
from io import BytesIO
from typing import Any, TypeVar

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from numpy.typing import NDArray

RecordKind = TypeVar("RecordKind", ArrayRecord, ConfigRecord, MetricRecord)


def values_of(array: Array) -> NDArray[Any]:
    """The values of ``array.numpy()``, as a read-only view of its bytes where possible.

    Bytes from outside that are no array can raise any exception.

    >>> values_of(Array(np.ones(2)))
    array([1., 1.])
    """
    dtype = np.dtype(array.dtype)
    header = header_of(tuple(array.shape), dtype)
    if array.stype != "numpy.ndarray" or not array.data.startswith(header):
        return array.numpy()
    return np.frombuffer(array.data, dtype, offset=len(header)).reshape(array.shape)


def record_of(arrays: Mapping[str, NDArray[Any]]) -> ArrayRecord:
    """A record with copies of the values.

    >>> record_of({"bias": np.ones(2)})["bias"].numpy()
    array([1., 1.])
    """
    record = ArrayRecord()
    for key, values in arrays.items():
        content: Any = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        data = b"".join((header_of(values.shape, values.dtype), content))
        record[key] = Array(str(values.dtype), values.shape, "numpy.ndarray", data)
    return record


def copy_of(arrays: ArrayRecord) -> ArrayRecord:
    """A copy of a record; the bytes of its arrays, which are immutable, are shared.

    >>> before = record_of({"bias": np.ones(2)})
    >>> copy_of(before)["bias"].data = b""
    >>> before["bias"].numpy()
    array([1., 1.])
    """
    record = ArrayRecord()
    for key, array in arrays.items():
        record[key] = copy(array)
    return record


def records_in(content: RecordDict, kind: type[RecordKind]) -> dict[str, RecordKind]:
    """The records of one kind in a message's content.

    ``content.array_records`` and its like make reference cycles, which keep the content, with all
    its arrays, in memory until Python looks for such: several models at a time.

    >>> content = RecordDict({"arrays": record_of({}), "config": ConfigRecord()})
    >>> list(records_in(content, ArrayRecord))
    ['arrays']
    """
    return {key: record for key, record in content.items() if isinstance(record, kind)}


@lru_cache(maxsize=1024)
def header_of(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bytes:
    """The header that ``np.save`` writes before the values of an array in C order."""
    file = BytesIO()
    described = {"descr": dtype.str, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, described)
    return file.getvalue()
