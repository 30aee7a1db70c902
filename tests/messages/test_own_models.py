import numpy as np
import pytest

from cflower.algorithm.weights import Weights
from cflower.messages.arrays import record_of
from cflower.messages.layout import Layout
from cflower.messages.own_models import LARGEST_HALF, difference_of, restored

LAYOUT = Layout.of(
    record_of(
        {
            "weight": np.zeros((50, 40), np.float32),
            "half": np.zeros(9, np.float16),
            "running_var": np.zeros(3, np.float32),
            "num": np.zeros((), np.int64),
        }
    )
)
LEAF = Weights(np.linspace(-2, 2, 2009, dtype=np.float32), np.array([1e-3, 1.0, 50.0, 7.0]))


@pytest.mark.parametrize("length", [1e-6, 1e-4, 1e-3, 0.1, 30.0])
def test_a_difference_is_rounded_by_a_2048th_of_itself_and_what_is_not_trained_is_kept(length):
    rng, leaf = np.random.default_rng(0), LAYOUT.as_sent(LEAF)
    noise = (length * rng.standard_normal(2009)).astype(np.float32)
    own = LAYOUT.as_sent(Weights(leaf.trained + noise, leaf.carried + np.array([0, 0, 1e6, 1])))
    difference = difference_of(LAYOUT, own, leaf)
    assert {key: array.dtype for key, array in difference.items()} == {
        **{"weight": np.float16, "half": np.float16, "running_var": np.float32, "num": np.int64}
    }
    kept = restored(LAYOUT, difference, leaf)
    np.testing.assert_array_equal(kept.carried, own.carried)
    for place, step in (slice(2000), 2**-23), (slice(2000, 2009), 2**-10):
        one, other = own.trained[place], kept.trained[place]
        allowed = np.abs(one - leaf.trained[place]) / 2048 + step * np.abs(one) + 2**-25
        assert (np.abs(one - other) <= allowed).all()


@pytest.mark.parametrize("length", [1e-6, 1e-4, 1e-3, 0.1, 30.0])
def test_what_is_kept_of_a_kept_model_is_that_model(length):
    rng, leaf = np.random.default_rng(0), LAYOUT.as_sent(LEAF)
    noise = (length * rng.standard_normal(2009)).astype(np.float32)
    own = Weights(leaf.trained + noise, leaf.carried)
    once = restored(LAYOUT, difference_of(LAYOUT, own, leaf), leaf)
    again = restored(LAYOUT, difference_of(LAYOUT, once, leaf), leaf)
    np.testing.assert_array_equal(again.trained, once.trained)


def test_a_difference_that_half_precision_does_not_have_stays_a_number():
    leaf = LAYOUT.as_sent(LEAF)
    own = Weights(np.where(np.arange(2009) < 2000, np.float32(1e30), leaf.trained), leaf.carried)
    kept = restored(LAYOUT, difference_of(LAYOUT, own, leaf), leaf)
    np.testing.assert_allclose(kept.trained[:2000], leaf.trained[:2000] + LARGEST_HALF)
