"""Laws of clusters too large for a matrix of all pairs: the same decisions, from sums and samples.

A cluster is large here from a few dozen members on.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cflower.algorithm import auto, bipartition, cloud, clustering, criteria, similarity
from cflower.algorithm.auto import AutoCriterion
from cflower.algorithm.criteria import Evidence, NormCriterion, Outcome
from cflower.algorithm.similarity import Gram, Points, cosine_similarity
from cflower.seeding import generator
from tests.algorithm.planted import laws


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """From 41 members on, looked at 7 at a time."""
    for module in (auto, bipartition, cloud, clustering, criteria):
        monkeypatch.setattr(module, "LARGE", 40)
    monkeypatch.setattr(cloud, "LARGEST", 40)
    monkeypatch.setattr(auto, "FULL_PRECISION", 100 * 30)  # two of the federations have more
    monkeypatch.setattr(similarity, "BLOCK_ENTRIES", 7 * 30)


def grouped(seed: int, *sizes: int, noise: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Updates of 30 entries, and the group of each."""
    rng, truth = generator(seed, "large"), np.repeat(np.arange(len(sizes)), sizes)
    rng.shuffle(truth)
    centres = rng.normal(size=(len(sizes), 30))
    centres -= np.array(sizes) @ centres / sum(sizes)
    updates = centres[truth] + noise * rng.normal(size=(len(truth), 30))
    return updates.astype(np.float32), truth


def decisions(
    updates: np.ndarray, criterion: AutoCriterion, rounds: int = 6, unit: float = 1.0
) -> list[tuple]:
    """Outcome and sides of every round up to the first split."""
    m, memory, found = len(updates), {}, []
    names = tuple(f"client-{i}" for i in range(m))
    for r in range(1, rounds + 1):
        noise = generator(r, "round").normal(size=updates.shape)
        vectors = tuple((updates + 0.1 * unit * noise).astype(np.float32))
        norms = np.linalg.norm(vectors, axis=1)
        evidence = Evidence("0", r, m, names, vectors, norms, np.full(m, 1 / m), 0.1 * unit)
        decision, memory = criterion.decide(evidence, memory)
        found.append((decision.outcome, decision.sides))
        if decision.sides:
            break
    return found


@pytest.mark.parametrize(
    ("sizes", "noise"),
    [((50, 50), 0.3), ((40, 40, 40), 0.3), ((100,), 1.0), ((90, 10), 0.3), ((60, 60), 3.0)],
)
def test_auto_decides_as_on_all_pairs(
    sizes: tuple[int, ...], noise: float, request: pytest.FixtureRequest
) -> None:
    updates, _ = grouped(0, *sizes, noise=noise)
    exact = decisions(updates, AutoCriterion())
    request.getfixturevalue("large")
    assert decisions(updates, AutoCriterion()) == exact
    assert (exact[-1][0] is Outcome.SPLIT) == (noise < 1)


@pytest.mark.parametrize("unit", [1e-9, 1e9])
def test_half_precision_has_no_unit(unit: float, large: None) -> None:
    updates, _ = grouped(0, 60, 60, noise=0.3)
    usual = decisions(updates, AutoCriterion())
    assert usual[-1][0] is Outcome.SPLIT
    assert decisions(np.float32(unit) * updates, AutoCriterion(), unit=unit) == usual


@pytest.mark.parametrize("seed", range(3))
def test_small_groups_that_a_sample_misses_stay_whole(seed: int, large: None) -> None:
    # They are told apart later, in the smaller cluster.
    updates, truth = grouped(seed, 40, 30, 20, 10, noise=0.3)
    _, sides = decisions(updates, AutoCriterion())[-1]
    found = [{int(truth[int(name.removeprefix("client-"))]) for name in side} for side in sides]
    assert len(sides) > 1
    assert sorted(group for side in found for group in side) == [0, 1, 2, 3]


