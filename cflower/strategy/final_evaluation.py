"""The final evaluation: every client's metrics under each model on its path (section V-C).

A client that reported ``evaluates-way`` in the roll call gets all these models in one message,
because choosing among them and averaging their predictions needs them together. Any other gets
Flower's plain evaluate messages, with its own cluster's model and with θ*_root. A client that
reported ``tells-entropies`` also gets a few other leaves' models, and reports the mean entropy of
all their predictions on its examples: by it newcomers without labels are placed.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle, islice
from logging import WARNING
from math import inf
from typing import Any

from flwr.app import Message, MessageType, MetricRecord, RecordDict
from flwr.supercore import log

from cflower.algorithm.state import Ask, CFLState, Role
from cflower.algorithm.tree import Cluster, ParameterTree, Selection
from cflower.errors import FederationError
from cflower.messages.claims import facts_in
from cflower.messages.client_names import EVALUATE, FACTS, has_function
from cflower.messages.failures import BadReplyError, ExchangeOutcome, FailureRecord
from cflower.messages.layout import Layout
from cflower.messages.messenger import ClientMessenger, Measured, Sent
from cflower.messages.metrics import ClientMetrics, Metrics, Range
from cflower.messages.replies import content_of, read_record
from cflower.ordering import in_order, only
from cflower.strategy.reports import ClientResult, FinalReport
from cflower.strategy.results import Run

WAY = f"{MessageType.EVALUATE}.way"
"""The message with all models on a client's path, under their clusters' names; its reply has a
MetricRecord for each of them, and `BEST` and `ENSEMBLE`."""
BEST, ENSEMBLE = "best", "ensemble"
BEST_CLUSTER = "best-cluster"
"""Key in the `FACTS` of the reply: the cluster with the best model."""
OTHER = "other "
"""In a message `WAY`, before the name of a leaf that is not the client's own."""
ENTROPIES = "entropies"
"""Key of a MetricRecord in the reply: by leaf, the mean entropy of its model's predictions."""
MOST_OTHERS = 3
"""Other leaves with models that a client gets: it bounds the cost of the last message."""
Models = Mapping[str, Mapping[str, Cluster]]
"""The clusters with the models that each client gets, by their keys in its message."""


