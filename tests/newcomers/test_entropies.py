"""Newcomers without labels are placed where the members' entropies differ, and only there."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cflower.errors import DataError
from cflower.newcomers.assign import check_pixels
from cflower.newcomers.entropies import MembersEntropies
from cflower.newcomers.unlabelled import CONFIDENCE
from tests.algorithm.planted import laws

LEAVES = ("0.0", "0.1", "0.2")


def client(rng, leaf, gap, leaves=LEAVES):
    """Entropies of one client: its own leaf's model has ``gap`` nats less."""
    common = rng.normal(1, 0.2)
    return {name: common + gap * (name != leaf) + rng.normal(0, 0.05) for name in leaves}


def federation(rng, gap, leaves=LEAVES, size=4):
    """The leaf and the entropies of every member."""
    leaf_of = {f"{leaf}-{i}": leaf for leaf in leaves for i in range(size)}
    return leaf_of, {name: client(rng, leaf, gap, leaves) for name, leaf in leaf_of.items()}


def placed(gap, leaves=LEAVES, federations=60):
    """Shares of newcomers, one a leaf in many federations, placed correctly and wrongly."""
    right = wrong = 0
    for seed in range(federations):
        rng = np.random.default_rng(seed)
        members = MembersEntropies(*federation(rng, gap, leaves))
        for leaf in leaves:
            probability = members.probabilities(client(rng, leaf, gap, leaves))
            best = max(probability, key=probability.__getitem__)
            right += probability[best] >= CONFIDENCE and best == leaf
            wrong += probability[best] >= CONFIDENCE and best != leaf
    return right / (federations * len(leaves)), wrong / (federations * len(leaves))


@pytest.mark.parametrize(
    ("gap", "leaves", "right", "most_wrong"),
    [
        (0.4, LEAVES, (0.95, 1), 0),
        (0.2, LEAVES, (0, 1), 0.03),
        (0.1, LEAVES, (0, 1), 0.03),
        (0.05, LEAVES, (0, 1), 0.03),
        (0.0, LEAVES, (0, 0.02), 0.02),  # four members a leaf may differ by chance
        (0.0, LEAVES[:2], (0, 0.02), 0.02),
    ],
)
def test_clear_gaps_place_every_newcomer_and_small_ones_few_wrongly(gap, leaves, right, most_wrong):
    correct, wrong = placed(gap, leaves)
    assert right[0] <= correct <= right[1]
    assert wrong <= most_wrong


@laws
@given(st.integers(0, 2**32 - 1), st.lists(st.floats(-2, 2), min_size=3, max_size=3))
def test_an_offset_of_one_models_entropies_changes_nothing(seed, offsets):
    rng = np.random.default_rng(seed)
    leaf_of, entropies = federation(rng, gap=0.2)
    newcomer = client(rng, "0.1", gap=0.2)

    def shifted(nats):
        return {name: nats[name] + offset for name, offset in zip(LEAVES, offsets, strict=True)}

    one = MembersEntropies(leaf_of, entropies)
    other = MembersEntropies(leaf_of, {name: shifted(nats) for name, nats in entropies.items()})
    for leaf, probability in one.probabilities(newcomer).items():
        assert other.probabilities(shifted(newcomer))[leaf] == pytest.approx(probability)
        assert other.is_unusual(shifted(newcomer), leaf) == one.is_unusual(newcomer, leaf)


def test_leaves_without_gaps_in_both_directions_are_not_compared():
    rng = np.random.default_rng(0)
    leaf_of, entropies = federation(rng, gap=0.4)
    some = {n: {leaf_of[n]: e[leaf_of[n]], "0.2": e["0.2"]} for n, e in entropies.items()}
    members = MembersEntropies(leaf_of, some)
    newcomer = client(rng, "0.0", gap=0.4)
    for other in ("0.1", "0.2"):
        assert members.log_ratio(newcomer, "0.0", other) == 0
        assert not members.distinguishes("0.0", other)


def test_one_member_a_leaf_is_too_few():
    members = MembersEntropies(*federation(np.random.default_rng(0), gap=0.4, size=1))
    newcomer = client(np.random.default_rng(1), "0.0", gap=0.4)
    assert members.probabilities(newcomer) == pytest.approx(dict.fromkeys(LEAVES, 1 / 3))
    assert not members.is_unusual(newcomer, "0.0")


def test_only_a_high_entropy_is_unusual():
    members = MembersEntropies(*federation(np.random.default_rng(0), gap=0.4))
    mean, deviation = members.own.means["0.0"], members.own.deviation
    assert not members.is_unusual({"0.0": mean}, "0.0")
    assert members.is_unusual({"0.0": mean + 4 * deviation}, "0.0")
    assert not members.is_unusual({"0.0": 0.0}, "0.0")


@pytest.mark.parametrize("largest", [16 / 255, 16.0, 255.0])
def test_pixels_of_another_range_are_refused(largest):
    with pytest.raises(DataError, match=r"largest pixel is .* Scale its pixels"):
        check_pixels(np.full((2, 1, 8, 8), largest, np.float32))
    check_pixels(np.full((2, 3), largest, np.float32))
    check_pixels(np.linspace(-3, 3, 128, dtype=np.float32).reshape(2, 1, 8, 8))
