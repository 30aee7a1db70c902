"""The result of `ClusteredFL.start`: Flower's Result, and every cluster's model and metrics."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from html import escape
from logging import INFO
from typing import Any, NamedTuple

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from flwr.supercore import log

from cflower.algorithm.state import Personal
from cflower.algorithm.tree import ROOT
from cflower.messages.claims import listed
from cflower.messages.metrics import ClientMetrics, Metric, mean_over_clients
from cflower.ordering import counted, only
from cflower.strategy.reports import FinalReport
from cflower.strategy.settings import plain

CentralEvaluation = Callable[[int, ArrayRecord], MetricRecord | None]
MOST_NAMES = 12
"""Clients named on one line."""


class Run(NamedTuple):
    """The arguments of `ClusteredFL.start`, and the result so far."""

    grid: Grid
    result: Result
    num_rounds: int
    timeout: float
    train_config: ConfigRecord
    evaluate_config: ConfigRecord
    evaluate_fn: CentralEvaluation | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """The configs of the clients' messages, as plain values."""
        return {
            "train-config": plain(self.train_config),
            "evaluate-config": plain(self.evaluate_config),
        }


@dataclass
class ClusteredResult(Result):
    """Flower's Result of a clustered run.

    Attributes
    ----------
    models : dict of str to ArrayRecord
        The model of every cluster, the split ones too, by name.
    clusters : dict of str to tuple of str
        The clients of each leaf.
    cluster_metrics : dict of str to MetricRecord
        Means of the final evaluation over the clients of each leaf, weighted by examples.
    """

    models: dict[str, ArrayRecord] = field(default_factory=dict)
    clusters: dict[str, tuple[str, ...]] = field(default_factory=dict)
    cluster_metrics: dict[str, MetricRecord] = field(default_factory=dict)

    @classmethod
    def of(
        cls, result: Result, report: FinalReport, models: Mapping[str, ArrayRecord]
    ) -> "ClusteredResult":
        """A plain result with the final evaluation."""
        leaves = report.state.tree.leaves
        return cls(
            result.arrays,
            result.train_metrics_clientapp,
            result.evaluate_metrics_clientapp,
            result.evaluate_metrics_serverapp,
            dict(models),
            {leaf.name: leaf.members for leaf in leaves},
            {leaf.name: MetricRecord(dict(metrics_of(report, leaf.members))) for leaf in leaves},
        )

    def __repr__(self) -> str:
        """Flower's lines, and one for each cluster."""
        lines = [super().__repr__(), "Clusters:"]
        for name, members in self.clusters.items():
            metrics = in_words(self.cluster_metrics[name])
            size = counted(len(members), "client")
            lines.append(f"\t{name}: {size}: {metrics}" if metrics else f"\t{name}: {size}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """The clusters as a table, in a notebook."""
        rows = [
            (name, str(len(members)), in_words(self.cluster_metrics[name]))
            for name, members in self.clusters.items()
        ]
        return html_table(("cluster", "clients", "metrics"), rows)


def in_words(metrics: Mapping[str, Any]) -> str:
    """The metrics that are one number, each with its name."""
    scalars = ClientMetrics(dict(metrics.items()), 0).scalars
    return ", ".join(f"{key} {value:.4g}" for key, value in scalars.items())


def html_table(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table in HTML; the texts may come from clients."""

    def row(tag: str, cells: Iterable[str]) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    return f"<table>{row('th', headings)}{''.join(row('td', cells) for cells in rows)}</table>"


def step_in_words(step: Personal) -> str:
    """The result of a personal step in one sentence."""
    if not step.accepted:
        return f"refused: {step.reason}"
    start = "the run's first model" if step.start else "the leaf's model"
    least, most = (f"{pick(step.shares.values()):.0%}" for pick in (min, max))
    return (
        f"accepted: {step.reason}; {counted(len(step.models), 'client')} get "
        f"{least if least == most else f'{least} to {most}'} of a model of their own, trained "
        f"from {start} (kappa = {step.kappa:.3g})"
    )


def metrics_of(report: FinalReport, members: tuple[str, ...]) -> Mapping[str, Any]:
    """Mean metrics of these clients under the models that serve them."""
    return mean_over_clients(only(report.served, members).values())


def tree_lines(report: FinalReport, metric: Metric, name: str = ROOT) -> Iterator[str]:
    """The tree of a finished run, a line for each cluster, indented by its depth."""
    cluster = report.state.tree.clusters[name]
    line = f"{'    ' * name.count('.')}cluster {name}: {counted(len(cluster.members), 'client')}"
    if cluster.is_leaf:
        value = metrics_of(report, cluster.members).get(metric.name)
        score = "" if value is None else f", {metric.name} {metric.in_words(value)}"
        yield f"{line}{score}: {listed(cluster.members, MOST_NAMES)}"
    else:
        yield f"{line}, split in round {cluster.split_round}" if cluster.split_round else line
    for child in cluster.children:
        yield from tree_lines(report, metric, child)


def log_tree(report: FinalReport, metric: Metric) -> None:
    """Log the tree of a finished run."""
    log(INFO, "")
    log(INFO, "Clusters:")
    for line in tree_lines(report, metric):
        log(INFO, "\t%s", line)
