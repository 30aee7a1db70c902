"""The paired test, and the judgement that rests on it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cflower.algorithm.constants import LIKELY, SIGNIFICANT
from cflower.changes.vote import Comparison, Measure, judge, paired
from cflower.seeding import generator
from tests.algorithm.planted import laws

ACCURACY, LOSS = Measure(), Measure("loss", higher_is_better=False)
case = st.tuples(st.integers(0, 20), st.integers(0, 20), st.integers(1, 50), st.booleans())
gains = st.lists(case, min_size=4, max_size=12)


def one(own, common, examples=36, child="0.0", name="accuracy"):
    """One client's comparison by one metric."""
    return Comparison(child, {name: own}, {name: common}, examples)


def many(own, common, **settings):
    """Clients with these values, alternately in two children."""
    pairs = enumerate(zip(own, common, strict=True))
    return [one(a, b, child=f"0.{i % 2}", **settings) for i, (a, b) in pairs]


def both(accuracy, loss):
    """Clients of one child with these pairs of accuracies and of losses."""
    return [
        Comparison("0.0", {"accuracy": a, "loss": x}, {"accuracy": b, "loss": y}, 36)
        for (a, b), (x, y) in zip(accuracy, loss, strict=True)
    ]


def test_it_is_the_t_test_of_one_sample_for_one_child():
    from scipy.stats import ttest_1samp

    values = generator(0, "t").normal(0.1, 0.2, 9)
    result = paired([one(value, 0.0) for value in values], ACCURACY)
    expected = ttest_1samp(values, 0.0, alternative="greater")
    assert result.gain / result.error == pytest.approx(expected.statistic)
    assert result.chance == pytest.approx(expected.pvalue)


def test_a_difference_between_the_gains_of_two_groups_is_no_noise():
    own = [0.72, 0.92, 0.70, 0.90, 0.71, 0.91]
    result = paired(many(own, [0.7] * 6), ACCURACY)
    assert result.error == pytest.approx(0.01 / np.sqrt(6), rel=1e-6)
    assert paired([one(value, 0.7) for value in own], ACCURACY).error > 8 * result.error


@laws
@given(gains)
def test_order_and_scale_do_not_matter_and_exchanged_models_change_the_sign(drawn):
    compared = [one(a, b, n, f"0.{int(c)}") for a, b, n, c in drawn]
    first, again = paired(compared, ACCURACY), paired(compared[::-1], ACCURACY)
    scaled = paired([one(4 * a, 4 * b, n, f"0.{int(c)}") for a, b, n, c in drawn], ACCURACY)
    turned = paired([one(b, a, n, f"0.{int(c)}") for a, b, n, c in drawn], ACCURACY)
    assert turned.gain == pytest.approx(-first.gain)
    for other in (again, scaled):
        assert other.chance == pytest.approx(first.chance, abs=1e-9)
    if first.chance is not None:
        assert turned.chance == pytest.approx(1 - first.chance, abs=1e-9)


def test_chance_alone_confirms_as_often_as_the_levels_state():
    runs, significant, better = 2000, 0, 0
    for seed in range(runs):
        own, common = generator(seed, "chance").normal(0.8, 0.05, (2, 10))
        verdict = judge(many(own, common), [ACCURACY])
        significant += "the clients are served better" in verdict.reason
        better += bool(verdict.better)
    for count, share in ((significant, SIGNIFICANT), (better, LIKELY)):
        assert abs(count / runs - share) < 4 * np.sqrt(share * (1 - share) / runs)


def test_a_clear_gain_is_better_and_a_clear_loss_worse():
    high, low = [0.95, 0.97, 0.94, 0.96], [0.7, 0.75, 0.72, 0.69]
    gain, loss = judge(many(high, low), [ACCURACY]), judge(many(low, high), [ACCURACY])
    assert (gain.better, loss.better) == (True, False)
    assert judge(many(low, low), [ACCURACY]).better is None
    assert judge(many(low, high, name="loss"), [LOSS]).better
    assert gain.figures["accuracy_gain"] == pytest.approx(0.24)
    assert (gain.tests[0].better, gain.tests[0].worse) == (4, 0)
    assert "accuracy 0.955 with separate models, 0.715 with a common one" in gain.reason
    assert "served worse" in loss.reason


@pytest.mark.parametrize(("gain", "better"), [(0.1, "better: accuracy"), (0.001, "worse: loss")])
def test_models_that_are_right_more_often_may_be_too_sure(gain, better):
    accuracies = [(0.5 + gain + n, 0.5) for n in (0.01, -0.01, 0.02, -0.02)]
    verdict = judge(
        both(accuracies, [(2.0, 1.0), (2.1, 1.0), (1.9, 1.0), (2.0, 1.1)]), [ACCURACY, LOSS]
    )
    assert f"the clients are served {better}" in verdict.reason


