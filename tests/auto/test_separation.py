"""Laws of the separation test of `AutoCriterion`, and their consequences for whole runs."""

from collections.abc import Sequence

import numpy as np
import pytest
from scipy.special import chdtri

from cflower.algorithm.constants import ERROR
from cflower.algorithm.criteria import Outcome
from cflower.algorithm.similarity import cosine_similarity
from cflower.auto.clustering import best_parts
from cflower.auto.criterion import AutoCriterion, significance
from cflower.auto.separation import (
    MOST_COMPARED,
    by_chance,
    centred,
    dimensions,
    separation,
)
from cflower.seeding import generator
from tests.algorithm.planted import evidence_of


def decided(
    updates: np.ndarray,
    noise: float = 0.05,
    rounds: int = 8,
    *,
    present: np.ndarray | None = None,
    weights: np.ndarray | None = None,
    order: list[int] | None = None,
    exact: Sequence[int] = (),
    seed: int = 0,
) -> set[frozenset[str]]:
    """The sides of the first split within these rounds; ``present`` has shape (rounds, m).

    The clients in ``exact`` send their updates without noise.
    """
    m, memory = len(updates), {}
    for r in range(rounds):
        rng = generator(seed, "decided", r)
        now = (updates + noise * rng.normal(size=updates.shape)).astype(np.float32)
        now[[*exact]] = updates[[*exact]]
        here = [i for i in order or range(m) if present is None or present[r, i]]
        share = np.ones(m) if weights is None else weights
        evidence = evidence_of(now[here], r + 1, clients=here, weights=share[here], num_members=m)
        decision, memory = AutoCriterion().decide(evidence, memory)
        if decision.outcome is Outcome.SPLIT:
            return {frozenset(side) for side in decision.sides}
    return set()


def two_groups(size: int = 4, entries: int = 20) -> np.ndarray:
    rng = generator(0, "two groups")
    centre = rng.normal(size=entries)
    return np.repeat([centre, -centre], size, axis=0) + 0.1 * rng.normal(size=(2 * size, entries))


FOURS = {frozenset(f"client-{i}" for i in side) for side in (range(4), range(4, 8))}


def test_permuting_the_clients_changes_nothing() -> None:
    assert decided(two_groups()) == FOURS
    assert decided(two_groups(), noise=0.0, order=[5, 2, 7, 0, 1, 4, 6, 3]) == FOURS


@pytest.mark.slow
def test_points_on_a_line_are_hardly_ever_groups() -> None:
    """By chance, as the level says; a line is where it happens most."""
    split = 0
    for seed in range(60):
        rng = generator(seed, "line")
        line = np.outer(rng.normal(size=10), rng.normal(size=30))
        split += bool(decided(line - line.mean(axis=0), noise=0.01, rounds=8, seed=seed))
    assert split <= 0.05 * 60


def test_two_clusters_of_points_on_a_line_are_groups() -> None:
    assert decided(two_groups(entries=1)) == FOURS


@pytest.mark.parametrize("times", [10.0, 1000.0])
def test_a_client_of_much_weight_does_not_make_the_others_a_group(times: float) -> None:
    rng, weights = generator(0, "big"), np.r_[times, np.ones(9)]
    optima = rng.normal(size=(10, 20))
    updates = optima - weights @ optima / weights.sum()
    assert decided(updates, weights=weights, rounds=20) == set()


def test_clients_that_train_longer_do_not_hide_groups() -> None:
    """Each group has clients with 1, 1, 2, 2 and 10 times as many examples, so as many steps."""
    times = np.tile([1.0, 1.0, 2.0, 2.0, 10.0], 2)
    updates = two_groups(5) * times[:, None]
    sides = {frozenset(f"client-{i}" for i in side) for side in (range(5), range(5, 10))}
    assert decided(updates, weights=times) == sides
    assert decided(updates) == set()  # on a line they are no groups if all train as long


@pytest.mark.parametrize("claimed", [1e-6, 3.0])
def test_what_one_client_claims_to_have_does_not_prevent_a_split(claimed: float) -> None:
    assert decided(two_groups(), weights=np.r_[claimed, np.ones(7)]) == FOURS


@pytest.mark.parametrize("noise", [0.0, 0.05, 1.0])
@pytest.mark.parametrize("copies", [2, 4])
def test_clients_that_send_the_same_are_a_part_and_prevent_no_split(
    copies: int, noise: float
) -> None:
    direction = generator(0, "copies").normal(size=20)
    updates = np.vstack([two_groups(), np.repeat([direction], copies, axis=0)])
    same = frozenset(f"client-{i}" for i in range(8, 8 + copies))
    sides = decided(updates, noise, rounds=20, exact=range(8, 8 + copies))
    assert {side - same for side in sides} - {frozenset()} == FOURS
    assert same in sides or (copies, noise) == (2, 1.0)


