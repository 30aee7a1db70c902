"""The paired test of two ways to serve the same clients on the same held-out examples."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from cflower.algorithm.constants import ENOUGH_EXAMPLES
from cflower.algorithm.state import Measure
from cflower.robust.robust_mean import limited


class Pair(NamedTuple):
    """A metric of one client, served in two ways."""

    own: float
    common: float
    num_examples: float
    """Held-out examples, the same for both."""


class PairedTest(NamedTuple):
    measure: Measure
    own: float
    """Mean over the clients, weighted by held-out examples, under their leaves' models."""
    common: float
    gain: float
    """Improvement through the separate models, in the metric's unit."""
    error: float
    """Standard error of the gain."""
    chance: float | None
    """One-sided p-value of the gain; None if there are too few examples or clients."""
    better: int
    """Number of clients with a gain."""
    worse: int
    num_clients: int
    num_examples: float


def paired(pairs: Sequence[Pair], measure: Measure) -> PairedTest | None:
    """The paired test by one metric; None without a client.

    Each client's gain is weighted by its held-out examples, `limited` to a few usual claims. The
    variance of one example is σ² = Σ n_i (g_i − ḡ)² / (m − 1) for m clients; the mean gain over its
    standard error √(σ² / Σ n_i) has Student's t distribution with m − 1 degrees of freedom.
    """
    if not pairs:
        return None
    own, common, _ = np.array(pairs, float).T
    sizes = limited(pair.num_examples for pair in pairs)
    gains = own - common if measure.higher_is_better else common - own
    gain, freedom = float(np.average(gains, weights=sizes)), len(pairs) - 1
    squares = float(sizes @ (gains - gain) ** 2)
    error = float(np.sqrt(squares / max(freedom, 1) / sizes.sum()))
    enough = sizes.sum() >= ENOUGH_EXAMPLES and freedom > 0
    means = [float(np.average(values, weights=sizes)) for values in (own, common)]
    counts = int((gains > 0).sum()), int((gains < 0).sum()), len(pairs), float(sizes.sum())
    chance = p_value(gain, error, freedom) if enough else None
    return PairedTest(measure, means[0], means[1], gain, error, chance, *counts)


def p_value(gain: float, error: float, freedom: int) -> float:
    """One-sided p-value of a mean gain, Student's t.

    >>> p_value(0.0, 1.0, 5), p_value(0.1, 0.0, 5)
    (0.5, 0.0)
    """
    if error == 0:
        return (1 - float(np.sign(gain))) / 2
    from scipy.special import stdtr  # a client's process, which never gets here, starts faster

    return float(stdtr(freedom, -gain / error))
