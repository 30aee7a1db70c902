"""`auto`'s averages and thresholds, figure by figure, against what is computed by hand."""

from dataclasses import replace

import numpy as np
import pytest

from cflower.algorithm.auto.criterion import (
    MIN_JOINT_ROUNDS,
    AutoCriterion,
    in_touch,
    remember,
    same_parts,
)
from cflower.algorithm.criteria import Evidence, Outcome
from cflower.seeding import generator
from tests.algorithm.test_auto import evidence

SPLITS = {
    "norm_ratio": 0.9,
    "grouped_share": 1.0,
    "joint_rounds": 1.0,
    "margin": 1.0,
    "margin_needed": 0.1,
    "margin_errors": 9.0,
    "margin_errors_needed": 3.0,
    "stable_rounds": 4.0,
    "stable_rounds_needed": 3.0,
}


def heard(updates, server_round, members, weights=None):
    """Evidence of the members with these numbers only."""
    whole = evidence(np.asarray(updates, dtype=float), server_round)
    names = tuple(f"client-{i}" for i in members)
    weights = whole.weights if weights is None else np.asarray(weights)
    return replace(whole, clients=names, weights=weights)


def test_the_tth_update_enters_with_weight_four_over_t_plus_three():
    updates = generator(0, "updates").normal(size=(4, 3, 5))
    memory, expected = {}, np.zeros((3, 5))
    for t, now in enumerate(updates, start=1):
        memory = remember(memory, evidence(now, t))
        expected += 4 / (t + 3) * (now - expected)
        np.testing.assert_allclose(memory["averages"], expected, rtol=1e-5)
    np.testing.assert_array_equal(memory["counts"], [4, 4, 4])
    assert memory["rounds"] == 4


def test_who_is_heard_from_later_is_counted_from_then_on():
    memory = remember({}, heard(np.eye(2, 4), 1, (0, 1), (0.75, 0.25)))
    memory = remember(memory, heard([[0, 0, 2, 0], [0, 0, 0, 8]], 2, (1, 2), (0.5, 0.5)))
    assert memory["clients"] == ("client-0", "client-1", "client-2")
    np.testing.assert_array_equal(memory["counts"], [1, 2, 1])
    np.testing.assert_allclose(memory["averages"][1], [0, 0.2, 1.6, 0], rtol=1e-6)
    np.testing.assert_allclose(memory["averages"][2], [0, 0, 0, 8])
    np.testing.assert_allclose(memory["weights"], [0.75, 0.5, 0.5])
    np.testing.assert_array_equal(memory["heard"][:, 0], [0b01, 0b11, 0b10])
    np.testing.assert_allclose(memory["median"], [1, 1, 1])


def test_the_rounds_that_members_were_heard_in_are_kept_bit_by_bit():
    memory = {}
    for server_round in range(1, 11):
        members = (0, 1) if server_round % 3 else (0,)
        memory = remember(memory, heard(np.eye(len(members), 4), server_round, members))
    bits = np.unpackbits(memory["heard"], axis=1, bitorder="little")[:, :10]
    assert bits.tolist() == [[1] * 10, [1, 1, 0, 1, 1, 0, 1, 1, 0, 1]]


def test_chance_is_measured_by_how_far_updates_lie_from_their_averages():
    updates = generator(0, "noise").normal(size=(5, 4, 6))
    memory, average, power, share = {}, np.zeros((4, 6)), np.zeros(4), np.zeros(4)
    for t, now in enumerate(updates, start=1):
        memory = remember(memory, evidence(now, t))
        difference, step = now - average, 4 / (t + 3)
        if t > 1:
            own = ((difference - difference.mean(axis=0)) ** 2).sum(axis=1) * 4 / 3
            power += 4 / (t + 2) * (own - power)
        average += step * difference
        share = (1 - step) ** 2 * share + step**2
    np.testing.assert_allclose(memory["power"], power, rtol=1e-4)
    np.testing.assert_allclose(memory["share"], share, rtol=1e-9)
    np.testing.assert_allclose(memory["noise"], power * share, rtol=1e-4)


def test_one_update_alone_says_nothing_about_chance():
    memory = remember(remember({}, heard(np.eye(3), 1, (0, 1, 2))), heard([[5.0, 0, 0]], 2, (0,)))
    np.testing.assert_array_equal(memory["power"], [0, 0, 0])


