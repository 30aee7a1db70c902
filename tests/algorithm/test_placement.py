from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cflower.algorithm.placement import Branches, descend
from tests.algorithm.planted import laws
from tests.algorithm.test_tree import two_levels

TREE = two_levels()
two_updates = st.lists(st.lists(st.floats(-1, 1), min_size=2, max_size=2), min_size=2, max_size=2)


@laws
@given(two_updates)
def test_the_path_is_that_of_a_newcomer_during_the_run(updates):
    by_cluster = dict(zip(("0", "0.1"), map(np.array, updates), strict=True))
    steps = list(descend(TREE, lambda cluster: by_cluster[cluster.name]))
    tree = TREE.admit(["z"], 9)
    for step in steps:
        assert tree.unassigned == {"z": step.cluster}
        assert Branches.of(tree, step.cluster).place(by_cluster[step.cluster]) == step
        tree = tree.descended({"z": step.child})
    assert tree.unassigned == {}
    assert tree.leaf_of("z").name == steps[-1].child


def test_a_tree_without_a_split_needs_no_update():
    alone = replace(TREE.root, children=(), split_round=None)
    assert list(descend(TREE.update(alone), pytest.fail)) == []


def test_the_most_similar_client_of_a_child_counts():
    edge = {"a": np.array([1.0, 0.0]), "b": np.array([0.0, 1.0])}
    tree = TREE.update(replace(TREE.clusters["0.0"], edge=edge))
    step = Branches.of(tree, "0").place(np.array([-3.0, 1.0]))
    assert step.child == "0.1"
    assert step.similarities == pytest.approx({"0.0": 1 / np.sqrt(10), "0.1": 3 / np.sqrt(10)})


def test_an_update_of_zero_resembles_no_child_and_gives_no_nan():
    step = Branches.of(TREE, "0").place(np.zeros(2))
    assert step.similarities == {"0.0": 0.0, "0.1": 0.0}
    assert not step.familiar
