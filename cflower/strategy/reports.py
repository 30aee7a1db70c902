"""What the strategy tells those who watch it: values, no prose."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from cflower.algorithm.criteria import Decision
from cflower.algorithm.state import CFLState
from cflower.algorithm.tree import SELECTIONS, ParameterTree, Selection
from cflower.messages.failures import FailureRecord
from cflower.messages.layout import Layout
from cflower.messages.messenger import Asked
from cflower.messages.metrics import mean_over_clients
from cflower.messages.replies import ClientMetrics, Metrics

LOWER_IS_BETTER = ("loss", "perplexity", "error", "rmse", "mse", "mae", "mape", "bpc", "wer")
"""Parts of the names of metrics that are better the lower they are."""
SHARES = ("acc", "precision", "recall", "f1", "auc")
"""Parts of the names of metrics that are shares of 1."""


class Metric(NamedTuple):
    """The metric of a run's clients that leads in tables, charts and comparisons."""

    name: str = "accuracy"
    higher_is_better: bool = True

    @classmethod
    def of(cls, name: str, higher_is_better: bool | None = None) -> "Metric":
        """A metric by its name; None: the name tells which way is better.

        >>> Metric.of("val_rmse"), Metric.of("f1")
        (Metric(name='val_rmse', higher_is_better=False), Metric(name='f1', higher_is_better=True))
        """
        if higher_is_better is None:
            higher_is_better = not any(part in name.lower() for part in LOWER_IS_BETTER)
        return cls(name, higher_is_better)

    @property
    def share(self) -> bool:
        """Whether it is a share of 1, shown as a percentage."""
        return any(part in self.name.lower() for part in SHARES)

    def in_words(self, value: float | None) -> str:
        """A value as it is shown; a dash where there is none.

        >>> Metric().in_words(0.975), Metric("perplexity", False).in_words(26.6)
        ('97.5%', '26.6')
        """
        if value is None:
            return "-"
        return f"{value:.1%}" if self.share else f"{value:.4g}"

    def best(self, values: Iterable[float]) -> float | None:
        """The best of some values, None of none."""
        return (max if self.higher_is_better else min)(values, default=None)

    def worst(self, values: Iterable[float]) -> float | None:
        """The worst of some values, None of none."""
        return (min if self.higher_is_better else max)(values, default=None)


@dataclass(frozen=True)
class RoundReport:
    """One finished round."""

    server_round: int
    num_rounds: int
    trained: ParameterTree
    """Before the round: whose models the clients trained."""
    state: CFLState
    """After the round."""
    decisions: tuple[Decision, ...]
    trained_on: Mapping[str, str]
    """The cluster whose model each client trained, of those heard from."""
    measured: Mapping[str, ClientMetrics]
    """What each of them measured: in training, and in the evaluation where there was one."""
    problems: Mapping[str, str]
    """Why a client's reply was set aside, or that it did not answer."""
    seconds: float
    layout: Layout
    """The model's arrays in the vectors of ``state``."""
    failures: FailureRecord = field(default_factory=FailureRecord)
    """The clients' record up to this round."""
    general: Mapping[str, Mapping[str, ClientMetrics]] = field(default_factory=dict)
    """What clients measured in training an inner cluster's model, by its name."""
    late: Mapping[str, int] = field(default_factory=dict)
    """By client whose late reply was used: the round that it answers."""
    outstanding: tuple[Asked, ...] = ()
    """What clients were asked whose replies may still come."""

    def metrics(self, cluster: str | None = None) -> Metrics:
        """Means weighted by examples, over one cluster or over all."""
        if cluster is not None and cluster in self.general:
            return mean_over_clients(self.general[cluster].values())
        return mean_over_clients(
            measured
            for client, measured in self.measured.items()
            if cluster is None or self.trained_on.get(client) == cluster
        )


@dataclass(frozen=True)
class ClientResult:
    """How one client is served when the run ends, on its held-out examples."""

    cluster: str
    num_examples: float | None
    """|D_i|, the examples it trained on; None if it never did."""
    levels: Mapping[str, ClientMetrics]
    """The models on its way by cluster, from the most general to its leaf; only these two if its
    app does not know `cflower.strategy.final_evaluation.WAY`."""
    best: ClientMetrics | None = None
    """The level that its held-out examples choose, each judged by the choice of others."""
    ensemble: ClientMetrics | None = None
    """The average of the levels' predicted probabilities."""
    best_cluster: str | None = None
    """The level that all its held-out examples choose."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    entropies: Mapping[str, float] = field(default_factory=dict)
    """Of some leaves' models, the mean entropy of their predictions on its held-out examples, in
    nats; empty if its app does not tell them."""

    @property
    def leaf(self) -> ClientMetrics:
        """Its cluster's model."""
        return self.levels[self.cluster]

    @property
    def federated(self) -> ClientMetrics:
        """θ*_root: conventional federated learning, as far as it came before the first split."""
        return next(iter(self.levels.values()))

    @property
    def columns(self) -> dict[str, ClientMetrics | None]:
        """The four ways to serve it, next to one another."""
        own = {"leaf": self.leaf, "best": self.best, "ensemble": self.ensemble}
        return {"fl": self.federated, **own}

    @property
    def measured(self) -> list[ClientMetrics]:
        """All that the client measured."""
        found = [*self.levels.values(), self.best, self.ensemble]
        return [one for one in found if one is not None]

    def each(self, change: Callable[[ClientMetrics], ClientMetrics]) -> "ClientResult":
        """The result with all that the client measured changed."""
        return replace(
            self,
            levels={name: change(level) for name, level in self.levels.items()},
            best=self.best and change(self.best),
            ensemble=self.ensemble and change(self.ensemble),
        )

    def served(self, selection: Selection) -> ClientMetrics:
        """By what ``selection`` names; by its leaf where its app cannot do that."""
        return self.columns[selection] or self.leaf


@dataclass(frozen=True)
class FinalReport:
    """The final evaluation, of every client that answered it."""

    state: CFLState
    clients: Mapping[str, ClientResult]
    num_rounds: int
    problems: Mapping[str, str] = field(default_factory=dict)
    failures: FailureRecord = field(default_factory=FailureRecord)
    selection: Selection = "leaf"
    by_round: Mapping[int, Metrics] = field(default_factory=dict)
    """What the clients measured in each round since the start or resumption: means over them,
    weighted by examples."""

    @property
    def served(self) -> dict[str, ClientMetrics]:
        """What each client is served with."""
        return {name: result.served(self.selection) for name, result in self.clients.items()}

    @property
    def metrics(self) -> Metrics:
        """Means over all clients, weighted by held-out examples.

        Of what serves them under the metrics' own names; of each of `ClientResult.columns` under
        its name and theirs, such as ``fl_accuracy``.
        """
        means = mean_over_clients(self.served.values())
        for column in ("fl", *SELECTIONS):
            measured = [client.columns[column] for client in self.clients.values()]
            mean = mean_over_clients(one for one in measured if one is not None)
            means |= {f"{column}_{key}": value for key, value in mean.items()}
        return means