@dataclass
class FinalEvaluation:
    """The exchanges of a final evaluation.

    Attributes
    ----------
    problems : dict of str to str
        Why a client's reply was set aside or is missing.
    """

    run: Run
    messenger: ClientMessenger
    layout: Layout
    state: CFLState
    problems: dict[str, str] = field(default_factory=dict)

    def evaluate(
        self, clients: Iterable[str], facts: Mapping[str, Mapping[str, object]]
    ) -> dict[str, ClientResult]:
        """The connected clients under the models on their paths, given their facts.

        Raises
        ------
        FederationError
            If the simulation engine broke down.
        """
        if not has_function(self.run.grid, EVALUATE, if_unknown=True):
            log(WARNING, "The ClientApp has no evaluate function: there are no held-out metrics.")
            return {}
        members, others = set(self.state.tree.root.members), other_leaves(self.state.tree)
        clients = [client for client in clients if client in members]
        at_once, in_turn = dict[str, dict[str, Cluster]](), list[str]()
        for client in clients:
            path = {cluster.name: cluster for cluster in self.state.tree.path_of(client)}
            if len(path) == 1 or not facts[client].get("evaluates-way"):
                in_turn.append(client)
            elif facts[client].get("tells-entropies"):
                at_once[client] = others[client] | path
            else:
                at_once[client] = path
        return only(self._ask_at_once(at_once) | self._ask_in_turn(in_turn), clients)

    def report(
        self,
        results: Mapping[str, ClientResult],
        failures: FailureRecord,
        selection: Selection,
        by_round: Mapping[int, Metrics],
    ) -> FinalReport:
        """The report with these results."""
        history = self.problems, failures, selection, by_round
        return FinalReport(self.state, results, self.run.num_rounds, *history)

    def measured(self, report: FinalReport) -> Measured:
        """The metrics that serve the clients, as if from plain evaluate messages."""
        unable = [client for client, result in report.clients.items() if result.best is None]
        if unable and report.selection != "leaf":
            log(
                WARNING,
                "Client(s) %s cannot evaluate several models: their figures are those of their "
                "own cluster's model, not of selection = %r.",
                ", ".join(in_order(unable)),
                report.selection,
            )
        self.messenger.log_limited_examples(report.served)
        return Measured.of(report.served, self.messenger.keys.weighted_by)

    def _ask_at_once(self, models: Models) -> dict[str, ClientResult]:
        """One message each with all models on the path, for some with other leaves' too."""
        replies = self.messenger.read(self._replies(models, WAY), self._read_path)
        results = {sent.ask.client: result for sent, result in replies}
        self._note(results)
        usual = Range.of(one for result in results.values() for one in result.measured)
        sifted = self.messenger.sifted
        return {c: result.each(partial(sifted, c, usual)) for c, result in results.items()}

    def _read_path(self, sent: Sent, message: Message) -> ClientResult:
        content, client = content_of(message), sent.ask.client
        names = [*(c.name for c in self.state.tree.path_of(client)), BEST, ENSEMBLE]
        if missing := set(names) - set(content.metric_records):
            raise BadReplyError(f"has no MetricRecord {', '.join(sorted(missing))}")
        weighted_by = self.messenger.keys.weighted_by
        levels = {name: read_record(content.metric_records[name], weighted_by) for name in names}
        best, ensemble = levels.pop(BEST), levels.pop(ENSEMBLE)
        facts = self._facts(client, content)
        chosen = facts.get(BEST_CLUSTER)
        if chosen not in levels:
            raise BadReplyError(f"has {BEST_CLUSTER}={chosen!r}, not on its path")
        entropies = self._entropies(content)
        return self._result(client, levels, best, ensemble, chosen, facts, entropies)

    def _entropies(self, content: RecordDict) -> dict[str, float]:
        """The entropies that a client reported for existing leaves."""
        record = content.metric_records.get(ENTROPIES, MetricRecord())
        leaves = {leaf.name for leaf in self.state.tree.leaves}
        return {
            name: float(nats)
            for name, nats in record.items()
            if name in leaves and isinstance(nats, int | float) and 0 <= nats < inf
        }

    def _ask_in_turn(self, clients: Iterable[str]) -> dict[str, ClientResult]:
        """Plain evaluate messages: first with the leaf's model, then with the most general."""
        paths = {client: self.state.tree.path_of(client) for client in clients}
        own = self._ask({client: path[-1] for client, path in paths.items()})
        longer = {client: paths[client][0] for client in own.metrics if len(paths[client]) > 1}
        general = self._ask(longer).metrics
        results = {}
        for client, metrics in own.metrics.items():
            facts, leaf = self._facts(client, own.contents[client]), paths[client][-1].name
            if client not in longer:
                levels = {leaf: metrics}
                results[client] = self._result(client, levels, metrics, metrics, leaf, facts)
            elif client in general:
                levels = {longer[client].name: general[client], leaf: metrics}
                results[client] = self._result(client, levels, None, None, None, facts)
        return results

    def _facts(self, client: str, content: RecordDict) -> dict[str, Any]:
        """The facts that a client reported with its metrics, without invalid ones."""
        facts, problems = facts_in(content, FACTS)
        for problem in problems:
            log(WARNING, "A fact reported by client %s is ignored: %s.", client, problem)
        return facts

    def _result(
        self, client: str, levels: Mapping[str, ClientMetrics], *figures: Any
    ) -> ClientResult:
        known = self.state.known.get(client)
        leaf = self.state.tree.leaf_of(client).name
        return ClientResult(leaf, known.num_examples if known else None, levels, *figures)

    def _ask(self, assigned: Mapping[str, Cluster]) -> Measured:
        models = {client: {self.messenger.keys.arrays: c} for client, c in assigned.items()}
        measured = self.messenger.measured(self._replies(models, MessageType.EVALUATE))
        self._note(measured.metrics)
        return measured

    def _replies(self, models: Models, kind: str) -> Iterator[Message]:
        asks = {}
        for client, clusters in models.items():
            # The last model is that of the client's own cluster, or the root's.
            *_, cluster = clusters.values()
            ask = Ask(client, cluster.name, Role.OWN, self.run.num_rounds, "evaluate")
            asks[ask] = {key: cluster.model for key, cluster in clusters.items()}
        messages = self.messenger.messages(asks, self.layout, self.run.evaluate_config, kind)
        return self.messenger.exchange(self.run.grid, messages, self.run.timeout)

    def _note(self, responded: Collection[str]) -> None:
        """Note the problems of an exchange; stop if the engine broke down."""
        outcome = ExchangeOutcome(responded, self.messenger.drain_problems())
        if died := outcome.worker_died:
            raise FederationError(f"The run stops in the final evaluation: {died}.")
        self.problems |= {name: problem.text for name, problem in outcome.problems.items()}


def other_leaves(tree: ParameterTree) -> dict[str, dict[str, Cluster]]:
    """The leaves that each client compares its own with, by their keys in the message.

    All others, but no more than `MOST_OTHERS`: the members of a leaf take turns, so that together
    they get as many different ones as can be.
    """
    chosen, leaves = {}, tree.leaves
    for own in leaves:
        others = [leaf for leaf in leaves if leaf.name != own.name]
        turns = cycle(others)
        for client in own.members:
            some = islice(turns, min(MOST_OTHERS, len(others)))
            chosen[client] = {f"{OTHER}{leaf.name}": leaf for leaf in some}
    return chosen
