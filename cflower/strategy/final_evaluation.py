"""The final evaluation: every client's metrics under each model on its path (section V-C).

A client that reported ``evaluates-way`` in the roll call gets all these models in one message,
because choosing among them and averaging their predictions needs them together. Any other gets
Flower's plain evaluate messages, with its own cluster's model and with θ*_root.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from logging import WARNING
from typing import Any

from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.supercore import log

from cflower.algorithm.state import Ask, CFLState, Role
from cflower.algorithm.weights import Weights
from cflower.errors import FederationError
from cflower.messages.arrays import records_in
from cflower.messages.claims import facts_in
from cflower.messages.client_names import BEST, BEST_CLUSTER, ENSEMBLE, FACTS
from cflower.messages.failures import BadReplyError, ExchangeOutcome
from cflower.messages.messenger import ClientMessenger, Sent
from cflower.messages.metrics import ClientMetrics
from cflower.messages.replies import content_of, metrics_in, read_metrics
from cflower.ordering import in_order, only
from cflower.strategy.reports import ClientResult, FinalReport

PERSONAL_LEVEL = "personal"
"""The key of a client's own model among its levels; no cluster has this name."""
INVALID_FACT = "A fact about the data of {clients} is ignored: {cause}."
Levels = dict[str, ClientMetrics]
"""A client's metrics by cluster, `BEST`, `ENSEMBLE` and `PERSONAL_LEVEL`."""


@dataclass
class FinalEvaluation:
    """The exchange of a final evaluation."""

    messenger: ClientMessenger
    state: CFLState
    num_rounds: int
    _facts: dict[str, Mapping[str, Any]] = field(default_factory=dict)

    def report(self, config: ConfigRecord | None) -> FinalReport:
        """The connected clients of the tree under the models on their paths.

        ``config`` is that of the messages; None if the ClientApp has no evaluate function.
        `FederationError` if the simulation engine broke down.
        """
        messenger = self.messenger
        report = FinalReport(self.state, {}, self.num_rounds, failures=messenger.failures)
        if config is None:
            log(WARNING, "The ClientApp has no evaluate function: there are no held-out metrics.")
            return report
        clients = in_order(set(messenger.present) & set(self.state.tree.clients))
        asks = dict(self._asks(clients))
        replies = messenger.exchange(messenger.messages(asks, config))
        measured = {
            (sent.ask.client, level): metrics
            for sent, levels in messenger.read(replies, self._read)
            for level, metrics in levels.items()
        }
        outcome = ExchangeOutcome({client for client, _ in measured}, messenger.drain_problems())
        if died := outcome.worker_died:
            raise FederationError(f"The run stops in the final evaluation: {died}.")
        problems = {name: problem.text for name, problem in outcome.problems.items()}
        by_client = defaultdict[str, Levels](dict)
        for (client, level), metrics in messenger.plausible(measured).items():
            by_client[client][level] = metrics
        results = {client: self._result(client, by_client[client]) for client in clients}
        evaluated = {client: result for client, result in results.items() if result}
        failures = messenger.failures
        return replace(report, clients=evaluated, problems=problems, failures=failures)

    def _asks(self, clients: Iterable[str]) -> Iterator[tuple[Ask, dict[str, Weights]]]:
        """What each client is asked, with the models by their keys in the message."""
        key, personal = self.messenger.arrays_key, self.state.personal_models
        facts = self.messenger.roll_call.facts
        for client in clients:
            path = self.state.path_of(client)
            root, leaf = path[0], path[-1]
            own = Ask(client, leaf.name, Role.OWN, self.num_rounds, "evaluate")
            if root is not leaf and facts[client].get("evaluates-way"):
                yield own, {cluster.name: cluster.model for cluster in path}
            else:
                yield own, {key: leaf.model}
                if root is not leaf:
                    yield own._replace(cluster=root.name), {key: root.model}
            if client in personal:
                yield own._replace(role=Role.PERSONAL), {key: personal[client]}

    def _read(self, sent: Sent, message: Message) -> Levels:
        ask = sent.ask
        if sent.model is None:
            return self._read_path(ask.client, content_of(message))
        metrics = read_metrics(message, self.messenger.weighted_by)
        if ask.role is Role.PERSONAL:
            return {PERSONAL_LEVEL: metrics}
        self._read_facts(ask.client, message.content)
        return {ask.cluster: metrics}

    def _read_path(self, client: str, content: RecordDict) -> Levels:
        path = [cluster.name for cluster in self.state.path_of(client)]
        weighted_by, records = self.messenger.weighted_by, records_in(content, MetricRecord)
        if missing := {*path, BEST, ENSEMBLE} - set(records):
            raise BadReplyError(f"has no MetricRecord {', '.join(sorted(missing))}")
        levels = {name: metrics_in(records[name], weighted_by) for name in (*path, BEST, ENSEMBLE)}
        best = self._read_facts(client, content).get(BEST_CLUSTER)
        if best not in path:
            raise BadReplyError(f"has {BEST_CLUSTER}={best!r}, not on its path")
        return levels

    def _read_facts(self, client: str, content: RecordDict) -> Mapping[str, Any]:
        """Keep and return the valid facts that a client reported with its metrics."""
        self._facts[client], problems = facts_in(content, FACTS)
        for problem in problems:
            self.messenger.grouped.note(WARNING, INVALID_FACT, client, problem)
        return self._facts[client]

    def _result(self, client: str, measured: Levels) -> ClientResult | None:
        """A client's result; None unless its leaf's and the root's model were evaluated."""
        path = [cluster.name for cluster in self.state.path_of(client)]
        leaf = path[-1]
        if not {path[0], leaf} <= measured.keys():
            return None
        facts, known = self._facts[client], self.state.known.get(client)
        sole = measured[leaf] if len(path) == 1 else None
        return ClientResult(
            leaf,
            known.num_examples if known else None,
            only(measured, path),
            measured.get(BEST, sole),
            measured.get(ENSEMBLE, sole),
            facts.get(BEST_CLUSTER) if BEST in measured else sole and leaf,
            facts,
            measured.get(PERSONAL_LEVEL),
        )
