import numpy as np

from cflower.algorithm.aggregation import StreamingSum, WeightedMean
from cflower.algorithm.difference import SMALL, Difference, Update
from cflower.algorithm.projection import Projection
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


def test_a_sum_made_before_the_weights_were_known_counts_only_if_they_are_as_presumed():
    rng = generator(0, "presumed")
    size = SMALL + 5
    model = Weights(rng.normal(size=size).astype(np.float32), np.zeros(0))
    projection = Projection(size, 1000)
    for factors in (np.ones(11), np.where(np.arange(11) == 5, 0.25, 1.0)):
        tally, vectors = WeightedMean({"0": model}), []
        presumed = rng.integers(1, 9, size=11).astype(float)
        for first in range(0, 11, 4):
            models = [model.trained + rng.normal(size=size).astype(np.float32) for _ in range(4)]
            together = [Difference([values], model.trained) for values in models][: 11 - first]
            projection.measure(together, presumed[first : first + 4])
            for i, update in enumerate(together, first):
                vectors.append(np.asarray(update))
                tally.add("0", Update(update, np.zeros(0)), presumed[i] * factors[i])
        expected = np.average(np.array(vectors, float), axis=0, weights=presumed * factors)
        np.testing.assert_allclose(tally.mean("0").trained, expected, atol=1e-5)
