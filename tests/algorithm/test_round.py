"""The closed-form run: planted groups of quadratic clients are found exactly."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cflower.algorithm.criteria import NeverSplit, NormCriterion, Outcome
from cflower.algorithm.optimizers import ServerOptimizer
from cflower.algorithm.round import Reply
from cflower.algorithm.state import is_fresh
from cflower.algorithm.tree import ParameterTree, Weights
from cflower.seeding import generator
from tests.algorithm.planted import (
    CRITERION,
    Federation,
    assert_partitions,
    cfl_of,
    final,
    found,
    laws,
    renamed,
    run,
    sides_of,
)

PATIENT = NormCriterion(eps1=0.4, eps2=0.6, gamma_max=0.0, min_cluster_size=1)
"""With half of the clients a round the mean update never comes to rest as far as with all."""

two = Federation.dealt(3, 3)


def first_split(federation, cfl):
    """State before and result of the first round with a split."""
    return next(
        (before, result)
        for before, result in run(federation, cfl, 30)
        if any(decision.sides for decision in result.decisions)
    )


# ------------------------------------------------------------------ the groups are found


@pytest.mark.parametrize("weighting", ["examples", "uniform"])
@pytest.mark.parametrize("sizes", [(2, 2), (5, 1), (4, 2, 3), (2, 2, 2, 2), (6, 2, 3, 4, 2)])
def test_planted_groups_are_found_exactly(sizes, weighting):
    federation = Federation.dealt(*sizes)
    examples = {c: 1.0 + i % 4 for i, c in enumerate(federation.clients)}
    federation = replace(federation, num_examples=examples)
    state = final(federation, cfl_of(CRITERION, weighting=weighting), 45)
    assert found(state) == federation.planted
    for client, group in federation.groups.items():
        model = state.tree.leaf_of(client).model.trained
        np.testing.assert_allclose(model, federation.centers[group], atol=0.02)


@settings(laws, max_examples=15)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=5), st.integers(0, 99))
def test_at_every_round_the_clusters_partition_the_clients(sizes, seed):
    federation = Federation.dealt(*sizes, seed=seed)
    for _, result in run(federation, cfl_of(), 25):
        assert_partitions(result.state.tree, federation.clients)
    assert found(result.state) == federation.planted


def test_the_second_split_sees_clients_and_not_positions_in_the_sub_matrix():
    # The authors' code takes rows of the sub-matrix for client numbers: from the third cluster
    # on clients vanish or sit in two clusters.
    federation = Federation.dealt(3, 3, 3, 3)
    history = [result for _, result in run(federation, cfl_of(), 45)]
    splits = [d for result in history for d in result.decisions if d.sides]
    assert len(splits) == 3
    assert splits[1].clients != tuple(federation.clients[: len(splits[1].clients)])
    for decision in splits:
        for group in federation.planted:
            assert sum(bool(group & set(side)) for side in decision.sides) <= 1
    assert found(history[-1].state) == federation.planted


@pytest.mark.parametrize("linkage", ["single", "complete"])
def test_either_linkage_finds_them(linkage):
    federation = Federation.dealt(3, 2, 4)
    assert found(final(federation, cfl_of(replace(CRITERION, linkage=linkage)), 40)) == (
        federation.planted
    )


@pytest.mark.parametrize("rule", ["fedavgm", "fedadagrad", "fedadam", "fedyogi"])
def test_the_groups_are_found_whichever_the_server_optimizer(rule):
    optimizer = ServerOptimizer(rule, momentum=0.5)
    state = final(two, cfl_of(replace(CRITERION, eps1=0.2), optimizer=optimizer), 150)
    assert found(state) == two.planted


def test_clients_of_one_kind_stay_together():
    state = final(Federation.dealt(6), cfl_of(), 30)
    assert list(state.tree.clusters) == ["0"]


def test_a_cluster_that_may_not_split_is_federated_averaging():
    state = final(two, cfl_of(NeverSplit()), 30)
    assert len(found(state)) == 1
    np.testing.assert_allclose(state.tree.root.model.trained, two.centers.mean(axis=0), atol=0.01)


# ------------------------------------------------------------------- partial participation


@pytest.mark.parametrize("sizes", [(4, 4), (6, 5), (4, 4, 4), (5, 4, 6, 4)])
def test_half_of_the_clients_a_round_are_enough(sizes):
    federation = Federation.dealt(*sizes, seed=1)
    for _, result in run(federation, cfl_of(PATIENT), 120, partial=True):
        assert_partitions(result.state.tree, federation.clients)
    assert found(result.state) == federation.planted
    assert not result.state.tree.unassigned


def test_who_is_absent_is_not_taken_for_unlike():
    # Clients of one kind: an absent one counted as similarity 0 would stand out. gamma_max 1
    # accepts no split, so that the matrix is seen every round.
    federation = replace(Federation.dealt(8), noise=0.0)
    cfl, sizes = (
        cfl_of(NormCriterion(99.0, 0.0, gamma_max=1.0, min_cluster_size=1, heard_share=0.5)),
        set(),
    )
    for _, result in run(federation, cfl, 12, partial=True):
        (decision,) = result.decisions
        assert decision.similarity.shape == (len(decision.clients),) * 2
        assert decision.similarity.min() > 0.99
        sizes.add(len(decision.clients))
    assert min(sizes) == 4
    assert max(sizes) > 4


def test_who_is_silent_at_the_split_keeps_a_cluster_and_later_finds_its_own():
    federation = Federation.dealt(5, 5)
    absent = "client-3"
    others = [c for c in federation.clients if c != absent]
    cfl, state = cfl_of(), federation.state()
    for server_round in range(1, 30):
        replies = federation.replies(state, server_round, others)
        state = cfl.run_round(state, replies, server_round=server_round).state
        assert_partitions(state.tree, federation.clients)
    assert state.tree.unassigned == {absent: "0"}
    reply = federation.reply(state, absent, 30)
    result = cfl.run_round(state, [reply], server_round=30)
    assert found(result.state) == federation.planted
    assert result.state.tree.unassigned == {}
    own = result.state.tree.leaf_of(absent).name
    assert result.forks[absent].child == own
    assert result.forks[absent].similarities[own] > 0.9


def test_a_newcomer_walks_to_its_group_through_every_level():
    federation = Federation.dealt(3, 3, 3, 3)
    state = final(federation, cfl_of(), 45)
    for group in range(4):
        joined = replace(federation, groups={**federation.groups, "new": group})
        walked = replace(state, tree=state.tree.admit("new", 46))
        for server_round in range(46, 50):
            assert_partitions(walked.tree, joined.clients)
            reply = joined.reply(walked, "new", server_round)
            walked = cfl_of().run_round(walked, [reply], server_round=server_round).state
        assert found(walked) == joined.planted


def test_a_cluster_without_participants_keeps_its_model():
    state = final(two, cfl_of(), 30)
    resting, training = state.tree.leaves
    replies = two.replies(state, 31, training.members)
    result = cfl_of().run_round(state, replies, server_round=31)
    assert result.state.tree.clusters[resting.name].model is resting.model
    assert result.state.tree.clusters[training.name].model is not training.model
    assert {d.cluster for d in result.decisions} == {resting.name, training.name}


def test_a_round_without_any_reply_changes_no_model_and_no_member():
    state = final(two, cfl_of(), 30)
    result = cfl_of().run_round(state, [], server_round=31)
    assert found(result.state) == found(state)
    for name, cluster in state.tree.clusters.items():
        assert result.state.tree.clusters[name].model is cluster.model


def test_an_isolated_newcomer_trains_from_its_first_round_on():
    tree = ParameterTree.initial(two.state().tree.root.model, ["client-0"], isolated=True)
    state = replace(two.state(), tree=tree.admit("client-1", 5, isolated=True))
    result = cfl_of(NeverSplit()).run_round(
        state, [two.reply(state, "client-1", 5)], server_round=5
    )
    moved = result.state.tree.leaf_of("client-1").model.trained
    np.testing.assert_allclose(moved, two.centers[1] / 2, atol=0.01)


# ------------------------------------------------------------------------------ projection


def test_projected_updates_find_the_groups_too():
    federation = Federation.dealt(3, 2, 4)
    assert found(final(federation, cfl_of(length=12), 40)) == federation.planted


def test_of_a_projected_update_no_child_starts():
    # What is kept cannot be added to a model: both children go on from the whole mean.
    before, result = first_split(two, cfl_of(length=12))
    vectors = [
        reply.update.trained for reply in two.replies(before, result.decisions[0].server_round)
    ]
    whole = before.tree.root.model.trained + np.mean(vectors, axis=0)
    for leaf in result.state.tree.leaves:
        np.testing.assert_allclose(leaf.model.trained, whole, atol=1e-12)
        assert {len(update) for update in leaf.edge.values()} == {12}


def test_the_mean_norm_counts_all_trained_entries_also_with_members_absent():
    mask = np.arange(20) < 14
    centers = np.where(mask, 0.0, two.centers[:1])  # nothing to learn where similarity looks
    alike = Federation.dealt(6)
    alike = replace(alike, centers=centers, noise=0.0)
    figures = []
    for length in (0, 12):
        cfl = cfl_of(NeverSplit(), length=length, mask=mask)
        *_, (_, result) = run(alike, cfl, 2, partial=True)
        figures.append(result.decisions[0].mean_norm)
    assert figures[1] > 0.5 * figures[0] > 0


# ------------------------------------------------------------------------- what a split is


def test_children_start_from_the_parent_plus_the_mean_update_of_their_own_members():
    examples = {c: 1.0 + i for i, c in enumerate(two.clients)}
    federation = replace(two, num_examples=examples)
    before, result = first_split(federation, cfl_of())
    model = before.tree.root.model.trained
    for leaf in result.state.tree.leaves:
        known = [result.state.known[name] for name in leaf.members]
        mean = np.average(
            [k.vector for k in known], axis=0, weights=[k.num_examples for k in known]
        )
        np.testing.assert_allclose(leaf.model.trained, model + mean, rtol=1e-12)


def test_the_split_cluster_keeps_the_model_its_members_started_from():
    before, result = first_split(two, cfl_of())
    root = result.state.tree.root
    np.testing.assert_array_equal(root.model.trained, before.tree.root.model.trained)
    assert root.split_round == result.decisions[0].server_round
    later = final(two, cfl_of(), 30)
    np.testing.assert_array_equal(later.tree.root.model.trained, root.model.trained)


def test_edges_hold_the_updates_from_before_the_split():
    before, result = first_split(two, cfl_of())
    server_round = result.decisions[0].server_round
    for leaf in result.state.tree.leaves:
        assert set(leaf.edge) == set(leaf.members)
        for client, update in leaf.edge.items():
            reply = two.reply(before, client, server_round)
            np.testing.assert_array_equal(update, reply.update.trained)


def test_similarity_and_edges_see_only_the_masked_entries():
    mask = np.zeros(20, dtype=bool)
    mask[:7] = True
    _, result = first_split(two, cfl_of(CRITERION, mask=mask))
    decision = result.decisions[0]
    assert decision.max_norm == max(k.norm for k in result.state.known.values())
    for leaf in result.state.tree.leaves:
        for client, update in leaf.edge.items():
            whole = result.state.known[client].vector
            np.testing.assert_array_equal(update, whole[:7])


def test_children_are_numbered_by_their_first_client():
    _, result = first_split(two, cfl_of())
    assert [leaf.name for leaf in result.state.tree.leaves] == ["0.0", "0.1"]
    assert "client-0" in result.state.tree.clusters["0.0"].members


def test_a_leaf_born_by_a_split_waits_for_updates_of_its_own():
    _, result = first_split(two, cfl_of())
    for leaf in result.state.tree.leaves:
        for known in (result.state.known[name] for name in leaf.members):
            assert not is_fresh(known, leaf.born, known.origin)
            assert is_fresh(known, leaf.born - 1, known.origin)


def test_the_optimizers_state_is_inherited_at_a_split():
    # A child goes on from its parent's momentum; the parent keeps its own for the record.
    cfl = cfl_of(replace(CRITERION, eps1=0.2), optimizer=ServerOptimizer("fedavgm", momentum=0.5))
    before, result = first_split(two, cfl)
    velocity = before.tree.root.optimizer["momentum"]
    for leaf in result.state.tree.leaves:
        mean = np.mean(list(leaf.edge.values()), axis=0)
        np.testing.assert_allclose(leaf.optimizer["momentum"], 0.5 * velocity + mean, atol=1e-12)
    np.testing.assert_array_equal(result.state.tree.root.optimizer["momentum"], velocity)


# ---------------------------------------------------------------------- order and symmetry


def test_the_order_of_the_replies_does_not_matter():
    federation, cfl = Federation.dealt(4, 2, 3), cfl_of()
    states = [federation.state(), federation.state()]
    for server_round in range(1, 25):
        replies = federation.replies(states[0], server_round)
        shuffled = [replies[i] for i in generator(1, server_round).permutation(len(replies))]
        states = [
            cfl.run_round(state, order, server_round=server_round).state
            for state, order in zip(states, (replies, shuffled), strict=True)
        ]
    for name, cluster in states[0].tree.clusters.items():
        other = states[1].tree.clusters[name]
        assert other.members == cluster.members
        np.testing.assert_allclose(other.model.trained, cluster.model.trained, atol=1e-9)


@settings(laws, max_examples=6)
@given(st.permutations(range(9)))
def test_permuting_the_clients_permutes_the_answer(order):
    federation = Federation.dealt(4, 2, 3)
    names = {c: f"client-{order[i]}" for i, c in enumerate(federation.clients)}
    state = final(renamed(federation, names), cfl_of(), 40)
    assert found(state) == {frozenset(names[c] for c in group) for group in federation.planted}


def test_states_and_replies_are_left_as_they_were():
    state = final(two, cfl_of(), 5)
    known, clusters = dict(state.known), dict(state.tree.clusters)
    model = state.tree.root.model.trained.copy()
    replies = two.replies(state, 6)
    sent = [reply.update.trained.copy() for reply in replies]
    cfl_of().run_round(state, replies, server_round=6)
    assert state.known == known
    assert state.tree.clusters == clusters
    np.testing.assert_array_equal(state.tree.root.model.trained, model)
    for reply, vector in zip(replies, sent, strict=True):
        np.testing.assert_array_equal(reply.update.trained, vector)


# --------------------------------------------------------------------------- degenerate ends


def test_one_client_is_a_federation():
    federation = Federation.dealt(1)
    for _, result in run(federation, cfl_of(), 20):
        assert [d.outcome for d in result.decisions] == [Outcome.TOO_SMALL]
    np.testing.assert_allclose(
        result.state.tree.root.model.trained, federation.centers[0], atol=0.01
    )


def test_two_clients_of_two_kinds_part():
    federation = Federation.dealt(1, 1)
    assert found(final(federation, cfl_of(), 30)) == federation.planted


@pytest.mark.parametrize("eps2", [0.0, 1.0])
def test_clients_that_do_not_move_never_give_nan(eps2):
    federation = replace(Federation.dealt(4), step=0.0, noise=0.0)
    for _, result in run(federation, cfl_of(replace(CRITERION, eps2=eps2)), 4):
        (decision,) = result.decisions
        assert decision.outcome is Outcome.CONTENT
        assert (decision.mean_norm, decision.max_norm) == (0.0, 0.0)
    np.testing.assert_array_equal(result.state.tree.root.model.trained, np.zeros(20))


def test_one_client_that_does_not_move_gives_no_nan():
    state = two.state()
    still = Reply("client-0", Weights(np.zeros(20), np.zeros(0)), 0.0, 1.0)
    replies = [still, *two.replies(state, 1, two.clients[1:])]
    cfl = cfl_of(NormCriterion(eps1=99.0, eps2=0.0, gamma_max=0.0, min_cluster_size=1))
    result = cfl.run_round(state, replies, server_round=1)
    assert np.isfinite(result.decisions[0].similarity).all()
    assert_partitions(result.state.tree, two.clients)


def test_carried_entries_are_averaged_but_not_seen():
    state = two.state()
    model = Weights(np.zeros(20), np.array([10.0, 4.0]))
    state = replace(state, tree=ParameterTree.initial(model, two.clients))
    plain = cfl_of().run_round(two.state(), two.replies(two.state(), 1), server_round=1)
    replies = [
        reply._replace(update=Weights(reply.update.trained, np.array([1e6 * i - 10, 4.0])))
        for i, reply in enumerate(two.replies(state, 1))
    ]
    result = cfl_of().run_round(state, replies, server_round=1)
    np.testing.assert_allclose(result.state.tree.root.model.carried, [2.5e6, 8.0])
    assert result.decisions == plain.decisions
    assert [k.norm for k in result.state.known.values()] == [
        k.norm for k in plain.state.known.values()
    ]


def test_the_mean_update_is_eq_2_or_algorithm_5():
    examples = dict(zip(two.clients, [1.0, 1.0, 1.0, 1.0, 1.0, 5.0], strict=True))
    federation = replace(two, num_examples=examples)
    state = federation.state()
    vectors = [reply.update.trained for reply in federation.replies(state, 1)]
    for weighting, weights in (("examples", [0.1] * 5 + [0.5]), ("uniform", [1 / 6] * 6)):
        cfl = cfl_of(NeverSplit(), weighting=weighting)
        result = cfl.run_round(state, federation.replies(state, 1), server_round=1)
        mean = np.average(vectors, axis=0, weights=weights)
        np.testing.assert_allclose(result.state.tree.root.model.trained, mean, rtol=1e-12)
        assert result.decisions[0].mean_norm == pytest.approx(np.linalg.norm(mean))


def test_an_update_stays_fresh_while_the_model_moved_less_than_its_length():
    _, result = next(run(two, cfl_of(), 1))
    known = result.state.known["client-0"]
    towards = np.eye(20)[0]
    assert is_fresh(known, 0, known.origin + 0.99 * known.norm * towards)
    assert not is_fresh(known, 0, known.origin + 1.01 * known.norm * towards)
    assert not is_fresh(None, 0, known.origin)


def test_groups_helper_tells_groups_apart():
    assert sides_of({"a": 0, "b": 1, "c": 0}) == {frozenset("ac"), frozenset("b")}
