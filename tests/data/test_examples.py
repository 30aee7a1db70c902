import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cflower.data.examples import Examples
from cflower.errors import DataError


def numbered(num: int) -> Examples:
    """Examples whose input is their own number."""
    inputs = np.arange(num, dtype=np.float32)[:, None]
    return Examples(inputs, np.arange(num) % 3, ("a", "b", "c"))


@given(st.integers(2, 60), st.floats(0.01, 0.99), st.integers(0, 5))
def test_hold_out_partitions_the_examples(num: int, fraction: float, seed: int) -> None:
    train, held = numbered(num).hold_out(fraction, np.random.default_rng(seed))
    assert sorted([*train.inputs[:, 0], *held.inputs[:, 0]]) == list(range(num))
    assert len(train) >= 1
    assert len(held) == min(max(round(fraction * num), 1), num - 1)
    again = numbered(num).hold_out(fraction, np.random.default_rng(seed))[1]
    np.testing.assert_array_equal(held.inputs, again.inputs)
    np.testing.assert_array_equal(held.labels, held.inputs[:, 0] % 3)


@pytest.mark.parametrize(("num", "words"), [(0, "no examples"), (1, "only 1 example")])
def test_too_few_to_hold_out(num: int, words: str) -> None:
    with pytest.raises(DataError, match=words):
        numbered(num).hold_out(0.2, np.random.default_rng(0))


@pytest.mark.parametrize("fraction", [0.0, 1.0, -1.0, float("nan")])
def test_fraction_outside(fraction: float) -> None:
    with pytest.raises(DataError, match="validation-fraction"):
        numbered(9).hold_out(fraction, np.random.default_rng(0))


def test_inconsistent_examples_are_refused() -> None:
    with pytest.raises(DataError, match="exactly one label"):
        Examples(np.zeros((2, 1), "f4"), np.zeros(3, "i8"), ("a",))
    with pytest.raises(DataError, match="labels go from -1 to 0"):
        Examples(np.zeros((2, 1), "f4"), np.array([-1, 0]), ("a",))


def test_take_by_positions_and_by_mask() -> None:
    examples = numbered(6)
    assert examples.take(np.array([4, 1])).inputs[:, 0].tolist() == [4, 1]
    assert examples.take(examples.labels == 2).inputs[:, 0].tolist() == [2, 5]
    assert (examples.num_classes, examples.input_shape) == (3, (1,))
