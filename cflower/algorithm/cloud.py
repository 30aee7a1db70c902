"""The members of a cluster as a cloud of points, and whether chance puts points into such parts.

Not in the paper. In few directions, or along one that all updates share, a cloud without groups
falls into parts that look well apart: of points on a line, every one points left or right. So the
parts found are compared with the parts found in clouds that have no groups, but as many members
and the same spread in every direction.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from cflower.algorithm.clustering import (
    ROUNDING,
    Labels,
    best_clustering,
    in_appearance,
    part_statistics,
)
from cflower.algorithm.similarity import Matrix, cosine_similarity

SURE = 9.0
"""Squared: two parts must be three standard errors of their distance apart to have one."""

LARGEST = 500
"""Points of a cloud without groups: finding its parts takes the square of their number."""


@dataclass(frozen=True)
class Cloud:
    """Points about their unweighted centre, so that a client of much weight moves no other's."""

    gram: Matrix
    """Their inner products, in units of their mean squared length, shape (m, m)."""
    cosines: Matrix
    """Shape (m, m)."""
    noise: NDArray[np.float64]
    """What chance adds to each one's squared length, in the same unit, shape (m,)."""

    @classmethod
    def of(cls, points: NDArray[np.floating], noise: NDArray[np.float64]) -> "Cloud":
        """Of points, shape (m, k), and their noise in their own unit."""
        centred = points - points.mean(axis=0, dtype=np.float64)
        gram = centred @ centred.T
        unit = float(np.trace(gram)) / len(gram) or 1.0
        return cls(gram / unit, cosine_similarity(centred), noise / unit)

    def scatters(self, labels: Labels) -> NDArray[np.float64]:
        """How far the nearest parts are apart, as they lie and by angle, shape (2,).

        Points on a line are told apart as they lie, where angles know only left and right; groups
        whose members' updates are of uneven length, by angle.
        """
        squares = np.diag(self.gram)
        angular = self.noise / np.where(squares > 0, squares, 1.0)
        by_angle = scatters(self.cosines, labels, angular)
        return np.array([scatters(self.gram, labels, self.noise), by_angle])

    def by_chance(
        self, enough: NDArray[np.float64], companions: float, rng: Generator
    ) -> NDArray[np.float64]:
        """The most scatters in clouds without groups; no more are drawn once there is ``enough``.

        Their points are Gaussian, with the variances of this cloud along its principal axes;
        200 of them, fewer of more than 100 members, where one is much like another; of a sample of
        `LARGEST` members where there are more, in which chance parts them further.
        """
        size, most, gram = min(len(self.gram), LARGEST), np.zeros(2), self.gram
        if size < len(gram):
            some = rng.choice(len(gram), size, replace=False)
            gram = gram[np.ix_(some, some)]
        deviations = np.sqrt(np.maximum(np.linalg.eigvalsh(gram)[1:], 0.0) / (size - 1))
        for _ in range(min(200, max(40, 20_000 // size))):
            points = rng.normal(size=(size, size - 1)) * deviations
            cloud = Cloud.of(points, np.zeros(size))
            cut = best_clustering(cloud.cosines)
            if cut.companions >= companions:
                most = np.maximum(most, cloud.scatters(cut.labels))
            if np.all(most >= enough):
                break
        return most


def scatters(gram: Matrix, labels: Labels, noise: NDArray[np.float64]) -> float:
    """Distance of the two nearest parts, in scatters of the members along the lines between parts.

    Parameters
    ----------
    gram : ndarray, shape (m, m)
        Inner products of the members.
    labels : ndarray, shape (m,)
        The part of every member.
    noise : ndarray, shape (m,)
        What chance adds to each one's squared length.

    Returns
    -------
    float
        0 with one part, with nobody in company, or if chance may be all that parts two of them.
    """
    _, sizes, nearness, _, means = part_statistics(gram, labels)
    if len(sizes) == 1 or sizes.max() == 1:
        return 0.0
    within, alone = np.diag(means).copy(), sizes[labels] == 1
    within[labels[alone]] = (np.diag(gram) - noise)[alone]
    chance = np.bincount(labels, noise) / sizes**2
    squares = within[:, None] + within - 2 * means
    np.fill_diagonal(squares, np.inf)
    if np.any(squares <= SURE * (chance[:, None] + chance)):
        return 0.0
    # Where each member lies on the line from every other part to its own, and how far from its
    # companions there.
    along = nearness[np.arange(len(labels)), labels][:, None] - nearness
    belongs = np.eye(len(sizes))[labels]
    aside = along - (belongs.T @ along / sizes[:, None])[labels]
    scatter = (belongs.T @ aside**2 / squares).sum() / ((sizes - 1).sum() * (len(sizes) - 1))
    return float(np.sqrt(squares.min() / max(scatter, ROUNDING**2 * squares.min())))


def distinct(points: NDArray[Any]) -> tuple[NDArray[np.intp], Labels]:
    """Positions of the points without copies of another, and which of these each point is.

    Copies of one client are one witness. But where most points have a copy, they are groups.

    >>> distinct(np.array([[1.0], [3.0], [1.0], [2.0], [4.0]]))
    (array([0, 1, 3, 4]), array([0, 1, 0, 2, 3], dtype=int32))
    """
    _, first, which = np.unique(points, axis=0, return_index=True, return_inverse=True)
    copied = np.bincount(which)[which] > 1
    if 2 * copied.sum() > len(points):
        return np.arange(len(points)), np.arange(len(points), dtype=np.int32)
    return np.sort(first), in_appearance(which)


def together(rounds: NDArray[np.integer], labels: Labels) -> float:
    """How often the members of the loneliest part took part in rounds with those of others.

    Parameters
    ----------
    rounds : ndarray, shape (m, m)
        In how many rounds each two were heard.
    labels : ndarray, shape (m,)

    Returns
    -------
    float
        In units of the mean over all pairs; 1 where no two were ever heard together.
    """
    belongs = np.eye(labels.max() + 1)[labels]
    pairs = belongs.T @ (rounds - np.diag(np.diag(rounds))) @ belongs
    sizes, size = belongs.sum(axis=0), len(labels)
    mean = pairs.sum() / (size * (size - 1))
    if len(sizes) == 1 or mean == 0:
        return 1.0
    outside = (pairs.sum(axis=1) - np.diag(pairs)) / (sizes * (size - sizes))
    return float(outside.min() / mean)
