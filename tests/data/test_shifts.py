from math import factorial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cflower.data.examples import Examples
from cflower.data.settings import SHIFTS, DataSettings
from cflower.data.shifts import (
    SHIFTED,
    apply_shift,
    groups_of,
    held_classes,
    permuted_labels,
    rotated,
    swapped_labels,
)
from cflower.errors import ConfigError, DataError


def images(num=60, side=6, num_classes=5):
    pixels = np.random.default_rng(0).random((num, 1, side, side), dtype=np.float32)
    names = tuple(f"class {n}" for n in range(num_classes))
    return Examples(pixels, np.arange(num) % num_classes, names)


def shifted(shift, group=1, num_groups=2, client=3, **keys):
    settings = DataSettings(shift=shift, num_groups=num_groups, **keys)
    return apply_shift(images(), settings, group, client)


@given(st.integers(1, 40), st.integers(1, 40))
def test_groups_are_contiguous_and_as_equal_as_can_be(num_clients, num_groups):
    if num_groups > num_clients:
        with pytest.raises(ConfigError, match="num-groups"):
            groups_of(num_clients, num_groups)
        return
    groups = groups_of(num_clients, num_groups)
    assert list(groups) == sorted(groups)
    assert set(groups) == set(range(num_groups))
    sizes = np.bincount(groups)
    assert sizes.max() - sizes.min() <= 1


@given(st.lists(st.integers(1, 6), min_size=1, max_size=6))
def test_group_sizes_are_what_was_asked_for(sizes):
    groups = groups_of(sum(sizes), len(sizes), ",".join(map(str, sizes)))
    assert np.bincount(groups).tolist() == sizes


@pytest.mark.parametrize("sizes", ["6,4", "6,4,1", "6,6,0", "14,-1,-1", "6;4;2", "6,4,2,0"])
def test_group_sizes_that_do_not_fit(sizes):
    with pytest.raises(ConfigError, match="group-sizes"):
        groups_of(12, 3, sizes)


@given(st.integers(4, 40), st.integers(1, 10), st.integers(0, 9))
def test_swaps_exchange_one_pair_each(num_classes, num_groups, seed):
    if num_groups > num_classes * (num_classes - 1) // 2:
        return
    mappings = swapped_labels(num_classes, num_groups, seed)
    moved = [frozenset(np.flatnonzero(row != np.arange(num_classes))) for row in mappings]
    assert all(len(pair) == 2 for pair in moved)
    assert all(np.array_equal(row[row], np.arange(num_classes)) for row in mappings)
    assert len(set(moved)) == num_groups
    if 2 * num_groups <= num_classes:
        assert len(frozenset.union(*moved)) == 2 * num_groups


@given(st.integers(2, 12), st.integers(1, 14), st.integers(0, 9))
def test_permutations_are_distinct_and_agree_nowhere(num_classes, num_groups, seed):
    if num_groups > factorial(num_classes):
        with pytest.raises(DataError, match="use fewer groups"):
            permuted_labels(num_classes, num_groups, seed)
        return
    mappings = permuted_labels(num_classes, num_groups, seed)
    assert mappings.shape == (num_groups, num_classes)
    assert mappings[0].tolist() == list(range(num_classes))
    assert all(sorted(row) == list(range(num_classes)) for row in mappings)
    assert len({tuple(row) for row in mappings}) == num_groups
    if num_groups <= num_classes:
        for first in range(num_groups):
            assert not (mappings[first] == mappings[first + 1 :]).any()


@pytest.mark.parametrize("shift", ["label-swap", "label-permutation"])
def test_relabelling_is_a_bijection_of_labels_that_keeps_the_inputs(shift):
    before, after = images(), shifted(shift)
    np.testing.assert_array_equal(before.inputs, after.inputs)
    pairs = set(zip(before.labels.tolist(), after.labels.tolist(), strict=True))
    assert len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs}) == 5
    assert not np.array_equal(before.labels, after.labels)


def test_four_quarter_turns_are_the_identity():
    before = turned = images().inputs
    for _ in range(4):
        turned = rotated(turned, 1, 4)
    np.testing.assert_array_equal(turned, before)
    np.testing.assert_array_equal(rotated(before, 0, 7), before)
    np.testing.assert_array_equal(rotated(before, 1, 2), before[:, :, ::-1, ::-1])


