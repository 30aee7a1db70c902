"""A split is a hypothesis: it is on trial, then confirmed or taken back.

Not in the paper. For some rounds after a split the common model of the cluster goes on learning
from all its clients beside the children's models. Then every client judges both on its held-out
examples, and a paired test over the clients decides. Nothing here is random.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

import numpy as np

CHANCE = 0.025
"""Probability, for each metric, that chance alone makes a gain that is sure."""
LIKELY = 0.25
"""The same of a gain that is only likely: enough for a split that the criterion was sure of."""
ENOUGH = 30
"""Held-out examples, of all clients together, below which the test is not asked."""
FEW = 1 / 3
"""Share of the clients up to which those of one child may be such as spoil the model of all."""
LOOKS = 3
"""How often the clients judge at most, as long as neither gain nor loss is likely enough."""
WAIT = 4
"""A cluster whose split was taken back waits so many times as long as the trial took."""


class Standing(StrEnum):
    """What became of a trial."""

    OPEN = "open"
    CONFIRMED = "confirmed"
    UNDONE = "undone"


class Trial(NamedTuple):
    """The trial of one split."""

    began: int
    """The round of the split; where its leaves were joined later, that of their joining."""
    until: int
    """The round at whose end the clients judge."""
    parts: tuple[tuple[str, ...], ...]
    """The members of each child as the split made them."""
    standing: Standing = Standing.OPEN
    reason: str = ""
    """One sentence, once it is judged."""


class Measure(NamedTuple):
    """A metric that models are compared by."""

    name: str = "accuracy"
    higher_is_better: bool = True


class Comparison(NamedTuple):
    """Both models on the held-out examples of one client."""

    child: str
    """The cluster it is in."""
    own: Mapping[str, float]
    """Each metric under that cluster's model."""
    common: Mapping[str, float]
    """The same under the common model."""
    num_examples: float
    """Held-out examples, the same for both."""


class PairedTest(NamedTuple):
    """The paired test by one metric."""

    measure: Measure
    own: float
    """Mean over the clients, weighted by held-out examples, under the children's models."""
    common: float
    gain: float
    """How much better the children's models are."""
    error: float
    """Standard error of the gain."""
    chance: float | None
    """Probability that chance alone makes as large a gain; None: too few to say."""
    better: int
    """Clients that the children's models serve better."""
    worse: int
    num_clients: int
    num_examples: float

    @property
    def figures(self) -> dict[str, float]:
        """Its numbers, each under the metric's name and its own."""
        numbers = {**self._asdict(), "measure": None}
        return {f"{self.measure.name}_{k}": float(v) for k, v in numbers.items() if v is not None}

    def __str__(self) -> str:
        chance = "too few for a test"
        if self.chance is not None:
            number = f"{self.chance:.2g}" if self.chance >= 1e-4 else "below 0.0001"
            chance = f"probability by chance alone {number}"
        return (
            f"{self.measure.name} {self.own:.4g} with the children's models and {self.common:.4g} "
            f"with the common one ({self.better} of {self.num_clients} clients better, "
            f"{self.worse} worse; {chance})"
        )


class Finding(NamedTuple):
    """What the clients' judgement comes to."""

    confirmed: bool | None
    """None: neither a gain nor a loss that chance does not make."""
    reason: str
    """One sentence with the figures behind it."""
    figures: Mapping[str, float]


def paired(compared: Sequence[Comparison], measure: Measure) -> PairedTest | None:
    """The paired test of the children's models against the common one; None if nobody can say.

    Each client's gain is weighted by its held-out examples. How far chance carries the mean gain
    is told by how the gains scatter within the children: σ² = Σ n_i (g_i − ḡ_c)² / (m − k) for one
    example, m clients and k children; so what one group gains more than another is no scatter.
    The mean over its standard error √(σ² / Σ n_i) is Student's t with m − k degrees of freedom.

    Parameters
    ----------
    compared : sequence of Comparison
        At most one a client; those without the metric do not count.
    measure : Measure
    """
    name, sign = measure.name, 1.0 if measure.higher_is_better else -1.0
    known = [one for one in compared if name in one.own and name in one.common]
    if not known:
        return None
    sizes = np.array([one.num_examples for one in known])
    values = np.array([(one.own[name], one.common[name]) for one in known])
    gains = sign * (values[:, 0] - values[:, 1])
    rest, children = gains.copy(), np.array([one.child for one in known])
    for child in set(children):
        here = children == child
        rest[here] -= np.average(gains[here], weights=sizes[here])
    own, common = np.average(values, axis=0, weights=sizes)
    gain, freedom = float(np.average(gains, weights=sizes)), len(known) - len(set(children))
    error = float(np.sqrt(sizes @ rest**2 / max(freedom, 1) / sizes.sum()))
    chance: float | None = None
    if sizes.sum() >= ENOUGH and freedom > 0:
        from scipy.special import stdtr  # no client's process needs it

        chance = float(stdtr(freedom, -gain / error)) if error else (1 - np.sign(gain)) / 2
    better, worse = int((gains > 0).sum()), int((gains < 0).sum())
    found = gain, error, chance, better, worse, len(known), float(sizes.sum())
    return PairedTest(measure, float(own), float(common), *found)


