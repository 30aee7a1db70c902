"""The clients' vote on a question: are they served better by the model that they have?

Not in the paper. Each client evaluates two models on the same held-out examples and has one voice,
whatever it claims. Two rank tests count the voices, and the smaller p-value decides: Wilcoxon's
signed-rank test notices that a few lose little where others gain much, and the sign test withstands
clients that invent large losses. Nothing here is random.

This decides on splits, joins and the personal step, and what `Advised` answers. Two other
comparisons differ for a reason: after a run `cflower.runs.ways.Paired` shows how large a difference
is and decides nothing, so it is a mean with an interval; `cflower.learning.selection.choose` is for
one client, by the losses of its examples.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from statistics import fmean
from typing import NamedTuple

import numpy as np

from cflower.algorithm.constants import ERROR, LIKELY, SIGNIFICANT
from cflower.algorithm.state import Reply
from cflower.algorithm.weights import Vector
from cflower.metric import ACCURACY, BRIER, Metric, words_in
from cflower.ordering import counted, without

EXACT = 50
"""Clients up to which the signed-rank test counts all signs; of more the sum is nearly normal."""


class Ballot(NamedTuple):
    """Two models on the held-out examples of one client: its own or its part's, and a common one.

    Clients report different metrics, so these are mappings and no table of all clients.
    """

    part: str
    own: Mapping[str, float]
    common: Mapping[str, float]

    @classmethod
    def of(cls, own: Reply, common: Reply) -> "Ballot":
        """The ballot of a client's replies for the two models."""
        return cls(own.ask.cluster, own.metrics, common.metrics)

    def measures(self, measure: Metric) -> bool:
        """Whether the client measured at least one of the models by a metric."""
        return measure.name in self.own or measure.name in self.common

    def gain(self, measures: Sequence[Metric]) -> float:
        """How much better the client's own model is: the sum of its relative gains.

        (L_c − L_o) / (|L_c| + |L_o|) of a loss L, so from -1 to 1 for each measure. If a plausible
        value is known for one model alone, that one is better by 1: NaN has been left out.

        >>> Ballot("0", {"loss": 1.0}, {"loss": 3.0}).gain([Metric("loss", False)])
        0.5
        >>> Ballot("0", {"loss": 1.0}, {}).gain([Metric("loss", False)])
        1.0
        """
        gain = 0.0
        for measure in filter(self.measures, measures):
            own, other = (metrics.get(measure.name) for metrics in (self.own, self.common))
            if other is None:
                gain += 1.0
            elif own is None:
                gain -= 1.0
            else:
                relative = (own - other) / (abs(own) + abs(other) or 1.0)
                gain += relative if measure.higher_is_better else -relative
        return gain

    def shows(self, measure: Metric, examples: float) -> bool:
        """Whether this client's few examples alone show that its own model is better.

        Only by a metric that is a share, such as accuracy: then the examples give the standard
        error of the difference. Its p-value, Student's t, is below `ERROR`.

        >>> ballot = Ballot("0", {"accuracy": 0.9}, {"accuracy": 0.5})
        >>> ballot.shows(Metric(), 36), ballot.shows(Metric(), 9)
        (True, False)
        """
        from scipy.special import stdtr

        own, other = (metrics.get(measure.name, math.nan) for metrics in (self.own, self.common))
        if not (measure.higher_is_better and 0 <= other < own <= 1 <= examples < math.inf):
            return False
        error = math.sqrt((own + other) * (2 - own - other) / 2 / examples)
        return float(stdtr(examples, (other - own) / error)) < ERROR


class Vote(NamedTuple):
    """The voices of some clients: the gain of each by its own model."""

    gains: tuple[float, ...]

    @property
    def better(self) -> int:
        """Number of clients with a gain."""
        return sum(gain > 0 for gain in self.gains)

    @property
    def worse(self) -> int:
        """Number of clients with a loss."""
        return sum(gain < 0 for gain in self.gains)

    @property
    def figures(self) -> dict[str, float]:
        """The numbers of clients and both p-values."""
        counts = {"better": self.better, "worse": self.worse, "voters": len(self.gains)}
        return counts | {"gain_chance": self.chance, "loss_chance": self.opposite.chance}

    @property
    def opposite(self) -> "Vote":
        """The same clients' gains by the other model."""
        return Vote(tuple(-gain for gain in self.gains))

    @property
    def chance(self) -> float:
        """One-sided p-value of a gain: the smaller one of the sign test and the signed-rank test.

        A client without a gain or loss has no voice.

        >>> Vote((0.1, 0.2, 0.3, 0.4, 0.5, 0.6)).chance, Vote((0.0,)).chance
        (0.015625, 1.0)
        """
        voices = np.array([gain for gain in self.gains if gain])
        size, more = len(voices), self.better
        if not more:
            return 1.0
        sign = sum(math.comb(size, i) for i in range(more, size + 1)) / 2**size
        return float(min(sign, signed_rank_test(voices)))

    @property
    def significant(self) -> bool:
        """Whether the clients gain: by `SIGNIFICANT`, and two to six if they all agree."""
        voices = self.better + self.worse
        return voices > 1 and self.chance <= max(SIGNIFICANT, 0.5**voices)

    @property
    def likely(self) -> bool:
        """Whether a gain is likely (`LIKELY`); of one or two members all must gain."""
        return self.better > 0 and self.chance <= max(LIKELY, 0.5 ** len(self.gains))


