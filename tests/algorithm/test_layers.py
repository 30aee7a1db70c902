"""Leaves that share the layers below their output layer."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cflower.algorithm.layers import (
    disagreement,
    parted_where_opposed,
    with_body_of,
)
from cflower.algorithm.means import Mean
from cflower.algorithm.optimizers import ServerOptimizer
from cflower.algorithm.tree import ROOT, ParameterTree
from cflower.changes import changes_of
from cflower.seeding import generator
from tests.algorithm.planted import DIM, Federation, cfl_of, clusters_of, laws, run, vector

BODY = 12


def federation_of(sizes, *, body=0.0, output=1.0, seed=0, **settings):
    """Groups whose optima differ by so much in the body and in the output layer."""
    federation = Federation.dealt(*sizes, seed=seed, **settings)
    common = generator(seed, "common").normal(size=DIM)
    scale = np.where(np.arange(DIM) < BODY, body, output)
    return replace(federation, centers=common + scale * federation.centers)


def sharing(**settings):
    return cfl_of(changes=changes_of(1, moving=True), body=BODY, **settings)


def assert_same_bodies(tree):
    """Whether leaves share a body; then it is the same to the bit."""
    for leaves in tree.bodies.values():
        for leaf in leaves[1:]:
            same = leaf.model.trained[:BODY], leaves[0].model.trained[:BODY]
            np.testing.assert_array_equal(*same)
    return len(tree.bodies) < len(tree.leaves)


@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.parametrize("rule", ["fedavg", "fedavgm", "fedadam"])
def test_groups_that_differ_in_the_output_layer_alone_share_the_body_to_the_bit(rule, partial):
    federation = federation_of((6, 4, 4))
    cfl, shared = sharing(optimizer=ServerOptimizer(rule)), 0
    for _, result in run(federation, cfl, 40, partial=partial):
        shared += assert_same_bodies(result.state.tree)
    if rule == "fedavg":
        assert shared > (0 if partial else 30)
        assert partial or list(result.state.tree.bodies) == [ROOT]


def test_a_common_body_is_the_mean_over_all_members_with_their_weights():
    """Eq. 2 for the body, and the mean of its own members for a leaf's output layer."""
    examples = {f"client-{i}": 1.0 + i for i in range(12)}
    federation, cfl = federation_of((7, 5), num_examples=examples), sharing()
    checked = 0
    for server_round, (before, result) in enumerate(run(federation, cfl, 12), 1):
        tree = before.tree
        if len(tree.leaves) < 2 or len(tree.bodies) > 1:
            continue
        replies = federation.replies(cfl, before, server_round)
        updates = np.array([reply.update.trained for reply in replies])
        weights = np.array([reply.num_examples for reply in replies])
        body = np.average(updates[:, :BODY], axis=0, weights=weights)
        for leaf in tree.leaves:
            own = [reply.client in leaf.members for reply in replies]
            output = np.average(updates[own, BODY:], axis=0, weights=weights[own])
            after = result.state.tree.clusters[leaf.name].model.trained
            expected = leaf.model.trained + np.concatenate([body, output])
            np.testing.assert_allclose(after, expected, atol=1e-12)
        checked += 1
    assert checked > 4


@pytest.mark.parametrize("body", [1.0, 3.0])
def test_groups_that_differ_in_the_body_have_separate_models_as_without_common_layers(body):
    federation = federation_of((6, 5), body=body, output=0.3)
    plain = cfl_of(changes=changes_of(1, moving=True))
    for (_, result), (_, other) in zip(
        run(federation, sharing(), 20), run(federation, plain, 20), strict=True
    ):
        assert result.state.tree.clusters.keys() == other.state.tree.clusters.keys()
        for name, cluster in result.state.tree.clusters.items():
            assert cluster.own_body
            np.testing.assert_array_equal(
                cluster.model.trained, other.state.tree.clusters[name].model.trained
            )
    assert clusters_of(result.state) == federation.planted


def test_a_group_that_turns_against_the_others_has_a_body_of_its_own_at_once_or_soon():
    """After a history of agreement it takes a few rounds, without one none."""
    federation, cfl = federation_of((8, 4)), sharing()
    *_, (_, result) = run(federation, cfl, 15)
    state = result.state
    assert list(state.tree.bodies) == [ROOT]
    against = np.array(federation.centers)
    against[1, :BODY] = -10 * against[0, :BODY]
    turned = replace(federation, centers=against)
    parted = [
        len(result.state.tree.bodies) for _, result in run(turned, cfl, 6, state=state, done=15)
    ]
    assert parted[:1] == [1]
    assert parted[3] >= 2


def leaf_means(tree, updates):
    return {
        name: Mean(vector(update), weight)
        for (name, update), weight in zip(updates.items(), (3.0, 2.0, 1.0), strict=False)
    } | {
        leaf.name: Mean(vector(np.ones(DIM)), 1.0)
        for leaf in tree.leaves
        if leaf.name not in updates
    }


def three_leaves():
    """A tree of three leaves that share the root's body."""
    tree = ParameterTree.initial(vector(np.zeros(DIM)), ["a", "b", "c"], isolated=True)
    return tree.update(*(replace(leaf, own_body=False) for leaf in tree.leaves))


