from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cflower.algorithm.placement import (
    Step,
    TypicalSimilarity,
    confirms,
    descend,
    typical_similarity,
)
from cflower.algorithm.similarity import cosine_similarity
from cflower.algorithm.tree import Fork
from tests.algorithm.planted import laws
from tests.algorithm.test_tree import two_forks

TREE = two_forks()


@laws
@given(st.lists(st.lists(st.floats(-1, 1), min_size=2, max_size=2), min_size=2, max_size=2))
def test_the_way_is_the_one_of_a_newcomer_during_the_run(updates):
    by_cluster = dict(zip(("0", "0.1"), map(np.array, updates), strict=True))
    steps = descend(TREE, lambda cluster: by_cluster[cluster.name])
    live = TREE.admit("z", 9)
    for step in steps:
        assert live.unassigned == {"z": step.cluster}
        live, fork = live.assign_step("z", by_cluster[step.cluster])
        assert fork == step.fork
    assert live.unassigned == {}
    assert live.leaf_of("z").name == steps[-1].fork.child


def test_a_tree_without_a_fork_has_no_way_down():
    alone = replace(TREE.root, children=(), split_round=None)
    assert descend(TREE.update(alone), pytest.fail) == ()


@laws
@given(st.integers(0, 2**32 - 1), st.lists(st.integers(1, 4), min_size=2, max_size=3))
def test_what_is_usual_is_counted_client_by_client(seed, sizes):
    rng = np.random.default_rng(seed)
    branches = {
        f"0.{i}": {f"{i}-{j}": rng.normal(size=5) for j in range(size)}
        for i, size in enumerate(sizes)
    }
    taken = f"0.{len(sizes) - 1}"

    def nearest(name, update):
        others = [u for n, u in branches[taken].items() if n != name]
        return max(cosine_similarity([update, u])[0, 1] for u in others)

    usual = typical_similarity(branches, taken)
    alone = sizes[-1] == 1
    members = [] if alone else [nearest(n, u) for n, u in branches[taken].items()]
    others = [nearest(n, u) for b, edge in branches.items() if b != taken for n, u in edge.items()]
    assert usual.others == pytest.approx(np.median(others))
    assert usual.members is None if alone else usual.members == pytest.approx(np.median(members))


def test_who_is_nearer_to_the_others_than_to_the_members_resembles_nobody():
    def familiar(alpha, members):
        fork = Fork("0.1", {"0.0": -1.0, "0.1": alpha})
        return Step("0", fork, TypicalSimilarity(members, others=0.0)).familiar

    assert familiar(0.5, members=0.75)
    assert not familiar(0.25, members=0.75)
    assert familiar(0.25, members=None)  # a branch of one: nothing says what members have
    assert not familiar(0.0, members=None)


@laws
@given(st.lists(st.lists(st.floats(-1, 1), min_size=2, max_size=2), min_size=2, max_size=2))
def test_algorithm_4_confirms_the_leaf_it_comes_to_if_all_forks_are_familiar(updates):
    by_cluster = dict(zip(("0", "0.1"), map(np.array, updates), strict=True))
    asked = []

    def update_of(cluster):
        asked.append(cluster.name)
        return by_cluster[cluster.name]

    steps = descend(TREE, update_of)
    way = list(asked)
    for leaf in TREE.leaves:
        asked.clear()
        reached = leaf.name == steps[-1].fork.child and all(step.familiar for step in steps)
        assert confirms(TREE, leaf.name, update_of) == reached
        assert asked == way[: len(asked)]
