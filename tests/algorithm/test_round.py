"""Rounds in closed form: planted groups of quadratic clients are separated exactly."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cflower.algorithm.criteria import NeverSplit, Outcome
from cflower.algorithm.norm_criterion import NormCriterion
from cflower.algorithm.optimizers import ServerOptimizer
from cflower.algorithm.tree import ParameterTree
from cflower.seeding import generator
from tests.algorithm.planted import (
    CRITERION,
    DIM,
    Federation,
    cfl_of,
    clusters_of,
    final,
    laws,
    run,
)

CFL, NEVER = cfl_of(), cfl_of(NeverSplit())
COMPLETE = cfl_of(replace(CRITERION, linkage="complete"))
two = Federation.dealt(3, 3)


def first_split(federation, cfl):
    """State before and result of the first round with a split."""
    return next(one for one in run(federation, cfl, 30) if one.result.decisions[0].sides)


@pytest.mark.parametrize(
    "cfl",
    [CFL, cfl_of(weighting="uniform"), COMPLETE, cfl_of(length=12)],
    ids=["examples", "uniform", "complete linkage", "projected"],
)
@pytest.mark.parametrize("sizes", [(1,), (6,), (1, 1), (5, 1), (4, 2, 3), (6, 2, 3, 4, 2)])
def test_planted_groups_are_separated_exactly(sizes, cfl):
    federation = Federation.dealt(*sizes)
    examples = {c: 1.0 + i % 4 for i, c in enumerate(federation.clients)}
    federation = replace(federation, num_examples=examples)
    state = final(federation, cfl, 45)
    assert clusters_of(state) == federation.planted
    for client, group in federation.groups.items():
        model = state.tree.leaf_of(client).model.trained
        np.testing.assert_allclose(model, federation.centers[group], atol=0.02)


@settings(laws, max_examples=15)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=5), st.integers(0, 99))
def test_clusters_partition_the_clients_and_are_decided_on_in_every_round(sizes, seed):
    # `run` asserts the law. The authors' code breaks it from the third cluster on: it takes rows
    # of the submatrix for client numbers.
    federation = Federation.dealt(*sizes, seed=seed)
    for before, result in run(federation, CFL, 25):
        leaves = [leaf.name for leaf in before.tree.leaves]
        assert [decision.cluster for decision in result.decisions] == leaves
        for decision in result.decisions:
            for group in federation.planted:
                assert sum(bool(group & set(side)) for side in decision.sides) <= 1
    assert clusters_of(result.state) == federation.planted


@pytest.mark.parametrize("sizes", [(4, 4), (6, 5), (4, 4, 4), (5, 4, 6, 4)])
def test_half_of_the_clients_in_each_round_are_enough(sizes):
    # With half of the clients, the mean update never gets as short as with all.
    criterion = NormCriterion(eps1=0.4, eps2=0.6, gamma_max=0.0, min_cluster_size=1)
    federation = Federation.dealt(*sizes, seed=1)
    state = final(federation, cfl_of(criterion), 120, partial=True)
    assert clusters_of(state) == federation.planted
    assert not state.tree.unassigned


def test_absent_clients_do_not_count_as_different():
    # With similarity 0, an absent client of the only group would be an outlier. gamma_max 1
    # accepts no split, so that every round has a matrix.
    federation = replace(Federation.dealt(8), noise=0.0)
    criterion = NormCriterion(99.0, 0.0, gamma_max=1.0, min_cluster_size=1, heard_share=0.5)
    sizes = set()
    for _, result in run(federation, cfl_of(criterion), 12, partial=True):
        (decision,) = result.decisions
        assert decision.similarity.shape == (len(decision.clients),) * 2
        assert decision.similarity.min() > 0.99
        sizes.add(len(decision.clients))
    assert min(sizes) == 4 < max(sizes)


def test_a_client_that_is_absent_at_the_split_is_placed_in_its_cluster_later():
    federation = Federation.dealt(5, 5)
    absent = "client-3"
    others = [c for c in federation.clients if c != absent]
    state = final(federation, CFL, 29, clients=others)
    assert state.tree.unassigned == {absent: "0"}
    state = final(federation, CFL, 1, state=state, done=29, clients=[absent])
    assert clusters_of(state) == federation.planted
    assert state.tree.unassigned == {}
    assert state.placed[absent].child == state.tree.leaf_of(absent).name
    assert state.placed[absent].similarity > 0.9


@pytest.mark.parametrize("group", range(4))
def test_a_newcomer_reaches_its_group_through_every_level(group):
    federation = Federation.dealt(3, 3, 3, 3)
    state = final(federation, CFL, 45)
    joined = replace(federation, groups={**federation.groups, "new": group})
    state = replace(state, tree=state.tree.admit(["new"], 46))
    state = final(joined, CFL, 4, state=state, done=45, clients=["new"])
    assert clusters_of(state) == joined.planted
    assert state.moves == ()


def test_a_cluster_without_replies_keeps_its_model():
    state = final(two, CFL, 30)
    resting, training = state.tree.leaves
    for clients in (training.members, ()):
        _, result = next(run(two, CFL, 1, state=state, done=30, clients=clients))
        assert clusters_of(result.state) == clusters_of(state)
        assert {d.cluster for d in result.decisions} == {resting.name, training.name}
        models = [result.state.tree.clusters[c.name].model is c.model for c in (resting, training)]
        assert models == [True, not clients]


def test_an_isolated_newcomer_trains_from_its_first_round_on():
    tree = ParameterTree.initial(two.state().tree.root.model, ["client-0"], isolated=True)
    state = replace(two.state(), tree=tree.admit(["client-1"], 5, isolated=True))
    state = NEVER.heard(state, two.replies(NEVER, state, 5, ["client-1"]), 5).state
    moved = state.tree.leaf_of("client-1").model.trained
    np.testing.assert_allclose(moved, two.centers[1] / 2, atol=0.01)


def test_children_start_from_the_parent_plus_the_mean_update_of_their_own_members():
    examples = {c: 1.0 + i for i, c in enumerate(two.clients)}
    before, result = first_split(replace(two, num_examples=examples), CFL)
    model = before.tree.root.model.trained
    for leaf in result.state.tree.leaves:
        known = [result.state.known[name] for name in leaf.members]
        weights = [update.num_examples for update in known]
        mean = np.average([update.vector for update in known], axis=0, weights=weights)
        np.testing.assert_allclose(leaf.model.trained, model + mean, rtol=1e-12)


def test_children_of_projected_updates_start_from_the_mean_over_the_whole_parent():
    cfl = cfl_of(length=12)
    before, result = first_split(two, cfl)
    replies = two.replies(cfl, before, result.decisions[0].server_round)
    mean = np.mean([reply.update.trained for reply in replies], axis=0)
    for leaf in result.state.tree.leaves:
        expected = before.tree.root.model.trained + mean
        np.testing.assert_allclose(leaf.model.trained, expected, atol=1e-12)
        assert {len(update) for update in leaf.edge.values()} == {12}


def test_a_split_keeps_its_stationary_model_and_the_compared_updates_from_before_it():
    cfl = cfl_of(mask=np.arange(DIM) < 7)
    before, result = first_split(two, cfl)
    tree, decision, known = result.state.tree, result.decisions[0], result.state.known
    for root in (tree.root, final(two, cfl, 30).tree.root):
        np.testing.assert_array_equal(root.model.trained, before.tree.root.model.trained)
        assert root.split_round == decision.server_round
    updates = {r.client: r.update.trained for r in two.replies(cfl, before, decision.server_round)}
    assert decision.max_norm == max(np.linalg.norm(update) for update in updates.values())
    assert [leaf.name for leaf in tree.leaves] == ["0.0", "0.1"]
    assert "client-0" in tree.clusters["0.0"].members  # numbered by their first client
    for leaf in tree.leaves:
        assert set(leaf.edge) == set(leaf.members)
        for client, update in leaf.edge.items():
            np.testing.assert_array_equal(update, updates[client][:7])
            # A new leaf waits for updates of its own.
            assert not known[client].is_fresh(leaf.born, known[client].origin)
            assert known[client].is_fresh(leaf.born - 1, known[client].origin)


def test_the_mean_norm_counts_all_trained_entries_also_with_members_absent():
    mask = np.arange(DIM) < 14
    centers = np.where(mask, 0.0, two.centers[:1])  # nothing to learn where similarity looks
    federation = replace(Federation.dealt(6), centers=centers, noise=0.0)
    whole, projected = (
        list(run(federation, cfl_of(NeverSplit(), length=length, mask=mask), 2, partial=True))
        for length in (0, 12)
    )
    norms = [one[-1].result.decisions[0].mean_norm for one in (whole, projected)]
    assert norms[1] > 0.5 * norms[0] > 0


def test_children_inherit_the_state_of_the_optimizer():
    cfl = cfl_of(replace(CRITERION, eps1=0.2), optimizer=ServerOptimizer("fedavgm", momentum=0.5))
    before, result = first_split(two, cfl)
    velocity = before.tree.root.optimizer["momentum"]
    for leaf in result.state.tree.leaves:
        mean = np.mean(list(leaf.edge.values()), axis=0)
        np.testing.assert_allclose(leaf.optimizer["momentum"], 0.5 * velocity + mean, atol=1e-12)
    np.testing.assert_array_equal(result.state.tree.root.optimizer["momentum"], velocity)


def test_the_order_of_the_replies_does_not_matter():
    federation = Federation.dealt(4, 2, 3)
    states = [federation.state(), federation.state()]
    for server_round in range(1, 25):
        replies = federation.replies(CFL, states[0], server_round)
        order = generator(1, server_round).permutation(len(replies))
        states[0] = CFL.heard(states[0], replies, server_round).state
        states[1] = CFL.heard(states[1], [replies[i] for i in order], server_round).state
    for name, cluster in states[0].tree.clusters.items():
        other = states[1].tree.clusters[name]
        assert other.members == cluster.members
        np.testing.assert_allclose(other.model.trained, cluster.model.trained, atol=1e-9)


def test_states_and_replies_are_not_changed():
    state = final(two, CFL, 5)
    known, clusters = dict(state.known), dict(state.tree.clusters)
    model, replies = state.tree.root.model.trained.copy(), two.replies(CFL, state, 6)
    sent = [reply.update.trained.copy() for reply in replies]
    CFL.heard(state, replies, 6)
    assert (state.known, state.tree.clusters) == (known, clusters)
    np.testing.assert_array_equal(state.tree.root.model.trained, model)
    np.testing.assert_array_equal([reply.update.trained for reply in replies], sent)


@pytest.mark.parametrize("eps2", [0.0, 1.0])
def test_updates_of_zero_give_no_nan(eps2):
    federation = replace(Federation.dealt(4), step=0.0, noise=0.0)
    (_, result), *_ = run(federation, cfl_of(replace(CRITERION, eps2=eps2)), 1)
    (decision,) = result.decisions
    assert decision.outcome is Outcome.CONTENT
    assert (decision.mean_norm, decision.max_norm) == (0.0, 0.0)
    np.testing.assert_array_equal(result.state.tree.root.model.trained, np.zeros(DIM))


@pytest.mark.parametrize(
    ("weighting", "weights"), [("examples", [0.1] * 5 + [0.5]), ("uniform", [1 / 6] * 6)]
)
def test_the_mean_update_is_eq_2_or_algorithm_5(weighting, weights):
    examples = dict(zip(two.clients, [1.0, 1.0, 1.0, 1.0, 1.0, 5.0], strict=True))
    federation, cfl = replace(two, num_examples=examples), cfl_of(NeverSplit(), weighting=weighting)
    replies = federation.replies(cfl, federation.state(), 1)
    result = cfl.heard(federation.state(), replies, 1)
    mean = np.average([reply.update.trained for reply in replies], axis=0, weights=weights)
    np.testing.assert_allclose(result.state.tree.root.model.trained, mean, rtol=1e-12)
    assert result.decisions[0].mean_norm == pytest.approx(np.linalg.norm(mean))


def test_an_update_stays_fresh_while_the_model_moved_less_than_its_length():
    known = final(two, CFL, 1).known["client-0"]
    for length, fresh in ((0.99, True), (1.01, False)):
        model = known.origin + length * known.norm * np.eye(DIM)[0]
        assert known.is_fresh(0, model) == fresh
