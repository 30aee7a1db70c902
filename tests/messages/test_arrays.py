import numpy as np
import pytest
from flwr.app import Array
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from cflower.messages.arrays import record_of, values_of
from tests.algorithm.planted import laws

shapes = array_shapes(min_dims=0, min_side=0)
small = arrays(np.float32, shapes, elements=st.floats(0, 100, width=32))
kinds = ("f2", "f4", "f8", "i4", "i8", "u1", "?", ">f4")


@laws
@given(small)
def test_reads_what_flower_reads(values):
    for kind in kinds:
        for laid_out in (values.astype(kind), np.asfortranarray(values.astype(kind))):
            array = Array(laid_out)
            read, expected = values_of(array), array.numpy()
            assert (read.shape, read.dtype) == (expected.shape, expected.dtype)
            np.testing.assert_array_equal(read, expected)


@laws
@given(small)
def test_writes_what_flower_writes(values):
    for kind in kinds:
        for laid_out in (values.astype(kind), np.asfortranarray(values.astype(kind)).T):
            (written,) = record_of({"w": laid_out}).values()
            assert written == Array(np.ascontiguousarray(laid_out).reshape(laid_out.shape))


def test_large_arrays_are_not_copied():
    array = Array(np.arange(1000.0))
    assert np.shares_memory(values_of(array), np.frombuffer(array.data, np.uint8))


@pytest.mark.parametrize("cut", [0, 5, 200])
def test_bytes_that_end_early_are_an_error(cut):
    array = Array(np.arange(100.0))
    broken = Array(array.dtype, array.shape, array.stype, array.data[:cut])
    with pytest.raises(Exception, match=r".+"):
        values_of(broken)
