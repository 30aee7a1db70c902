import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cflower.algorithm.criteria import LARGE, NormCriterion, Outcome, sampled
from cflower.seeding import generator
from tests.algorithm.planted import evidence_of, laws

SETTINGS = {"eps1": 0.5, "eps2": 1.0, "gamma_max": 0.5, "min_cluster_size": 1}


def decide(evidence, **settings):
    decision, memory = NormCriterion(**(SETTINGS | settings)).decide(evidence, {"kept": 1})
    assert memory == {"kept": 1}
    assert (decision.cluster, decision.server_round) == (evidence.cluster, evidence.server_round)
    assert (decision.mean_norm, decision.max_norm) == (evidence.mean_norm, evidence.max_norm)
    return decision


opposed = evidence_of([[2, 0], [-2, 0.1], [2.1, 0], [-2, 0]], 7)
moving = evidence_of([[2, 0], [2, 1]])
content = evidence_of([[0.9, 0], [-0.8, 0]])
lopsided = evidence_of([[2, 0], [-2 / 3, 0], [-2 / 3, 0.01], [-2 / 3, -0.01]])
around = np.radians(60 * np.arange(6))
hexagon = evidence_of(2 * np.c_[np.cos(around), np.sin(around)])
"""The closest clients of two sides are at 60°: alpha_cross is 0.5, gamma must be below 0.5."""


def test_a_stationary_cluster_of_opposed_clients_is_split():
    decision = decide(opposed)
    assert decision.outcome is Outcome.SPLIT
    assert decision.sides == (("client-0", "client-2"), ("client-1", "client-3"))
    assert decision.alpha_cross < -0.99
    assert decision.clients == opposed.clients
    np.testing.assert_array_equal(decision.similarity, opposed.similarity)
    assert "mean norm 0.0354" in decision.reason


@pytest.mark.parametrize(
    ("evidence", "settings", "outcome", "reason"),
    [
        (moving, {}, Outcome.MOVING, "norm 2.06 >= eps1 0.5"),
        (content, {}, Outcome.CONTENT, "largest norm 0.9 <= eps2 1"),
        (evidence_of([[2, 0]]), {}, Outcome.TOO_SMALL, "1 member, 2 needed"),
        (evidence_of(np.zeros((0, 2))), {}, Outcome.TOO_SMALL, "0 members"),
        (evidence_of(np.zeros((3, 2))), {}, Outcome.CONTENT, "largest norm 0 <="),
        (evidence_of(opposed.vectors, num_members=6), {}, Outcome.TOO_FEW_HEARD, "5 needed"),
        # Five of seven are more than half, but two sides of three need six.
        (
            evidence_of([[2, 0]] * 5, num_members=7),
            {"heard_share": 0.5, "min_cluster_size": 3},
            Outcome.TOO_FEW_HEARD,
            "5 members with a fresh update, 6 needed",
        ),
    ],
)
def test_without_a_bipartition_the_reason_has_the_missed_bound(evidence, settings, outcome, reason):
    decision = decide(evidence, **settings)
    assert decision.outcome is outcome
    assert reason in decision.reason
    assert (decision.similarity, decision.alpha_cross, decision.sides) == (None, None, ())


@pytest.mark.parametrize(
    ("evidence", "refusing", "outcome", "reason", "accepting"),
    [
        (hexagon, {"gamma_max": 0.6}, Outcome.NOT_APART, "0.6 >= 0.5", {"gamma_max": 0.4}),
        (lopsided, {"min_cluster_size": 2}, Outcome.TOO_SMALL, "1 member, 2 needed", {}),
    ],
)
def test_a_split_is_refused_with_its_similarity(evidence, refusing, outcome, reason, accepting):
    decision = decide(evidence, **refusing)
    assert decision.outcome is outcome
    assert reason in decision.reason
    assert decision.similarity is not None
    assert decision.alpha_cross is not None
    assert decision.sides == ()
    assert decide(evidence, **accepting).outcome is Outcome.SPLIT


@laws
@given(st.integers(2, 300), st.integers(1, 100))
def test_exactly_the_required_share_is_enough(members, percent):
    ready = max(2, -(-members * percent // 100))
    evidence = evidence_of(np.zeros((ready, 2)), num_members=members)
    assert decide(evidence, heard_share=percent / 100).outcome is Outcome.CONTENT
    if ready > 2:
        fewer = evidence_of(np.zeros((ready - 1, 2)), num_members=members)
        assert decide(fewer, heard_share=percent / 100).outcome is Outcome.TOO_FEW_HEARD


exactly_opposed = evidence_of([[2, 0], [-2, 0]])
"""Here alpha_cross is -1, so every gamma below 1 is safe."""


@pytest.mark.parametrize(
    ("evidence", "key", "bound", "beyond", "outcome"),
    [
        (opposed, "eps1", opposed.mean_norm, 1, Outcome.MOVING),
        (opposed, "eps2", opposed.max_norm, 0, Outcome.CONTENT),
        (exactly_opposed, "gamma_max", 1.0, 0, Outcome.NOT_APART),
    ],
)
def test_every_threshold_is_an_open_bound(evidence, key, bound, beyond, outcome):
    assert decide(evidence, **{key: bound}).outcome is outcome
    assert decide(evidence, **{key: np.nextafter(bound, beyond)}).outcome is Outcome.SPLIT


@pytest.mark.parametrize("linkage", ["single", "complete"])
def test_above_2000_clients_a_random_2000_are_split(linkage):
    updates = np.float32([2, -2])[np.arange(2600) % 2, None] * np.ones(3, np.float32)
    decision = decide(evidence_of(updates), linkage=linkage)
    assert decision.outcome is Outcome.SPLIT
    assert len(decision.clients) == len(decision.similarity) == LARGE
    sides = [{int(name.split("-")[1]) % 2 for name in side} for side in decision.sides]
    assert sides in ([{0}, {1}], [{1}, {0}])


def test_a_sample_hardly_changes_with_the_members():
    members = np.flatnonzero(generator(0, "members").random(5000) < 0.9)
    before, after = sampled(members, "0"), sampled(members[50:-5], "0")
    assert len(before) == len(set(before)) == LARGE
    assert len(set(before) - set(after)) < 30
    assert set(before) != set(sampled(members, "0.1"))