def signed_rank_test(gains: Vector) -> float:
    """The p-value of Wilcoxon's signed-rank test for gains above 0: exact, also with ties.

    SciPy's is exact without ties, and else takes half a second for ten clients.
    """
    from scipy.stats import rankdata, wilcoxon

    if len(gains) > EXACT:
        return float(wilcoxon(gains, alternative="greater").pvalue)
    ranks = np.rint(2 * rankdata(np.abs(gains))).astype(int)  # twice a rank is a whole number
    ways = np.zeros(ranks.sum() + 1)  # of signs, by the sum of the positive ranks
    ways[0] = 1
    for rank in ranks:
        ways[rank:] += ways[:-rank].copy()
    return float(ways[ranks[gains > 0].sum() :].sum() / 2 ** len(gains))


class Verdict(NamedTuple):
    """The answer to a question."""

    vote: Vote
    parts: Mapping[str, Vote]
    """The vote of each leaf."""
    reason: str
    """One sentence with the figures."""
    figures: Mapping[str, float] = {}

    @property
    def measured(self) -> bool:
        """Whether any client compared both models."""
        return bool(self.figures)

    @property
    def may_be_better(self) -> bool:
        """Whether a gain of all clients, or of one part of them, is likely."""
        return any(v.likely for v in (self.vote, *self.parts.values()))

    @property
    def may_be_worse(self) -> bool:
        """Whether the clients are likely served better by the candidate."""
        return self.vote.opposite.likely

    @property
    def losers(self) -> set[str]:
        """The parts that are likely served better by the candidate."""
        return {part for part, vote in self.parts.items() if vote.opposite.likely}


def verdict_of(ballots: Iterable[Ballot], metric: Metric) -> Verdict:
    """Count the votes by the leading metric and a proper score, if there is one.

    Where accuracy leads and most clients report the Brier score, that takes the place of both:
    accuracy on a few examples moves in steps. A client that measured neither model by the leading
    metric has no voice.
    """
    ballots, measures = compared(ballots, metric)
    lead, parts = measures[0], defaultdict[str, list[Ballot]](list)
    for ballot in ballots:
        parts[ballot.part].append(ballot)
    by = deciding(measures)
    votes = {part: vote_of(some, by) for part, some in parts.items()}
    vote = vote_of(ballots, by)
    if not ballots:
        return Verdict(vote, votes, f"no client evaluated both models by {lead.name}")
    figures, score = figures_of(ballots, measures), by[0]
    clients = f"{vote.better} of {counted(len(ballots), 'client')} better off, {vote.worse} worse"
    if f"{score.name}_own" in figures:
        own, other = (score.in_words(figures[f"{score.name}_{m}"]) for m in ("own", "common"))
        models = f"{score.title} {own} with separate models, {other} with a common one"
    else:
        models = f"one of the models has no plausible {score.title}"
    return Verdict(vote, votes, f"{clients} ({models})", figures | vote.figures)


def compared(ballots: Iterable[Ballot], metric: Metric) -> tuple[list[Ballot], list[Metric]]:
    """The ballots that count, and the measures, the one that leads first."""
    ballots = list(ballots)
    measures = measures_in(({**ballot.own, **ballot.common} for ballot in ballots), metric)
    if not any(ballot.measures(measures[0]) for ballot in ballots):
        measures = measures[1:] or measures
    return [ballot for ballot in ballots if ballot.measures(measures[0])], measures


def deciding(measures: Sequence[Metric]) -> Sequence[Metric]:
    """The measures that a client's gain by a split or a join is the sum of."""
    words = words_in(measures[0].name)
    by_accuracy = words & ACCURACY[0] and words.isdisjoint({"balanced", "top"})
    return [BRIER] if by_accuracy and BRIER in measures else measures


def vote_of(ballots: Iterable[Ballot], measures: Sequence[Metric]) -> Vote:
    """The gains of these clients."""
    return Vote(tuple(ballot.gain(measures) for ballot in ballots))


def figures_of(ballots: Sequence[Ballot], measures: Iterable[Metric]) -> dict[str, float]:
    """The mean of each measure under both models, over the clients that measured both by it."""
    figures = {}
    for name in (measure.name for measure in measures):
        both = [ballot for ballot in ballots if name in ballot.own and name in ballot.common]
        if both:
            figures[f"{name}_own"] = fmean(ballot.own[name] for ballot in both)
            figures[f"{name}_common"] = fmean(ballot.common[name] for ballot in both)
    return figures


def measures_in(reported: Iterable[Mapping[str, float]], metric: Metric) -> list[Metric]:
    """The leading metric, and a proper score if most clients measure one: Brier's, else a loss.

    A proper score does not reward a model for more confidence than it deserves. No client can
    invent a metric for all.
    """
    every = list(reported)
    counts = without(Counter(chain.from_iterable(every)), [metric.name])
    usual = (name for name in sorted(counts) if 2 * counts[name] > len(every))
    scores = [name for name in usual if "loss" in words_in(name) or name == BRIER.name]
    scores.sort(key=lambda name: name != BRIER.name)
    return [metric, *(Metric(name, higher_is_better=False) for name in scores[:1])]