def judge(compared: Sequence[Comparison], measures: Sequence[Measure]) -> Finding:
    """Whether the children's models serve the clients better than the common one.

    A split is confirmed if by one of the metrics chance alone makes such a gain with a probability
    below `CHANCE` only, and by none of them such a loss. It also stands if the gain is only likely
    (`LIKELY`) by one of them and a loss by none: the criterion found the groups before, and what
    they learn alone may take longer than the trial. With neither, nor a loss, they are asked again,
    see `judged`. Where there are fewer than `ENOUGH` held-out examples, or no child has two clients
    that answered, the better mean of the first metric decides, and the sentence says so. Where
    nobody can say anything, the split stands.

    Children with few clients that are served worse have no say, see `with_a_say`.

    Parameters
    ----------
    compared : sequence of Comparison
    measures : sequence of Measure
        The leading metric first.
    """
    compared = with_a_say(compared, measures)
    tests = [test for measure in measures if (test := paired(compared, measure))]
    if not tests:
        names = " or ".join(measure.name for measure in measures)
        return Finding(True, f"it stands unjudged: no client told its {names} under both", {})
    figures = {key: value for test in tests for key, value in test.figures.items()}
    told = "; ".join(map(str, tests))
    chances = [test.chance for test in tests if test.chance is not None]
    confirmed: bool | None
    if not chances:
        count = f"{tests[0].num_examples:.0f} held-out examples of {tests[0].num_clients} client(s)"
        confirmed = tests[0].gain > 0
        why = f"{count} say little, so the mean decides: {'better' if confirmed else 'no better'}"
    elif max(chances) > 1 - CHANCE:
        confirmed, why = False, "the clients are served worse"
    elif min(chances) < CHANCE:
        confirmed, why = True, "the clients are served better"
    else:
        likely = min(chances) < LIKELY and max(chances) <= 1 - LIKELY
        confirmed = True if likely else None
        why = "a gain is likely, not sure" if likely else "no gain that chance does not make"
    return Finding(confirmed, f"{why}: {told}", figures)


def with_a_say(compared: Sequence[Comparison], measures: Sequence[Measure]) -> list[Comparison]:
    """The judgements without those of small children that the split serves worse.

    Who spoils a model loses by having one of its own, and could have every split from it taken
    back. So children that lose on the average, with together at most `FEW` of the clients, those
    that lose most before others, do not count; that the others gain must be sure without them.
    """

    def loss(child: str) -> float:
        """How much worse a child is served by the metric that says so loudest, in its own size."""
        own = [one for one in compared if one.child == child]
        tests = [test for measure in measures if (test := paired(own, measure))]
        return max((-test.gain / (abs(test.common) or 1.0) for test in tests), default=0.0)

    left, losses = list(compared), {child: loss(child) for child in {c.child for c in compared}}
    for child in sorted(losses, key=lambda name: (-losses[name], name)):
        others = [one for one in left if one.child != child]
        if losses[child] > 0 and len(others) >= (1 - FEW) * len(compared):
            left = others
    return left


def not_again(
    undone: Iterable[Trial], sides: Iterable[Iterable[str]], server_round: int
) -> str | None:
    """Why a cluster whose split was taken back is not split like this now; None if it may be.

    It waits `WAIT` times as long as the trial took: so trials that fail take up a fifth of the
    rounds at most. The same parts, of the same members, wait until there have been twice as many
    rounds as when they were taken back. Parts that had become one later on keep nobody waiting.

    Parameters
    ----------
    undone : iterable of Trial
        The splits of this cluster that were taken back.
    sides : iterable of iterables of str
        The parts that the criterion wants now.
    server_round : int
    """
    wanted = {frozenset(side) for side in sides}
    for trial in undone:
        if trial.began == trial.until:
            continue
        again = trial.until + WAIT * (trial.until - trial.began)
        if wanted == {frozenset(part) for part in trial.parts}:
            again = max(again, 2 * trial.until)
        if server_round < again:
            return (
                f"a split was taken back in round {trial.until}, and the next one waits until "
                f"round {again}"
            )
    return None