@pytest.mark.parametrize(
    ("gain", "measures", "better"),
    [(0.01, [ACCURACY, LOSS], True), (0.01, [ACCURACY], False), (0.0, [ACCURACY, LOSS], False)],
)
def test_a_gain_by_the_loss_is_enough_if_the_mean_accuracy_gains_too(gain, measures, better):
    losses = [(0.2, 0.6), (0.1, 0.5), (0.3, 0.8), (0.2, 0.5)]
    accuracies = [(own + gain, 0.9) for own in (0.8, 0.98, 0.9, 0.92)]
    assert bool(judge(both(accuracies, losses), measures).better) is better


def test_a_likely_gain_is_enough_unless_a_loss_is_as_likely():
    values, noise = [0.7, 0.8, 0.75, 0.72, 0.78, 0.74], [0.05, -0.05, 0.0, 0.03, -0.03, 0.0]

    def clients(gain, drop):
        accuracy = [(v + gain + n, v) for v, n in zip(values, noise, strict=True)]
        return both(accuracy, [(v + drop, v) for v in values])

    verdict = judge(clients(0.02, 0.0), [ACCURACY])
    assert verdict.better
    assert "probably served better" in verdict.reason
    assert not judge(clients(0.005, 0.0), [ACCURACY]).better
    assert not judge(clients(0.02, 0.1), [ACCURACY, LOSS]).better
    pairs = list(zip(values, noise, strict=True))
    likely = [(v - 0.02 + n, v) for v, n in pairs]
    assert judge(both([(v + 0.005 + n, v) for v, n in pairs], likely), [ACCURACY, LOSS]).better
    assert not judge(both([(v, v) for v in values], likely), [ACCURACY, LOSS]).better


def test_with_few_examples_or_clients_the_better_mean_decides():
    verdict = judge(many([1.0, 0.5, 1.0], [0.5, 0.5, 0.5], examples=2), [ACCURACY])
    assert verdict.better
    assert "6 held-out examples are too few for a test, so the mean decides" in verdict.reason
    assert not judge(many([0.5, 0.5], [0.5, 0.5], examples=2), [ACCURACY]).better
    assert not judge([one(0.4, 0.5), one(0.6, 0.7, child="0.1")], [ACCURACY]).better


@pytest.mark.parametrize("compared", [[], [one(1.0, 0.0, name="f1")]])
def test_without_an_evaluation_the_split_stands(compared):
    verdict = judge(compared, [ACCURACY, LOSS])
    assert verdict.better
    assert "no client evaluated both models by accuracy or loss" in verdict.reason


GAIN = [0.2, 0.21, 0.19, 0.2]


def children(*gains):
    """Comparisons of several children, each a list of gains over 0.5."""
    return [one(0.5 + gain, 0.5, child=f"0.{i}") for i, own in enumerate(gains) for gain in own]


@pytest.mark.parametrize(
    ("gains", "better"),
    [
        (([-0.5], GAIN), True),
        (([-0.001], GAIN), True),
        (([-0.5, -0.4, -0.5, -0.5], GAIN * 4), True),
        (([-0.5] * 2, [-0.4] * 2, GAIN * 3), True),
        (([-0.5] * 3, [0.2] * 6), True),  # just a third of nine
        # The gain of the others must be significant.
        (([-0.5], [0.0, 0.01, -0.01, 0.0]), False),
        (([-0.5], [0.1, -0.1, 0.2, -0.15]), False),
        # More than a third of the clients always count.
        (([-0.5, -0.5, -0.4], GAIN), False),
        (([-0.5], [-0.5], [-0.5, -0.4], GAIN), False),
    ],
)
def test_small_children_that_are_served_worse_have_no_veto(gains, better):
    assert bool(judge(children(*gains), [ACCURACY]).better) == better


def test_a_small_child_that_gains_counts():
    verdict = judge(children([0.01, 0.02, 0.01, 0.02], [0.4, 0.42]), [ACCURACY])
    assert verdict.better
    assert verdict.tests[0].num_clients == 6


def test_the_metric_with_the_largest_loss_decides_which_child_is_left_out():
    usual = both([(0.7 + i / 100, 0.5) for i in range(5)], [(0.5, 0.6)] * 5)
    (odd,) = both([(0.5, 0.5)], [(900.0, 0.6)])
    assert judge([*usual, odd._replace(child="0.1")], [ACCURACY, LOSS]).better
