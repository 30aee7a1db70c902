from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cflower.algorithm.criteria import Evidence, NeverSplit, NormCriterion, Outcome
from tests.algorithm.planted import laws

PAPER = {"eps1": 0.4, "eps2": 1.6, "gamma_max": 0.5, "min_cluster_size": 1}
"""What the authors' code has."""


def evidence_of(*updates, num_members=None, cluster="0.1", server_round=7):
    vectors = tuple(np.asarray(update, dtype=float) for update in updates)
    weights = np.full(len(vectors), 1 / max(len(vectors), 1))
    mean = sum((w * v for w, v in zip(weights, vectors, strict=True)), np.zeros(2))
    return Evidence(
        cluster=cluster,
        server_round=server_round,
        num_members=len(vectors) if num_members is None else num_members,
        clients=tuple(f"c{i}" for i in range(len(vectors))),
        vectors=vectors,
        norms=np.array([np.linalg.norm(v) for v in vectors]),
        weights=weights,
        mean_norm=float(np.linalg.norm(mean)),
    )


def decide(evidence, **settings):
    settings = {"eps1": 0.5, "eps2": 1.0, "gamma_max": 0.5, **settings}
    decision, memory = NormCriterion(**(PAPER | settings)).decide(evidence, {"kept": 1})
    assert memory == {"kept": 1}
    assert (decision.cluster, decision.server_round) == ("0.1", 7)
    assert decision.mean_norm == evidence.mean_norm
    assert decision.max_norm == evidence.max_norm
    return decision


apart = evidence_of([2, 0], [-2, 0.1], [2.1, 0], [-2, 0])


def test_a_stationary_cluster_of_opposed_clients_is_split():
    decision = decide(apart)
    assert decision.outcome is Outcome.SPLIT
    assert decision.sides == (("c0", "c2"), ("c1", "c3"))
    assert decision.alpha_cross < -0.99
    assert decision.clients == apart.clients
    np.testing.assert_array_equal(decision.similarity, apart.similarity)
    for figure in ("mean norm 0.0354 < 0.5", "largest norm 2.1 > 1", "sides of 2 and 2"):
        assert figure in decision.reason


def test_a_cluster_still_moving_is_not_split():
    decision = decide(evidence_of([2, 0], [2, 1]))
    assert decision.outcome is Outcome.MOVING
    assert "norm 2.06 >= eps1 0.5" in decision.reason
    assert decision.similarity is None
    assert decision.alpha_cross is None
    assert decision.sides == ()


def test_a_cluster_of_content_clients_is_not_split():
    decision = decide(evidence_of([0.9, 0], [-0.8, 0]))
    assert decision.outcome is Outcome.CONTENT
    assert "largest norm 0.9 <= eps2 1" in decision.reason


def test_sides_too_alike_are_not_split():
    # Nearest clients of different sides 60° apart: alpha_cross 0.5, so gamma_max must be < 0.5.
    around = [np.radians(60 * k) for k in range(6)]
    evidence = evidence_of(*[[2 * np.cos(a), 2 * np.sin(a)] for a in around])
    decision = decide(evidence, gamma_max=0.6)
    assert decision.outcome is Outcome.NOT_APART
    assert decision.alpha_cross == pytest.approx(0.5)
    assert "alpha_cross 0.5 allows gamma < 0.5, and gamma_max is 0.6" in decision.reason
    assert decision.similarity is not None
    assert decide(evidence, gamma_max=0.4).outcome is Outcome.SPLIT


def test_one_member_is_too_small_to_split():
    decision = decide(evidence_of([2, 0]))
    assert decision.outcome is Outcome.TOO_SMALL
    assert "1 member(s), and a split needs at least 2" in decision.reason


def test_nobody_is_too_small_to_split():
    assert decide(evidence_of()).outcome is Outcome.TOO_SMALL


def test_a_side_below_the_smallest_size_is_not_split():
    lopsided = evidence_of([2, 0], [-2 / 3, 0], [-2 / 3, 0.01], [-2 / 3, -0.01])
    decision = decide(lopsided, min_cluster_size=2)
    assert decision.outcome is Outcome.TOO_SMALL
    assert "sides of 1 and 3, at least 2 asked" in decision.reason
    assert decision.alpha_cross is not None
    assert decide(lopsided).outcome is Outcome.SPLIT


def test_too_few_heard_from_is_not_split():
    decision = decide(replace(apart, num_members=6))
    assert decision.outcome is Outcome.TOO_FEW_HEARD
    assert "4 of 6 members heard from" in decision.reason
    assert "needs 5" in decision.reason


def test_the_reason_for_too_few_names_the_bound_that_was_missed():
    # Five of seven are more than half, but two sides of three need six.
    five = evidence_of(*[[2, 0]] * 5, num_members=7)
    decision = decide(five, heard_share=0.5, min_cluster_size=3)
    assert decision.outcome is Outcome.TOO_FEW_HEARD
    assert "5 of 7 members heard from" in decision.reason
    assert "needs 6" in decision.reason


@laws
@given(st.integers(2, 300), st.integers(1, 100))
def test_exactly_the_share_asked_for_is_enough(members, percent):
    heard = max(2, -(-members * percent // 100))
    evidence = evidence_of(*[[0, 0]] * heard, num_members=members)
    assert decide(evidence, heard_share=percent / 100).outcome is Outcome.CONTENT
    if heard > 2:
        fewer = evidence_of(*[[0, 0]] * (heard - 1), num_members=members)
        assert decide(fewer, heard_share=percent / 100).outcome is Outcome.TOO_FEW_HEARD


def test_eps1_is_an_open_bound():
    just = apart.mean_norm
    assert decide(apart, eps1=just).outcome is Outcome.MOVING
    assert decide(apart, eps1=np.nextafter(just, 1)).outcome is Outcome.SPLIT


def test_eps2_is_an_open_bound():
    just = apart.max_norm
    assert decide(apart, eps2=just).outcome is Outcome.CONTENT
    assert decide(apart, eps2=np.nextafter(just, 0)).outcome is Outcome.SPLIT


def test_gamma_max_is_an_open_bound():
    # Opposed exactly: alpha_cross is -1 and every gamma below 1 is safe.
    opposed = evidence_of([2, 0], [-2, 0])
    assert decide(opposed, gamma_max=1.0).outcome is Outcome.NOT_APART
    assert decide(opposed, gamma_max=np.nextafter(1, 0)).outcome is Outcome.SPLIT


def test_gamma_max_of_zero_accepts_every_bipartition_but_equal_sides():
    near = evidence_of([2, 0.1], [2, 0], [-1, 3], [-3, -3.1])
    assert decide(near, gamma_max=0.0, eps1=9).outcome is Outcome.SPLIT


def test_zero_updates_are_content_and_never_nan():
    decision = decide(evidence_of([0, 0], [0, 0], [0, 0]))
    assert decision.outcome is Outcome.CONTENT
    assert (decision.mean_norm, decision.max_norm) == (0, 0)


def test_never_split_says_so():
    decision, memory = NeverSplit().decide(apart, {"kept": 1})
    assert decision.outcome is Outcome.NEVER
    assert decision.reason == "this method does not split clusters"
    assert memory == {"kept": 1}
