import numpy as np
import pytest

from cflower.data.examples import Examples
from cflower.data.shifts import apply_shift, rotated
from cflower.errors import ConfigError


def nested(group: int, num_groups: int = 4) -> tuple[Examples, Examples]:
    pixels = np.random.default_rng(0).random((40, 1, 6, 6), dtype=np.float32)
    before = Examples(pixels, np.arange(40) % 5, tuple("abcde"))
    after = apply_shift(before, "nested", group=group, num_groups=num_groups, client=0, seed=3)
    return before, after


@pytest.mark.parametrize("group", range(4))
def test_pairs_are_turned_and_their_odd_group_swaps_two_labels(group: int) -> None:
    before, after = nested(group)
    np.testing.assert_array_equal(after.inputs, rotated(before.inputs, group // 2, 2))
    moved = np.unique(before.labels[after.labels != before.labels])
    assert len(moved) == (2 if group % 2 else 0)


def test_every_pair_swaps_the_same_labels() -> None:
    np.testing.assert_array_equal(nested(1)[1].labels, nested(3)[1].labels)


def test_groups_must_come_in_pairs() -> None:
    with pytest.raises(ConfigError, match="num-groups = 3"):
        nested(0, num_groups=3)