@laws
@given(st.integers(0, 999), st.integers(1, 5))
def test_one_opponent_leaves_alone_and_takes_no_other_with_it(seed, rounds):
    tree, rng = three_leaves(), generator(seed, "opponent")
    common = rng.normal(size=DIM)
    for _ in range(rounds):
        near = {name: common + 0.3 * rng.normal(size=DIM) for name in ("0.0", "0.1")}
        means = leaf_means(tree, near | {"0.2": -common})
        tree = parted_where_opposed(tree, means, BODY)
    assert {leaf.name: leaf.own_body for leaf in tree.leaves} == {
        "0.0": False,
        "0.1": False,
        "0.2": True,
    }


def test_chance_after_a_history_of_agreement_parts_nobody():
    """Where training has converged, mean updates are noise, and half of the cosines negative."""
    tree, rng = three_leaves(), generator(0, "noise")
    agree = dict.fromkeys(("0.0", "0.1", "0.2"), np.ones(DIM))
    for _ in range(2):
        tree = parted_where_opposed(tree, leaf_means(tree, agree), BODY)
    negative = 0
    for _ in range(30):
        noise = {name: rng.normal(size=10_000) for name in agree}
        cosine = noise["0.0"] @ (noise["0.1"] + noise["0.2"])
        negative += cosine < 0
        tree = parted_where_opposed(tree, leaf_means(tree, noise), 10_000)
    assert negative > 5
    assert list(tree.bodies) == [ROOT]


def test_a_leaf_of_which_nobody_replies_gets_the_body_and_keeps_its_output_layer():
    federation, cfl = federation_of((6, 6)), sharing()
    *_, (_, result) = run(federation, cfl, 10)
    before = result.state
    away = before.tree.leaves[1]
    present = [client for client in federation.clients if client not in away.members]
    *_, (_, result) = run(federation, cfl, 3, state=before, done=10, clients=present)
    tree = result.state.tree
    first, second = tree.leaves
    np.testing.assert_array_equal(second.model.trained[:BODY], first.model.trained[:BODY])
    assert not np.array_equal(second.model.trained[:BODY], away.model.trained[:BODY])
    np.testing.assert_array_equal(second.model.trained[BODY:], away.model.trained[BODY:])


@settings(laws, max_examples=20)
@given(st.lists(st.integers(1, 5), min_size=2, max_size=4), st.integers(0, 99), st.booleans())
def test_whatever_groups_there_are_leaves_of_one_body_have_the_same_one(sizes, seed, partial):
    federation = federation_of(sizes, body=0.5, seed=seed)
    for _, result in run(federation, sharing(), 25, partial=partial):
        assert_same_bodies(result.state.tree)


@pytest.mark.parametrize("done", [4, 9, 14])
def test_a_run_with_common_layers_goes_on_from_any_round(done):
    federation, cfl = federation_of((5, 4, 3), body=0.2), sharing()
    states = [result.state for _, result in run(federation, cfl, 20)]
    *_, (_, again) = run(federation, cfl, 20 - done, state=states[done - 1], done=done)
    for name, cluster in again.state.tree.clusters.items():
        other = states[-1].tree.clusters[name]
        np.testing.assert_array_equal(cluster.model.trained, other.model.trained)
        assert (cluster.own_body, cluster.agreement) == (other.own_body, other.agreement)


def test_the_disagreement_of_parts_of_one_kind_is_nothing_in_the_mean():
    rng = generator(0, "parts")
    drawn = [disagreement([rng.normal(size=(size, 30)) for size in (8, 5, 3)]) for _ in range(300)]
    assert abs(np.mean(drawn)) < 3 * np.std(drawn) / np.sqrt(len(drawn))
    apart = [rng.normal(size=(8, 30)), rng.normal(1, size=(5, 30))]
    assert disagreement(apart) > 2


def test_most_of_the_disagreement_must_be_in_the_output_layer():
    for body, own_body in ((0.4, False), (2.0, True)):  # 1 is the difference in the output layer
        trees = (r.state.tree for _, r in run(federation_of((6, 6), body=body), sharing(), 20))
        split = next(tree for tree in trees if len(tree.leaves) == 2)
        assert {leaf.own_body for leaf in split.leaves} == {own_body}


def test_a_cluster_takes_over_the_body_of_another_one_with_its_optimizer():
    tree = three_leaves()
    one, other, _ = tree.leaves
    state = {"momentum": np.arange(DIM, dtype=float)}
    other = replace(other, model=vector(np.ones(DIM), 7.0), optimizer=state)
    moved = with_body_of(replace(one, optimizer={"momentum": np.zeros(DIM)}), other, BODY)
    np.testing.assert_array_equal(moved.model.trained, np.arange(DIM) < BODY)
    np.testing.assert_array_equal(moved.model.carried, [7.0])
    np.testing.assert_array_equal(
        moved.optimizer["momentum"], np.where(np.arange(DIM) < BODY, np.arange(DIM), 0)
    )
