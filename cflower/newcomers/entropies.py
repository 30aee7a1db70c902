"""Which leaf a newcomer is of, by how sure the leaves' models are of examples without labels.

Not in the paper. A model is sure of inputs like those that it learned from, and that shows in the
entropy of its predictions, whatever the labels are. But one leaf's model may be surer of everything
than another's, and where groups differ in their labels alone all models are equally sure. So a
newcomer is compared with the members: each of them told, of examples that it never trained on,
how much surer its own leaf's model is than another's. Where these gaps are alike in two leaves,
no newcomer can be told; where they differ, its own gap has a likelihood under either.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.stats import t

SURE = 0.9
"""Probability from which on a newcomer is placed."""
USUAL = 0.95
"""Share of a leaf's members of whom its model is as sure as usual."""
NEGLIGIBLE = 0.001
"""Of the greatest probability; below it a leaf is out of the question."""


class Usual(NamedTuple):
    """What some members told."""

    mean: float
    """Nats."""
    members: int


@dataclass(frozen=True)
class MembersEntropies:
    """How sure models are of the members' examples.

    Differences are counted as normal, with one variance in all leaves, which the members estimate.

    Attributes
    ----------
    own : mapping of str to Usual
        Of each leaf's model, on its members' examples.
    gaps : mapping of (str, str) to Usual
        Entropy of the second leaf's model less that of the first one's, on the first one's members'
        examples.
    own_deviation, gap_deviation : float
        Standard deviation of one member of a leaf, in nats.
    freedom : int
        Members less leaves.
    """

    own: Mapping[str, Usual]
    gaps: Mapping[tuple[str, str], Usual]
    own_deviation: float
    gap_deviation: float
    freedom: int

    @classmethod
    def of(
        cls, leaf_of: Mapping[str, str], entropies: Mapping[str, Mapping[str, float]]
    ) -> "MembersEntropies":
        """What the members told, summed up.

        Parameters
        ----------
        leaf_of : mapping of str to str
            The leaf of every client that told anything.
        entropies : mapping of str to mapping of str to float
            Of each of them, by leaf: mean entropy of its model's predictions, in nats; its own
            leaf's is there.
        """
        own, gaps = defaultdict(list), defaultdict(list)
        for client, told in entropies.items():
            mine = leaf_of[client]
            own[mine].append(told[mine])
            for other in told.keys() - {mine}:
                gaps[mine, other].append(told[other] - told[mine])
        return cls(
            {leaf: Usual(float(np.mean(values)), len(values)) for leaf, values in own.items()},
            {pair: Usual(float(np.mean(values)), len(values)) for pair, values in gaps.items()},
            pooled_deviation(own.values()),
            pooled_deviation(gaps.values()),
            len(entropies) - len(own),
        )

    def preference(self, newcomer: Mapping[str, float], leaf: str, other: str) -> float:
        """Log of how much likelier a newcomer's entropies are in one leaf than in another, nats.

        Student's predictive density of one more member's gap, in either leaf; 0 where too few
        members told anything.
        """
        pair = [self.gaps.get((leaf, other)), self.gaps.get((other, leaf))]
        if self.freedom < 1 or not self.gap_deviation:
            return 0.0
        gap, logs = newcomer[other] - newcomer[leaf], []
        for usual, sign in zip(pair, (1, -1), strict=True):
            if usual is None:
                return 0.0
            scale = self.gap_deviation * np.sqrt(1 + 1 / usual.members)
            logs.append(t.logpdf((sign * gap - usual.mean) / scale, self.freedom) - np.log(scale))
        return float(logs[0] - logs[1])

    def probabilities(
        self, newcomer: Mapping[str, float], leaves: Iterable[str]
    ) -> dict[str, float]:
        """Of each of some leaves that the newcomer is of it, if it is of one of them.

        All of them count as equally likely beforehand. Made from the preferences between pairs
        (Price et al., Pairwise neural network classifiers with probabilistic outputs, 1995).

        Parameters
        ----------
        newcomer : mapping of str to float
            Mean entropy of each leaf's model on its examples, in nats.
        leaves : iterable of str
        """
        names = list(leaves)
        against = {
            name: sum(np.exp(-self.preference(newcomer, name, b)) for b in names if b != name)
            for name in names
        }
        shares = {name: 1 / (1 + odds) for name, odds in against.items()}
        return {name: float(share / sum(shares.values())) for name, share in shares.items()}

    def told_apart(self, leaf: str, other: str) -> bool:
        """Whether the members of two leaves differ in their gaps at all.

        Student's two-sample test, one-sided, at the level of `USUAL`.
        """
        one, two = self.gaps.get((leaf, other)), self.gaps.get((other, leaf))
        if one is None or two is None or self.freedom < 1 or not self.gap_deviation:
            return False
        scale = self.gap_deviation * np.sqrt(1 / one.members + 1 / two.members)
        return bool(t.sf((one.mean + two.mean) / scale, self.freedom) < 1 - USUAL)

    def unsure(self, newcomer: Mapping[str, float], leaf: str) -> bool:
        """Whether a leaf's model is less sure of the newcomer than of `USUAL` of its members."""
        usual = self.own.get(leaf)
        if usual is None or self.freedom < 1 or not self.own_deviation:
            return False
        scale = self.own_deviation * np.sqrt(1 + 1 / usual.members)
        return bool(t.sf((newcomer[leaf] - usual.mean) / scale, self.freedom) < 1 - USUAL)


def pooled_deviation(groups: Iterable[Iterable[float]]) -> float:
    """Standard deviation within groups; 0 if none has two values.

    >>> pooled_deviation([[1.0, 3.0], [10.0, 12.0]]) == 2**0.5
    True
    """
    values = [np.asarray(list(group)) for group in groups]
    freedom = sum(len(group) - 1 for group in values)
    squares = sum(float(((group - group.mean()) ** 2).sum()) for group in values)
    return float(np.sqrt(squares / freedom)) if freedom else 0.0
