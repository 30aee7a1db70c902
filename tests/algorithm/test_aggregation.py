import numpy as np
import pytest
from scipy.stats import trim_mean

from cflower.algorithm.aggregation import (
    BLOCK,
    LARGE,
    MEDIAN,
    TrimmedMean,
    WeightedMean,
)
from cflower.algorithm.weights import Weights
from cflower.seeding import generator


def test_small_models_in_single_precision_are_summed_in_double():
    mean = WeightedMean()
    for value in (1e8, 1.0, -1e8):
        mean.add(Weights(np.float32([value]), np.zeros(0)), 1.0)
    trained = mean.mean().trained
    assert trained.dtype == np.float32
    assert trained[0] == np.float32(1 / 3)


@pytest.mark.parametrize("size", [5, LARGE + 1])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_mean_is_weighted_and_late_updates_are_shortened(size, dtype):
    rng = generator(0, "updates")
    updates = rng.normal(size=(6, size)).astype(dtype)
    weights, scales = rng.integers(1, 9, size=6).astype(float), np.array([1, 0.5, 1, 1, 0.25, 1])
    total = WeightedMean()
    for i, update in enumerate(updates):
        total.add(Weights(update, np.array([float(i)])), weights[i], scales[i])
    mean, shortened = total.mean(), updates.astype(float) * scales[:, None]
    expected = np.average(shortened, axis=0, weights=weights)
    np.testing.assert_allclose(mean.trained, expected, atol=1e-6)
    expected = np.average(np.arange(6) * scales, weights=weights)
    np.testing.assert_allclose(mean.carried, [expected])
    assert mean.trained.dtype == dtype


@pytest.mark.parametrize("size", range(1, 12))
@pytest.mark.parametrize("trim", [0.2, 0.4, MEDIAN])
def test_trimmed_means_are_those_of_flowers_strategies(size, trim):
    updates = generator(size, "trimmed").normal(size=(size, BLOCK + 3)).astype(np.float32)
    total = TrimmedMean(trim)
    for i, update in enumerate(updates):
        total.add(Weights(update, np.array([float(i)])), weight=10.0**i, scale=1.0)
    mean = total.mean()
    whole = np.median(updates, axis=0) if trim == MEDIAN else trim_mean(updates, trim, axis=0)
    np.testing.assert_allclose(mean.trained, whole, atol=1e-6)
    assert mean.carried == pytest.approx((size - 1) / 2)
    assert mean.trained.dtype == np.float32
