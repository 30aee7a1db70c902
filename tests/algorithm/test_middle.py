"""No minority moves an entry that is not trained beyond what the other members sent."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cflower.algorithm import middle as module
from cflower.algorithm.constants import FEW
from cflower.algorithm.middle import RECENT, Middle
from cflower.algorithm.tree import Cluster
from cflower.algorithm.weights import Weights

NUMBERS = st.floats(-1e30, 1e30)


def leaf_of(size, *own, sent=()):
    """A leaf whose entries have these values, and the values that its first members sent last."""
    members = tuple(f"c{i}" for i in range(size))
    known = {f"c{i}": np.array(values, float) for i, values in sent}
    return Cluster("0", members, Weights(np.zeros(1), np.array(own, float)), sent=known)


def round_of(leaf, sent):
    """The leaf's entries after a round in which these members sent these values."""
    values = Middle([leaf])
    for client, value in sent:
        own = leaf.model.carried
        values.add(f"c{client}", np.array(value, float) - own, own)
    change, kept = values.changed
    return leaf.model.carried + change, kept


@st.composite
def rounds(draw):
    """Values of honest members, a minority's values, and who of them replies in this round."""
    size = draw(st.integers(FEW, 12))
    hostile = draw(st.integers(0, (size - 1) // 2))
    honest = draw(st.lists(st.floats(0.5, 2.0), min_size=size - hostile, max_size=size - hostile))
    values = [*draw(st.lists(NUMBERS, min_size=hostile, max_size=hostile)), *honest]
    return honest, draw(st.permutations([*enumerate(values)]))


@given(rounds())
def test_an_entry_stays_within_what_the_honest_members_sent(case):
    honest, sent = case
    (value,), _ = round_of(leaf_of(len(sent), 1.0), [(c, [v]) for c, v in sent])
    assert min(honest) - 1e-9 <= value <= max(honest) + 1e-9


@pytest.mark.parametrize("replied", [1, 2, 4])
@given(
    st.lists(st.floats(0.5, 2.0), min_size=RECENT, max_size=RECENT),
    st.lists(NUMBERS, min_size=4, max_size=4),
)
def test_so_it_does_where_only_four_reply_and_they_send_anything(replied, before, values):
    last = [(i, [value]) for i, value in enumerate(before)]
    leaf = leaf_of(20, 1.0, sent=last)
    sent = [(19 - i, [value]) for i, value in enumerate(values)][:replied]
    (found,), kept = round_of(leaf, sent)
    assert min(before) - 1e-9 <= found <= max(before) + 1e-9
    assert list(kept)[:replied] == [f"c{client}" for client, _ in sent]
    assert len(kept) == RECENT


@pytest.mark.parametrize("replied", [1, 2, 3])
def test_what_only_one_member_ever_sent_changes_nothing(replied):
    sent = [(0, [-1e30, 7.0]), (1, [1.5, 2.0]), (2, [1.5, 3.0])][:replied]
    found, _ = round_of(leaf_of(20, 1.0, 2.0), sent)
    assert found.tolist() == {1: [1.0, 2.0], 2: [1.0, 2.0], 3: [1.5, 3.0]}[replied]


def test_an_index_is_one_of_those_sent():
    found, _ = round_of(leaf_of(20, 0.0), [(0, [7]), (1, [7]), (2, [1e9])])
    assert found == [7]


@pytest.mark.parametrize("size", [1, 2])
def test_the_entries_of_a_small_leaf_are_the_mean_of_its_members(size):
    found, _ = round_of(leaf_of(size, 0.0), [(i, [4.0 * i + 2]) for i in range(size)])
    assert found == [2.0 * size]


def test_a_member_counts_once_and_one_that_left_does_not_count():
    leaf = leaf_of(5, 1.0, sent=[(0, [9.0]), (1, [2.0]), (2, [3.0]), (7, [9.0])])
    found, kept = round_of(leaf, [(0, [9.0])])
    assert (found, list(kept)) == ([3.0], ["c0", "c1", "c2"])


def test_nothing_is_kept_where_enough_members_reply():
    leaf = leaf_of(9, 1.0, sent=[(8, [9.0])])
    found, kept = round_of(leaf, [(i, [float(i)]) for i in range(RECENT)])
    assert (found, kept) == ([(RECENT - 1) / 2], {})


def test_a_late_reply_counts_with_the_value_that_it_has():
    leaf = leaf_of(3, 5.0)
    values = Middle([leaf])
    for client in leaf.members:
        values.add(client, np.array([1.0]), np.array([2.0]))  # of a model with other entries
    assert values.changed[0] == [-2.0]


def test_of_many_replies_a_sample_is_kept_that_does_not_depend_on_their_order(monkeypatch):
    monkeypatch.setattr(module, "MOST_BYTES", 80 * 8)
    leaf = leaf_of(4000, 1.0)
    values, own = Middle([leaf]), leaf.model.carried
    for i, client in enumerate(leaf.members):  # the last third is hostile
        values.add(client, np.array([1e9 if 3 * i > 8000 else i / 1e4]), own)
        assert len(values._sent) <= 80
    assert 0 <= values.changed[0] <= 0.27


def test_what_nobody_changes_takes_no_memory_and_stays_to_the_bit():
    leaf = leaf_of(6, *np.random.default_rng(0).normal(size=100))
    values, own = Middle([leaf]), leaf.model.carried
    for client in leaf.members[:4]:
        values.add(client, np.zeros(100), own)
    change, kept = values.changed
    assert not change.any() and all(vector is own for vector in kept.values())


def test_a_leaf_of_hostile_members_that_shares_its_layers_is_outvoted_by_the_other_leaves():
    honest, hostile = leaf_of(5, 1.0), replace(leaf_of(0, 1.0), name="0.1", members=("x", "y", "z"))
    values = Middle([honest, hostile])
    for client in (*honest.members, *hostile.members):
        values.add(client, np.array([-1e30 if client in hostile.members else 0.25]), np.ones(1))
    assert values.changed[0] == [0.25]
