"""The paired test: do separate models serve the clients better than a common one?

It judges every proposal, and the baselines of a run. Each client evaluates both models on the same
held-out examples; nothing here is random.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from cflower.algorithm.constants import ENOUGH_EXAMPLES, LIKELY, MOST, SIGNIFICANT
from cflower.algorithm.robust_mean import limited


class Measure(NamedTuple):
    """A metric by which models are compared."""

    name: str = "accuracy"
    higher_is_better: bool = True
    percent: bool = False
    """Whether it is a share, which is shown in per cent."""

    def show(self, value: float) -> str:
        """A value as text.

        >>> Measure("accuracy", percent=True).show(0.975), Measure("loss", False).show(0.12345)
        ('97.5%', '0.1235')
        """
        return f"{value:.1%}" if self.percent else f"{value:.4g}"


class Comparison(NamedTuple):
    """Both models on the held-out examples of one client."""

    child: str
    """Name of the client's leaf."""
    own: Mapping[str, float]
    """Each metric under the leaf's model."""
    common: Mapping[str, float]
    """Each metric under the common model."""
    num_examples: float
    """Held-out examples that the client claims, the same for both."""

    def shows(self, measure: Measure, level: float) -> bool:
        """Whether these few examples alone show that the own model serves the client better.

        Only by a metric that is a share, such as accuracy: then the examples give the standard
        error of the difference. Its p-value must be below this level.

        >>> Comparison("0.0", {"accuracy": 0.9}, {"accuracy": 0.5}, 40).shows(Measure(), 0.01)
        True
        """
        own, common = (metrics.get(measure.name, math.nan) for metrics in (self.own, self.common))
        if not (measure.higher_is_better and 0 <= common < own <= 1):
            return False
        error = math.sqrt((own + common) * (2 - own - common) / 2 / self.num_examples)
        return p_value(own - common, error, int(self.num_examples)) < level


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

    @property
    def figures(self) -> dict[str, float]:
        """The numbers, each under the metric's name and its own."""
        numbers = self._asdict()
        del numbers["measure"]
        return {f"{self.measure.name}_{k}": float(v) for k, v in numbers.items() if v is not None}

    def __str__(self) -> str:
        own, common = self.measure.show(self.own), self.measure.show(self.common)
        return f"{self.measure.name} {own} with separate models, {common} with a common one"


class Verdict(NamedTuple):
    """The clients' judgement of a proposal."""

    better: bool | None
    """Whether separate models are better; None if the tests show neither that nor the opposite."""
    reason: str
    """One sentence."""
    tests: tuple[PairedTest, ...] = ()

    @property
    def figures(self) -> dict[str, float]:
        """The numbers of all tests."""
        return {key: value for test in self.tests for key, value in test.figures.items()}


def paired(compared: Sequence[Comparison], measure: Measure) -> PairedTest | None:
    """The paired test by one metric; None if no client has measured it under both models.

    Each client's gain is weighted by its held-out examples, `limited` to a few usual claims. The
    variance of one example is estimated within the children, σ² = Σ n_i (g_i − ḡ_c)² / (m − k) for
    m clients and k children, so that the difference between two groups' gains does not count as
    noise. The mean gain over its standard error √(σ² / Σ n_i) has Student's t distribution with
    m − k degrees of freedom.
    """
    known = [c for c in compared if measure.name in c.own and measure.name in c.common]
    if not known:
        return None
    sizes = limited(c.num_examples for c in known)
    values = np.array([(c.own[measure.name], c.common[measure.name]) for c in known], float)
    own, common = np.average(values, axis=0, weights=sizes)
    gains = values[:, 0] - values[:, 1]
    if not measure.higher_is_better:
        gains = -gains
    gain = float(np.average(gains, weights=sizes))
    residuals, children = gains.copy(), np.array([c.child for c in known])
    for child in set(children):
        here = children == child
        residuals[here] -= np.average(gains[here], weights=sizes[here])
    freedom = len(known) - len(set(children))
    error = float(np.sqrt(sizes @ residuals**2 / max(freedom, 1) / sizes.sum()))
    enough = sizes.sum() >= ENOUGH_EXAMPLES and freedom > 0
    chance = p_value(gain, error, freedom) if enough else None
    counts = int((gains > 0).sum()), int((gains < 0).sum()), len(known), float(sizes.sum())
    return PairedTest(measure, float(own), float(common), gain, error, chance, *counts)


