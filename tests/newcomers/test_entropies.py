"""Newcomers without labels: told where the members differ, and only there."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cflower.newcomers.entropies import SURE, MembersEntropies
from tests.algorithm.planted import laws

LEAVES = ("0.0", "0.1", "0.2")


def client(rng, leaf, gap, leaves=LEAVES):
    """Entropies of one client: its own leaf's model is surer of it by ``gap`` nats."""
    common = rng.normal(1, 0.2)
    return {name: common + gap * (name != leaf) + rng.normal(0, 0.05) for name in leaves}


def federation(rng, gap, leaves=LEAVES, size=4):
    """The leaf of every member, and what each told."""
    leaf_of = {f"{leaf}-{i}": leaf for leaf in leaves for i in range(size)}
    return leaf_of, {name: client(rng, leaf, gap, leaves) for name, leaf in leaf_of.items()}


def placed(gap, leaves=LEAVES, federations=60):
    """Of one newcomer a leaf in many federations: whether it was placed rightly, wrongly."""
    right = wrong = 0
    for seed in range(federations):
        rng = np.random.default_rng(seed)
        members = MembersEntropies.of(*federation(rng, gap, leaves))
        for leaf in leaves:
            told = members.probabilities(client(rng, leaf, gap, leaves), leaves)
            best = max(told, key=told.__getitem__)
            right += told[best] >= SURE and best == leaf
            wrong += told[best] >= SURE and best != leaf
    return right / (federations * len(leaves)), wrong / (federations * len(leaves))


def test_where_models_know_their_own_everyone_is_placed_rightly():
    right, wrong = placed(gap=0.4)
    assert right > 0.95
    assert wrong == 0


@pytest.mark.parametrize("leaves", [LEAVES, LEAVES[:2]])
def test_where_inputs_are_alike_hardly_anyone_is_placed(leaves):
    right, wrong = placed(gap=0.0, leaves=leaves)
    assert wrong < 0.02  # four members a leaf may differ by chance
    assert right + wrong < 0.04


def test_in_between_few_are_placed_wrongly():
    for gap in (0.05, 0.1, 0.2):
        assert placed(gap)[1] < 0.03


@laws
@given(st.integers(0, 2**32 - 1), st.lists(st.floats(-2, 2), min_size=3, max_size=3))
def test_that_one_model_is_surer_of_everything_tells_nothing(seed, offsets):
    rng = np.random.default_rng(seed)
    leaf_of, told = federation(rng, gap=0.2)
    newcomer = client(rng, "0.1", gap=0.2)

    def shifted(entropies):
        return {
            name: entropies[name] + offset for name, offset in zip(LEAVES, offsets, strict=True)
        }

    one = MembersEntropies.of(leaf_of, told)
    other = MembersEntropies.of(leaf_of, {name: shifted(e) for name, e in told.items()})
    for leaf, probability in one.probabilities(newcomer, LEAVES).items():
        assert other.probabilities(shifted(newcomer), LEAVES)[leaf] == pytest.approx(probability)
        assert other.unsure(shifted(newcomer), leaf) == one.unsure(newcomer, leaf)


def test_of_two_leaves_the_odds_are_those_of_the_preference():
    rng = np.random.default_rng(0)
    two = LEAVES[:2]
    members = MembersEntropies.of(*federation(rng, 0.1, two))
    newcomer = client(rng, "0.0", 0.02, two)
    told = members.probabilities(newcomer, two)
    assert 0.1 < told["0.0"] < 0.9
    odds = np.exp(members.preference(newcomer, *two))
    assert told["0.0"] / told["0.1"] == pytest.approx(odds)


@laws
@given(st.integers(0, 2**32 - 1), st.permutations(range(3)), st.floats(-0.5, 0.5))
def test_names_and_their_order_do_not_matter(seed, order, gap):
    rng = np.random.default_rng(seed)
    leaf_of, told = federation(rng, gap)
    newcomer = client(rng, "0.0", gap)
    renamed = {name: LEAVES[i] for name, i in zip(LEAVES, order, strict=True)}

    def again(entropies):
        return {renamed[name]: nats for name, nats in reversed(entropies.items())}

    one = MembersEntropies.of(leaf_of, told).probabilities(newcomer, LEAVES)
    other = MembersEntropies.of(
        {name: renamed[leaf] for name, leaf in leaf_of.items()},
        {name: again(entropies) for name, entropies in told.items()},
    ).probabilities(again(newcomer), LEAVES)
    assert sum(one.values()) == pytest.approx(1)
    assert other == pytest.approx({renamed[name]: p for name, p in one.items()})


def test_leaves_that_nobody_compared_cannot_be_told_from_each_other():
    rng = np.random.default_rng(0)
    leaf_of, told = federation(rng, gap=0.4)
    unseen = {name: {leaf_of[name]: e[leaf_of[name]], "0.2": e["0.2"]} for name, e in told.items()}
    members = MembersEntropies.of(leaf_of, unseen)
    newcomer = client(rng, "0.0", gap=0.4)
    assert members.preference(newcomer, "0.0", "0.1") == 0
    # The members of 0.2 compared it with nobody's.
    assert members.preference(newcomer, "0.0", "0.2") == 0


def test_one_member_a_leaf_says_nothing_of_chance():
    members = MembersEntropies.of(*federation(np.random.default_rng(0), gap=0.4, size=1))
    newcomer = client(np.random.default_rng(1), "0.0", gap=0.4)
    assert members.probabilities(newcomer, LEAVES) == pytest.approx(dict.fromkeys(LEAVES, 1 / 3))
    assert not members.unsure(newcomer, "0.0")


def test_a_model_that_is_unsure_of_a_newcomer_does_not_know_it():
    rng = np.random.default_rng(0)
    members = MembersEntropies.of(*federation(rng, gap=0.4))
    members_like = {"0.0": members.own["0.0"].mean}
    assert not members.unsure(members_like, "0.0")
    assert members.unsure({"0.0": members_like["0.0"] + 4 * members.own_deviation}, "0.0")
    assert not members.unsure({"0.0": 0.0}, "0.0")  # surer than usual is no reason


@pytest.mark.parametrize(("gap", "share"), [(0.4, 1.0), (0.0, 0.05)])
def test_leaves_are_told_apart_by_their_members(gap, share):
    told = [
        MembersEntropies.of(*federation(np.random.default_rng(seed), gap)).told_apart("0.0", "0.1")
        for seed in range(100)
    ]
    assert np.mean(told) == pytest.approx(share, abs=0.04)
