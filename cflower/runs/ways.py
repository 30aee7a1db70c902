"""The ways to serve the clients of a run, side by side: the one table that all readers share."""

from collections.abc import Collection, Iterable, Mapping
from statistics import fmean, mean, pstdev
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from cflower.algorithm.constants import ENOUGH_EXAMPLES
from cflower.algorithm.tree import ROOT
from cflower.messages.metrics import ClientMetrics, mean_over_clients
from cflower.metric import Metric
from cflower.ordering import counted, in_order, only
from cflower.pooled import POOLED
from cflower.robust.robust_mean import limited
from cflower.runs.records import BaselineLine, ClientLine, Fairness, Number, Summary
from cflower.strategy.reports import FinalReport


class Kind(NamedTuple):
    """A kind of model, or a method, in words."""

    words: str
    """In sentences and lists."""
    heading: str
    """Above a column, in at most two lines."""
    needs: str = ""
    """How to get the method, where it is advised."""


KINDS = {
    "isolated": Kind("each client alone", "alone", "no federation is needed"),
    "federated": Kind("conventional FL", "conven-\ntional FL", "with FedAvg"),
    "fedprox": Kind("FedProx", "FedProx", "with method='fedprox'"),
    "scaffold": Kind("SCAFFOLD", "SCAFFOLD", "with method='scaffold'"),
    "fedper": Kind("FedPer", "FedPer", "with method='fedper'"),
    "fedrep": Kind("FedRep", "FedRep", "with method='fedrep'"),
    "fedbn": Kind("FedBN", "FedBN", "with method='fedbn'"),
    "tuned": Kind(
        "conventional FL, then alone",
        "FL, then\nalone",
        "with FedAvg and further training at each client",
    ),
    "ditto": Kind("Ditto", "Ditto", "with method='ditto'"),
    "clustered": Kind("clusters only", "clusters\nonly", "with ClusteredFL(personal=False)"),
    "own": Kind("clusters, then personal", "this\nrun", "with ClusteredFL"),
    "ifca": Kind("IFCA", "IFCA", "with method='ifca' and the number of groups as num-models"),
    "leaf": Kind("cluster's model", "cluster\nmodel"),
    "fl": Kind("common model", "common\nmodel"),
}
"""The ways to serve a client: the methods, the simplest first, and IFCA last, because it must be
given the number of groups; then the models of a run."""
LITERATURE = ("fedprox", "scaffold", "fedper", "fedrep", "fedbn", "ditto", "ifca")
"""The methods that only `cflower try --also` measures."""
BASELINES = ("federated", "isolated", "tuned", "clustered", *LITERATURE)
"""The methods that a run is compared with, in the order in which they are shown."""
MEAN_MODEL = "average of the clusters' models"
OWN_METHODS = BASELINES[:2]
"""Those that are a `method` of cflower's own app; `cflower try` has all."""
LEVEL = 0.025
"""Probability, in each direction, that chance alone gives a verdict."""


class Way(NamedTuple):
    """One way to serve the clients, evaluated on their held-out examples."""

    key: str
    """``own`` (this run), ``fl`` (its common model), ``leaf`` (its clusters'), or a baseline."""
    words: str
    needs: str
    mean: Number | None
    """Mean of the leading metric over all clients."""
    values: Mapping[str, Number]
    """The leading metric of each client, as far as it was measured."""
    trainings: Number | None = None
    """Mean number of trainings of a client."""
    num_bytes: int | None = None
    """Sent by the server and the clients."""


