"""Laws of the cut that `AutoCriterion` judges."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.cluster.hierarchy import fcluster, linkage

from cflower.algorithm.auto import clustering
from cflower.algorithm.auto.clustering import (
    Parts,
    best_clustering,
    best_parts,
    in_appearance,
    nearest_parts,
    score,
    ward_parts,
)
from cflower.algorithm.similarity import Gram, cosine_similarity
from cflower.seeding import generator
from tests.algorithm.planted import laws


def groups(seed: int, *sizes: int, noise: float, entries: int = 200) -> tuple[np.ndarray, list]:
    """Similarities of updates of planted groups, and the group of each."""
    rng, truth = generator(seed, "cut"), np.repeat(np.arange(len(sizes)), sizes)
    centers = rng.normal(size=(len(sizes), entries))[truth]
    updates = centers + noise * rng.normal(size=centers.shape)
    return cosine_similarity(updates - updates.mean(axis=0)), truth.tolist()


@laws
@given(st.permutations(range(7)))
def test_permuting_the_members_permutes_the_cut(order: list[int]) -> None:
    updates = generator(3, "cut").normal(size=(7, 5))
    parts = best_clustering(Gram(cosine_similarity(updates))).labels
    permuted = best_clustering(Gram(cosine_similarity(updates[order]))).labels
    together = parts[:, None] == parts[None, :]
    np.testing.assert_array_equal(
        permuted[:, None] == permuted[None, :], together[np.ix_(order, order)]
    )


def test_the_margin_is_that_of_the_least_clear_member() -> None:
    similarity = np.array(
        [
            [1.0, 0.9, 0.2, 0.1],
            [0.9, 1.0, 0.3, 0.0],
            [0.2, 0.3, 1.0, 0.8],
            [0.1, 0.0, 0.8, 1.0],
        ]
    )
    cut = best_clustering(Gram(similarity))
    assert cut.labels.tolist() == [0, 0, 1, 1]
    assert cut.margin == pytest.approx((0.8 - 0.8 / 2) - ((0.2 + 0.3) / 2 - 0.9 / 2))
    assert cut.grouped_share == 1.0


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
    margins, errors = [], []
    for i, own in enumerate(labels):
        if sizes[own] == 1:
            continue
        near = {}
        for p in set(labels):
            others = [similarity[i, j] for j in range(6) if labels[j] == p and j != i]
            near[p] = np.mean(others) - (within[own] if sizes[p] == 1 else within[p]) / 2
        after = max((p for p in near if p != own), key=lambda p: near[p])
        margins.append(near[own] - near[after])
        share = 1 / (sizes[own] - 1) + 1 / sizes[after]
        errors.append(margins[-1] / np.sqrt(left / freedom * share))
    cut = score(Gram(similarity), Parts.of(Gram(similarity), np.array(labels, np.int32)))
    assert cut.freedom == freedom
    assert cut.margin == pytest.approx(min(margins))
    assert cut.margin_errors == pytest.approx(min(errors))


@pytest.mark.parametrize(
    ("sizes", "noise"), [((50, 50), 2), ((20, 20, 20, 20, 20), 2), ((80, 20), 2), ((8, 2), 1)]
)
def test_groups_are_found_in_much_noise(sizes: tuple[int, ...], noise: float) -> None:
    # With noise 2, similarity within a group is 0.2 on average and varies by 0.07.
    similarity, truth = groups(1, *sizes, noise=noise)
    assert best_clustering(Gram(similarity)).labels.tolist() == truth


def test_a_member_that_the_tree_misplaced_is_moved() -> None:
    similarity, truth = groups(4, 20, 20, 20, noise=3.0)
    distances = np.sqrt(2 - 2 * similarity[np.triu_indices(60, 1)])
    tree = in_appearance(fcluster(linkage(distances, "ward"), 3, "maxclust"))
    assert (tree != truth).sum() == 4
    assert best_clustering(Gram(similarity)).labels.tolist() == truth


@pytest.mark.parametrize("entries", [10, 100, 1000])
def test_by_chance_no_member_is_sure(entries: int) -> None:
    # Whatever the number of entries, which alone sets how far apart chance puts the parts.
    errors = [
        best_clustering(Gram(groups(seed, 20, noise=1.0, entries=entries)[0])).margin_errors
        for seed in range(50)
    ]
    assert max(errors) < 2.5


def test_equal_updates_have_one_part_or_none_to_be_sure_of() -> None:
    cut = best_clustering(Gram(np.ones((5, 5))))
    assert cut.margin == 0.0
    assert np.isfinite(cut.margin_errors)


@pytest.mark.parametrize("passes", [19, 20])
@pytest.mark.parametrize("seed", [5, 10, 32])
def test_members_who_swap_for_ever_end_where_all_passes_would_leave_them(
    seed: int, passes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    similarity = cosine_similarity(generator(seed, "swap").normal(size=(60, 60)))
    ends = [ward_parts(similarity)]
    for _ in range(passes):
        ends.append(nearest_parts(Parts.of(Gram(similarity), ends[-1])))
    assert not np.array_equal(ends[-1], ends[-2])
    monkeypatch.setattr(clustering, "MAX_REASSIGNMENTS", passes)
    np.testing.assert_array_equal(best_parts(Gram(similarity)).labels, ends[-1])
