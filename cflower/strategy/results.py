"""What `ClusteredFL.start` returns: Flower's Result, and every cluster's model and metrics."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp.strategy import Result

from cflower.algorithm.tree import ROOT
from cflower.messages.metrics import mean_over_clients
from cflower.messages.replies import as_record
from cflower.strategy.reports import FinalReport, Metric

MOST_NAMES = 12
"""Clients named on one line."""


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
        """A plain result with what the final evaluation found."""
        leaves = report.state.tree.leaves
        return cls(
            result.arrays,
            result.train_metrics_clientapp,
            result.evaluate_metrics_clientapp,
            result.evaluate_metrics_serverapp,
            dict(models),
            {leaf.name: leaf.members for leaf in leaves},
            {leaf.name: as_record(metrics_of(report, leaf.members)) for leaf in leaves},
        )

    def __repr__(self) -> str:
        """Flower's lines, and one for each cluster."""
        lines = [super().__repr__(), "Clusters:"]
        for name, members in self.clusters.items():
            metrics = ", ".join(f"{k} {v:.4g}" for k, v in self.cluster_metrics[name].items())
            lines.append(f"\t{name}: {len(members)} client(s){': ' * bool(metrics)}{metrics}")
        return "\n".join(lines)


def metrics_of(report: FinalReport, members: tuple[str, ...]) -> Mapping[str, float]:
    """Means of what serves these clients."""
    served = report.served
    return mean_over_clients(served[name] for name in members if name in served)  # type: ignore[return-value]


def tree_lines(report: FinalReport, metric: Metric) -> Iterator[str]:
    """The tree of a finished run, a line for each cluster."""
    tree = report.state.tree

    def below(name: str, depth: int) -> Iterator[str]:
        cluster = tree.clusters[name]
        text = f"{'    ' * depth}cluster {name}: {len(cluster.members)} client(s)"
        if cluster.is_leaf:
            value = metrics_of(report, cluster.members).get(metric.name)
            text += "" if value is None else f", {metric.name} {metric.in_words(value)}"
            text += f": {', '.join(cluster.members[:MOST_NAMES])}"
            more = len(cluster.members) - MOST_NAMES
            text += f" and {more} more" if more > 0 else ""
        elif cluster.split_round:
            text += f", split in round {cluster.split_round}"
        yield text
        for child in cluster.children:
            yield from below(child, depth + 1)

    return below(ROOT, 0)
