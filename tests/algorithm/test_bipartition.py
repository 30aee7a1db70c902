from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cflower.algorithm.bipartition import LINKAGES, Bipartition, bipartition
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
def test_sides_hold_each_client_once_and_alpha_cross_is_their_largest_cosine(similarity, linkage):
    first, second, alpha_cross = bipartition(similarity, linkage)
    assert first and second
    assert sorted(first + second) == list(range(len(similarity)))
    assert first[0] == 0
    assert (list(first), list(second)) == (sorted(first), sorted(second))
    assert alpha_cross == max(similarity[i, j] for i in first for j in second)


def test_complete_linkage_keeps_sides_compact_where_single_follows_a_chain():
    # A chain on a line, in steps of 0.1, 0.11, 0.12, 0.13, and its last link of 0.14.
    points = np.array([0.0, 0.1, 0.21, 0.33, 0.46, 0.60])
    similarity = 1 - np.abs(points[:, None] - points)
    single, complete = (bipartition(similarity, linkage) for linkage in LINKAGES)
    assert as_sides(single) == {frozenset({0, 1, 2, 3, 4}), frozenset({5})}
    assert as_sides(complete) == {frozenset({0, 1, 2, 3}), frozenset({4, 5})}
    assert single.alpha_cross < complete.alpha_cross


@laws
@given(st.floats(-1, 1), st.floats(-1, 1))
def test_the_more_similar_the_sides_the_less_noise_is_safe(one, other):
    less, more = (Bipartition((0,), (1,), alpha) for alpha in sorted((one, other)))
    assert 0 <= more.safe_gamma <= less.safe_gamma <= 1
