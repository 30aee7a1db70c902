from dataclasses import replace

import numpy as np

from cflower.algorithm.tree import ParameterTree
from cflower.ordering import in_order, natural_order
from tests.algorithm.planted import assert_partitions, vector


def split(tree, name, sides, server_round, edges=None):
    """The tree after a split of a leaf, as one round of the algorithm makes it."""
    leaf = tree.clusters[name]
    children = [
        replace(
            leaf,
            name=f"{name}.{i}",
            members=in_order(side),
            born=server_round,
            edge={c: (edges or {}).get(c, np.array([1.0 - 2 * i, 0.1])) for c in side},
        )
        for i, side in enumerate(sides)
    ]
    parent = replace(leaf, children=tuple(c.name for c in children), split_round=server_round)
    return tree.update(parent, *children)


def two_levels():
    """0 → 0.0 (a, b), 0.1 → 0.1.0 (c), 0.1.1 (d, e)."""
    edges = dict.fromkeys("ab", np.array([1.0, 0.0])) | dict.fromkeys("cde", np.array([-1.0, 0.0]))
    tree = split(ParameterTree.initial(vector([0, 0]), "abcde"), "0", ["ab", "cde"], 3, edges)
    edges = {"c": np.array([0.0, 1.0]), **dict.fromkeys("de", np.array([0.0, -1.0]))}
    return split(tree, "0.1", ["c", "de"], 5, edges)


def test_natural_order_compares_numbers_as_numbers():
    names = ["partition-10", "b", "partition-2", "2", "10", "partition-2b", "0.10", "0.9"]
    expected = ["0.9", "0.10", "2", "10", "b", "partition-2", "partition-2b", "partition-10"]
    assert in_order(names) == tuple(expected)
    assert natural_order("7") != natural_order("007")
    for shuffled in ({"7", "007", "07"}, ["007", "7", "07"]):
        assert in_order(shuffled) == in_order(["07", "007", "7"])


def test_isolated_clients_have_leaves_of_their_own_with_one_model():
    tree = ParameterTree.initial(vector([1, 2]), "abcdefghijkl", isolated=True)
    assert [leaf.members for leaf in tree.leaves] == [(client,) for client in "abcdefghijkl"]
    assert [leaf.name for leaf in tree.leaves] == [f"0.{i}" for i in range(12)]  # natural order
    assert all(leaf.model is tree.root.model for leaf in tree.leaves)
    assert [cluster.name for cluster in tree.path_of("b")] == ["0.1"]  # the root was not trained
    assert_partitions(tree.admit(["m"], 4, isolated=True), "abcdefghijklm")


def test_a_newcomer_starts_at_the_root_and_counts_to_the_largest_leaf():
    before = two_levels()
    assert before.admit(["a"], 6) is before
    tree = before.admit(["z"], 6)
    assert tree.unassigned == {"z": "0"}
    assert tree.training_cluster("z") is tree.root
    assert tree.leaf_of("z").name == "0.0"
    assert_partitions(tree, "abcdez")


def test_an_undone_split_frees_the_clients_that_stood_below_it():
    tree = two_levels().admit(["y"], 6).admit(["z"], 6).descended({"z": "0.1"})
    assert tree.unassigned == {"y": "0", "z": "0.1"}
    leaf = replace(tree.clusters["0.1"], children=(), split_round=None)
    tree = tree.rejoined("0.1", leaf)
    assert [leaf.name for leaf in tree.leaves] == ["0.0", "0.1"]
    assert tree.unassigned == {"y": "0"}
    assert_partitions(tree, "abcdeyz")


def test_a_split_that_was_computed_before_a_member_left_and_another_came_has_both_in_one_leaf():
    tree = split(ParameterTree.initial(vector([0, 0]), "abcdef"), "0", ["ab", "cdef"], 3)
    planned = split(tree, "0.1", ["c", "def"], 5).clusters
    cluster = replace(planned["0.1"], left_out=("f",))
    tree = tree.moved({"a": "0.1", "c": "0.0"}).admit(["z"], 6)
    after = tree.divided(cluster, [planned["0.1.0"], planned["0.1.1"]])
    assert_partitions(after, "abcdefz")
    assert after.clusters["0.1.0"].members == ()
    assert after.unassigned == {"f": "0.1", "a": "0.1", "z": "0"}
