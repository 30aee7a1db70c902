"""The reports of a round and of a run that observers receive."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from logging import INFO
from typing import Any

from flwr.supercore import log

from cflower.algorithm.criteria import Decision
from cflower.algorithm.state import CFLState, Role, Training
from cflower.algorithm.tree import SELECTIONS, ParameterTree, Selection
from cflower.errors import FederationError
from cflower.messages.client_names import PARTS_APART
from cflower.messages.failures import ExchangeOutcome, FailureRecord, Problem
from cflower.messages.layout import Layout
from cflower.messages.messenger import ClientMessenger, Sent
from cflower.messages.metrics import ClientMetrics, Metrics, mean_over_clients, plausible
from cflower.metric import Metric
from cflower.ordering import listed, only
from cflower.pooled import POOLED, Pooled, pooled

LATE = "Late replies that count now: %s."
STILL_OUT = "The round is closed without %s: their replies may still come."


@dataclass(frozen=True)
class RoundReport:
    """One round. Until it is finished, ``state`` is the one before it."""

    server_round: int
    trained: ParameterTree
    """The tree before the round, with the models that the clients trained."""
    state: CFLState
    """After the round."""
    layout: Layout
    """The model's arrays in the vectors of ``state``."""
    num_rounds: int = 0
    decisions: tuple[Decision, ...] = ()
    trained_on: dict[str, str] = field(default_factory=dict)
    """The cluster with the model that each client trained, for the clients that replied."""
    measured: dict[str, ClientMetrics] = field(default_factory=dict)
    """Their metrics, from training and from the evaluation if there was one."""
    problems: dict[str, str] = field(default_factory=dict)
    """Why a client's reply was set aside or is missing."""
    seconds: float = 0.0
    failures: FailureRecord = field(default_factory=FailureRecord)
    late: dict[str, int] = field(default_factory=dict)
    """The round that a client's late reply answers, if it was used."""
    outstanding: tuple[Sent, ...] = ()
    """Asks with a reply that may still come."""
    metric: Metric = Metric()
    central: Mapping[str, Any] = field(default_factory=dict)
    """The metrics of ``evaluate_fn`` after the round, means over the clusters."""
    lowered: dict[str, float] = field(default_factory=dict)
    """The fraction of its claim for which a client counts (`Training.counts`), if it is bounded."""

    def noted(self, reply: Training) -> Training:
        """A reply to training, once its metrics are noted."""
        client, cluster, role, asked, *_ = reply.ask
        if role is Role.OWN or client in self.trained.unassigned:
            self.measured[client] = ClientMetrics.of(reply)
            self.trained_on[client] = cluster
            if reply.counts < 1:
                self.lowered[client] = reply.counts
            if reply.origin is not None:
                self.late[client] = asked
        return reply

    def evaluated(self, measured: Mapping[str, ClientMetrics]) -> None:
        for client, new in measured.items():
            old = self.measured.get(client, new)
            self.measured[client] = new._replace(metrics={**old.metrics, **new.metrics})

    def note(self, problems: Mapping[str, Problem], excluded: Collection[str] = ()) -> None:
        """Add problems of replies; the first of each client counts."""
        for client, problem in problems.items():
            ended = "; it is not asked for some rounds" if client in excluded else ""
            self.problems.setdefault(client, problem.text + ended)

    def close(self, messenger: ClientMessenger, exclude_after: int) -> None:
        """After training: implausible metrics are left out, and failures logged and kept.

        `FederationError` if the run must stop.
        """
        outstanding, before = messenger.rounds_outstanding, messenger.failures
        outcome = ExchangeOutcome(self.measured.keys(), messenger.drain_problems())
        self.measured.update(plausible(self.measured, messenger.grouped))
        after = before.trained(outcome, exclude_after, len(messenger.present))
        messenger.failures = after
        received, failed = len(self.measured), len(outcome.problems)
        log(INFO, "aggregate_train: Received %d results and %d failures", received, failed)
        self.note(outcome.problems, after.log_since(before))
        for sentence, asks in (LATE, self.late), (STILL_OUT, outstanding):
            if asks:
                log(INFO, sentence, listed([f"{c} (round {asked})" for c, asked in asks.items()]))
        simulated = messenger.roll_call.simulated
        if stop := after.must_stop(outcome, self.server_round, simulated=simulated):
            raise FederationError(stop)

    def metrics(self, cluster: str | None = None) -> Metrics:
        """Means weighted by examples, over one cluster or over all."""
        if cluster is None:
            return mean_over_clients(self.measured.values())
        members = [client for client, on in self.trained_on.items() if on == cluster]
        return mean_over_clients(only(self.measured, members).values())


