"""The value of a clustered run: the same clients served by it and by a baseline, compared."""

from collections.abc import Iterable, Mapping
from statistics import fmean, mean, pstdev
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cflower.algorithm.constants import ENOUGH_EXAMPLES
from cflower.metric import Metric
from cflower.ordering import counted
from cflower.robust.robust_mean import limited
from cflower.runs.records import BaselineLine, ClientLine, Fairness
from cflower.strategy.reports import FinalReport

BASELINES: dict[str, str] = {
    "federated": "conventional FL for all rounds",
    "isolated": "each client alone for all rounds",
    "tuned": "conventional FL, then each client alone",
    "clustered": "clusters without personal models",
    "fedprox": "FedProx for all rounds",
    "fedper": "FedPer: a last layer for each client",
    "fedrep": "FedRep: a last layer for each client, trained by itself",
    "fedbn": "FedBN: normalisation layers for each client",
    "ditto": "Ditto: a model for each client, pulled to the common one",
}
"""The baselines of a run in words."""
OWN_METHODS = ("federated", "isolated")
"""Those that are a `method` of cflower's own app; `cflower try` has all."""
LEVEL = 0.025
"""Probability, in each direction, that chance alone gives a verdict."""


class Paired(NamedTuple):
    """Two ways to serve the same clients, each evaluated on the same held-out examples."""

    metric: Metric
    difference: float
    """The first mean less the second; negative is better for metrics such as a loss."""
    margin: float | None
    """Half the width of Student's 95 % interval; None for too few examples or clients."""
    better: int
    """Number of clients that the first way serves better."""
    worse: int
    held_out: float
    """Examples of all clients, each `limited` to a few usual claims."""

    @property
    def verdict(self) -> str:
        """``"worth it"``, ``"not worth it"``, ``"equal"`` if no client has another value, or
        ``"may be chance"`` if chance explains the difference.
        """
        if not (self.better or self.worse):
            return "equal"
        if self.margin is None or abs(self.difference) <= self.margin:
            return "may be chance"
        gained = (self.difference > 0) == self.metric.higher_is_better
        return "worth it" if gained else "not worth it"

    @property
    def interval(self) -> tuple[float, float] | None:
        """Student's 95 % interval of the difference."""
        if self.margin is None:
            return None
        return self.difference - self.margin, self.difference + self.margin

    def as_json(self) -> dict[str, Any]:
        """The comparison in ``summary.json`` and ``cflower compare --json``."""
        keys = ("held_out", "better", "worse", "difference", "interval", "verdict")
        return {key: getattr(self, key) for key in keys}

    @property
    def sentence(self) -> str:
        """The difference, its interval, the numbers of clients, and the verdict.

        >>> client = ClientLine(cluster="0", held_out=5, loss=0.5)
        >>> clients = {f"client-{i}": client for i in range(9)}
        >>> print(against(clients, dict.fromkeys(clients, 0.25), Metric("loss", False)).sentence)
        +0.25 (95% interval +0.25 to +0.25), 0 clients better, 9 worse: not worth it
        """
        difference = difference_in_words(self.difference, self.metric, "+")
        chance = "too few examples to test"
        if self.interval:
            ends = [difference_in_words(end, self.metric, "+", "") for end in self.interval]
            chance = f"95% interval {' to '.join(ends)}"
        better = counted(self.better, "client")
        return f"{difference} ({chance}), {better} better, {self.worse} worse: {self.verdict}"


def against(
    clients: Mapping[str, ClientLine], other: Mapping[str, float | None], metric: Metric
) -> Paired | None:
    """Compare clients with their values under a baseline or in a second run.

    None if no client has both values. Clients without held-out examples do not count.
    """
    pairs = []
    for name, client in clients.items():
        own, common, size = client.figures.get(metric.name), other.get(name), client.held_out
        if own is not None and common is not None and size:
            pairs.append((own - common, size))
    if not pairs:
        return None
    differences, sizes = np.array([pair[0] for pair in pairs]), limited(pair[1] for pair in pairs)
    above, below = int((differences > 0).sum()), int((differences < 0).sum())
    return Paired(
        metric,
        float(np.average(differences, weights=sizes)),
        margin_of(differences, sizes),
        *((above, below) if metric.higher_is_better else (below, above)),
        float(sizes.sum()),
    )


def margin_of(differences: NDArray[np.floating], sizes: NDArray[np.floating]) -> float | None:
    """Half the width of Student's 95 % interval of a mean, weighted by ``sizes``, shape (m,).

    The variance of one example is σ² = Σ n_i (d_i − d̄)² / (m − 1) for m clients, and the standard
    error of the mean √(σ² / Σ n_i).
    """
    freedom, total = len(sizes) - 1, sizes.sum()
    if total < ENOUGH_EXAMPLES or not freedom:
        return None
    from scipy.special import stdtrit  # slow to import, and needed at the end only

    squares = sizes @ (differences - np.average(differences, weights=sizes)) ** 2
    return float(stdtrit(freedom, 1 - LEVEL) * np.sqrt(squares / freedom / total))


def fairness(measured: Iterable[float | None], metric: Metric) -> Fairness | None:
    """How evenly clients are served: the mean of the worst tenth of them, and the spread.

    Every client counts once. At least one client is the worst tenth; the spread is the standard
    deviation between clients (as Li et al., arXiv 1905.10497). None if no client has the metric.

    >>> fairness([0.9, 0.5, None, 0.7], Metric())
    Fairness(worst_tenth=0.5, spread=0.16329931618554522)
    """
    values = [value for value in measured if value is not None]
    values.sort(reverse=not metric.higher_is_better)
    worst = values[: max(1, round(len(values) / 10))]
    return Fairness(worst_tenth=mean(worst), spread=pstdev(values)) if values else None


def fairness_in_words(line: Fairness | BaselineLine | None, metric: Metric) -> str:
    """The `fairness` of one way to serve the clients; empty without its figures."""
    if line is None or line.worst_tenth is None:
        return ""
    spread = difference_in_words(line.spread, metric)
    return f"worst tenth {metric.in_words(line.worst_tenth)}, spread {spread}"


def difference_in_words(
    value: float | None, metric: Metric, sign: str = "", unit: str = " points"
) -> str:
    """A difference of two values of a metric, in points if these are shares; a dash for None."""
    if value is None:
        return "-"
    return f"{100 * value:{sign}.1f}{unit}" if metric.share else f"{value:{sign}.3g}"


def baseline_line(
    report: FinalReport,
    clients: Mapping[str, ClientLine],
    metric: Metric,
    num_bytes: int | None = None,
) -> BaselineLine:
    """A baseline in ``summary.json``, with what the run's ``clients`` get in comparison."""
    trainings = report.failures.trainings.values()
    name, rounds = metric.name, range(1, report.num_rounds + 1)
    scalars = {client: result.leaf.scalars for client, result in report.clients.items()}
    values = {client: one[name] for client, one in scalars.items() if name in one}
    even, comparison = fairness(values.values(), metric), against(clients, values, metric)
    line = {
        name: report.metrics.get(f"leaf_{name}"),
        "rounds": report.num_rounds,
        "trainings": fmean(trainings) if trainings else None,
        "bytes": num_bytes,
        "by_round": [report.by_round.get(r, {}).get(name) for r in rounds],
        "clients": values,
    }
    more = (even.model_dump() if even else {}) | (comparison.as_json() if comparison else {})
    return BaselineLine.model_validate(line | more)
