"""The "CFL" of published tables, one defect at a time: the same updates, their rule, ours."""

from dataclasses import replace

import numpy as np
import pytest
from peers import broken
from peers.broken import RULES, Rule, lost

from cflower.algorithm.auto.criterion import AutoCriterion
from cflower.algorithm.criteria import NormCriterion
from cflower.algorithm.projection import Projection
from cflower.algorithm.round import CFL
from cflower.algorithm.state import CFLState, Reply
from cflower.algorithm.tree import ParameterTree
from cflower.algorithm.weights import Weights, norm
from cflower.seeding import generator

PAPER = NormCriterion(eps1=0.4, eps2=1.6, gamma_max=0.0, min_cluster_size=1, linkage="complete")
"""Ours with the thresholds that everyone copies."""


def updates_of(groups: list[int], length: float, dim: int = 20_000) -> np.ndarray:
    """One update a client: those of a group point the same way, and all together nowhere."""
    centres = generator(0, "groups").normal(size=(max(groups) + 1, dim))
    centres -= centres.mean(axis=0)
    noise = generator(0, "clients").normal(size=(len(groups), dim))
    rows = centres[groups] + 0.1 * noise
    rows -= rows.mean(axis=0)  # at rest
    return length * rows / np.linalg.norm(rows, axis=1).mean()


class Ours:
    """cflower on updates that are given, round after round."""

    def __init__(self, clients: int, dim: int, criterion: object = PAPER) -> None:
        self.cfl = CFL(criterion, Projection(dim))  # type: ignore[arg-type]
        self.names = [f"c{i}" for i in range(clients)]
        model = Weights(np.zeros(dim), np.zeros(0))
        self.state, self.round = CFLState(ParameterTree.initial(model, self.names)), 0

    def step(self, updates: np.ndarray, present: list[int] | None = None) -> set[frozenset[int]]:
        """The clusters after a round in which these clients sent these updates."""
        self.round += 1
        here = self.names if present is None else [self.names[i] for i in present]
        replies = []
        for ask in self.cfl.asks(self.state, self.round, here):
            update = updates[self.names.index(ask.client)]
            replies.append(Reply(ask, 1.0, {}, Weights(update, np.zeros(0)), norm(update), update))
        self.state = self.cfl.heard(self.state, replies, self.round).state
        return {
            frozenset(self.names.index(name) for name in leaf.members)
            for leaf in self.state.tree.leaves
        }


def as_sets(clusters: broken.Clusters) -> set[frozenset[int]]:
    return {frozenset(members.tolist()) for members in clusters}


def everyone(count: int) -> broken.Clusters:
    return [np.arange(count)]


# ------------------------------------------------------------------ FedEM, FedRC (FLUX, FEROMA)


@pytest.mark.parametrize("name", ["fedem", "fedrc"])
def test_the_largest_coordinate_is_taken_for_the_longest_update(name):
    # LA.norm(updates, axis=1) of an array (clients, learners = 1, parameters). For the rule to
    # fire, one single parameter must move by 1.6 (0.6) in one round.
    groups, rule = [0] * 5 + [1] * 5, RULES[name]
    updates = updates_of(groups, length=2.0)
    assert rule.longest(updates) < 0.1 < 1.99 < Rule().longest(updates)
    for some in (updates, 5 * updates):
        assert as_sets(rule.step(some, everyone(10))) == {frozenset(range(10))}
    parts = {frozenset(range(5)), frozenset(range(5, 10))}
    assert as_sets(Rule(rule.eps1, rule.eps2).step(updates, everyone(10))) == parts
    assert Ours(10, 20_000).step(updates) == parts


# ------------------------------------------------------------------ FedEM, FedRC, PACFL


@pytest.mark.parametrize("name", ["fedem", "fedrc", "pacfl"])
def test_the_second_split_takes_positions_for_clients_and_loses_some(name):
    # Two splits: {0..3 | 4..11}, then the second part in two.
    rule = Rule(local_indices=RULES[name].local_indices)
    assert rule.local_indices
    first = updates_of([0] * 4 + [1] * 8, length=2.0)
    second = np.zeros_like(first)
    second[4:] = updates_of([0] * 4 + [1] * 4, length=2.0)

    clusters = rule.step(first, everyone(12))
    assert lost(clusters, 12) == ([], [])
    clusters = rule.step(second, clusters)
    missing, twice = lost(clusters, 12)
    assert missing == [8, 9, 10, 11]  # in no cluster any more
    assert twice == [0, 1, 2, 3]  # trained in two

    right = replace(rule, local_indices=False)
    parts = {frozenset(range(4)), frozenset(range(4, 8)), frozenset(range(8, 12))}
    assert as_sets(right.step(second, right.step(first, everyone(12)))) == parts
    ours = Ours(12, 20_000)
    ours.step(first)
    assert ours.step(second) == parts


