"""The clients' vote on a question: are they served better by the model that they have?

Not in the paper. Each client evaluates two models on the same held-out examples and has one voice,
whatever it claims. Two rank tests count the voices, and the smaller p-value decides: Wilcoxon's
signed-rank test notices that a few lose little where others gain much, and the sign test withstands
clients that invent large losses. Nothing here is random.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, starmap
from statistics import fmean
from typing import NamedTuple

import numpy as np

from cflower.algorithm.change import Answer
from cflower.algorithm.constants import ERROR, LIKELY, LONG, SIGNIFICANT
from cflower.algorithm.state import Reply
from cflower.algorithm.weights import Vector
from cflower.metric import ACCURACY, SOFT_ACCURACY, Metric, words_in
from cflower.ordering import counted, without
from cflower.robust.robust_mean import limited

EXACT = 50
"""Clients up to which the signed-rank test counts all signs; of more the sum is nearly normal."""


class Ballot(NamedTuple):
    """Two models on the held-out examples of one client."""

    part: str
    """Name of the client's leaf."""
    own: Mapping[str, float]
    """Each metric under the model that the client has."""
    candidate: Mapping[str, float]
    """Each metric under the candidate."""
    num_examples: float
    """Held-out examples that the client claims, the same for both."""

    @classmethod
    def of(cls, own: Reply, candidate: Reply) -> "Ballot":
        """The ballot of a client's two replies."""
        return cls(own.ask.cluster, own.metrics, candidate.metrics, own.num_examples)

    def measures(self, measure: Metric) -> bool:
        """Whether the client measured both models by a metric."""
        return measure.name in self.own and measure.name in self.candidate

    def gain(self, measures: Sequence[Metric]) -> float:
        """How much better the client's own model is: the sum of its relative gains.

        (L_c − L_o) / (|L_c| + |L_o|) of a loss L, so from -1 to 1 for each measure; a measure that
        is missing in one of the two does not count.

        >>> Ballot("0", {"loss": 1.0}, {"loss": 3.0}, 9).gain([Metric("loss", False)])
        0.5
        """
        gain = 0.0
        for measure in filter(self.measures, measures):
            own, other = self.own[measure.name], self.candidate[measure.name]
            relative = (own - other) / (abs(own) + abs(other) or 1.0)
            gain += relative if measure.higher_is_better else -relative
        return gain

    def halves(self, loss: Metric) -> bool:
        """Whether the client's own model has less than 1 / `LONG` of the other one's loss.

        >>> Ballot("0", {"loss": 1.0}, {"loss": 3.0}, 9).halves(Metric("loss", False))
        True
        """
        return self.measures(loss) and LONG * self.own[loss.name] < self.candidate[loss.name]

    def shows(self, measure: Metric, level: float) -> bool:
        """Whether these few examples alone show that the own model serves the client better.

        Only by a metric that is a share, such as accuracy: then the examples give the standard
        error of the difference. Its p-value, Student's t, must be below this level.

        >>> Ballot("0.0", {"accuracy": 0.9}, {"accuracy": 0.5}, 40).shows(Metric(), 0.01)
        True
        """
        own, other = (metrics.get(measure.name, math.nan) for metrics in (self.own, self.candidate))
        if not (measure.higher_is_better and 0 <= other < own <= 1 <= self.num_examples):
            return False
        error = math.sqrt((own + other) * (2 - own - other) / 2 / self.num_examples)
        from scipy.special import stdtr

        return float(stdtr(float(int(self.num_examples)), (other - own) / error)) < level


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
        """Whether a gain is likely; members of a small part must agree, one alone with itself."""
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
    shown: frozenset[str] = frozenset()
    """The parts whose members' examples together show a gain."""

    @property
    def sure(self) -> set[str]:
        """The small ones: two clients cannot win a vote of ten, but may need their own model."""
        return {part for part in self.shown if 0.5 ** len(self.parts[part].gains) > SIGNIFICANT}

    @property
    def measured(self) -> bool:
        """Whether any client compared both models."""
        return bool(self.figures)

    @property
    def better(self) -> bool | None:
        """Whether the clients' own models are better; None if the vote shows neither."""
        if self.vote.significant or self.sure:
            return True
        return False if self.vote.opposite.significant else None

    @property
    def may_be_better(self) -> bool:
        """Whether a gain of all clients, or of one part of them, is likely."""
        return bool(self.sure) or any(v.likely for v in (self.vote, *self.parts.values()))

    @property
    def may_be_worse(self) -> bool:
        """Whether the clients are likely served better by the candidate."""
        return self.vote.opposite.likely

    @property
    def losers(self) -> set[str]:
        """The parts that are likely served better by the candidate."""
        return {part for part, vote in self.parts.items() if vote.opposite.likely}


