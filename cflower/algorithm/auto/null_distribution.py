"""Whether groups are separated more than those that clustering makes of data without groups.

Not in the paper. In few directions, or along one that all updates share, data without groups fall
into parts that look well separated. The test is a relative of SigClust (Liu, Hayes, Nobel and
Marron 2008, JASA 103) and of its version for Ward's trees (Kimes, Liu, Hayes and Marron, arXiv
1411.5259): a Monte Carlo null distribution from Gaussian samples with the sample eigenvalues of
the data, each clustered like the data. Its statistic is not their cluster index but `separation`,
which is defined for any number of parts and does not favour small ones.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from cflower.algorithm.auto.clustering import Labels, Parts, best_parts, margin_errors
from cflower.algorithm.constants import ERROR, SIGNIFICANT
from cflower.algorithm.similarity import ROUNDING, Matrix, cosine_similarity

LARGEST_SAMPLE = 200
"""Most points of a null sample, a limit of work: clustering takes the square of their number."""
MOST_SAMPLES = 200
"""Most null samples, a limit of work."""
POINTS = 10_000
"""Most points of all null samples together, a limit of work: large samples vary less."""
MEASURES = "separation", "separation_by_angle"
FIGURES = *MEASURES, *(f"{measure}_by_chance" for measure in MEASURES)


class Centred(NamedTuple):
    """Updates relative to their unweighted mean, so that a client of much weight moves no other."""

    gram: Matrix
    """Inner products in units of the mean squared length, shape (m, m)."""
    cosines: Matrix
    noise: NDArray[np.float64]
    """Expected contribution of chance to each squared length, in the same unit, shape (m,)."""

    def separations(self, labels: Labels) -> NDArray[np.float64]:
        """`separation` by distance and by angle, shape (2,).

        Groups on a line differ in distance, where angles only know left and right; groups with
        updates of uneven lengths differ in angle.
        """
        squares = np.diag(self.gram)
        angular = self.noise / np.where(squares > 0, squares, 1.0)
        distance = separation(self.gram, labels, self.noise)
        return np.array([distance, separation(self.cosines, labels, angular)])


def centred(points: NDArray[np.floating], noise: NDArray[np.float64]) -> Centred:
    """Centre points, shape (m, k), with noise in their own unit."""
    differences = points - points.mean(axis=0, dtype=np.float64)
    products = differences @ differences.T
    unit = float(np.trace(products)) / len(points) or 1.0
    return Centred(products / unit, cosine_similarity(differences), noise / unit)


def separation_test(
    updates: Centred, labels: Labels, left_out: int, rng: Generator
) -> dict[str, float]:
    """The separation of the parts, and the one that they must exceed in one of both measures."""
    observed = updates.separations(labels)
    needed = critical_separations(updates.gram, observed, left_out, rng)
    return dict(zip(FIGURES, [*observed.tolist(), *needed.tolist()], strict=True))


def critical_separations(
    gram: Matrix, observed: NDArray[np.float64], left_out: int, rng: Generator
) -> NDArray[np.float64]:
    """The separations that ``observed`` must exceed in one of both measures, shape (2,).

    The maxima of the null distribution; or its upper `SIGNIFICANT` quantiles if ``observed``
    exceeds both of these. Stops drawing as soon as ``observed`` can no longer be significant. From
    every null sample as many points are left out as from the data, the least sure ones.
    """
    size = min(len(gram), LARGEST_SAMPLE)
    left_out = left_out * size // len(gram)
    samples = min(MOST_SAMPLES, POINTS // size)
    if size < len(gram):  # more points would be separated less
        chosen = rng.choice(len(gram), size, replace=False)
        gram = gram[np.ix_(chosen, chosen)]
    eigenvalues = np.linalg.eigvalsh(gram)[1:] / (size - 1)
    deviations = np.sqrt(np.maximum(eigenvalues, 0.0))
    highest = np.zeros((1 + int(SIGNIFICANT * samples), 2))  # of each measure, ascending
    for _ in range(samples):
        points = rng.normal(size=(size + left_out, size - 1)) * deviations
        highest = np.sort([*highest, null_separations(points, left_out)], axis=0)[1:]
        if np.all(highest[-1] >= observed) and np.any(highest[0] >= observed):
            break
    return np.asarray(highest[0] if np.all(highest[0] < observed) else highest[-1])


def null_separations(points: NDArray[np.float64], left_out: int) -> NDArray[np.float64]:
    """The separations of one null sample, shape (2,), without its least sure points.

    0 if fewer than half of the points are in parts of two or more.
    """
    sample = centred(points, np.zeros(len(points)))
    parts = best_parts(sample.cosines)
    if left_out:
        errors, _ = margin_errors(sample.cosines, parts)
        kept = np.sort(errors.argsort(kind="stable")[left_out:])
        sample = centred(points[kept], np.zeros(len(kept)))
        parts = best_parts(sample.cosines)
    if 2 * parts.grouped.sum() < len(points):
        return np.zeros(2)
    return sample.separations(parts.labels)


def separation(gram: Matrix, labels: Labels, noise: NDArray[Any]) -> float:
    """Distance of the two nearest parts, in standard deviations of members along such lines.

    ``gram`` are the members' inner products, shape (m, m), and ``noise`` the expected contribution
    of chance to each squared length, shape (m,). 0 with one part, with only parts of one, or if
    noise makes a longer distance with a probability of `ERROR` or more.
    """
    parts = Parts.of(gram, labels)
    sizes, means = parts.sizes, parts.means
    if len(sizes) == 1 or not parts.grouped.any():
        return 0.0
    within, single = np.diag(means).copy(), ~parts.grouped
    within[labels[single]] = (np.diag(gram) - noise)[single]
    variance = np.bincount(labels, noise) / sizes**2
    squares = within[:, None] + within - 2 * means
    np.fill_diagonal(squares, np.inf)
    # The squared length of noise in directions of uneven variance is about χ² (Satterthwaite 1946).
    freedom = dimensions(gram)
    from scipy.special import chdtri  # SciPy takes longer to import than all of cflower

    noise_quantile = chdtri(freedom, ERROR) / freedom * (variance[:, None] + variance)
    if np.any(squares <= noise_quantile):
        return 0.0
    # Each member's position on the line from every other part to its own, from the mean of the
    # other members of its part there, which follows from the means of pairs.
    spread = np.where(sizes == 1, np.diag(means)[:, None], np.diag(means))
    centre = np.diag(means)[:, None] / 2 - means + spread / 2
    own = np.arange(len(labels)), labels
    positions = parts.nearness[own][:, None] - parts.nearness - centre[labels]
    positions[single] = 0.0
    total = float((positions**2 / squares[labels]).sum())
    scatter = total / ((sizes - 1).sum() * (len(sizes) - 1))
    return float(np.sqrt(squares.min() / max(scatter, ROUNDING**2 * squares.min())))


def dimensions(gram: Matrix) -> float:
    """Participation ratio (Σ λ)² / Σ λ² of the eigenvalues λ: the number of directions of spread.

    >>> dimensions(np.eye(4))
    4.0
    """
    # The ratio grows with the number of members.
    some = np.linspace(0, len(gram) - 1, min(len(gram), LARGEST_SAMPLE)).astype(int)
    chosen = gram[np.ix_(some, some)]
    return float(np.trace(chosen) ** 2 / ((chosen**2).sum() or 1.0)) or 1.0