# ------------------------------------------------------------------ PACFL


class Quiet:
    """Clients that learn in the first round and have nothing to learn after it; half take part."""

    rounds = 4

    def __init__(self) -> None:
        self.initial = np.zeros(3, np.float32)
        part = type("Data", (), {"train": range(10)})
        self.clients = {f"c{i}": part for i in range(4)}

    def participants(self, server_round: int) -> list[str]:
        return ["c0", "c1", "c2", "c3"] if server_round == 1 else ["c0", "c1"]

    def train(self, client: str, start: np.ndarray, server_round: int) -> np.ndarray:
        return start + (server_round == 1)

    def send(self, values: int) -> None: ...

    def receive(self, values: int) -> None: ...


def test_the_old_updates_of_the_absent_are_added_again_every_round():
    # Everyone moves by 1 in round 1, and by nothing afterwards: the model should stay at 1.
    stale = broken.run(Quiet(), Rule(stale=True)).models["c0"]  # type: ignore[arg-type]
    fresh = broken.run(Quiet(), Rule()).models["c0"]  # type: ignore[arg-type]
    np.testing.assert_allclose(stale, 1 + 3 * 0.5)  # two absent of four, three more rounds
    np.testing.assert_allclose(fresh, 1)

    ours = Ours(4, 3)
    ours.step(np.ones((4, 3)))
    for _ in range(3):
        ours.step(np.zeros((4, 3)), present=[0, 1])
    np.testing.assert_allclose(ours.state.tree.root.model.trained, 1)


# ------------------------------------------------------------------ SR-FCA


def test_or_true_splits_clients_with_the_same_data():
    clusters, rule = everyone(8), RULES["sr-fca"]
    alike = np.tile(generator(0, "one").normal(size=50), (8, 1))
    alike += 1e-3 * generator(0, "noise").normal(size=alike.shape)
    for _ in range(4):
        clusters = rule.step(alike, clusters)
    assert len(clusters) == rule.always == 4
    ours, auto = Ours(8, 50), Ours(8, 50, AutoCriterion())
    for _ in range(4):
        assert ours.step(alike) == {frozenset(range(8))}
        assert auto.step(alike) == {frozenset(range(8))}


# ------------------------------------------------------------------ FedDrift


def test_a_split_throws_away_what_was_learned():
    class Learning(Quiet):
        """Two pairs: together for a round, then in opposite directions."""

        def participants(self, server_round: int) -> list[str]:
            return list(self.clients)

        def train(self, client: str, start: np.ndarray, server_round: int) -> np.ndarray:
            if server_round == 1:
                return start + 10
            side = -12.0 if client in {"c2", "c3"} else 12.0
            return start + np.array([side, 0, 0]) * (server_round == 2)

        def fresh_model(self, seed: int) -> np.ndarray:
            return np.full(3, -99.0)

    rule = RULES["feddrift"]
    theirs = broken.run(Learning(), rule)  # type: ignore[arg-type]
    kept = broken.run(Learning(), replace(rule, fresh_start=False))  # type: ignore[arg-type]
    assert theirs.groups is not None
    assert theirs.groups == kept.groups
    assert len(set(theirs.groups.values())) == 2
    assert theirs.models["c0"].tolist() == [-99, -99, -99]
    np.testing.assert_allclose(kept.models["c0"], [22, 10, 10])

    criterion = NormCriterion(eps1=1.0, eps2=6.0, gamma_max=0.1, linkage="complete")
    ours = Ours(4, 3, criterion)
    ours.step(np.full((4, 3), 10.0))
    ours.step(np.array([[12.0, 0, 0], [12, 0, 0], [-12, 0, 0], [-12, 0, 0]]))
    models = {leaf.members: leaf.model.trained.tolist() for leaf in ours.state.tree.leaves}
    assert models == {("c0", "c1"): [22, 10, 10], ("c2", "c3"): [-2, 10, 10]}


# ------------------------------------------------------------------ CFL-GP: fixed thresholds


@pytest.mark.parametrize("length", [0.1, 2.0, 1_000.0])
def test_fixed_thresholds_depend_on_the_learning_rate_and_auto_does_not(length):
    # The same groups, updates longer or shorter as by another learning rate. CFL-GP's fixed
    # thresholds never split in the run that its own notebook shows.
    updates = updates_of([0] * 5 + [1] * 5, length, dim=200)
    parts = {frozenset(range(5)), frozenset(range(5, 10))}
    fixed = as_sets(Rule().step(updates, everyone(10)))
    assert (fixed == parts) is (length > 1.6)
    ours = Ours(10, 200, AutoCriterion())
    rng = generator(1, "rounds")
    for _ in range(10):
        found = ours.step(updates + 0.01 * length / 200**0.5 * rng.normal(size=updates.shape))
    assert found == parts
