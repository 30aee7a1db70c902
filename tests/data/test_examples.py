import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cflower.data.examples import Examples, split
from cflower.errors import DataError


@given(st.integers(2, 60), st.floats(0.01, 0.99), st.integers(0, 5))
def test_hold_out_partitions_the_examples(num, fraction, seed):
    train, held = split(np.zeros(num, int), fraction, np.random.default_rng(seed))
    assert sorted([*train, *held]) == list(range(num))
    assert len(train) >= 1
    assert len(held) == min(max(round(fraction * num), 1), num - 1)
    again = split(np.zeros(num, int), fraction, np.random.default_rng(seed))[1]
    np.testing.assert_array_equal(held, again)


@given(st.integers(3, 60), st.floats(0.01, 0.99), st.floats(0.01, 0.99), st.integers(0, 5))
def test_three_parts_share_out_the_examples(num, fraction, share, seed):
    train, decide, report = split(np.zeros(num, int), fraction, np.random.default_rng(seed), share)
    assert sorted([*train, *decide, *report]) == list(range(num))
    assert min(map(len, (train, decide, report))) >= 1
    held = min(max(round(fraction * num), 2), num - 1)
    assert len(train) == num - held
    assert len(decide) == min(max(round(share * held), 1), held - 1)
    if round(fraction * num) >= 2:  # the part to train on is the same without a part to decide by
        alike = split(np.zeros(num, int), fraction, np.random.default_rng(seed))[0]
        np.testing.assert_array_equal(train, alike)


@given(
    st.lists(st.integers(0, 3), min_size=3, max_size=80),
    st.floats(0.05, 0.9),
    st.floats(0.1, 0.9),
    st.integers(0, 5),
)
def test_each_class_is_shared_out_in_proportion_to_within_one_example(labels, held, share, seed):
    labels = np.array(labels)
    parts = split(labels, held, np.random.default_rng(seed), share)
    out = np.concatenate(parts[1:])
    for label in range(4):
        count = (labels == label).sum()
        expected = count * len(out) / len(labels)
        assert abs((labels[out] == label).sum() - expected) <= 1
        there = (labels[out] == label).sum()
        assert abs((labels[parts[1]] == label).sum() - there * len(parts[1]) / len(out)) <= 1


@pytest.mark.parametrize(
    ("num", "fraction", "share", "words"),
    [(2, 0.2, [0.5], r"\(2\), but at least 3 .* decide-fraction = 0")]
    + [(num, 0.2, [], rf"too few examples \({num}\)") for num in (0, 1)],
)
def test_nothing_can_be_held_out(num, fraction, share, words):
    with pytest.raises(DataError, match=words):
        split(np.zeros(num, int), fraction, np.random.default_rng(0), *share)


@pytest.mark.parametrize(
    ("labels", "words"), [([0, 0, 0], "exactly one label"), ([-1, 0], "labels go from -1 to 0")]
)
def test_inconsistent_examples_are_refused(labels, words):
    with pytest.raises(DataError, match=words):
        Examples(np.zeros((2, 1), "f4"), np.array(labels), ("a",))
