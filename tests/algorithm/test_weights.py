import numpy as np
import pytest

from cflower.algorithm.aggregation import Average, TrimmedMean
from cflower.algorithm.projection import OutputLayer, Projection
from cflower.algorithm.weights import LARGE, Difference, Update, norm


def test_the_norm_of_a_large_model_is_added_up_in_double_precision():
    part = np.random.default_rng(0).standard_normal(LARGE + 7, dtype=np.float32)
    exact = np.sqrt(40 * np.sum(part.astype(np.float64) ** 2))
    assert abs(norm(np.tile(part, 40)) / exact - 1) < 1e-6


def test_a_norm_beyond_the_precision_is_infinite_in_any_block():
    vector = np.zeros(3 * LARGE, np.float32)
    vector[2 * LARGE :] = 3e38
    assert norm(vector) == np.inf
    vector[-1] = np.nan
    assert not np.isfinite(norm(vector))


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(7,), (LARGE - 3, 0, 5, LARGE), (1, 2 * LARGE + 1)])
@pytest.mark.parametrize("factor", [1.0, 0.3])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_an_update_that_is_computed_when_it_is_read_counts_as_one_in_memory(sizes, factor, dtype):
    rng = np.random.default_rng(0)
    received = [rng.standard_normal(size).astype(dtype) for size in sizes]
    origin = rng.standard_normal(sum(sizes)).astype(dtype)
    read, kept = Difference(received, origin) * factor, np.concatenate(received) - origin
    kept = kept * dtype(factor)
    np.testing.assert_array_equal(read, kept)
    np.testing.assert_array_equal(read[3:-3], kept[3:-3])
    for mask in (None, np.arange(len(origin)) % 3 == 0):
        projection = Projection(len(origin), 5, mask=mask, output=OutputLayer(2, 1))
        np.testing.assert_array_equal(projection.keep(read), projection.keep(kept))
    assert norm(read) == norm(kept)
    for rule in (Average(), TrimmedMean()):
        sums = rule.empty(), rule.empty()
        for total, trained in zip(sums, (read, kept), strict=True):
            total.add(Update(trained, np.zeros(1)), 5.0, 0.5)
            total.add(Update(trained, np.zeros(1)), 2.0)
        one, other = (total.mean().trained for total in sums)
        np.testing.assert_array_equal(one, other)
