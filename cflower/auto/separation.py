"""How far apart groups are, and how far apart parts of data without groups lie.

Not in the paper. Clustering always finds parts, also where there are no groups. The measure of
their distance does not favour small parts and is defined for any number of them. How large it
becomes by chance was computed as in SigClust (Liu, Hayes, Nobel and Marron 2008, JASA 103) and its
version for Ward's trees (Kimes, Liu, Hayes and Marron, arXiv 1411.5259): from Gaussian samples,
each clustered like the data. It hardly depends on anything but the number of members.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cflower.algorithm.constants import ERROR
from cflower.algorithm.similarity import ROUNDING, Matrix, cosine_similarity
from cflower.auto.clustering import Labels, Parts

MOST_COMPARED = 200
"""Members whose updates show the number of directions of spread, a limit of work."""


def centred(points: NDArray[np.floating]) -> Matrix:
    """Inner products of points, shape (m, k), relative to their mean, which no weight moves."""
    differences = points - points.mean(axis=0, dtype=np.float64)
    return np.asarray(differences @ differences.T)


def by_chance(members: int, left_out: int) -> float:
    """About the 0.99 quantile of the separation in data without groups.

    A fit to Gaussian samples of 6 to 80 members in 1 to 30 directions, within a quarter
    (tests/auto/test_separation.py); with fewer, chance makes more, and the clients judge. Members
    that are left out were in the middle, so without them the others lie further apart.

    >>> [round(by_chance(members, 0), 1) for members in (4, 10, 20, 80)]
    [36.4, 7.0, 4.4, 3.5]
    """
    return float(3.4 + 100 / (members - 2) ** 1.6) * (1.35 if left_out else 1.0)


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
    from scipy.special import chdtri

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


def agreement(updates: Matrix, labels: Labels) -> float:
    """The smallest cosine between two parts' mean updates; ``updates`` have shape (m, k).

    >>> agreement(np.array([[1.0, 1.0], [1.0, 1.0], [1.0, -1.0]]), np.array([0, 0, 1]))
    0.0
    """
    means = [updates[labels == part].mean(axis=0) for part in range(labels.max() + 1)]
    return float(cosine_similarity(np.stack(means)).min())


def dimensions(gram: Matrix) -> float:
    """Participation ratio (Σ λ)² / Σ λ² of the eigenvalues λ: the number of directions of spread.

    >>> dimensions(np.eye(4))
    4.0
    """
    # The ratio grows with the number of members.
    some = np.linspace(0, len(gram) - 1, min(len(gram), MOST_COMPARED)).astype(int)
    chosen = gram[np.ix_(some, some)]
    return float(np.trace(chosen) ** 2 / ((chosen**2).sum() or 1.0)) or 1.0
