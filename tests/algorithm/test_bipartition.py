from itertools import combinations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cflower.algorithm.bipartition import (
    LINKAGES,
    bipartition,
    largest_safe_gamma,
    separation_gap,
)
from cflower.algorithm.similarity import cosine_similarity
from tests.algorithm.planted import laws


def cosines(elements, smallest=2):
    """Cosine matrices of 2 to 8 updates."""
    return st.integers(smallest, 8).flatmap(
        lambda m: arrays(np.float64, (m, 3), elements=elements).map(cosine_similarity)
    )


small_integers = st.integers(-1, 1).map(float)
"""Make many ties, equal updates and zero updates."""
matrices = st.one_of(cosines(small_integers), cosines(st.floats(-1, 1, width=32)))
linkages = st.sampled_from(LINKAGES)


def brute_force(similarity):
    """Smallest alpha_cross over all bipartitions, eq. 25."""
    clients = range(len(similarity))
    return min(
        max(similarity[i, j] for i in side for j in clients if j not in side)
        for size in range(1, len(similarity) // 2 + 1)
        for side in combinations(clients, size)
    )


def as_sides(answer):
    return {frozenset(answer.first), frozenset(answer.second)}


@laws
@given(matrices)
def test_single_linkage_is_the_optimum_of_eq_25(similarity):
    answer = bipartition(similarity)
    assert answer.alpha_cross == pytest.approx(brute_force(similarity), abs=1e-12)


@laws
@given(matrices, linkages)
def test_two_non_empty_sides_hold_every_client_once(similarity, linkage):
    answer = bipartition(similarity, linkage)
    assert answer.first
    assert answer.second
    assert sorted(answer.first + answer.second) == list(range(len(similarity)))
    assert answer.first[0] == 0
    assert list(answer.first) == sorted(answer.first)
    assert list(answer.second) == sorted(answer.second)


@laws
@given(matrices, linkages)
def test_alpha_cross_is_that_of_the_sides_found(similarity, linkage):
    answer = bipartition(similarity, linkage)
    assert answer.alpha_cross == max(similarity[i, j] for i in answer.first for j in answer.second)


@laws
@given(cosines(st.floats(-1, 1, width=32)), linkages, st.randoms(use_true_random=False))
def test_permuting_the_clients_permutes_the_sides(similarity, linkage, random):
    pairs = similarity[np.triu_indices(len(similarity), 1)]
    assume(len(pairs) == 1 or np.diff(np.sort(pairs)).min() > 1e-9)
    order = list(range(len(similarity)))
    random.shuffle(order)
    shuffled = bipartition(similarity[np.ix_(order, order)], linkage)
    back = {frozenset(order[i] for i in side) for side in shuffled[:2]}
    assert back == as_sides(bipartition(similarity, linkage))


@laws
@given(st.integers(2, 8), st.floats(1e-3, 1e3), linkages, st.integers(0, 99))
def test_the_updates_length_does_not_matter(clients, scale, linkage, seed):
    updates = np.random.default_rng(seed).normal(size=(clients, 5))
    scaled = bipartition(cosine_similarity(scale * updates), linkage)
    assert as_sides(scaled) == as_sides(bipartition(cosine_similarity(updates), linkage))


@pytest.mark.parametrize("linkage", LINKAGES)
def test_two_clients_are_two_sides_however_alike(linkage):
    for alpha in (-1.0, 0.0, 1.0):
        assert bipartition([[1.0, alpha], [alpha, 1.0]], linkage)[:3] == ((0,), (1,), alpha)


@pytest.mark.parametrize("linkage", LINKAGES)
def test_clients_that_are_all_equal_still_have_two_sides(linkage):
    answer = bipartition(np.ones((5, 5)), linkage)
    assert min(len(answer.first), len(answer.second)) >= 1
    assert answer.alpha_cross == 1


def test_fewer_than_two_clients_have_no_bipartition():
    with pytest.raises(ValueError, match=r"Got 1 client\(s\).*at least 2"):
        bipartition([[1.0]])


def on_a_line(positions):
    """A similarity that falls with the distance of points on a line."""
    points = np.asarray(positions)
    return 1 - np.abs(points[:, None] - points[None, :])


def test_complete_linkage_keeps_sides_compact_where_single_follows_a_chain():
    # A chain in steps of 0.1, 0.11, 0.12, 0.13, and its last link of 0.14.
    similarity = on_a_line([0.0, 0.1, 0.21, 0.33, 0.46, 0.60])
    single, complete = (bipartition(similarity, linkage) for linkage in LINKAGES)
    assert as_sides(single) == {frozenset({0, 1, 2, 3, 4}), frozenset({5})}
    assert as_sides(complete) == {frozenset({0, 1, 2, 3}), frozenset({4, 5})}
    assert single.alpha_cross < complete.alpha_cross


@pytest.mark.parametrize("linkage", LINKAGES)
def test_planted_groups_without_noise_are_found(linkage):
    groups = np.array([0, 1, 0, 0, 1, 0, 1])
    similarity = np.where(groups[:, None] == groups[None, :], 0.9, -0.5)
    np.fill_diagonal(similarity, 1)
    assert bipartition(similarity, linkage)[:3] == ((0, 2, 3, 5), (1, 4, 6), -0.5)


def test_the_matrix_is_left_as_it_was():
    similarity = cosine_similarity(np.random.default_rng(0).normal(size=(5, 3)))
    before = similarity.copy()
    bipartition(similarity)
    np.testing.assert_array_equal(similarity, before)


@laws
@given(st.floats(-1, 1), st.floats(-1, 1))
def test_the_more_alike_the_sides_the_less_noise_is_safe(one, other):
    low, high = sorted((one, other))
    assert 0 <= largest_safe_gamma(high) <= largest_safe_gamma(low) <= 1


def test_eq_39_at_its_ends():
    assert [largest_safe_gamma(a) for a in (-1.0, 0.0, 1.0)] == [1.0, np.sqrt(0.5), 0.0]


@laws
@given(cosines(st.floats(-1, 1, width=32), smallest=3), st.data())
def test_a_positive_separation_gap_makes_the_bipartition_correct(similarity, data):
    m = len(similarity)
    groups = np.array(data.draw(st.lists(st.integers(0, 1), min_size=m, max_size=m)))
    assume(0 < groups.sum() < m)
    if separation_gap(similarity, groups) > 1e-9:
        sides = {frozenset(np.flatnonzero(groups == g).tolist()) for g in (0, 1)}
        assert as_sides(bipartition(similarity)) == sides


def test_separation_gap_is_worst_within_minus_best_across():
    similarity = np.array([[1.0, 0.6, -0.2], [0.6, 1.0, -0.4], [-0.2, -0.4, 1.0]])
    assert separation_gap(similarity, [0, 0, 1]) == pytest.approx(0.6 + 0.2)
    assert separation_gap(similarity, [0, 1, 0]) == pytest.approx(-0.2 + 0.2)
