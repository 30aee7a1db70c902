import numpy as np

from cflower.algorithm.aggregation import StreamingSum, WeightedMean
from cflower.algorithm.difference import SMALL
from cflower.algorithm.tree import Weights
from cflower.seeding import generator


def test_single_precision_sums_are_done_in_double():
    tally = WeightedMean({"0": Weights(np.zeros(1, np.float32), np.zeros(0))})
    for value in (1e8, 1.0, -1e8):
        tally.add("0", Weights(np.float32([value]), np.zeros(0)), 1.0)
    mean = tally.mean("0").trained
    assert mean.dtype == np.float32
    assert mean[0] == np.float32(1 / 3)


def test_large_models_are_summed_to_the_same_means():
    rng = generator(0, "large")
    shape = (2 * StreamingSum.AT_ONCE + 3, SMALL + 1)
    updates = rng.normal(size=shape).astype(np.float32)
    weights = rng.integers(1, 9, size=len(updates)).astype(float)
    model = Weights(updates[0], np.zeros(1))
    tally = WeightedMean({"0.0": model, "0.1": model, "0.2": model})
    for i, (update, weight) in enumerate(zip(updates, weights, strict=True)):
        tally.add(f"0.{i % 2}", Weights(update, np.array([float(i)])), weight)
    for leaf in (0, 1):
        mean, mine = tally.mean(f"0.{leaf}"), weights[leaf::2]
        expected = np.average(updates[leaf::2].astype(np.float64), axis=0, weights=mine)
        np.testing.assert_allclose(mean.trained, expected, atol=1e-6)
        carried = np.average(range(leaf, len(updates), 2), weights=mine)
        np.testing.assert_allclose(mean.carried, [carried])
    assert len(tally.mean("0.2").trained) == 0
