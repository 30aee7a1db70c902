"""Laws of the threshold-free criterion."""

from dataclasses import replace

import numpy as np
import pytest

from cflower.algorithm.auto.criterion import AutoCriterion, remember
from cflower.algorithm.criteria import Evidence, Outcome
from cflower.seeding import generator
from tests.algorithm.planted import (
    Federation,
    assert_partitions,
    cfl_of,
    final,
    found,
    run,
)

AUTO = cfl_of(AutoCriterion())


def evidence(updates: np.ndarray, server_round: int = 1) -> Evidence:
    names = tuple(f"client-{i}" for i in range(len(updates)))
    norms = np.linalg.norm(updates, axis=1)
    weights = np.full(len(updates), 1 / len(updates))
    mean = float(np.linalg.norm(weights @ updates))
    return Evidence("0", server_round, len(names), names, tuple(updates), norms, weights, mean)


@pytest.mark.parametrize(("members", "needed"), [(200, 50), (1000, 50), (60, 48), (20, 16)])
def test_four_fifths_of_a_cluster_or_fifty_of_it_must_be_heard_twice(
    members: int, needed: int
) -> None:
    for heard, waits in ((needed - 1, True), (needed, False)):
        memory, updates = {}, generator(0, "heard", heard).normal(size=(heard, 4))
        for server_round in (1, 2):
            told = replace(evidence(updates, server_round), num_members=members)
            decision, memory = AutoCriterion().decide(told, memory)
        assert (decision.outcome is Outcome.TOO_FEW_HEARD) == waits


@pytest.mark.parametrize("sizes", [(5, 5), (4, 4, 4), (6, 4, 2), (8, 2), (5, 5, 5, 5), (9, 1)])
def test_planted_groups_are_found_exactly_without_any_number(sizes: tuple[int, ...]) -> None:
    federation = Federation.dealt(*sizes, noise=0.05)
    assert found(final(federation, AUTO, 40)) == federation.planted


def test_the_largest_cosine_across_the_cut_is_told() -> None:
    federation = Federation.dealt(4, 3, noise=0.05)
    split = next(
        decision
        for _, result in run(federation, AUTO, 40)
        for decision in result.decisions
        if decision.outcome is Outcome.SPLIT
    )
    first, second = (np.isin(split.clients, side) for side in split.sides)
    assert split.similarity is not None
    assert split.alpha_cross == split.similarity[np.ix_(first, second)].max()


def test_a_single_odd_client_is_separated() -> None:
    federation = Federation.dealt(9, 1, noise=0.05)
    assert frozenset(["client-1"]) in found(final(federation, AUTO, 30))


@pytest.mark.parametrize("seed", range(10))
def test_clients_of_one_kind_stay_together_however_noisy(seed: int) -> None:
    federation = Federation.dealt(10, seed=seed, noise=0.3)
    assert len(final(federation, AUTO, 60).tree.leaves) == 1


@pytest.mark.parametrize("seed", range(5))
def test_clients_who_differ_one_by_one_are_no_groups(seed: int) -> None:
    # Uneven data of one kind: every client has an optimum of its own around the common one.
    rng = generator(seed, "optima")
    federation = Federation.dealt(*[1] * 12, seed=seed, noise=0.02)
    spread = federation.centers[:1] + 0.3 * rng.normal(size=federation.centers.shape)
    assert len(final(replace(federation, centers=spread), AUTO, 60).tree.leaves) == 1


def test_two_clients_are_never_split() -> None:
    federation = Federation.dealt(1, 1)
    assert len(final(federation, AUTO, 40).tree.leaves) == 1


def test_a_converged_cluster_stays_whole() -> None:
    federation = Federation.dealt(4, 4, noise=1e-9)
    outcomes = [
        decision.outcome
        for _, result in run(federation, AUTO, 60)
        for decision in result.decisions
        if decision.cluster != "0"
    ]
    assert outcomes[-1] is Outcome.CONTENT
    assert Outcome.SPLIT not in outcomes


@pytest.mark.parametrize("sizes", [(5, 5), (6, 6, 6)])
def test_half_of_the_clients_a_round_are_enough(sizes: tuple[int, ...]) -> None:
    federation = Federation.dealt(*sizes, noise=0.02)
    state = final(federation, AUTO, 60, partial=True)
    assert found(state) == federation.planted
    assert_partitions(state.tree, federation.clients)


@pytest.mark.parametrize("scale", [1e-12, 1e-3, 7.0, 1e12])
def test_the_scale_of_the_updates_changes_nothing(scale: float) -> None:
    rng, criterion = generator(0, "scale"), AutoCriterion()
    centers = np.repeat(rng.normal(size=(2, 20)), 5, axis=0)
    memories: list[dict[str, object]] = [{}, {}]
    outcomes: list[object] = []
    while Outcome.SPLIT not in outcomes:
        updates = (centers - centers.mean(axis=0) + 0.1 * rng.normal(size=centers.shape)).astype(
            np.float32
        )
        decisions = []
        for i, factor in enumerate((1.0, scale)):
            decision, memories[i] = criterion.decide(
                evidence(np.float32(factor) * updates, len(outcomes) + 1), memories[i]
            )
            decisions.append((decision.outcome, decision.sides))
        assert decisions[0] == decisions[1]
        outcomes.append(decisions[0][0])
        assert len(outcomes) < 8


def test_the_memory_handed_in_is_left_as_it_was() -> None:
    rng, criterion = generator(0, "memory"), AutoCriterion()
    _, memory = criterion.decide(evidence(rng.normal(size=(6, 8))), {})
    before = {key: np.array(value, copy=True) for key, value in memory.items()}
    criterion.decide(evidence(rng.normal(size=(6, 8)), 2), memory)
    for key, value in before.items():
        np.testing.assert_array_equal(memory[key], value)


def test_a_child_inherits_how_long_updates_were_and_nothing_else() -> None:
    memory = remember({"peak": 3.0}, evidence(np.eye(4)))
    assert AutoCriterion().inherit(memory) == {"peak": 3.0}


def test_zero_updates_are_never_nan() -> None:
    criterion, memory = AutoCriterion(), {}
    for server_round in range(1, 6):
        decision, memory = criterion.decide(evidence(np.zeros((5, 8)), server_round), memory)
    assert decision.outcome is not Outcome.SPLIT
    assert all(np.isfinite(value) for value in decision.figures.values())


def test_a_round_in_which_no_update_is_fresh_changes_no_average() -> None:
    heard = remember({}, evidence(np.eye(4, 6)))
    nothing = Evidence("0", 2, 4, (), (), np.zeros(0), np.zeros(0), 0.0)
    np.testing.assert_array_equal(remember(heard, nothing)["averages"], heard["averages"])


def test_a_cut_that_changes_starts_anew() -> None:
    centre, memory, streaks = 10 * np.eye(2, 6)[[0, 0, 0, 1, 1, 1]], {}, []
    for server_round in range(1, 5):
        noise = 0.1 * generator(0, "anew", server_round).normal(size=(6, 6))
        _, memory = AutoCriterion().decide(evidence(centre + noise, server_round), memory)
        streaks.append(int(memory.get("streak", 0)))
    assert streaks == sorted(streaks) and streaks[-1] >= 3
    # Ten times as far, so that the averages follow, and dealt out otherwise.
    other = 1000 * np.eye(2, 6)[[0, 1, 0, 1, 0, 1]]
    _, memory = AutoCriterion().decide(evidence(other, 5), memory)
    assert int(memory["streak"]) == 1