@pytest.mark.parametrize("kind", ["noise", "alternating", "unchanged", "silent", "between"])
def test_one_member_of_nine_cannot_prevent_a_split(kind: str) -> None:
    updates, rng = np.vstack([two_groups(), np.zeros(20)]), generator(0, "ninth")
    memory, length = {}, np.linalg.norm(updates[0])
    for server_round in range(1, 13):
        noise = rng.normal(size=updates.shape)
        now = updates + 0.05 * noise
        random = length * noise[8] / np.linalg.norm(noise[8])
        now[8] = {
            "noise": random,
            "alternating": now[0] if server_round % 2 else random,
            "unchanged": 0,
            "silent": 0,
            "between": updates.sum(axis=0) + 0.05 * noise[8],
        }[kind]
        here = range(8 if kind == "silent" else 9)
        evidence = evidence_of(now[here], server_round, clients=here, num_members=9)
        decision, memory = AutoCriterion().decide(evidence, memory)
        if decision.outcome is Outcome.SPLIT:
            break
    assert {side - {"client-8"} for side in map(frozenset, decision.sides)} == FOURS


def test_a_member_without_recent_updates_does_not_delay_a_split() -> None:
    updates = np.vstack([two_groups(), np.zeros(20)])
    present = np.ones((20, 9), bool)
    present[2:, 8] = False
    assert decided(updates, rounds=20, present=present) == FOURS


def by_chance_in(size: int, entries: int, samples: int = 500) -> float:
    """The 0.99 quantile of the separation in Gaussian samples."""
    rng, found = generator(0, "by chance", size, entries), []
    for _ in range(samples):
        points = rng.normal(size=(size, entries))
        parts = best_parts(cosine_similarity(points - points.mean(axis=0)))
        alone = 2 * parts.grouped.sum() < size
        found.append(0 if alone else separation(centred(points), parts.labels, np.zeros(size)))
    return float(np.quantile(found, 0.99))


@pytest.mark.slow
@pytest.mark.parametrize("entries", [2, 3, 5, 10, 30])
@pytest.mark.parametrize("size", [6, 10, 20, 40, 80])
def test_the_curve_is_the_null_distribution_within_a_quarter(size: int, entries: int) -> None:
    assert by_chance(size, 0) == pytest.approx(by_chance_in(size, entries), rel=0.25)


def test_what_is_needed_grows_with_fewer_members_and_with_those_left_out() -> None:
    needed = [by_chance(members, 0) for members in (3, 4, 6, 10, 20, 80)]
    assert np.all(np.diff(needed) < 0)
    assert by_chance(20, 1) > by_chance(20, 0)


@pytest.mark.parametrize(
    ("separated", "agreed", "outcome", "reason"),
    [
        (3.04, 0.49, Outcome.SPLIT, "2 groups: separation 3.0, chance gives 3.0 at most"),
        (3.04, 0.5, Outcome.MOVING, "2 groups still move the same way: cosine 0.50"),
        (3.0, -1.0, Outcome.NOT_APART, "2 groups: separation 3.0, chance gives 3.0 at most"),
    ],
)
def test_groups_are_separated_and_do_not_move_the_same_way(
    separated: float, agreed: float, outcome: Outcome, reason: str
) -> None:
    figures = {"separation": separated, "agreement": agreed, "separation_by_chance": 3.0}
    decided, text = significance(figures, "2 groups")
    assert (decided, text.startswith(reason)) == (outcome, True)


@pytest.mark.parametrize(("common", "split"), [(0.0, True), (0.9, True), (2.0, False)])
def test_groups_are_not_split_while_most_of_their_update_is_common(
    common: float, split: bool
) -> None:
    updates = two_groups() + common * 20**0.5 * np.eye(20)[0]
    assert decided(updates) == (FOURS if split else set())


def test_noise_in_many_directions_makes_shorter_distances_than_on_a_line() -> None:
    assert dimensions(np.eye(7)) == pytest.approx(7)
    assert dimensions(np.ones((7, 7))) == pytest.approx(1)
    assert dimensions(np.eye(300)) == pytest.approx(MOST_COMPARED)
    labels = np.repeat([0, 1], 5)
    line = np.where(labels, 1.0, -1.0)[:, None]
    # Five standard errors squared: nothing on a line, enough with eight more directions.
    noise = np.full(10, 4 * 5 / 2 / 5)
    many = np.hstack([line, generator(0, "many").normal(size=(10, 8))])
    assert separation(line @ line.T, labels, noise) == 0
    assert separation(many @ many.T, labels, noise) > 0


Q = chdtri(1, ERROR)
BOUNDS = ((3, 3), 100 / (2 * Q / 3)), ((3, 1), 100 / (4 * Q / 3 + 1))


@pytest.mark.parametrize(("sizes", "most"), BOUNDS)
def test_a_distance_that_noise_rarely_makes_separates(sizes: tuple[int, int], most: float) -> None:
    """Means over 3 and 3: 10² > q (v/3 + v/3). A single one's squared length has v in it."""
    labels = np.repeat([0, 1], sizes)
    points = 1e-3 * generator(0, "errors").normal(size=(len(labels), 3))
    points[:, 0] += np.where(labels == 0, 5.0, -5.0)
    gram = points @ points.T
    assert separation(gram, labels, np.full(len(labels), 0.98 * most)) > 0
    assert separation(gram, labels, np.full(len(labels), 1.02 * most)) == 0


def test_separation_does_not_depend_on_the_number_of_parts() -> None:
    separations = []
    for parts in (2, 3, 4):
        labels = np.repeat(np.arange(parts), 30)
        points = generator(0, "parts").normal(size=(len(labels), 5)) + 20 * np.eye(parts, 5)[labels]
        separations.append(separation(points @ points.T, labels, np.zeros(len(labels))))
    np.testing.assert_allclose(separations, 20 * np.sqrt(2), rtol=0.15)
