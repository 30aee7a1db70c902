import numpy as np
import pytest

from cflower.algorithm.weights import Weights
from cflower.messages.arrays import record_of
from cflower.messages.eight_bits import MOST, difference_of, model_of
from cflower.messages.layout import Layout

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


@pytest.mark.parametrize("length", [1e-6, 0.1, 30.0])
def test_each_entry_is_as_near_as_half_a_level_and_what_is_not_trained_is_kept(length):
    rng, leaf = np.random.default_rng(0), LAYOUT.as_sent(LEAF)
    noise = (length * rng.standard_normal(2009)).astype(np.float32)
    own = LAYOUT.as_sent(Weights(leaf.trained + noise, leaf.carried + np.array([0, 0, 1e6, 1])))
    kept = model_of(LAYOUT, difference_of(LAYOUT, own, leaf), leaf)
    np.testing.assert_array_equal(kept.carried, own.carried)
    for place, step in (slice(2000), 2**-23), (slice(2000, 2009), 2**-10):
        one, other = own.trained[place], kept.trained[place]
        level = np.abs(one - leaf.trained[place]).max() / MOST
        assert np.abs(one - other).max() <= level / 2 + step * np.abs(one).max()
    again = model_of(LAYOUT, difference_of(LAYOUT, kept, leaf), leaf)
    np.testing.assert_allclose(
        again.trained, kept.trained, atol=2**-22 * np.abs(kept.trained).max()
    )


def test_a_model_that_is_its_leafs_takes_next_to_nothing():
    leaf = LAYOUT.as_sent(LEAF)
    content = difference_of(LAYOUT, leaf, leaf)
    assert len(content) < 300
    np.testing.assert_array_equal(model_of(LAYOUT, content, leaf).trained, leaf.trained)
