"""Laws of the clustering that `AutoCriterion` tests."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cflower.algorithm.constants import LEAST_NEXT_TO_ONE
from cflower.algorithm.similarity import cosine_similarity
from cflower.auto.clustering import (
    Clustering,
    Parts,
    best_parts,
    margin_errors,
    sure_clustering,
    ward_parts,
)
from cflower.seeding import generator
from tests.algorithm.planted import laws


def groups(seed: int, *sizes: int, noise: float, entries: int = 200) -> tuple[np.ndarray, list]:
    """Similarities of updates of planted groups, and the group of each."""
    rng, truth = generator(seed, "cut"), np.repeat(np.arange(len(sizes)), sizes)
    centers = rng.normal(size=(len(sizes), entries))[truth]
    updates = centers + noise * rng.normal(size=centers.shape)
    return cosine_similarity(updates - updates.mean(axis=0)), truth.tolist()


def clustered(similarity: np.ndarray) -> Clustering:
    return sure_clustering(similarity, np.zeros(len(similarity)), 0.99)


@laws
@given(st.permutations(range(7)))
def test_permuting_the_members_permutes_the_parts(order: list[int]) -> None:
    updates = generator(3, "cut").normal(size=(7, 5))
    parts = best_parts(cosine_similarity(updates)).labels
    permuted = best_parts(cosine_similarity(updates[order])).labels
    together = parts[:, None] == parts
    np.testing.assert_array_equal(permuted[:, None] == permuted, together[np.ix_(order, order)])


@pytest.mark.parametrize("labels", [[0, 0, 0, 1, 1, 2], [0, 1, 0, 1, 0, 1], [0, 0, 1, 2, 3, 3]])
def test_standard_errors_are_those_of_the_means_of_pairs(labels: list[int]) -> None:
    similarity = cosine_similarity(generator(0, "standard_errors").normal(size=(6, 9)))
    sizes, pairs = np.bincount(labels), list(combinations(range(6), 2))
    blocks: dict[frozenset[int], list[float]] = {}
    for i, j in pairs:
        blocks.setdefault(frozenset((labels[i], labels[j])), []).append(similarity[i, j])
    freedom = len(pairs) - len(blocks)
    left = sum(((np.array(block) - np.mean(block)) ** 2).sum() for block in blocks.values())
    within = {p: float(np.mean(blocks.get(frozenset((p,)), [np.nan]))) for p in set(labels)}
    errors = np.zeros(6)
    for i, own in enumerate(labels):
        if sizes[own] == 1:
            continue
        near = {}
        for p in set(labels):
            others = [similarity[i, j] for j in range(6) if labels[j] == p and j != i]
            near[p] = np.mean(others) - (within[own] if sizes[p] == 1 else within[p]) / 2
        after = max((p for p in near if p != own), key=lambda p: near[p])
        share = 1 / (sizes[own] - 1) + 1 / sizes[after]
        errors[i] = (near[own] - near[after]) / np.sqrt(left / freedom * share)
    parts = Parts.of(similarity, np.array(labels, np.int32))
    found, degrees = margin_errors(similarity, parts)
    assert degrees == freedom
    np.testing.assert_allclose(found, errors)


@pytest.mark.parametrize(
    ("sizes", "noise"), [((50, 50), 2), ((20, 20, 20, 20, 20), 2), ((80, 20), 2), ((8, 2), 1)]
)
def test_groups_are_recovered_in_much_noise(sizes: tuple[int, ...], noise: float) -> None:
    # With noise 2, similarity within a group is 0.2 on average and varies by 0.07.
    similarity, truth = groups(1, *sizes, noise=noise)
    labels = clustered(similarity).labels
    sure = labels >= 0
    assert sure.mean() >= 0.8
    assert len(set(zip(labels[sure], np.array(truth)[sure], strict=True))) == len(sizes)


def test_a_member_that_the_tree_misplaced_is_moved() -> None:
    similarity, truth = groups(4, 20, 20, 20, noise=3.0)
    assert ward_parts(similarity).tolist() != truth
    assert best_parts(similarity).labels.tolist() == truth


@pytest.mark.parametrize("entries", [10, 100, 1000])
def test_without_groups_few_members_are_sure(entries: int) -> None:
    # Whatever the number of entries, which alone sets the margins that chance makes.
    drawn = (groups(seed, 20, noise=1.0, entries=entries)[0] for seed in range(50))
    assert max((clustered(similarity).errors > 2.5).mean() for similarity in drawn) < 0.8


def test_equal_updates_have_no_margin() -> None:
    cut = clustered(np.ones((5, 5)))
    assert cut.labels.tolist() == [-1] * 5
    assert not cut.errors.any()


FOURS = np.repeat([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], 4, axis=0)


@pytest.mark.parametrize(
    ("intruder", "noise"), [([0.0, 0.0, 1.0], 0.4), ([1.0, 1.0, 0.0], 0.0), ([0.0, 0.0, 1.0], 1.0)]
)
def test_one_member_between_the_parts_or_of_noise_changes_no_other(
    intruder: list[float], noise: float
) -> None:
    rows = np.vstack([FOURS, intruder])
    rows[:, 2] += 0.02 * np.arange(9) % 0.07
    cut = sure_clustering(cosine_similarity(rows), np.append(np.zeros(8), noise), 0.99)
    assert cut.labels.tolist() == [0] * 4 + [1] * 4 + [-1]


@pytest.mark.parametrize("size", [LEAST_NEXT_TO_ONE - 1, LEAST_NEXT_TO_ONE])
def test_a_member_alone_is_a_part_next_to_enough_others(size: int) -> None:
    rows = np.vstack([np.tile([1.0, 0.0], (size, 1)), [1.0, 1.0]])
    rows[:-1] += 0.05 * generator(0, "alone").normal(size=(size, 2))
    similarity, little = cosine_similarity(rows), np.full(size + 1, 0.01)
    alone = sure_clustering(similarity, little, 0.99).labels[-1]
    assert (alone >= 0) == (size == LEAST_NEXT_TO_ONE)
    little[-1] = 0.4
    assert sure_clustering(similarity, little, 0.99).labels[-1] == -1


def test_reassignment_ends_where_members_would_swap_for_ever() -> None:
    parts = best_parts(cosine_similarity(generator(5, "swap").normal(size=(60, 60))))
    assert (parts.grouped & (parts.nearness.argmax(axis=1) != parts.labels)).any()
