import numpy as np
import pytest
from scipy.stats import trim_mean

from cflower.algorithm.aggregation import (
    BLOCK,
    LARGE,
    MEDIAN,
    Aggregator,
    Average,
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
@pytest.mark.parametrize("rule", [TrimmedMean(), TrimmedMean(0.4), TrimmedMean(MEDIAN)])
def test_trimmed_means_are_those_of_flowers_strategies(size, rule):
    updates = generator(size, "trimmed").normal(size=(size, BLOCK + 3)).astype(np.float32)
    total = rule.empty()
    for i, update in enumerate(updates):
        total.add(Weights(update, np.array([float(i)])), weight=10.0**i, scale=1.0)
    mean = total.mean()
    is_median = rule.beta == MEDIAN
    whole = np.median(updates, axis=0) if is_median else trim_mean(updates, rule.beta, axis=0)
    np.testing.assert_allclose(mean.trained, whole, atol=1e-6)
    assert mean.carried == pytest.approx((size - 1) / 2)
    assert mean.trained.dtype == np.float32


class Mean(Aggregator):
    """Eq. 2 with the method that a rule needs, and no other."""

    def mean(self, vectors, weights):
        return np.average(np.stack(vectors), axis=0, weights=weights).astype(vectors[0].dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_rule_with_a_mean_alone_is_used_as_eq_2_is(dtype):
    rng = generator(0, "rule")
    updates, weights = rng.normal(size=(7, 5)).astype(dtype), rng.uniform(1, 9, size=7)
    means = []
    for rule in (Average(), Mean()):
        halves = rule.empty(), rule.empty()
        for i, update in enumerate(updates):
            scale = 1 / (1 + i % 3)
            halves[i % 2].add(Weights(update, np.zeros(0)), weights[i], scale)
        halves[0].merge(halves[1])
        means.append(halves[0].mean())
        assert [part.dtype for part in means[-1]] == [dtype, float]
    np.testing.assert_allclose(means[0].trained, means[1].trained, rtol=1e-5)
    shares = weights / weights.sum()
    np.testing.assert_allclose(*(r.mean(updates, shares) for r in (Average(), Mean())), rtol=1e-5)
