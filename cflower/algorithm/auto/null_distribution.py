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
from scipy.special import chdtri

from cflower.algorithm.auto.clustering import Labels, Parts, best_parts, in_appearance
from cflower.algorithm.similarity import (
    LARGE,
    ROUNDING,
    Gram,
    Points,
    Similarities,
    cosine_similarity,
    marks_of,
    weighted_sum,
)

SURE = 0.9973
"""Two parts have a distance only if noise alone makes a shorter one with this probability."""

RARE = 0.025
"""Share of clouds without groups that may be as far apart as they lie, and as many by angle."""

LARGEST = 200
"""Points of a cloud without groups: finding its parts takes the square of their number."""


@dataclass(frozen=True)
class Cloud:
    """Points about their unweighted centre, so that a client of much weight moves no other's."""

    gram: Similarities
    """Their inner products, in units of their mean squared length."""
    cosines: Similarities
    noise: NDArray[np.float64]
    """What chance adds to each one's squared length, in the same unit, shape (m,)."""

    @classmethod
    def of(
        cls,
        points: NDArray[np.floating],
        noise: NDArray[np.float64],
        members: NDArray[np.intp] | None = None,
    ) -> "Cloud":
        """Of points, shape (m, k), or some of them, and their noise in their own unit."""
        members = np.arange(len(points)) if members is None else members
        size = len(members)
        if size > LARGE:
            belongs = np.zeros(len(points))
            belongs[members] = 1 / size
            about = Points.of(points, members, -weighted_sum(belongs, points))
            unit = float(about.diagonal.mean()) or 1.0
            gram = about.scaled(np.full(size, 1 / np.sqrt(unit)))
            return cls(gram, about.cosines(), noise / unit)
        centred = points[members] - points[members].mean(axis=0, dtype=np.float64)
        products = centred @ centred.T
        unit = float(np.trace(products)) / size or 1.0
        return cls(Gram(products / unit), Gram(cosine_similarity(centred)), noise / unit)

    def separation(self, labels: Labels) -> NDArray[np.float64]:
        """How far the nearest parts are apart, as they lie and by angle, shape (2,).

        Points on a line are told apart as they lie, where angles know only left and right; groups
        whose members' updates are of uneven length, by angle.
        """
        squares = self.gram.diagonal
        angular = self.noise / np.where(squares > 0, squares, 1.0)
        by_angle = separation(self.cosines, labels, angular)
        return np.array([separation(self.gram, labels, self.noise), by_angle])

    def by_chance(
        self, found: NDArray[np.float64], grouped_share: float, rng: Generator
    ) -> NDArray[np.float64]:
        """What parts ``found`` so far apart must exceed in one of the two, in scatters, shape (2,).

        The most in clouds without groups; or, where more is found in both than in all but `RARE`
        of them, this. No more are drawn once ``found`` cannot exceed it.

        Their points are Gaussian, with the variances of this cloud along its principal axes;
        200 of them, fewer of more than 50 members, where one is much like another; of a sample of
        `LARGEST` members where there are more, in which chance parts them further.
        """
        number = len(self.noise)
        size = min(number, LARGEST)
        clouds = min(200, 10_000 // size)
        highest = np.zeros((1 + int(RARE * clouds), 2))
        some = rng.choice(number, size, replace=False) if size < number else np.arange(number)
        gram = self.gram.among(some)
        deviations = np.sqrt(np.maximum(np.linalg.eigvalsh(gram)[1:], 0.0) / (size - 1))
        for _ in range(clouds):
            points = rng.normal(size=(size, size - 1)) * deviations
            cloud = Cloud.of(points, np.zeros(size))
            parts = best_parts(cloud.cosines)
            if parts.company.mean() >= grouped_share:
                highest = np.sort([*highest, cloud.separation(parts.labels)], axis=0)[1:]
            if np.all(highest[-1] >= found) and np.any(highest[0] >= found):
                break
        return np.asarray(highest[0 if np.all(highest[0] < found) else -1])


def separation(gram: Similarities, labels: Labels, noise: NDArray[np.float64]) -> float:
    """Distance of the two nearest parts, in scatters of the members along the lines between parts.

    Parameters
    ----------
    gram : Similarities
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
    parts = Parts.of(gram, labels)
    sizes, means, count = parts.sizes, parts.means, len(parts.sizes)
    if count == 1 or sizes.max() == 1:
        return 0.0
    within, alone = np.diag(means).copy(), sizes[labels] == 1
    within[labels[alone]] = (gram.diagonal - noise)[alone]
    chance = np.bincount(labels, noise) / sizes**2
    squares = within[:, None] + within - 2 * means
    np.fill_diagonal(squares, np.inf)
    # The squared length of noise in directions of uneven variance is about χ² (Satterthwaite 1946).
    freedom = dimensions(gram)
    if np.any(squares <= chdtri(freedom, 1 - SURE) / freedom * (chance[:, None] + chance)):
        return 0.0
    # Where each member lies on the line from every other part to its own, and how far from the
    # mean of its companions there, which follows from the means of pairs.
    spread = np.where(sizes == 1, np.diag(means)[:, None], np.diag(means))
    centre = np.diag(means)[:, None] / 2 - means + spread / 2
    total = 0.0
    for block, nearness in parts.nearness():
        mine = labels[block]
        aside = nearness[np.arange(len(mine)), mine][:, None] - nearness - centre[mine]
        aside[sizes[mine] == 1] = 0.0
        total += float((aside**2 / squares[mine]).sum())
    scatter = total / ((sizes - 1).sum() * (count - 1))
    return float(np.sqrt(squares.min() / max(scatter, ROUNDING**2 * squares.min())))


def dimensions(gram: Similarities) -> float:
    """In how many directions the members spread: (Σ λ)² / Σ λ² of their Gram matrix's eigenvalues.

    >>> dimensions(Gram(np.eye(4)))
    4.0
    """
    size = len(gram.diagonal)
    some = gram.among(np.linspace(0, size - 1, min(size, LARGEST)).astype(int))
    return float(np.trace(some) ** 2 / ((some**2).sum() or 1.0)) or 1.0


def distinct(points: NDArray[Any], members: NDArray[np.intp]) -> tuple[NDArray[np.intp], Labels]:
    """The members without copies of another, and which of these each member is.

    Copies of one client are one witness. But where most points have a copy, they are groups.

    >>> points = np.array([[1.0], [3.0], [1.0], [2.0], [4.0]])
    >>> distinct(points, np.arange(5))
    (array([0, 1, 3, 4]), array([0, 1, 0, 2, 3], dtype=int32))
    """
    # Copies are equal to the last bit.
    _, first, which = np.unique(marks_of(points)[members], return_index=True, return_inverse=True)
    copied = np.bincount(which)[which] > 1
    if 2 * copied.sum() > len(members):
        return members, np.arange(len(members), dtype=np.int32)
    return members[np.sort(first)], in_appearance(which)


def joint_rounds(heard: NDArray[np.uint8], labels: Labels) -> float:
    """How often the members of the loneliest part took part in rounds with those of others.

    Parameters
    ----------
    heard : ndarray of bits, shape (m, rounds / 8)
        In which rounds each was heard.
    labels : ndarray, shape (m,)

    Returns
    -------
    float
        In units of the mean over all pairs; 1 where no two were ever heard together.
    """
    sizes, size = np.bincount(labels), len(labels)
    outside, pairs = np.zeros(len(sizes)), 0
    for byte in heard.T:
        for bit in range(8):
            mine = np.bincount(labels[byte >> bit & 1 == 1], minlength=len(sizes))
            outside += mine * (mine.sum() - mine)
            pairs += mine.sum() * (mine.sum() - 1)
    if len(sizes) == 1 or pairs == 0:
        return 1.0
    return float((outside / (sizes * (size - sizes))).min() * size * (size - 1) / pairs)