def test_other_angles_turn_the_same_way():
    spot = np.zeros((1, 1, 33, 33), np.float32)
    spot[0, 0, 16, 26] = 1  # to the right of the middle
    eighth, quarter = rotated(spot, 1, 8), rotated(spot, 2, 8)
    assert np.unravel_index(quarter[0, 0].argmax(), (33, 33)) == (6, 16)
    assert np.unravel_index(eighth[0, 0].argmax(), (33, 33)) == (9, 23)
    assert (eighth.shape, eighth.dtype) == (spot.shape, np.float32)
    wide = np.ones((2, 3, 4, 8), np.float32)
    assert rotated(wide, 1, 4).shape == wide.shape


@given(st.integers(1, 9), st.integers(0, 9))
def test_label_subsets_share_out_the_classes(num_groups, seed):
    held = held_classes(tuple("abcdefghi"), num_groups, seed)
    assert sorted(label for part in held for label in part) == list(range(9))
    assert all(held)


def test_missing_labels_are_the_articles():
    held = held_classes(tuple("0123456789"), 3, 0, "1,3,7; 2,5,8; 4,6,9")
    assert held[0] == (0, 2, 4, 5, 6, 8, 9)
    after = shifted("label-subset", missing_labels="class 0;class 1,class 2")
    assert set(after.labels.tolist()) == {0, 3, 4}


def test_a_client_without_examples_is_refused():
    only_zeros = images().take(images().labels == 0)
    settings = DataSettings(shift="label-subset", missing_labels=";class 0")
    with pytest.raises(DataError, match=r"client 4 \(group 1\) without examples"):
        apply_shift(only_zeros, settings, 1, 4)


def test_noise_is_for_the_last_group_and_differs_by_client():
    before = images().labels
    np.testing.assert_array_equal(shifted("label-noise", group=0).labels, before)
    noisy, other = shifted("label-noise").labels, shifted("label-noise", client=4).labels
    assert not np.array_equal(noisy, other)
    assert 0.02 < np.mean(noisy == before) < 0.5
    np.testing.assert_array_equal(noisy, shifted("label-noise").labels)


def test_the_config_knows_every_shift():
    assert sorted(SHIFTED) == sorted(SHIFTS)


@pytest.mark.parametrize("shift", SHIFTS)
def test_the_dealt_examples_never_change(shift):
    before = images()
    apply_shift(before, DataSettings(shift=shift), 1, 0)
    np.testing.assert_array_equal(before.inputs, images().inputs)
    np.testing.assert_array_equal(before.labels, images().labels)


@pytest.mark.parametrize(
    ("refuse", "words"),
    [
        (lambda: rotated(np.zeros((3, 4), np.float32), 1, 2), "needs images"),
        (lambda: held_classes(("0", "1", "2"), 2, 0, "1;2;3"), "3 parts for 2 groups"),
        (lambda: held_classes(("0", "1", "2"), 2, 0, "1;7"), "'7', which is no class"),
        (lambda: held_classes(("0", "1"), 2, 0, "0,1;"), "without any class"),
        (lambda: shifted("label-subset", num_groups=6), "6 groups"),
        (lambda: shifted("label-swap", num_groups=11), "10 pairs"),
        (lambda: shifted("nested", num_groups=3), "num-groups = 3"),
    ],
)
def test_shifts_that_do_not_fit_are_refused(refuse, words):
    with pytest.raises((ConfigError, DataError), match=words):
        refuse()


@pytest.mark.parametrize("group", range(4))
def test_nested_pairs_are_turned_and_their_odd_group_swaps_two_labels(group):
    before, after = images(), shifted("nested", group, num_groups=4)
    np.testing.assert_array_equal(after.inputs, rotated(before.inputs, group // 2, 2))
    moved = np.unique(before.labels[after.labels != before.labels])
    assert len(moved) == (2 if group % 2 else 0)
    first = shifted("nested", group % 2, num_groups=4)  # every pair swaps the same labels
    np.testing.assert_array_equal(after.labels, first.labels)
