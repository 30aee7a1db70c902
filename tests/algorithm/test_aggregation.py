import numpy as np
import pytest
from scipy.stats import trim_mean

from cflower.algorithm.aggregation import BLOCK, LARGE, MEDIAN, TrimmedMean, WeightedMean
from cflower.algorithm.weights import Weights
from cflower.seeding import generator


def test_small_models_in_single_precision_are_summed_in_double():
    mean = WeightedMean({"0": Weights(np.zeros(1, np.float32), np.zeros(0))})
    for value in (1e8, 1.0, -1e8):
        mean.add("0", Weights(np.float32([value]), np.zeros(0)), 1.0)
    trained = mean.mean("0").trained
    assert trained.dtype == np.float32
    assert trained[0] == np.float32(1 / 3)


@pytest.mark.parametrize("size", [5, LARGE + 1])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_every_cluster_has_the_weighted_mean_of_its_updates(size, dtype):
    rng = generator(0, "updates")
    updates = rng.normal(size=(6, size)).astype(dtype)
    weights, scales = rng.integers(1, 9, size=6).astype(float), np.array([1, 0.5, 1, 1, 0.25, 1])
    model = Weights(updates[0], np.zeros(1))
    means = WeightedMean({"0.0": model, "0.1": model, "0.2": model})
    for i, update in enumerate(updates):
        means.add(f"0.{i % 2}", Weights(update, np.array([float(i)])), weights[i], scales[i])
    for leaf in (0, 1):
        mean, own = means.mean(f"0.{leaf}"), slice(leaf, None, 2)
        shortened = updates[own].astype(float) * scales[own, None]
        expected = np.average(shortened, axis=0, weights=weights[own])
        np.testing.assert_allclose(mean.trained, expected, atol=1e-6)
        expected = np.average(np.arange(leaf, 6, 2) * scales[own], weights=weights[own])
        np.testing.assert_allclose(mean.carried, [expected])
        assert mean.trained.dtype == dtype
    assert len(means.mean("0.2").trained) == 0


@pytest.mark.parametrize("size", range(1, 12))
@pytest.mark.parametrize("trim", [0.2, 0.4, MEDIAN])
def test_trimmed_means_are_those_of_flowers_strategies(size, trim):
    updates = generator(size, "trimmed").normal(size=(size, BLOCK + 3)).astype(np.float32)
    means = TrimmedMean(trim)
    for i, update in enumerate(updates):
        means.add("0", Weights(update, np.array([float(i)])), weight=10.0**i, scale=1.0)
    mean = means.mean("0")
    whole = np.median(updates, axis=0) if trim == MEDIAN else trim_mean(updates, trim, axis=0)
    np.testing.assert_allclose(mean.trained, whole, atol=1e-6)
    assert mean.carried == pytest.approx((size - 1) / 2)
    assert mean.trained.dtype == np.float32
    assert means.mean("0") is mean
    assert len(means.mean("0.1").trained) == 0
