from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cflower.algorithm.tree import ParameterTree, Weights
from cflower.ordering import in_order, natural_order
from tests.algorithm.planted import assert_partitions, laws


def weights(*values):
    return Weights(np.array(values, dtype=float), np.zeros(0))


def split(tree, name, sides, server_round, edges=None):
    """The leaf divided as one round of the algorithm does it."""
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


def two_forks():
    """0 → 0.0 (a, b), 0.1 → 0.1.0 (c), 0.1.1 (d, e)."""
    edges = {
        **dict.fromkeys("ab", np.array([1.0, 0.0])),
        **dict.fromkeys("cde", np.array([-1.0, 0.0])),
    }
    tree = split(ParameterTree.initial(weights(0, 0), "abcde"), "0", ["ab", "cde"], 3, edges)
    edges = {"c": np.array([0.0, 1.0]), **dict.fromkeys("de", np.array([0.0, -1.0]))}
    return split(tree, "0.1", ["c", "de"], 5, edges)


@pytest.fixture
def three():
    return two_forks()


@laws
@given(st.data())
def test_clusters_always_partition_the_clients(data):
    clients = [f"c{i}" for i in range(data.draw(st.integers(1, 5)))]
    tree = ParameterTree.initial(weights(0, 0), clients)
    for server_round in range(1, data.draw(st.integers(1, 12))):
        settled = {
            leaf.name: [c for c in leaf.members if c not in tree.unassigned] for leaf in tree.leaves
        }
        large = [name for name, members in settled.items() if len(members) > 1]
        kinds = ["admit", *(["split"] if large else []), *(["walk"] if tree.unassigned else [])]
        kind = data.draw(st.sampled_from(kinds))
        if kind == "admit":
            clients.append(f"c{len(clients)}")
            tree = tree.admit(clients[-1], server_round)
        elif kind == "split":
            name = data.draw(st.sampled_from(large))
            members = settled[name]
            cut = data.draw(st.integers(1, len(members) - 1))
            unassigned = [c for c in tree.clusters[name].members if c in tree.unassigned]
            tree = split(tree, name, [members[:cut], [*members[cut:], *unassigned]], server_round)
        else:
            client = data.draw(st.sampled_from(in_order(tree.unassigned)))
            towards = data.draw(st.sampled_from([-1.0, 1.0]))
            tree, _ = tree.assign_step(client, np.array([towards, 0.0]))
        assert_partitions(tree, clients)
        assert set(tree.clients) == set(clients)
        for client, place in tree.unassigned.items():
            assert not tree.clusters[place].is_leaf
            assert tree.clusters[place] in tree.path(tree.leaf_of(client).name)


@laws
@given(
    st.lists(st.lists(st.sampled_from("ab-019")).map("".join), unique=True),
    st.randoms(use_true_random=False),
)
def test_the_natural_order_does_not_depend_on_the_order_of_arrival(names, random):
    shuffled = list(names)
    random.shuffle(shuffled)
    assert in_order(shuffled) == in_order(names)


def test_natural_order_counts_numbers_and_spells_the_rest():
    names = ["partition-10", "b", "partition-2", "2", "10", "partition-2b", "0.10", "0.9"]
    assert in_order(names) == (
        "0.9", "0.10", "2", "10", "b", "partition-2", "partition-2b", "partition-10",
    )  # fmt: skip
    assert natural_order("7") != natural_order("007")


def test_a_new_tree_is_one_cluster_of_all():
    tree = ParameterTree.initial(weights(1, 2), ["p-10", "p-2"])
    assert tree.root.members == ("p-2", "p-10")
    assert tree.leaves == (tree.root,)
    assert tree.path("0") == (tree.root,)


def test_isolated_clients_are_leaves_of_their_own_with_one_model():
    tree = ParameterTree.initial(weights(1, 2), ["a", "b", "c"], isolated=True)
    assert [leaf.members for leaf in tree.leaves] == [("a",), ("b",), ("c",)]
    assert all(leaf.model is tree.root.model for leaf in tree.leaves)
    assert_partitions(tree, "abc")
    assert_partitions(tree.admit("d", 4, isolated=True), "abcd")


def test_the_path_leads_from_the_root_to_the_leaf(three):
    assert [cluster.name for cluster in three.path("0.1.1")] == ["0", "0.1", "0.1.1"]
    assert [leaf.name for leaf in three.leaves] == ["0.0", "0.1.0", "0.1.1"]
    assert three.leaf_of("c").name == "0.1.0"


def test_leaves_come_in_natural_order():
    tree = ParameterTree.initial(weights(0), [f"c{i}" for i in range(12)], isolated=True)
    assert [leaf.name for leaf in tree.leaves] == [f"0.{i}" for i in range(12)]


def test_a_stranger_is_in_no_leaf(three):
    with pytest.raises(KeyError, match="z"):
        three.leaf_of("z")


def test_a_member_is_not_admitted_twice(three):
    assert three.admit("a", 6) is three


def test_before_any_split_a_newcomer_joins_the_root():
    tree = ParameterTree.initial(weights(0, 0), "ab").admit("c", 2)
    assert tree.root.members == ("a", "b", "c")
    assert not tree.unassigned


def test_later_a_newcomer_starts_at_the_root_and_counts_to_the_largest_leaf(three):
    tree = three.admit("z", 6)
    assert tree.unassigned == {"z": "0"}
    assert tree.training_cluster("z") is tree.root
    assert tree.leaf_of("z").name == "0.0"
    assert_partitions(tree, "abcdez")


def test_algorithm_4_goes_to_the_most_similar_branch_level_by_level(three):
    tree = three.admit("z", 6)
    tree, fork = tree.assign_step("z", np.array([-3.0, 1.0]))
    assert fork.child == "0.1"
    assert fork.similarities["0.0"] == pytest.approx(-3 / np.sqrt(10))
    assert fork.similarities["0.1"] == pytest.approx(3 / np.sqrt(10))
    assert tree.unassigned == {"z": "0.1"}
    assert tree.training_cluster("z").name == "0.1"
    assert_partitions(tree, "abcdez")
    tree, fork = tree.assign_step("z", np.array([0.2, 5.0]))
    assert fork.child == "0.1.0"
    assert tree.unassigned == {}
    assert tree.leaf_of("z").members == ("c", "z")
    assert_partitions(tree, "abcdez")


def test_a_branch_is_as_similar_as_its_most_similar_client(three):
    edge = {"a": np.array([1.0, 0.0]), "b": np.array([0.0, 1.0])}
    tree = three.update(replace(three.clusters["0.0"], edge=edge))
    fork = tree.fork("0", np.array([-1.0, 1.0]))
    assert fork.similarities["0.0"] == pytest.approx(np.sqrt(0.5))


def test_a_zero_update_walks_without_nan(three):
    tree, fork = three.admit("z", 6).assign_step("z", np.zeros(2))
    assert fork.similarities == {"0.0": 0.0, "0.1": 0.0}
    assert_partitions(tree, "abcdez")


def test_trees_are_not_changed_in_place(three):
    before = {name: cluster.members for name, cluster in three.clusters.items()}
    three.admit("z", 6).assign_step("z", np.array([1.0, 0.0]))
    assert {name: cluster.members for name, cluster in three.clusters.items()} == before
    assert three.unassigned == {}