@dataclass(frozen=True)
class ClientResult:
    """One client at the end of the run, on its held-out examples."""

    cluster: str
    num_examples: float | None
    """|D_i|, its training examples; None if it never trained."""
    levels: Mapping[str, ClientMetrics]
    """Its metrics under each model on its path, from the root to its leaf; only under these two if
    its app does not know the message `client_names.EVALUATE_PATH`."""
    best: ClientMetrics | None = None
    """The level that its held-out examples choose, each evaluated by the choice of the others."""
    ensemble: ClientMetrics | None = None
    """The average of the levels' predicted probabilities."""
    best_cluster: str | None = None
    """The level that all its held-out examples choose."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    personal: ClientMetrics | None = None
    """Its own model, if a personal step gave it one."""

    @property
    def leaf(self) -> ClientMetrics:
        return self.levels[self.cluster]

    @property
    def federated(self) -> ClientMetrics:
        """The root's model: conventional federated learning as far as it was trained."""
        return next(iter(self.levels.values()))

    @property
    def columns(self) -> dict[str, ClientMetrics | None]:
        """Its metrics by the four ways to serve it."""
        best, ensemble = self.best, self.ensemble
        return {"fl": self.federated, "leaf": self.leaf, "best": best, "ensemble": ensemble}

    def served(self, selection: Selection) -> ClientMetrics:
        """Its metrics under the selected model; under its leaf's if its app cannot do that.

        Its own model, if it has one, takes the place of its leaf's.
        """
        chosen = self.by_cluster(selection)
        return self.personal or chosen if selection == "leaf" else chosen

    def by_cluster(self, selection: Selection) -> ClientMetrics:
        """As `served`, without models of its own."""
        return self.columns[selection] or self.leaf


@dataclass(frozen=True)
class FinalReport:
    """The final evaluation of every client that replied."""

    state: CFLState
    clients: Mapping[str, ClientResult]
    num_rounds: int
    problems: Mapping[str, str] = field(default_factory=dict)
    failures: FailureRecord = field(default_factory=FailureRecord)
    selection: Selection = "leaf"
    by_round: Mapping[int, Metrics] = field(default_factory=dict)
    """Mean metrics of the clients in each round since the start or resumption."""
    metric: Metric = Metric()
    judged: bool = False
    """Whether anything in the run was decided by held-out examples."""
    advice: str = ""
    """What `Advised` says about the clients of a run with one model."""

    @property
    def decided_by(self) -> str:
        """The examples by which held-out metrics decided: "none", "other" or "reported" ones.

        Most clients' word counts: a single one cannot change the sentence about a run.
        """
        apart = sum(bool(result.facts.get(PARTS_APART)) for result in self.clients.values())
        measured = any(self.metric.name in one.leaf.metrics for one in self.clients.values())
        if not (self.judged and measured):
            return "none"
        return "other" if 2 * apart > len(self.clients) else "reported"

    @property
    def served(self) -> dict[str, ClientMetrics]:
        return {name: result.served(self.selection) for name, result in self.clients.items()}

    @property
    def metrics(self) -> Metrics:
        """Means over all clients, weighted by held-out examples.

        F1 and AUC are of all clients' examples together, where these are counted (`pooled`).
        Under the metrics' own names for the models that serve them, and with a prefix for each of
        `ClientResult.columns`, such as ``fl_accuracy``.
        """
        means = mean_of(self.served.values())
        for column in ("fl", *SELECTIONS):
            measured = (client.columns[column] for client in self.clients.values())
            means |= {f"{column}_{key}": v for key, v in mean_of(filter(None, measured)).items()}
        return means

    @property
    def pooled(self) -> dict[str, Pooled]:
        """The figures of all clients' examples together, if they send `COUNTS`.

        Under the models that serve them (``own``), the common one (``fl``), and for each leaf under
        its model.
        """
        ways = {
            "own": list(self.served.values()),
            "fl": [client.federated for client in self.clients.values()],
        }
        for leaf in self.state.tree.leaves:
            members = self.state.members_of(leaf)
            ways[leaf.name] = [one.leaf for one in only(self.clients, members).values()]
        together = {way: pooled(one.metrics for one in ways[way]) for way in ways}
        return {way: figures for way, figures in together.items() if figures}


def mean_of(measured: Iterable[ClientMetrics]) -> Metrics:
    """As `mean_over_clients`; F1 and AUC are of all examples together, if they are counted."""
    measured = list(measured)
    means, together = mean_over_clients(measured), pooled(one.metrics for one in measured)
    for key in POOLED if together else ():
        if figure := getattr(together, key):
            means[key] = figure.value
    return means