class Ways:
    """The leading metric of a run: a column for each way to serve the clients."""

    def __init__(self, summary: Summary) -> None:
        self.summary, self.metric = summary, summary.leading
        self.clients = only(summary.clients, in_order(summary.clients))
        name = self.metric.name
        trainings = [one.trainings for one in self.clients.values()]
        cost = fmean(trainings) if trainings else None, summary.bytes
        leaf = summary.metrics.get(f"leaf_{name}", summary.metrics.get(name))
        self._ways = {
            "fl": self._way("fl", summary.metrics.get(f"fl_{name}"), self._sent(f"fl_{name}")),
            "leaf": self._way("leaf", leaf, self._sent(f"leaf_{name}", name)),
            "own": self._way("own", summary.metrics.get(name), self._sent(name), *cost),
        }
        for key, line in summary.measured.items():
            mean, cost = line.figures.get(name), (line.trainings, line.bytes)
            self._ways[key] = self._way(key, mean, line.clients, *cost)

    def _sent(self, name: str, instead: str = "") -> dict[str, Number]:
        """Each client's value of a metric, or of another one that it has instead."""
        figures = {client: one.figures for client, one in self.clients.items()}
        values = {client: one.get(name, one.get(instead)) for client, one in figures.items()}
        return {client: value for client, value in values.items() if value is not None}

    def _way(self, key: str, mean: Number | None, values: Mapping[str, Number], *cost: Any) -> Way:
        kind = KINDS[key]
        if key == "own" and not (self.personal or "clustered" in self.summary.measured):
            kind = kind._replace(words="clusters")
        return Way(key, kind.words, kind.needs, mean, values, *cost)

    @property
    def personal(self) -> bool:
        return any(step.clients for step in self.summary.personal.values())

    def __getitem__(self, key: str) -> Way:
        return self._ways[key]

    def __contains__(self, key: str) -> bool:
        return key in self._ways

    @property
    def shown(self) -> list[str]:
        """The models that were evaluated, each once."""
        summary = self.summary
        common = ["fl"] if summary.lasting else []
        leaf = ["leaf"] if self.personal or summary.selection != "leaf" else []
        return [*common, *leaf, "own", *summary.measured]

    @property
    def methods(self) -> list[Way]:
        ways = [self[key] for key in KINDS if key in self and key not in ("leaf", "fl")]
        return [way for way in ways if way.mean is not None]

    def mean(self, key: str, clients: Collection[str]) -> float | None:
        """The mean over some clients, weighted by `limited` held-out examples; None without any."""
        known = [
            ClientMetrics({"": value}, self.clients[name].held_out or 1)
            for name, value in only(self[key].values, clients).items()
            if name in self.clients
        ]
        return cast("float | None", mean_over_clients(known).get(""))

    def row(self, name: str) -> dict[str, Any]:
        """A client's row of the table of clients; ``level``: the cluster whose model it chose."""
        client, selection = self.clients.get(name, ClientLine(cluster="")), self.summary.selection
        return {
            "name": name,
            "examples": client.held_out,
            "cluster": client.cluster or None,
            "level": client.best_cluster if selection == "best" else None,
            "share": client.share,
            "group": (self.summary.groups or {}).get(name),
            **{key: self[key].values.get(name) for key in self.shown},
        }

    def against(self, other: str, key: str = "own") -> "Paired | None":
        """The clients served by one way and by another, which is a baseline."""
        return self.compared(self[other].values, key) if other in self else None

    def compared(self, other: Mapping[str, Number], key: str = "own") -> "Paired | None":
        """The clients served by one way, and their values from elsewhere."""
        sizes = {name: one.held_out for name, one in self.clients.items()}
        return against(self[key].values, other, sizes, self.metric)

    def in_words(self, key: str) -> str:
        if key != "fl":
            return "this run" if key == "own" else KINDS[key].words
        summary = self.summary
        if any(split.cluster == ROOT and split.trial for split in summary.lasting):
            return f"{MEAN_MODEL} (not conventional FL)"
        rounds = counted(summary.rounds, "round")
        return f"common model (trained in {summary.common_rounds} of {rounds})"

    def remark(self, key: str) -> str:
        """How many clients the mean is of, unless of all, and how evenly they are served."""
        values, members = self[key].values, self.summary.num_clients
        pooled = key in ("own", "fl") and self.metric.name in POOLED and self.summary.pooled
        some = "" if pooled else of_all(len(values), members)
        even = fairness(values.values(), self.metric) if key != "fl" else None
        return ", ".join(filter(None, [some, fairness_in_words(even, self.metric) if even else ""]))


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
    clients: int
    """Number of all of them, with those that both ways serve equally well."""
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

        >>> clients = [f"client-{i}" for i in range(9)]
        >>> ours, theirs, sizes = (dict.fromkeys(clients, v) for v in (0.5, 0.25, 5))
        >>> print(against(ours, theirs, sizes, Metric("loss", False)).sentence)
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
    ours: Mapping[str, Number],
    theirs: Mapping[str, Number],
    held_out: Mapping[str, Number | None],
    metric: Metric,
) -> Paired | None:
    """Compare clients with held-out examples by their values; None if no client has both values."""
    both = [name for name in ours if name in theirs and held_out.get(name)]
    if not both:
        return None
    differences = np.array([ours[name] - theirs[name] for name in both])
    sizes = limited(cast("Number", held_out[name]) for name in both)
    above, below = int((differences > 0).sum()), int((differences < 0).sum())
    return Paired(
        metric,
        float(np.average(differences, weights=sizes)),
        margin_of(differences, sizes),
        *((above, below) if metric.higher_is_better else (below, above)),
        len(both),
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
    squares = sizes @ (differences - np.average(differences, weights=sizes)) ** 2
    return student(freedom) * float(np.sqrt(squares / freedom / total))


def student(freedom: int) -> float:
    from scipy.special import stdtrit  # slow to import, and needed at the end only

    return float(stdtrit(freedom, 1 - LEVEL))


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


def fairness_in_words(even: Fairness, metric: Metric) -> str:
    spread = difference_in_words(even.spread, metric)
    return f"worst 10% of clients {metric.in_words(even.worst_tenth)}, standard deviation {spread}"


def difference_in_words(
    value: float | None, metric: Metric, sign: str = "", unit: str = " points"
) -> str:
    """A difference of two values of a metric, in points if these are shares; a dash for None."""
    if value is None:
        return "-"
    return f"{100 * value:{sign}.1f}{unit}" if metric.share else f"{value:{sign}.3g}"


def of_all(known: int, members: int) -> str:
    """How many of the clients a mean is of; empty for all of them.

    >>> of_all(1, 2)
    'of 1 of 2 clients'
    """
    return f"of {known} of {counted(members, 'client')}" if 0 < known < members else ""


def baseline_line(report: FinalReport, ways: Ways, num_bytes: int | None) -> BaselineLine:
    """A baseline in ``summary.json``, with what the run's clients get in comparison."""
    name, trainings = ways.metric.name, report.failures.trainings.values()
    rounds = range(1, report.num_rounds + 1)
    # Alone, a client that never trained has the model of the start, which serves nobody.
    scalars = {
        client: result.leaf.scalars
        for client, result in report.clients.items()
        if result.num_examples is not None or result.cluster == ROOT
    }
    values = {client: one[name] for client, one in scalars.items() if name in one}
    even, comparison = fairness(values.values(), ways.metric), ways.compared(values)
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
