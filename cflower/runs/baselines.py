"""What a clustered run is worth: the same clients, served by it and by a baseline, compared."""

from collections.abc import Mapping
from itertools import product
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cflower.ordering import in_order
from cflower.strategy.reports import FinalReport, Metric

Baseline = Literal["federated", "isolated"]
BASELINES: dict[Baseline, str] = {
    "federated": "conventional FL for all rounds",
    "isolated": "each client alone for all rounds",
}
"""The baselines of a run, by the `method` that trains them, in words."""
LEVEL, Z = 0.025, 2.2414
"""Error that each of two intervals may have, so that both are right in 95 of 100 cases, and the
normal distribution's two-sided quantile of it."""
MOST_SIGNS = 14
"""Clients of whose differences all combinations of signs are tried."""


class Paired(NamedTuple):
    """Two ways to serve the same clients, each judged on the same held-out examples."""

    metric: Metric
    mean: float
    other: float
    """Both weighted by held-out examples."""
    examples: float | None
    """All held-out examples; None where they are not known."""
    better: int
    worse: int
    """Clients that the first way serves better, and worse."""
    margin: float
    """The true difference is within this of the one found, in 95 of 100 cases."""

    @property
    def difference(self) -> float:
        """How much better the first way is: negative if it is worse."""
        return (self.mean - self.other) * (1 if self.metric.higher_is_better else -1)

    @property
    def verdict(self) -> str:
        """``"worth it"``, ``"no difference"`` (chance explains what there is) or ``"worse"``."""
        if abs(self.difference) <= self.margin:
            return "no difference"
        return "worth it" if self.difference > 0 else "worse"

    @property
    def interval(self) -> tuple[float, float]:
        """Of ``mean - other``."""
        found = self.mean - self.other
        return found - self.margin, found + self.margin

    def as_json(self) -> dict[str, Any]:
        """What ``summary.json`` and ``cflower compare --json`` have of it."""
        counts = {"held_out": self.examples, "better": self.better, "worse": self.worse}
        interval = {"difference": self.mean - self.other, "interval": list(self.interval)}
        return {**counts, **interval, "verdict": self.verdict}

    @property
    def figures(self) -> str:
        """Counts and interval in words.

        >>> print(Paired(Metric("loss", False), 0.5, 0.25, None, 0, 9, 0.125).figures)
        0.5 against 0.25; 0 clients better, 9 worse; +0.25 (95% interval +0.125 to +0.375)
        """
        metric = self.metric
        counts = f"{metric.in_words(self.mean)} against {metric.in_words(self.other)}"
        if metric.share and self.examples:
            right = [f"{mean * self.examples:.0f}" for mean in (self.mean, self.other)]
            counts = f"{' against '.join(right)} of {self.examples:.0f} held-out examples"
        factor, unit, digits = (100, " points", ".1f") if metric.share else (1, "", ".3g")
        found, low, high = (
            f"{factor * value:+{digits}}" for value in (self.mean - self.other, *self.interval)
        )
        return (
            f"{counts}; {self.better} client{'s' * (self.better != 1)} better, {self.worse} worse; "
            f"{found}{unit} (95% interval {low} to {high})"
        )

    @property
    def sentence(self) -> str:
        """Figures and verdict."""
        return f"{self.figures}: {self.verdict}"


def paired(
    metric: Metric,
    ours: Mapping[str, float],
    theirs: Mapping[str, float],
    held_out: Mapping[str, float | None],
) -> Paired | None:
    """Compare two ways to serve the same clients; None if no client has both.

    The interval is the narrower of two, each at 97.5 %: Fisher's sign-flip test over the clients
    (where there was no difference, each client's difference could as well have the other sign),
    and for shares Agresti and Caffo's interval for two proportions over the held-out examples,
    which sees large gains of few clients. The second takes the two ways as independent; they
    are judged on the same examples, so it is rather too wide.

    Parameters
    ----------
    metric : Metric
        The one that leads.
    ours, theirs : mapping of str to float
        Its value for each client.
    held_out : mapping of str to float
        The examples it was measured on; clients count alike if one's are not known.
    """
    names = list(in_order(set(ours) & set(theirs)))
    if not names:
        return None
    a, b = (np.array([float(values[name]) for name in names]) for values in (ours, theirs))
    told = [held_out.get(name) for name in names]
    known = all(told)
    examples = np.array(told if known else [1.0] * len(names), float)
    weights = examples / examples.sum()
    margin = by_signs(weights * (a - b))
    if metric.share and known:
        shares = [(values * examples + 1) / (examples + 2) for values in (a, b)]
        variance = sum(share * (1 - share) / (examples + 2) for share in shares)
        margin = min(margin, Z * float(np.sqrt(weights**2 @ variance)))
    gains = (a - b) * (1 if metric.higher_is_better else -1)
    better, worse = int((gains > 0).sum()), int((gains < 0).sum())
    total = float(examples.sum()) if known else None
    return Paired(metric, float(weights @ a), float(weights @ b), total, better, worse, margin)


def by_signs(parts: NDArray[np.floating]) -> float:
    """The interval's half-width around ``parts.sum()`` by Fisher's sign-flip test.

    All signs of up to `MOST_SIGNS` clients that differ, else the normal distribution.

    >>> by_signs(np.array([0.0, 0.5]))  # one client proves nothing: 0 is within 0.5 of 0.5
    0.500000001
    """
    parts = parts[parts != 0]
    if len(parts) > MOST_SIGNS:
        return Z * float(np.sqrt(parts @ parts))
    signs = np.array([*product((-1, 1), repeat=len(parts))])
    sums = np.abs(signs @ parts)
    return float(np.quantile(sums, 1 - LEVEL, method="higher")) + 1e-9  # for rounding


def baseline_line(report: FinalReport, metric: Metric) -> dict[str, Any]:
    """What ``summary.json`` has of a baseline."""
    clients = {
        name: result.leaf.metrics[metric.name]
        for name, result in report.clients.items()
        if metric.name in result.leaf.metrics
    }
    rounds = range(1, report.num_rounds + 1)
    return {
        metric.name: report.metrics.get(f"leaf_{metric.name}"),
        "rounds": report.num_rounds,
        "by_round": [report.by_round.get(r, {}).get(metric.name) for r in rounds],
        "clients": clients,
    }


def against(summary: Mapping[str, Any], other: Mapping[str, Any], metric: Metric) -> Paired | None:
    """The clients of a run against their values in ``other``, of a baseline or a second run."""
    clients = summary["clients"]
    ours = {name: c[metric.name] for name, c in clients.items() if c.get(metric.name) is not None}
    held_out = {name: clients[name].get("held_out") for name in ours}
    return paired(metric, ours, other, held_out)