@pytest.mark.parametrize("seed", range(3))
def test_a_poor_sample_makes_no_parts(
    seed: int, large: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Whatever the sample says, the parts are judged on all members, who are all of one kind.
    def any_parts(matrix: np.ndarray, most: int | None = None) -> np.ndarray:
        return (generator(seed, "poor").permutation(len(matrix)) % 2).astype(np.int32)

    monkeypatch.setattr(clustering, "ward_parts", any_parts)
    updates, _ = grouped(seed, 100, noise=1.0)
    assert all(not sides for _, sides in decisions(updates, AutoCriterion()))


@laws
@given(st.integers(0, 10**6), st.sampled_from([1e-6, 1.0, 1e6]))
def test_sums_of_points_are_those_of_their_matrix(seed: int, scale: float) -> None:
    rng = generator(seed, "points")
    rows = (scale * rng.normal(size=(30, 8))).astype(np.float32)
    members, shift = np.flatnonzero(rng.random(30) < 0.7), scale * rng.normal(size=8)
    points = Points.of(rows, members, shift).cosines()
    gram = Gram(cosine_similarity(rows[members] + shift))
    labels = rng.integers(3, size=len(members))
    labels[:3] = range(3)
    assert points.squares() == pytest.approx(gram.squares(), rel=1e-4)
    np.testing.assert_allclose(points.among(np.arange(5)), gram.among(np.arange(5)), atol=1e-5)
    (totals, each), (expected, rows_of) = points.sums(labels), gram.sums(labels)
    np.testing.assert_allclose(totals, expected, atol=1e-4)
    blocks = [np.concatenate([sums for _, sums in made()]) for made in (each, rows_of)]
    np.testing.assert_allclose(*blocks, atol=1e-5)


def test_squares_of_few_long_vectors_are_summed_block_by_block(large: None) -> None:
    rows = generator(0, "long").normal(size=(20, 60)).astype(np.float32)
    points = Points.of(rows, np.arange(20), np.zeros(60)).cosines()
    assert points.squares() == pytest.approx(Gram(cosine_similarity(rows)).squares(), rel=1e-4)


@laws
@given(st.integers(0, 10**6), st.integers(42, 80))
def test_a_certified_bipartition_is_the_optimum_or_says_how_far_it_may_be(
    seed: int, clients: int
) -> None:
    rng = generator(seed, "certified")
    updates = (
        rng.normal(size=(clients, 6)) + 2 * rng.normal(size=(3, 6))[rng.integers(3, size=clients)]
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bipartition, "LARGE", 20)
        patch.setattr(similarity, "BLOCK_ENTRIES", 50)
        patch.setattr(bipartition, "MOST_PAIRS", int(rng.choice([0, 10**4])))
        points = Points.of(updates.astype(np.float32), np.arange(clients), np.zeros(6)).cosines()
        found = bipartition.certified_bipartition(points)
    matrix = cosine_similarity(updates)
    least = bipartition.bipartition(matrix).alpha_cross
    assert sorted(found.first + found.second) == list(range(clients))
    assert found.alpha_cross == pytest.approx(matrix[np.ix_(*found[:2])].max(), abs=1e-5)
    assert least - 1e-5 <= found.alpha_cross <= least + found.loss + 1e-5


@pytest.mark.parametrize("seed", range(5))
def test_of_clear_groups_a_certified_bipartition_is_the_optimum(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    updates, _ = grouped(seed, 50, 40, 40, noise=0.3)
    monkeypatch.setattr(bipartition, "LARGE", 20)  # so most are in no sample
    monkeypatch.setattr(bipartition, "MOST_PAIRS", 10**4)
    points = Points.of(updates, np.arange(130), np.zeros(30)).cosines()
    found = bipartition.certified_bipartition(points)
    optimum = bipartition.bipartition(cosine_similarity(updates))
    assert {frozenset(side) for side in found[:2]} == {frozenset(side) for side in optimum[:2]}


def test_norms_split_a_large_cluster_as_on_all_pairs(request: pytest.FixtureRequest) -> None:
    updates, _ = grouped(3, 50, 50, noise=0.1)
    norms, names = np.linalg.norm(updates, axis=1), tuple(map(str, range(100)))
    evidence = Evidence("0", 1, 100, names, tuple(updates), norms, np.full(100, 0.01), 0.0)
    criterion = NormCriterion(eps1=1.0, eps2=0.1, gamma_max=0.0)
    exact, _ = criterion.decide(evidence, {})
    request.getfixturevalue("large")
    found, _ = criterion.decide(evidence, {})
    assert found.sides == exact.sides != ()
    assert found.figures["alpha_cross_loss"] == 0.0
    assert found.similarity is None
