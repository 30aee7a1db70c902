"""Laws of the threshold-free criterion."""

from dataclasses import replace

import numpy as np
import pytest

from cflower.algorithm import criteria
from cflower.algorithm.constants import FEW
from cflower.algorithm.criteria import Outcome
from cflower.algorithm.round import CFL
from cflower.auto.averages import NEW, Averages
from cflower.auto.criterion import AutoCriterion
from cflower.seeding import generator
from tests.algorithm.planted import Federation, cfl_of, clusters_of, evidence_of, final, run

AUTO = cfl_of(AutoCriterion())


@pytest.mark.parametrize(("members", "needed"), [(200, 50), (1000, 50), (60, 48), (20, 16)])
def test_four_fifths_of_a_cluster_or_50_members_need_two_updates(members: int, needed: int) -> None:
    updates = generator(0, "ready").normal(size=(members, 4))
    for ready, waits in ((needed - 1, True), (needed, False)):
        _, memory = AutoCriterion().decide(evidence_of(updates, 1), {})
        evidence = evidence_of(updates[:ready], 2, num_members=members)
        decision, _ = AutoCriterion().decide(evidence, memory)
        assert (decision.outcome is Outcome.TOO_FEW_HEARD) == waits


def test_members_that_never_trained_do_not_count() -> None:
    memory, updates = {}, generator(0, "silent").normal(size=(10, 4))
    for server_round in (1, 2):
        evidence = evidence_of(updates, server_round, num_members=1000)
        decision, memory = AutoCriterion().decide(evidence, memory)
    assert decision.outcome is not Outcome.TOO_FEW_HEARD


def test_a_leaf_need_not_hear_all_its_members_twice_again_to_be_split() -> None:
    groups, memory = np.repeat(10 * np.eye(3), 6, axis=0), {}
    for server_round in range(1, 13):
        noise = generator(server_round, "leaf").normal(scale=0.3, size=groups.shape)
        _, memory = AutoCriterion().decide(evidence_of(groups + noise, server_round), memory)
    memory = AutoCriterion().inherit(memory)
    assert memory["counts"].max() == FEW
    assert not memory["streak"].any()
    # One member of each group trains in a round.
    for server_round in range(13, 13 + FEW):
        evidence = evidence_of(groups + noise, server_round)
        rounds = np.where(np.arange(18) % 6 == server_round % 6, server_round, 12)
        decision, memory = AutoCriterion().decide(replace(evidence, rounds=rounds), memory)
        assert (decision.outcome is Outcome.SPLIT) == (server_round == 12 + FEW)
    assert len(decision.sides) == 3


@pytest.mark.parametrize("sizes", [(5, 5), (4, 4, 4), (6, 4, 2), (8, 2), (5, 5, 5, 5), (9, 1)])
def test_planted_groups_are_recovered_without_any_threshold(sizes: tuple[int, ...]) -> None:
    federation = Federation.dealt(*sizes, noise=0.05)
    assert clusters_of(final(federation, AUTO, 40)) == federation.planted


@pytest.mark.parametrize("seed", range(5))
def test_clients_with_the_same_optimum_stay_together_in_much_noise(seed: int) -> None:
    federation = Federation.dealt(10, seed=seed, noise=0.3)
    assert len(final(federation, AUTO, 60).tree.leaves) == 1


@pytest.mark.parametrize("seed", range(5))
def test_clients_that_differ_one_by_one_are_no_groups(seed: int) -> None:
    # Uneven data of one kind: every client has an optimum of its own around the common one.
    rng = generator(seed, "optima")
    federation = Federation.dealt(*[1] * 12, seed=seed, noise=0.02)
    spread = federation.centers[:1] + 0.3 * rng.normal(size=federation.centers.shape)
    assert len(final(replace(federation, centers=spread), AUTO, 60).tree.leaves) == 1


def test_two_clients_are_never_split() -> None:
    assert len(final(Federation.dealt(1, 1), AUTO, 40).tree.leaves) == 1


def test_a_converged_cluster_stays_whole() -> None:
    federation = Federation.dealt(4, 4, noise=1e-9)
    assert clusters_of(final(federation, AUTO, 60)) == federation.planted


@pytest.mark.parametrize("sizes", [(5, 5), (6, 6, 6)])
def test_half_of_the_clients_a_round_are_enough(sizes: tuple[int, ...]) -> None:
    federation = Federation.dealt(*sizes, noise=0.02)
    assert clusters_of(final(federation, AUTO, 60, partial=True)) == federation.planted


