"""The result of `ClusteredFL.start`: Flower's Result, and every cluster's model and metrics."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from html import escape
from logging import INFO
from typing import TYPE_CHECKING, Any

from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp.strategy import Result
from flwr.supercore import log

from cflower.algorithm.tree import ParameterTree
from cflower.errors import CFlowerError
from cflower.messages.layout import Layout
from cflower.messages.metrics import ClientMetrics, weighted_mean
from cflower.ordering import counted, listed, only
from cflower.strategy.reports import ClientResult, FinalReport, mean_of

if TYPE_CHECKING:
    from pandas import DataFrame

CentralEvaluation = Callable[[int, ArrayRecord], MetricRecord | None]


@dataclass
class ClusteredResult(Result):
    """Flower's Result of a clustered run.

    Attributes
    ----------
    models : dict of str to ArrayRecord
        The model of every cluster, the split ones too, by name.
    report : FinalReport
        The final evaluation, of which the following attributes are parts.
    clusters : dict of str to tuple of str
        The clients of each leaf, without those that sent no usable update.
    cluster_metrics : dict of str to MetricRecord
        Means of each leaf's model in the final evaluation, over its clients, weighted by examples;
        F1 and AUC of their examples together, if these are counted.
    served_metrics : dict of str to MetricRecord
        The same of the models that serve these clients, such as their own by a personal step.
    evaluated : dict of str to int
        The number of clients of each leaf in these means.
    clients : dict of str to ClientResult
        Each client's own figures in the final evaluation.
    """

    _: KW_ONLY
    models: dict[str, ArrayRecord]
    report: FinalReport

    @cached_property
    def clients(self) -> dict[str, ClientResult]:
        return dict(self.report.clients)

    @cached_property
    def clusters(self) -> dict[str, tuple[str, ...]]:
        state = self.report.state
        return {leaf.name: state.members_of(leaf) for leaf in state.tree.leaves}

    @cached_property
    def cluster_metrics(self) -> dict[str, MetricRecord]:
        return self._means({name: one.leaf for name, one in self.clients.items()})

    @cached_property
    def served_metrics(self) -> dict[str, MetricRecord]:
        return self._means(self.report.served)

    def _means(self, measured: Mapping[str, ClientMetrics]) -> dict[str, MetricRecord]:
        clusters = self.clusters.items()
        return {n: MetricRecord(mean_of(only(measured, m).values())) for n, m in clusters}

    @cached_property
    def evaluated(self) -> dict[str, int]:
        return {n: len(only(self.clients, m)) for n, m in self.clusters.items()}

    def clients_table(self) -> "DataFrame":
        """A pandas DataFrame with a row for each client of the final evaluation.

        Its cluster, as text, its number of training examples, and its metrics: of the model that
        serves it under their own names, of its cluster's model as ``leaf_...`` and of the root's
        as ``fl_...``, as in ``summary.json``.
        """
        rows = {}
        for name, one in self.clients.items():
            rows[name] = {"cluster": one.cluster, "num_examples": one.num_examples}
            rows[name] |= one.served(self.report.selection).scalars
            for prefix, metrics in (("leaf", one.leaf), ("fl", one.federated)):
                rows[name] |= {f"{prefix}_{key}": v for key, v in metrics.scalars.items()}
        return table(rows, "client")

    def rounds_table(self) -> "DataFrame":
        """A pandas DataFrame with a row for each round.

        The mean metrics over the clients of training and evaluation, as ``train.NAME`` and
        ``evaluate.NAME``, and of ``evaluate_fn`` as ``central.NAME``.
        """
        rows = defaultdict[int, dict[str, Any]](dict)
        for kind, by_round in (
            ("train", self.train_metrics_clientapp),
            ("evaluate", self.evaluate_metrics_clientapp),
            ("central", self.evaluate_metrics_serverapp),
        ):
            for server_round, metrics in by_round.items():
                rows[server_round] |= {f"{kind}.{key}": v for key, v in metrics.items()}
        return table(dict(sorted(rows.items())), "round")

    def __repr__(self) -> str:
        """Flower's lines, and one for each cluster."""
        lines = [super().__repr__(), "Clusters:"]
        for name, members in self.clusters.items():
            words = counted(len(members), "client"), self._figures(name)
            lines.append(f"\t{name}: {': '.join(filter(None, words))}: {listed(members)}")
        return "\n".join(lines)

    def _figures(self, cluster: str) -> str:
        """The figures of a cluster's model, of how many clients, and those as they are served."""
        own, served = (as_figures(m[cluster]) for m in (self.cluster_metrics, self.served_metrics))
        known, members = self.evaluated[cluster], len(self.clusters[cluster])
        some = f" (of {known} of them)" if 0 < known < members else ""
        return own + some + (f"; as they are served: {served}" if served != own else "")

    def _repr_html_(self) -> str:
        rows = [(name, str(len(m)), self._figures(name)) for name, m in self.clusters.items()]
        return html_table(("cluster", "clients", "metrics"), rows)


def table(rows: Mapping[Any, Mapping[str, Any]], index: str) -> "DataFrame":
    """Rows by their names as a DataFrame; `CFlowerError` without pandas."""
    try:
        from pandas import DataFrame
    except ImportError:
        raise CFlowerError("The tables need pandas: pip install pandas.") from None
    return DataFrame.from_dict(rows, orient="index").rename_axis(index)


def central_mean(
    evaluate: Callable[[ArrayRecord], MetricRecord | None], tree: ParameterTree, layout: Layout
) -> MetricRecord | None:
    """The mean of an evaluation of each leaf's model on the server, by the leaves' sizes."""
    log(INFO, "Global evaluation")
    measured = []
    for leaf in tree.leaves:
        metrics = evaluate(layout.record(leaf.model))
        if metrics is not None:
            measured.append(ClientMetrics(dict(metrics.items()), len(leaf.members)))
            log(INFO, "\tcluster %s: %s", leaf.name, metrics)
    if not measured:
        return None
    mean = MetricRecord(weighted_mean(measured))
    log(INFO, "\t└──> MetricRecord: %s", mean)
    return mean


def as_figures(metrics: Mapping[str, Any]) -> str:
    scalars = ClientMetrics(dict(metrics.items()), 0).scalars
    return ", ".join(f"{key} {value:.4g}" for key, value in scalars.items())


def html_table(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table in HTML; the texts may come from clients."""

    def row(tag: str, cells: Iterable[str]) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    return f"<table>{row('th', headings)}{''.join(row('td', cells) for cells in rows)}</table>"


def keep_metrics(
    by_round: dict[int, MetricRecord], server_round: int, metrics: MetricRecord | None
) -> None:
    if metrics is not None:
        by_round[server_round] = metrics
    if metrics:
        log(INFO, "\t└──> Aggregated MetricRecord: %s", metrics)
