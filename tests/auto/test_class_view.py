"""Laws of the class-matched view of output layers."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from cflower.algorithm.criteria import Outcome
from cflower.algorithm.projection import OutputLayer, Projection
from cflower.auto.class_view import class_matched
from cflower.auto.criterion import AutoCriterion
from cflower.seeding import generator
from tests.algorithm.planted import evidence_of

CLASSES, WIDTH, SIZE = 6, 12, 20


def layers(seed: int, groups: NDArray[np.int_], server_round: int = 0) -> NDArray[np.float64]:
    """Softmax updates of clients with uneven shares of the classes, shape (m, C, h + 1).

    The first half of a group's hidden values belongs to the class, the other half to the group.
    """
    rng, noise = generator(seed, "clients"), generator(seed, "noise", server_round)
    prototypes = rng.normal(size=(groups.max() + 1, CLASSES, WIDTH))
    prototypes[:, :, : WIDTH // 2] = 4 * prototypes[:1, :, : WIDTH // 2]
    found = np.zeros((len(groups), CLASSES, WIDTH + 1))
    for layer, group in zip(found, groups, strict=True):
        shares = rng.dirichlet(np.ones(CLASSES))
        hidden = np.column_stack([prototypes[group], np.ones(CLASSES)]) * shares[:, None]
        layer += hidden - hidden.sum(axis=0) / CLASSES
    return found + 1e-3 * noise.normal(size=found.shape)


def split_of(groups: NDArray[np.int_], *, viewed: bool, rounds: int = 8) -> set[frozenset[int]]:
    """The sides of the first split, by client number."""
    memory = {}
    for server_round in range(1, rounds + 1):
        now = layers(0, groups, server_round)
        evidence = evidence_of(now.reshape(len(groups), -1), server_round)
        if viewed:
            evidence = replace(evidence, outputs=tuple(now))
        decision, memory = AutoCriterion().decide(evidence, memory)
        if decision.outcome is Outcome.SPLIT:
            return {frozenset(map(evidence.members.index, side)) for side in decision.sides}
    return set()


def test_groups_hidden_by_uneven_labels_are_split_in_this_view(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # These updates always have a large part in common, because no model follows it.
    monkeypatch.setattr("cflower.auto.criterion.RESEMBLES", 1.0)
    groups = np.arange(SIZE) % 2
    assert split_of(groups, viewed=False) == set()
    sides = split_of(groups, viewed=True)
    assert len(sides) == 2
    assert sum(map(len, sides)) >= 0.8 * SIZE
    assert all(len({groups[i] for i in side}) == 1 for side in sides)


def test_uneven_labels_alone_are_no_groups() -> None:
    assert split_of(np.zeros(SIZE, int), viewed=True) == set()


def test_the_amounts_of_the_labels_change_nothing() -> None:
    layer = layers(0, np.arange(SIZE) % 2)
    np.testing.assert_allclose(class_matched(3.0 * layer), class_matched(layer), atol=1e-9)
    assert np.all(np.linalg.norm(class_matched(layer), axis=1) <= 1 + 1e-9)


def test_layers_without_updates_have_no_view() -> None:
    assert not class_matched(np.zeros((3, 4, 5))).any()


@pytest.mark.parametrize("classes_first", [True, False])
def test_both_orientations_are_read_alike(classes_first: bool) -> None:
    rows = generator(0, "rows").normal(size=(3, 5))
    weights = rows[:, :-1] if classes_first else rows[:, :-1].T
    vector = np.concatenate([np.ones(100), weights.ravel(), rows[:, -1]])
    layer = OutputLayer(3, 4, classes_first)
    np.testing.assert_array_equal(layer.rows(vector), rows)
    projection = Projection(len(vector), 20, output=layer)
    kept = projection.keep(vector)
    np.testing.assert_array_equal(layer.rows(kept), rows)
    np.testing.assert_array_equal(projection.projected(kept), projection.project(vector))
    np.testing.assert_array_equal(projection.seen(kept), projection.project(vector))