@pytest.mark.parametrize("scale", [1e-12, 1e-3, 7.0, 1e12])
def test_the_scale_of_the_updates_changes_nothing(scale: float) -> None:
    rng, memories, outcomes = generator(0, "scale"), [{}, {}], []
    centers = np.repeat(rng.normal(size=(2, 20)), 5, axis=0)
    while Outcome.SPLIT not in outcomes:
        updates = centers - centers.mean(axis=0) + 0.1 * rng.normal(size=centers.shape)
        decisions = []
        for i, factor in enumerate(np.float32([1.0, scale])):
            evidence = evidence_of(factor * np.float32(updates), len(outcomes) + 1)
            decision, memories[i] = AutoCriterion().decide(evidence, memories[i])
            decisions.append((decision.outcome, decision.sides))
        assert decisions[0] == decisions[1]
        outcomes.append(decisions[0][0])
        assert len(outcomes) < 8


@pytest.mark.parametrize("cfl", [AUTO, cfl_of()])
def test_members_outside_the_sample_are_placed_later(
    cfl: CFL, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(criteria, "LARGE", 12)
    federation = Federation.dealt(10, 10, noise=0.05)
    states = [result.state for _, result in run(federation, cfl, 40)]
    assert 8 in {len(state.tree.unassigned) for state in states}
    assert clusters_of(states[-1]) == federation.planted


def test_the_given_memory_is_not_changed() -> None:
    rng, criterion = generator(0, "memory"), AutoCriterion()
    _, memory = criterion.decide(evidence_of(rng.normal(size=(6, 8))), {})
    before = {key: np.array(value, copy=True) for key, value in memory.items()}
    criterion.decide(evidence_of(rng.normal(size=(6, 8)), 2), memory)
    for key, value in before.items():
        np.testing.assert_array_equal(memory[key], value)


def test_zero_updates_are_never_nan() -> None:
    memory = {}
    for server_round in range(1, 6):
        evidence = evidence_of(np.zeros((5, 8)), server_round)
        decision, memory = AutoCriterion().decide(evidence, memory)
    assert decision.outcome is not Outcome.SPLIT
    assert all(np.isfinite(value) for value in decision.figures.values())


def test_streaks_restart_when_the_parts_change() -> None:
    centre, memory, streaks = 10 * np.eye(2, 6)[[0, 0, 0, 1, 1, 1]], {}, []
    for server_round in range(1, 5):
        noise = 0.1 * generator(0, "anew", server_round).normal(size=(6, 6))
        _, memory = AutoCriterion().decide(evidence_of(centre + noise, server_round), memory)
        streaks.append(memory["streak"][:, 0].tolist())
    assert streaks == [[0] * 6, [1] * 6, [2] * 6, [3] * 6]
    # Much longer, so that the averages follow, and in other groups.
    other = 1000 * np.eye(2, 6)[[0, 1, 0, 1, 0, 1]]
    _, memory = AutoCriterion().decide(evidence_of(other, 5), memory)
    assert sorted(memory["streak"][:, 0]) == [1, 1, 4, 4, 4, 4]


def test_new_clients_are_as_steady_as_the_others_of_their_part() -> None:
    known = replace(
        Averages(), clients=tuple("abcdefg"), cut=np.full((7, 2), NEW), streak=np.zeros((7, 2), int)
    )
    labels = np.array([0, 0, 0, 1, 1, 0, -1], np.int32)
    for heard in 5, 5, 7:
        known = known.with_cut(0, np.arange(heard), labels[:heard])
    assert known.streak[:, 0].tolist() == [3, 3, 3, 3, 3, 3, 0]
    labels[[2, 6]] = 1  # one changed its part, and one is sure for the first time: both are not new
    known = known.with_cut(0, np.arange(7), labels)
    assert known.streak[:, 0].tolist() == [4, 4, 1, 4, 4, 4, 1]


def test_a_tenth_of_many_clients_a_round_is_split_while_most_of_them_are_new() -> None:
    rng, memory, outcomes = generator(0, "tenth"), {}, []
    centers = np.repeat(rng.normal(size=(2, 20)), 300, axis=0)
    while Outcome.SPLIT not in outcomes:
        here = np.sort(rng.choice(600, 60, replace=False))
        updates = centers[here] + 0.3 * rng.normal(size=(60, 20))
        evidence = evidence_of(updates, len(outcomes) + 1, clients=here, num_members=600)
        decision, memory = AutoCriterion().decide(evidence, memory)
        outcomes.append(decision.outcome)
        assert len(outcomes) < 30
    # As soon as the same parts came out three times after 50 members had two updates.
    assert len(outcomes) - outcomes.count(Outcome.TOO_FEW_HEARD) == 3
    for side in decision.sides:
        assert len({int(client.removeprefix("client-")) // 300 for client in side}) == 1