def p_value(gain: float, error: float, freedom: int) -> float:
    """One-sided p-value of a mean gain, Student's t.

    >>> p_value(0.0, 1.0, 5), p_value(0.1, 0.0, 5)
    (0.5, 0.0)
    """
    if error == 0:
        return (1 - float(np.sign(gain))) / 2
    from scipy.special import stdtr  # a client's process, which never gets here, starts faster

    return float(stdtr(freedom, -gain / error))


def judge(compared: Sequence[Comparison], measures: Sequence[Measure]) -> Verdict:
    """Whether separate models serve the clients better than a common one.

    The mean of the first metric must gain: a lower loss alone serves nobody. Besides, one of three
    must hold. The gain by the first metric is significant: models that learn from fewer examples
    may be right more often and too sure where they are not. Or a gain by another metric is
    significant, and no loss is. Or a gain by one metric is likely, and no loss is: the criterion
    found the groups before, and small groups need longer than a trial to learn. With too few
    examples, or no child with two clients that replied, the better mean of the first metric
    decides. Without any evaluation the separate models stay.

    Children with few clients that are served worse are left out (`without_adversaries`). The
    leading metric comes first.
    """
    compared = without_adversaries(compared, measures)
    tests = tuple(test for measure in measures if (test := paired(compared, measure)))
    if not tests:
        names = " or ".join(measure.name for measure in measures)
        return Verdict(True, f"no client evaluated both models by {names}, so the split stands")
    if all(test.chance is None for test in tests):
        number = f"{tests[0].num_examples:.0f} held-out examples are too few for a test"
        return Verdict(tests[0].gain > 0, f"{number}, so the mean decides: {tests[0]}", tests)
    return weighed(tests)


def weighed(tests: tuple[PairedTest, ...]) -> Verdict:
    """The verdict of the tests of all metrics, the leading one first."""
    chances = {test: test.chance for test in tests if test.chance is not None}
    worse = [test for test, chance in chances.items() if chance > 1 - SIGNIFICANT]
    better = [test for test, chance in chances.items() if chance < SIGNIFICANT]
    if tests[0].gain > 0:
        if better and (not worse or better[0] is tests[0]):
            return Verdict(True, f"the clients are served better: {better[0]}", tests)
        least, most = min(chances.values()), max(chances.values())
        if least < LIKELY <= 1 - most:
            return Verdict(True, f"the clients are probably served better: {tests[0]}", tests)
    if worse:
        return Verdict(False, f"the clients are served worse: {worse[0]}", tests)
    return Verdict(None, f"no significant gain: {tests[0]}", tests)


def without_adversaries(
    compared: Sequence[Comparison], measures: Sequence[Measure]
) -> list[Comparison]:
    """The comparisons without those of small children that the split serves worse.

    A client that spoils a model loses by a model of its own, and could have every split from it
    undone. So children with a mean loss, the worst first, are left out as long as they have at most
    1 / `MOST` of the clients together. The others' gain must suffice without them.
    """
    left, losses = list(compared), dict[str, float]()
    for child in sorted({one.child for one in compared}):
        own = [one for one in compared if one.child == child]
        tests = filter(None, (paired(own, measure) for measure in measures))
        losses[child] = max((-test.gain / (abs(test.common) or 1.0) for test in tests), default=0.0)
    for child in sorted(losses, key=losses.__getitem__, reverse=True):
        others = [one for one in left if one.child != child]
        if losses[child] > 0 and MOST * len(others) >= (MOST - 1) * len(compared):
            left = others
    return left
