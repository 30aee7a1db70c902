import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cflower.algorithm.criteria import LARGE, Outcome, check_sides, sampled, verdict
from cflower.algorithm.norm_criterion import NormCriterion
from cflower.errors import ConfigError
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
        (evidence_of(opposed.vectors, num_members=6), {}, Outcome.TOO_FEW_HEARD, "5 of 6 members"),
        # Five of seven are more than half, but two sides of three need six.
        (
            evidence_of([[2, 0]] * 5, num_members=7),
            {"heard_share": 0.5, "min_cluster_size": 3},
            Outcome.TOO_FEW_HEARD,
            "have to send a fresh update before a decision, 5 have done so",
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


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"linkage": "average"}, "linkage = 'average' is not known"),
        ({"linkage": "compleat"}, "did you mean 'complete'"),
        ({"eps1": 0}, "Got eps1=0, but expected a number > 0"),
        ({"eps2": float("nan")}, "Got eps2=nan, but expected a number >= 0"),
        ({"gamma_max": 1.5}, "Got gamma_max=1.5, but expected a number >= 0 and <= 1"),
        ({"min_cluster_size": 1.5}, "Got min_cluster_size=1.5, but expected a whole number >= 1"),
        ({"heard_share": 80}, "Got heard_share=80, but expected a number > 0 and <= 1"),
    ],
)
def test_settings_out_of_range_are_refused(settings, words):
    with pytest.raises(ConfigError, match=words):
        NormCriterion(**settings)


def split_into(*sides, unsure=()):
    """A split of eight members, of which the last has no fresh update and client-6 never one."""
    evidence = evidence_of(np.eye(6), num_members=8)
    decision = verdict(evidence, Outcome.SPLIT, "so be it", sides=sides, unsure=unsure)
    known = {*evidence.clients, "client-7"}
    return check_sides("mine", (decision, {}), evidence, known)


def test_a_split_of_members_with_updates_is_taken_as_it_is():
    decision, memory = split_into(
        ("client-0", "client-7"), ("client-1",), unsure=(("client-6",), ("client-2",))
    )
    assert (decision.sides[0], memory) == (("client-0", "client-7"), {})
    assert split_into(("client-0",), ("client-1",), ("client-2",), unsure=(("client-6",),))


@pytest.mark.parametrize(
    ("sides", "unsure", "words"),
    [
        ((("client-0", "client-1"),), (), "has fewer than two sides"),
        ((), (), "has fewer than two sides"),
        ((("client-0",), ()), (), "has an empty side"),
        ((("client-0",), ("nobody",)), (), "has nobody, not in the cluster"),
        ((("client-0",), ("client-1",)), (("nobody",),), "has nobody, not in the cluster"),
        ((("client-0",), ("client-6",)), (), "has client-6 on a side, without an update so far"),
        ((("client-0",), ("client-0",)), (), "has client-0 on two sides"),
        ((("client-0",), ("client-1",)), ((), ("client-0",)), "has client-0 on two sides"),
        ((("client-0",), ("client-1",)), ((),) * 3, "has more groups of unsure members than sides"),
    ],
)
def test_other_sides_are_refused_by_name(sides, unsure, words):
    sentence = f"The criterion 'mine' returned a split of cluster 0 that {words}"
    with pytest.raises(ConfigError, match=sentence):
        split_into(*sides, unsure=unsure)


@pytest.mark.parametrize("answer", [None, (None, {}), Outcome.SPLIT, ("split", {}), (1, 2, 3)])
def test_an_answer_of_another_kind_is_refused(answer):
    with pytest.raises(ConfigError, match="but expected a Decision and the memory"):
        check_sides("mine", answer, opposed, opposed.clients)


@laws
@given(st.lists(st.lists(st.sampled_from([f"client-{i}" for i in range(8)] + ["x"]))))
def test_only_a_partition_of_members_passes(sides):
    placed = [client for side in sides for client in side]
    fits = len(sides) > 1 and all(sides) and len(placed) == len(set(placed))
    fits = fits and not {"client-6", "x"} & set(placed)
    try:
        split_into(*map(tuple, sides))
    except ConfigError:
        assert not fits
    else:
        assert fits


def test_every_own_criterion_passes_its_own_check():
    for evidence in (opposed, moving, content, hexagon):
        answer = NormCriterion(**SETTINGS).decide(evidence, {})
        assert check_sides("norms", answer, evidence, evidence.clients) == answer
