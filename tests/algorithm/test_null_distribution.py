"""Laws of the clouds that `AutoCriterion` compares the parts with, and of what follows for runs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cflower.algorithm.auto.criterion import AutoCriterion, in_touch, remember
from cflower.algorithm.auto.null_distribution import (
    LARGEST,
    Cloud,
    dimensions,
    distinct,
    joint_rounds,
    separation,
)
from cflower.algorithm.criteria import Evidence, Outcome
from cflower.algorithm.similarity import Gram, cosine_similarity
from cflower.seeding import generator
from tests.algorithm.planted import laws


def decided(
    updates: np.ndarray,
    noise: float = 0.05,
    rounds: int = 8,
    present: np.ndarray | None = None,
    weights: np.ndarray | None = None,
    order: list[int] | None = None,
    seed: int = 0,
) -> set[frozenset[str]]:
    """The sides of the first split within these rounds; ``present`` has shape (rounds, m)."""
    m, memory = len(updates), {}
    order = list(range(m)) if order is None else order
    for r in range(rounds):
        rng = generator(seed, "decided", r)
        now = (updates + noise * rng.normal(size=updates.shape)).astype(np.float32)
        here = [i for i in order if present is None or present[r, i]]
        share = np.ones(m) if weights is None else weights
        evidence = Evidence(
            "0",
            r + 1,
            m,
            tuple(f"client-{i}" for i in here),
            tuple(now[i] for i in here),
            np.linalg.norm(now[here], axis=1),
            share[here] / share[here].sum(),
            0.0,
        )
        decision, memory = AutoCriterion().decide(evidence, memory)
        if decision.outcome is Outcome.SPLIT:
            f = decision.figures
            assert (
                f["separation"] > f["separation_by_chance"]
                or f["separation_by_angle"] > f["separation_by_angle_by_chance"]
            )
            return {frozenset(side) for side in decision.sides}
    return set()


def two_groups(seed: int = 0, size: int = 4, entries: int = 20) -> np.ndarray:
    rng = generator(seed, "two groups")
    centre = rng.normal(size=entries)
    return np.repeat([centre, -centre], size, axis=0) + 0.1 * rng.normal(size=(2 * size, entries))


FOURS = {frozenset(f"client-{i}" for i in side) for side in (range(4), range(4, 8))}


def test_permuting_the_clients_changes_nothing() -> None:
    assert decided(two_groups()) == FOURS
    assert decided(two_groups(), noise=0.0, order=[5, 2, 7, 0, 1, 4, 6, 3]) == FOURS


@pytest.mark.parametrize("seed", range(20))
def test_points_on_a_line_are_no_groups(seed: int) -> None:
    rng = generator(seed, "line")
    line = np.outer(rng.normal(size=10), rng.normal(size=30))
    assert decided(line - line.mean(axis=0), noise=0.01, rounds=20, seed=seed) == set()


def test_two_clusters_of_points_on_a_line_are_groups() -> None:
    assert decided(two_groups(entries=1)) == FOURS


@pytest.mark.parametrize("times", [10.0, 1000.0])
def test_a_big_client_does_not_make_the_others_a_group(times: float) -> None:
    rng, weights = generator(0, "big"), np.r_[times, np.ones(9)]
    optima = rng.normal(size=(10, 20))
    updates = optima - weights @ optima / weights.sum()
    assert decided(updates, weights=weights, rounds=20) == set()


def test_copies_of_a_client_are_one_witness() -> None:
    updates = generator(0, "copies").normal(size=(10, 20))
    updates[:3] = updates[0]
    updates -= updates.mean(axis=0)
    assert decided(updates, noise=0.0, rounds=20) == set()
    kept, which = distinct(updates, np.arange(10))
    assert (len(kept), which[:4].tolist()) == (8, [0, 0, 0, 1])


def test_rounds_of_different_clients_are_no_groups() -> None:
    present = np.arange(20)[:, None] // 5 % 2 == np.arange(8) // 4
    assert decided(two_groups(), rounds=20, present=present) == set()
    assert (
        joint_rounds(np.repeat([[1], [2]], 4, axis=0).astype(np.uint8), np.repeat([0, 1], 4)) == 0
    )


def test_a_member_that_left_holds_nobody_up() -> None:
    updates = np.vstack([two_groups(), np.zeros(20)])
    present = np.ones((20, 9), bool)
    present[2:, 8] = False
    assert decided(updates, rounds=20, present=present) == FOURS


def test_who_is_heard_in_every_round_is_in_touch() -> None:
    memory: dict[str, object] = {}
    for r in range(4):
        updates = tuple(np.eye(3, dtype=np.float32))
        evidence = Evidence("0", r, 3, ("a", "b", "c"), updates, np.ones(3), np.ones(3) / 3, 0.5)
        memory = remember(memory, evidence)
    assert in_touch(memory).all()
    assert memory["noise"].tolist() == [0.0] * 3


@laws
@given(st.integers(0, 10**6), st.floats(1e-6, 1e6))
def test_separation_has_no_scale(seed: int, scale: float) -> None:
    points, labels = generator(seed, "scatters").normal(size=(8, 3)), np.repeat([0, 1], 4)
    plain, scaled = (
        separation(Gram(f * f * points @ points.T), labels.astype(np.int32), np.zeros(8))
        for f in (1, scale)
    )
    assert scaled == pytest.approx(plain)


@pytest.mark.parametrize(("noise", "apart"), [(0.01, True), (1.0, False)])
def test_by_angle_it_does_not_matter_how_long_updates_are(noise: float, apart: bool) -> None:
    rng = generator(0, "angles")
    labels = np.repeat(np.arange(2, dtype=np.int32), 5)
    points = np.eye(8)[labels] + 0.1 * rng.normal(size=(10, 8))
    found = []
    for lengths in (np.ones(10), rng.uniform(0.1, 0.9, size=10), rng.uniform(1, 9, size=10)):
        longer = points * lengths[:, None]
        cosines = Gram(cosine_similarity(longer))
        unsure = noise * (longer**2).sum(axis=1)
        found.append(Cloud(Gram(longer @ longer.T), cosines, unsure).separation(labels)[1])
    assert found == pytest.approx([found[0]] * 3)
    assert (found[0] > 0) == apart


@pytest.mark.parametrize(("size", "draws"), [(20, 200), (100, 100), (260, 50)])
def test_chance_is_what_so_many_clouds_without_groups_show(size: int, draws: int) -> None:
    points = generator(0, "points").normal(size=(size, size - 1))
    rng, same = generator(1, "clouds"), generator(1, "clouds")
    Cloud.of(points, np.zeros(size)).by_chance(np.full(2, np.inf), 0.0, rng)
    drawn = min(size, LARGEST)
    if drawn < size:
        same.choice(size, drawn, replace=False)
    same.normal(size=(draws, drawn, drawn - 1))
    assert rng.normal() == same.normal()


def test_parts_exceed_all_clouds_in_one_or_nearly_all_in_both() -> None:
    points = generator(0, "points").normal(size=(10, 4))
    cloud = Cloud.of(points, np.zeros(10))

    def needed(*found: float) -> np.ndarray:
        return cloud.by_chance(np.array(found), 0.5, generator(1, "clouds"))

    most = needed(np.inf, 0.0)
    nearly = needed(np.inf, np.inf)
    assert np.all(nearly < most)
    assert needed(*most - 1e-9) == pytest.approx(nearly)
    assert np.all(needed(most[0] + 1e-9, 0.0) == most)
    # Between the two in one, and below both in the other: chance.
    assert np.all(needed(most[0] - 1e-9, nearly[1] - 1e-9) >= [most[0] - 1e-9, nearly[1]])


def test_no_more_clouds_are_drawn_than_decide() -> None:
    cloud = Cloud.of(generator(0, "points").normal(size=(10, 4)), np.zeros(10))
    rng, same = generator(1, "clouds"), generator(1, "clouds")
    cloud.by_chance(np.full(2, 0.1), 0.0, rng)
    # Five of 200 may be as far apart, not six.
    same.normal(size=(6, 10, 9))
    assert rng.normal() == same.normal()


def test_noise_in_many_directions_parts_less_than_along_a_line() -> None:
    assert dimensions(Gram(np.eye(7))) == pytest.approx(7)
    assert dimensions(Gram(np.ones((7, 7)))) == pytest.approx(1)
    assert dimensions(Gram(np.eye(3000, dtype=np.float32))) == pytest.approx(LARGEST)
    labels = np.repeat([0, 1], 5).astype(np.int32)
    apart = np.where(labels, 1.0, -1.0)[:, None]
    # Five standard errors squared: on a line nothing, with eight more directions enough.
    noise = np.full(10, 4 * 5 / 2 / 5)
    line, many = apart, np.hstack([apart, generator(0, "many").normal(size=(10, 8))])
    assert separation(Gram(line @ line.T), labels, noise) == 0
    assert separation(Gram(many @ many.T), labels, noise) > 0


def test_noise_alone_is_no_distance() -> None:
    points = two_groups()
    labels = np.repeat([0, 1], 4).astype(np.int32)
    assert Cloud.of(points, np.zeros(8)).separation(labels).min() > 10
    assert Cloud.of(points, np.full(8, 100.0)).separation(labels).tolist() == [0, 0]


@pytest.mark.parametrize(("sizes", "most"), [((3, 3), 100 / 6), ((3, 1), 100 / 13)])
def test_parts_are_apart_if_their_distance_is_three_of_its_standard_errors(
    sizes: tuple[int, int], most: float
) -> None:
    """Of means over 3 and 3: 10² > 9 (v/3 + v/3). A single one's squared length has v in it."""
    labels = np.repeat([0, 1], sizes)
    points = 1e-3 * generator(0, "errors").normal(size=(len(labels), 3))
    points[:, 0] += np.where(labels == 0, 5.0, -5.0)
    gram = Gram(points @ points.T)
    assert separation(gram, labels, np.full(len(labels), 0.98 * most)) > 0
    assert separation(gram, labels, np.full(len(labels), 1.02 * most)) == 0


def test_parts_that_lie_further_apart_are_further_apart() -> None:
    labels, rng = np.array([0, 0, 0, 1, 1, 1]), generator(0, "further")
    within = rng.normal(size=(6, 3))
    found = []
    for distance in (5.0, 10.0, 20.0):
        points = within + distance * np.eye(2, 3)[labels]
        found.append(separation(Gram(points @ points.T), labels, np.zeros(6)))
    np.testing.assert_allclose(np.diff(np.log2(found)), 1, atol=0.4)
    assert separation(Gram(np.eye(6)), np.arange(6), np.zeros(6)) == 0  # nobody in company
    assert separation(Gram(np.eye(6)), np.zeros(6, int), np.zeros(6)) == 0


def test_how_many_parts_there_are_does_not_change_how_far_two_are_apart() -> None:
    found = []
    for parts in (2, 3, 4):
        labels = np.repeat(np.arange(parts), 30)
        points = generator(0, "parts").normal(size=(len(labels), 5)) + 20 * np.eye(parts, 5)[labels]
        found.append(separation(Gram(points @ points.T), labels, np.zeros(len(labels))))
    np.testing.assert_allclose(found, 20 * np.sqrt(2), rtol=0.15)
