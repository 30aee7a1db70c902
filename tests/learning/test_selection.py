"""Laws of choosing among the models on a client's path."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.special import softmax

from cflower.learning.selection import choose, chosen_by_others, judge_path
from cflower.seeding import generator

# Quarters: their sums are exact, so that laws hold to the last bit.
LOSSES = arrays(
    np.int64, st.tuples(st.integers(1, 4), st.integers(1, 30)), elements=st.integers(0, 40)
).map(lambda quarters: quarters / 4)


@given(LOSSES, st.data())
def test_no_example_has_a_part_in_choosing_what_it_judges(losses, data):
    example = data.draw(st.integers(0, losses.shape[1] - 1))
    before = chosen_by_others(losses, generator(0, "halves"))
    losses[:, example] = data.draw(arrays(np.float64, len(losses), elements=st.floats(0, 10)))
    after = chosen_by_others(losses, generator(0, "halves"))
    assert after[example] == before[example]


@given(LOSSES)
def test_examples_that_are_as_hard_for_all_models_do_not_change_the_choice(losses):
    assert choose(losses + np.arange(losses.shape[1])) == choose(losses)


@pytest.mark.parametrize("seed", range(20))
def test_chance_decides_for_the_general_model_and_evidence_for_the_better_one(seed):
    rng = generator(seed, "losses")
    general = rng.exponential(size=400)
    assert choose(np.stack([general, general])) == 0
    assert choose(np.stack([general, general * rng.uniform(0.2, 0.6, 400), general])) == 1


def test_a_single_example_or_model_leaves_nothing_to_choose():
    assert choose(np.array([[5.0], [0.1]])) == 0
    logits = {"0": generator(0, "logits").normal(size=(7, 3))}
    judged = judge_path(logits, np.arange(7) % 3, generator(0, "halves"))
    assert judged.best == judged.levels["0"] == pytest.approx(judged.ensemble)
    assert judged.best_level == "0"


@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_a_model_without_finite_predictions_is_not_chosen(broken):
    assert choose(np.array([[broken] * 4, [9.0] * 4])) == 1
    assert choose(np.array([[9.0] * 4, [0.1, 0.1, broken, 0.1]])) == 0
    assert choose(np.full((2, 4), broken)) == 0


def test_every_level_and_the_mean_of_their_probabilities_are_measured():
    rng = generator(0, "logits")
    logits = {name: rng.normal(size=(50, 4)).astype(np.float32) for name in ("0", "0.1", "0.1.0")}
    labels = rng.integers(4, size=50)
    judged = judge_path(logits, labels, rng)
    for name, output in logits.items():
        right = softmax(output.astype(float), axis=1)[np.arange(50), labels]
        assert judged.levels[name]["accuracy"] == np.mean(output.argmax(axis=1) == labels)
        assert judged.levels[name]["loss"] == pytest.approx(-np.log(right).mean())
    mean = np.mean([softmax(output.astype(float), axis=1) for output in logits.values()], axis=0)
    assert judged.ensemble["accuracy"] == np.mean(mean.argmax(axis=1) == labels)
    assert judged.ensemble["loss"] == pytest.approx(-np.log(mean[np.arange(50), labels]).mean())


def test_the_best_level_is_selected_and_measured():
    labels = np.arange(60) % 3
    sure = 4.0 * np.eye(3)[labels]
    logits = {"0": np.zeros((60, 3)), "0.0": sure, "0.0.1": -sure}
    judged = judge_path(logits, labels, generator(0, "halves"))
    assert judged.best_level == "0.0"
    assert judged.best == judged.levels["0.0"]
