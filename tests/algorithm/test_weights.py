import numpy as np

from cflower.algorithm.weights import LARGE, norm


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
