"""The likelihood of a newcomer's entropies in each leaf, estimated from those of the members.

Not in the paper. A model's predictions have low entropy on inputs like its training data. But one
leaf's model may have lower entropy everywhere, so each member measured, on held-out examples, the
gap between another leaf's entropy and its own leaf's. Where the gaps of two leaves differ, the
newcomer's gap is more probable in one of them.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.stats import t

from cflower.ordering import without

LEVEL = 0.05
"""Level of the one-sided tests."""


class Groups:
    """Values from normal distributions with a mean for each group and one standard deviation."""

    def __init__(self, values: Mapping[Any, Sequence[float]], freedom: int) -> None:
        self.means = {key: float(np.mean(group)) for key, group in values.items()}
        self.sizes = {key: len(group) for key, group in values.items()}
        residuals = [value - self.means[key] for key in values for value in values[key]]
        self.deviation = np.sqrt(np.square(residuals).sum() / max(len(residuals) - len(values), 1))
        self.freedom = freedom

    def next_value(self, key: str | tuple[str, str]) -> tuple[float, float, float] | None:
        """Student's t for one more value: freedom, location, scale; None if values are too few."""
        if key not in self.means or not self.deviation:
            return None
        scale = self.deviation * np.sqrt(1 + 1 / self.sizes[key])
        return self.freedom, self.means[key], scale


class MembersEntropies:
    """Entropies, in nats, of leaves' models on the members' examples.

    ``entropies[client][leaf]`` is the mean entropy of a leaf's model; it must be there for the
    client's own leaf, ``leaf_of[client]``.
    """

    def __init__(
        self, leaf_of: Mapping[str, str], entropies: Mapping[str, Mapping[str, float]]
    ) -> None:
        own, gaps = defaultdict(list), defaultdict(list)
        for client, nats in entropies.items():
            leaf = leaf_of[client]
            own[leaf].append(nats[leaf])
            for other in without(nats, {leaf}):
                gaps[leaf, other].append(nats[other] - nats[leaf])
        freedom = len(entropies) - len(own)  # a client's gaps are not independent of each other
        self.own, self.gaps = Groups(own, freedom), Groups(gaps, freedom)

    def probabilities(self, newcomer: Mapping[str, float]) -> dict[str, float]:
        """Probability of each leaf, given the entropies of all leaves' models on a newcomer.

        All leaves have the same prior. Combined from the likelihood ratios of pairs (Price et al.,
        Pairwise neural network classifiers with probabilistic outputs, 1995).
        """
        shares = {
            leaf: 1 / sum(np.exp(self.log_ratio(newcomer, other, leaf)) for other in newcomer)
            for leaf in newcomer
        }
        return {leaf: float(share / sum(shares.values())) for leaf, share in shares.items()}

    def log_ratio(self, newcomer: Mapping[str, float], leaf: str, other: str) -> float:
        """Log-likelihood ratio of the newcomer's gap in two leaves; 0 if members are too few."""
        here, there = self.gaps.next_value((leaf, other)), self.gaps.next_value((other, leaf))
        if here is None or there is None:
            return 0.0
        gap = newcomer[other] - newcomer[leaf]
        return float(t.logpdf(gap, *here) - t.logpdf(-gap, *there))

    def distinguishes(self, leaf: str, other: str) -> bool:
        """Whether the gaps of two leaves' members differ, by Student's two-sample test."""
        means, sizes, pair = self.gaps.means, self.gaps.sizes, ((leaf, other), (other, leaf))
        if not means.keys() >= set(pair) or not self.gaps.deviation:
            return False
        scale = self.gaps.deviation * np.sqrt(sum(1 / sizes[key] for key in pair))
        return bool(t.sf(sum(means[key] for key in pair) / scale, self.gaps.freedom) < LEVEL)

    def is_unusual(self, newcomer: Mapping[str, float], leaf: str) -> bool:
        """Whether a leaf's entropy on the newcomer is higher than on 95 % of its own members."""
        member = self.own.next_value(leaf)
        return member is not None and bool(t.sf(newcomer[leaf], *member) < LEVEL)
