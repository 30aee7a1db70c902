"""`auto`'s averages and thresholds, compared with values computed by hand."""

from dataclasses import replace

import numpy as np
import pytest

from cflower.algorithm.criteria import Outcome
from cflower.auto.averages import Averages
from cflower.auto.criterion import AutoCriterion, unsure_or_unsteady
from cflower.seeding import generator
from tests.algorithm.planted import evidence_of

ACCEPTED = {"margin_errors": 9.0, "margin_errors_needed": 3.0}
ACCEPTED |= {"stable_rounds": 4.0, "stable_rounds_needed": 3.0}


def test_averages_weights_and_noise_follow_their_recursions():
    updates = generator(0, "updates").normal(size=(5, 4, 6))
    known, average, power, share = Averages(), np.zeros((4, 6)), np.zeros(4), 0.0
    for t, now in enumerate(updates, start=1):
        known = known.updated(evidence_of(now, t))
        difference, step = now - average, 4 / (t + 3)
        if t > 1:
            own = ((difference - difference.mean(axis=0)) ** 2).sum(axis=1) * 4 / 3
            power += 4 / (t + 2) * (own - power)
        average += step * difference
        share = (1 - step) ** 2 * share + step**2
        np.testing.assert_allclose(known.averages, average, rtol=1e-4)
        np.testing.assert_allclose(known.power, power, rtol=1e-4)
        np.testing.assert_allclose(known.noise, power * share, rtol=1e-4)
    assert known.counts.tolist() == [5] * 4


def test_a_later_client_is_counted_from_its_first_update_on():
    known = Averages().updated(evidence_of(np.eye(2, 4), weights=(0.75, 0.25)))
    later = evidence_of([[0, 0, 2, 0], [0, 0, 0, 8]], 2, clients=(1, 2))
    known = Averages(**vars(known)).updated(later)
    assert known.clients == ("client-0", "client-1", "client-2")
    np.testing.assert_array_equal(known.counts, [1, 2, 1])
    np.testing.assert_allclose(known.averages[1], [0, 0.2, 1.6, 0], rtol=1e-6)
    np.testing.assert_allclose(known.averages[2], [0, 0, 0, 8])
    np.testing.assert_allclose(known.weights, [0.75, 0.5, 0.5])
    np.testing.assert_allclose(known.median, [1, 1, 1])


def test_an_update_of_an_earlier_round_is_not_counted_again():
    old = replace(evidence_of(5 * np.eye(3), 2), rounds=np.array([1, 2, 1]))
    assert Averages().updated(evidence_of(np.eye(3))).updated(old).counts.tolist() == [1, 2, 1]


def test_a_split_takes_at_least_four_rounds():
    rng, memory, outcomes = generator(0, "soon"), {}, []
    centers = np.repeat([[5.0, 0, 0, 0], [-5.0, 0, 0, 0]], 5, axis=0)
    for server_round in range(1, 6):
        now = centers + 0.1 * rng.normal(size=centers.shape)
        decision, memory = AutoCriterion().decide(evidence_of(now, server_round), memory)
        outcomes.append(decision.outcome)
    few, unsteady, split = Outcome.TOO_FEW_HEARD, Outcome.UNSTEADY, Outcome.SPLIT
    assert outcomes == [few, unsteady, unsteady, split, split]


def test_the_parts_must_have_been_the_same_for_a_quarter_of_all_rounds():
    rng, memory = generator(0, "late"), {}
    for server_round in range(1, 21):
        evidence = evidence_of(rng.normal(size=(8, 6)), server_round)
        decision, memory = AutoCriterion().decide(evidence, memory)
    assert decision.figures["stable_rounds_needed"] == 5.0


@pytest.mark.parametrize(
    ("figure", "refused", "accepted", "outcome", "reason"),
    [
        (
            "margin_errors",
            3.0,
            3.0001,
            Outcome.NOT_APART,
            "3.0 standard errors apart, and a split needs 3.0",
        ),
        (
            "stable_rounds",
            1.0,
            3.0,
            Outcome.UNSTEADY,
            "groups were seen in 1 round, and a split needs 3",
        ),
        ("stable_rounds_needed", 4.25, 4.0, Outcome.UNSTEADY, "in 4 rounds, and a split needs 5"),
    ],
)
def test_each_threshold_is_where_it_is_documented(figure, refused, accepted, outcome, reason):
    result, sentence = unsure_or_unsteady({**ACCEPTED, figure: refused})
    assert result is outcome
    assert reason in sentence
    assert unsure_or_unsteady({**ACCEPTED, figure: accepted}) is None


def test_members_count_until_the_median_sent_more_than_twice_as_many_updates_since():
    counts, median = np.array([*[10] * 5, 5, 3, 2, 4]), np.array([*[10] * 5, 0, 4, 8, 1])
    known = Averages(tuple("abcdefghi"), np.ones((9, 2)), counts, median=median)
    assert known.left_out("abcdefghi").keys() == {"h", "i"}
    numbers, averages = np.array([1, 2, 2]), np.array([[1.0], [1.0], [0.0]])
    two_rounds = Averages(tuple("abc"), averages, numbers, median=numbers)
    assert two_rounds.left_out("abc").keys() == {"a", "c"}


def test_each_member_that_is_not_considered_has_its_reason():
    counts, median = np.array([10, 10, 10, 10, 2, 4, 10]), np.array([10, 10, 10, 10, 8, 1, 10])
    averages = np.r_[np.ones((6, 2)), np.zeros((1, 2))]
    known = Averages(tuple("abcdefg"), averages, counts, median=median)
    assert known.left_out("abcdefgh") == {
        "e": "2 updates, 3 needed",
        "f": "its last update is too old",
        "g": "it sends back what it got",
        "h": "no update yet",
    }