def test_the_peak_is_that_of_the_longest_average_ever():
    updates = np.diag([1.0, 2.0, 3.0, 4.0])
    _, memory = AutoCriterion().decide(evidence(updates, 1), {})
    _, memory = AutoCriterion().decide(evidence(updates, 2), memory)
    assert memory["peak"] == pytest.approx(4.0, rel=1e-6)
    decision, memory = AutoCriterion().decide(evidence(updates / 8, 3), memory)
    assert memory["peak"] == pytest.approx(4.0, rel=1e-6)
    # The averages are now a third of what they were and two thirds of an eighth of it.
    assert decision.figures["norm_ratio"] == pytest.approx(1 / 3 + 2 / 24, rel=1e-5)


def test_a_split_takes_four_rounds_at_the_least():
    rng, memory, outcomes = generator(0, "soon"), {}, []
    centers = np.repeat([[5.0, 0, 0, 0], [-5.0, 0, 0, 0]], 5, axis=0)
    for server_round in range(1, 6):
        now = centers + 0.1 * rng.normal(size=centers.shape)
        decision, memory = AutoCriterion().decide(evidence(now, server_round), memory)
        outcomes.append(decision.outcome)
    few, unsteady, split = Outcome.TOO_FEW_HEARD, Outcome.UNSTEADY, Outcome.SPLIT
    assert outcomes == [few, unsteady, unsteady, split, split]


def test_a_cut_must_have_come_out_for_a_quarter_of_all_rounds():
    rng, memory = generator(0, "late"), {}
    for server_round in range(1, 21):
        now = rng.normal(size=(8, 6))
        decision, memory = AutoCriterion().decide(evidence(now, server_round), memory)
    assert decision.figures["stable_rounds_needed"] == 5.0
    assert decision.figures["margin_needed"] == 12.0 / 64


@pytest.mark.parametrize(
    ("figure", "value", "outcome"),
    [
        ("norm_ratio", 0.3, Outcome.CONTENT),
        ("norm_ratio", 0.3001, Outcome.SPLIT),
        ("grouped_share", 0.4999, Outcome.NOT_APART),
        ("grouped_share", 0.5, Outcome.SPLIT),
        ("joint_rounds", MIN_JOINT_ROUNDS - 1e-4, Outcome.NOT_APART),
        ("joint_rounds", MIN_JOINT_ROUNDS, Outcome.SPLIT),
        ("margin", 0.1, Outcome.NOT_APART),
        ("margin", 0.1001, Outcome.SPLIT),
        ("margin_errors", 3.0, Outcome.NOT_APART),
        ("margin_errors", 3.0001, Outcome.SPLIT),
        ("stable_rounds", 2.0, Outcome.UNSTEADY),
        ("stable_rounds", 3.0, Outcome.SPLIT),
    ],
)
def test_each_threshold_is_where_it_is_said_to_be(figure, value, outcome):
    assert AutoCriterion()._judge({**SPLITS, figure: value})[0] is outcome


def test_members_are_in_touch_until_the_others_were_heard_more_than_twice_as_often():
    counts, then = np.array([10, 10, 10, 10, 5, 4, 5]), np.array([10, 10, 10, 10, 0.0, 4, -1])
    memory = {"counts": counts, "median": then}
    assert in_touch(memory).tolist() == [True] * 4 + [True, False, False]
    one_round = {"counts": np.array([1, 2, 2]), "median": np.array([1, 2, 2])}
    assert in_touch(one_round).tolist() == [False, True, True]


def test_cuts_agree_on_whom_both_know():
    assert not same_parts(np.array([0, 1, 1]), np.array([0, 0, 1]))
    assert not same_parts(np.array([0, 1]), np.array([0, 1, 2]))
    assert same_parts(np.array([0, -1, 1]), np.array([1, 0, 0]))


def test_a_round_that_is_not_this_one_is_no_news():
    first = evidence(np.eye(3), 1)
    old = replace(evidence(5 * np.eye(3), 2), rounds=np.array([1, 2, 1]))
    memory = remember(remember({}, first), old)
    np.testing.assert_array_equal(memory["counts"], [1, 2, 1])
    assert isinstance(old, Evidence)
