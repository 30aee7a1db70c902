from collections import Counter
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cflower.algorithm.tree import ParameterTree
from cflower.algorithm.weights import Weights
from cflower.strategy.sampling import sample
from tests.algorithm.planted import laws


def tree_of(*sizes, unassigned=()):
    """A root with leaves of these sizes; client 1-0 is the first of leaf 0.1."""
    members = [tuple(f"{i}-{j}" for j in range(size)) for i, size in enumerate(sizes)]
    everyone = [name for leaf in members for name in leaf]
    tree = ParameterTree.initial(Weights(np.zeros(1), np.zeros(0)), everyone)
    leaves = [replace(tree.root, name=f"0.{i}", members=m) for i, m in enumerate(members)]
    root = replace(tree.root, children=tuple(leaf.name for leaf in leaves))
    return replace(tree.update(root, *leaves), unassigned=dict.fromkeys(unassigned, "0"))


def draw(tree, fraction, least=0, connected=None, seed=0):
    connected = tree.clients if connected is None else connected
    return sample(tree, connected, fraction, least, np.random.default_rng(seed))


@laws
@given(
    st.lists(st.integers(1, 12), min_size=1, max_size=4),
    st.floats(0.01, 1),
    st.integers(0, 60),
    st.integers(0, 99),
)
def test_each_cluster_has_the_same_share_and_at_least_one_client(sizes, fraction, least, seed):
    chosen = draw(tree_of(*sizes), fraction, least, seed=seed)
    counts = Counter(int(name.split("-")[0]) for name in chosen)
    for i, size in enumerate(sizes):
        assert max(1, round(fraction * size)) <= counts[i] <= size
    assert len(chosen) == len(set(chosen))
    shares = sum(max(1, round(fraction * size)) for size in sizes)
    assert len(chosen) == max(shares, min(least, sum(sizes)))


def test_clients_are_in_natural_order():
    assert draw(tree_of(2, 11), 1.0) == ("0-0", "0-1", *(f"1-{j}" for j in range(11)))


def test_a_fraction_of_zero_samples_no_client():
    assert draw(tree_of(3, 3, unassigned=["0-0"]), 0, least=2) == ()


def test_only_connected_clients_are_sampled():
    connected = {"0-1", "1-0", "1-2"}
    assert set(draw(tree_of(3, 3), 1.0, least=6, connected=connected)) == connected
    assert draw(tree_of(3, 3), 0.5, connected=set()) == ()


def test_unassigned_clients_always_take_part():
    tree = tree_of(10, 10, unassigned=["0-7", "1-3"])
    for seed in range(20):
        chosen = draw(tree, 0.1, seed=seed)
        assert {"0-7", "1-3"} < set(chosen)
        assert len(chosen) == 4


def test_of_many_unassigned_clients_the_same_share_of_all_takes_part():
    waiting = [f"0-{j}" for j in range(90)]
    tree = tree_of(100, 100, unassigned=waiting)
    drawn = set()
    for seed in range(60):
        chosen = draw(tree, 0.1, seed=seed)
        assert len(chosen) == 20 + 1 + 10
        drawn |= set(chosen)
    assert set(waiting) < drawn


def test_named_clients_take_part_in_any_case():
    tree, rng = tree_of(10, 10, unassigned=["0-1"]), np.random.default_rng(0)
    chosen = sample(tree, tree.clients, 0.1, 0, rng, {"0-1", "0-2", "1-9", "gone"})
    assert {"0-1", "0-2", "1-9"} < set(chosen)
    assert len(chosen) == 3 + 1 + 1


def test_clients_are_topped_up_from_all_leaves_alike():
    drawn = Counter(name for seed in range(400) for name in draw(tree_of(5, 5), 0.2, 4, seed=seed))
    of_leaf = [sum(drawn[f"{leaf}-{i}"] for i in range(5)) for leaf in (0, 1)]
    assert sum(of_leaf) == 400 * 4
    assert abs(of_leaf[0] - of_leaf[1]) < 160  # 1,190 and 400 of 2,000 before