def verdict_of(answer: Answer) -> Verdict:
    """Count the votes by the leading metric and the loss; by the loss alone if nobody has another.

    Where accuracy leads and most clients report `SOFT_ACCURACY`, that takes the place of both. A
    client that did not measure the leading metric under both models has no voice.
    """
    ballots, measures = compared(answer)
    lead, parts = measures[0], defaultdict[str, list[Ballot]](list)
    for ballot in ballots:
        parts[ballot.part].append(ballot)
    by = deciding([ballot.own for ballot in ballots], measures)
    votes = {part: vote_of(some, by) for part, some in parts.items()}
    vote = vote_of(ballots, by)
    if not ballots:
        return Verdict(vote, votes, f"no client evaluated both models by {lead.name}")
    shown = frozenset(part for part, some in parts.items() if show_gain(some, *measures))
    figures = figures_of(ballots, dict.fromkeys([*measures, *by])) | vote.figures
    own, other = (by[0].in_words(figures[f"{by[0].name}_{model}"]) for model in ("own", "common"))
    clients = f"{vote.better} of {counted(len(ballots), 'client')} better off, {vote.worse} worse"
    models = f"{by[0].title} {own} with separate models, {other} with a common one"
    return Verdict(vote, votes, f"{clients} ({models})", figures, shown)


def compared(answer: Answer) -> tuple[list[Ballot], list[Metric]]:
    """The ballots that count, and the measures, the one that leads first."""
    ballots = [*starmap(Ballot.of, answer.pairs)]
    measures = measures_in((ballot.own for ballot in ballots), answer.metric)
    if not any(ballot.measures(measures[0]) for ballot in ballots):
        measures = measures[1:] or measures
    return [ballot for ballot in ballots if ballot.measures(measures[0])], measures


def deciding(
    reported: Sequence[Mapping[str, float]], measures: Sequence[Metric]
) -> Sequence[Metric]:
    """The measures that a client's gain is the sum of, by what the clients report of one model."""
    words = words_in(measures[0].name)
    by_accuracy = words & ACCURACY[0] and words.isdisjoint({"balanced", "top"})
    soft = 2 * sum(SOFT_ACCURACY.name in metrics for metrics in reported) > len(reported)
    return [SOFT_ACCURACY] if by_accuracy and soft else measures


def vote_of(ballots: Iterable[Ballot], measures: Sequence[Metric]) -> Vote:
    """The gains of these clients."""
    return Vote(tuple(ballot.gain(measures) for ballot in ballots))


def show_gain(part: Sequence[Ballot], lead: Metric, *losses: Metric) -> bool:
    """Whether most of these clients gain, and their losses or all their examples show it.

    Few examples do not show by the accuracy that a client's data changed, but its loss is many
    times as high with a model for others. Under models that serve it alike, losses differ less.
    """
    if 2 * vote_of(part, [lead]).better <= len(part):
        return False
    if any(2 * sum(ballot.halves(loss) for ballot in part) > len(part) for loss in losses):
        return True
    sizes = limited(ballot.num_examples for ballot in part)
    values = np.array([(ballot.own[lead.name], ballot.candidate[lead.name]) for ballot in part])
    own, candidate = ({lead.name: float(np.average(v, weights=sizes))} for v in values.T)
    return Ballot(part[0].part, own, candidate, float(sizes.sum())).shows(lead, ERROR)


def figures_of(ballots: Iterable[Ballot], measures: Iterable[Metric]) -> dict[str, float]:
    """The mean of each measure under both models."""
    figures = {}
    for measure in measures:
        name, both = measure.name, [ballot for ballot in ballots if ballot.measures(measure)]
        if both:
            figures[f"{name}_own"] = fmean(ballot.own[name] for ballot in both)
            figures[f"{name}_common"] = fmean(ballot.candidate[name] for ballot in both)
    return figures


def measures_in(reported: Iterable[Mapping[str, float]], metric: Metric) -> list[Metric]:
    """The leading metric, and the loss if most clients measure one.

    Accuracy on a few examples moves in steps; the loss shows the change between them. No client can
    invent a metric for all.
    """
    every = list(reported)
    counts = without(Counter(chain.from_iterable(every)), [metric.name])
    usual = (name for name in sorted(counts) if 2 * counts[name] > len(every))
    losses = [name for name in usual if "loss" in words_in(name)]
    return [metric, *(Metric(name, higher_is_better=False) for name in losses[:1])]
