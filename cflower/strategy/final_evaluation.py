"""The final evaluation: every client's metrics under each model on its path (section V-C).

A client that told ``evaluates-way`` in the roll call gets all these models in one message, because
choosing among them and averaging their predictions needs them together. Any other gets Flower's
plain evaluate messages, with its own cluster's model and with θ*_root. A client that told
``tells-entropies`` gets a few other leaves' models too, and tells how sure all these are of its
examples: by that newcomers without labels are placed, see `cflower.newcomers.entropies`.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import cycle, islice
from logging import WARNING
from typing import Any

from flwr.app import ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.supercore import log

from cflower.algorithm.state import CFLState
from cflower.algorithm.tree import Cluster, ParameterTree
from cflower.errors import FederationError
from cflower.messages.claims import facts_in
from cflower.messages.client_names import FACTS
from cflower.messages.failures import ExchangeOutcome, fault_of
from cflower.messages.layout import Layout
from cflower.messages.messenger import ClientMessenger, Measured
from cflower.messages.metrics import Range
from cflower.messages.replies import (
    BadReplyError,
    ClientMetrics,
    as_record,
    first_line,
    is_finite,
    read_record,
)
from cflower.ordering import in_order
from cflower.strategy.reports import ClientResult, FinalReport

WAY = f"{MessageType.EVALUATE}.way"
"""The message with all models on a client's path, under their clusters' names; its answer has a
MetricRecord for each of them, and `BEST` and `ENSEMBLE`."""
BEST, ENSEMBLE = "best", "ensemble"
BEST_CLUSTER = "best-cluster"
"""Key in the `FACTS` of the answer: the cluster whose model is the best."""
OTHER = "other "
"""In a message `WAY`, before the name of a leaf that is not the client's own."""
ENTROPIES = "entropies"
"""Key of a MetricRecord in the answer: by leaf, the mean entropy of its model's predictions."""
MOST_OTHERS = 3
"""Leaves whose models a client is sent beside its own: what the last message costs is bounded."""
Paths = Mapping[str, tuple[Cluster, ...]]
"""Each client's clusters from the most general to its leaf."""


@dataclass
class FinalEvaluation:
    """The exchanges of a final evaluation.

    Attributes
    ----------
    problems : dict of str to str
        Why a client's reply was set aside, or that it did not answer.
    """

    grid: Grid
    messenger: ClientMessenger
    layout: Layout
    state: CFLState
    config: ConfigRecord
    server_round: int
    timeout: float
    problems: dict[str, str] = field(default_factory=dict)

    def evaluate(
        self, clients: Iterable[str], facts: Mapping[str, Mapping[str, object]]
    ) -> dict[str, ClientResult]:
        """Every one of these clients under the models on its path.

        Parameters
        ----------
        clients : iterable of str
            Those who are there.
        facts : mapping
            What each told in the roll call.

        Raises
        ------
        FederationError
            If the simulation engine broke down.
        """
        tree = self.state.tree
        members = set(tree.root.members)
        paths = {client: tree.path_of(client) for client in clients if client in members}
        at_once = {c for c in paths if len(paths[c]) > 1 and facts.get(c, {}).get("evaluates-way")}
        telling = {c for c in at_once if facts[c].get("tells-entropies")}
        results = self._ask_at_once({c: paths[c] for c in paths if c in at_once}, telling)
        results |= self._ask_in_turn({c: path for c, path in paths.items() if c not in at_once})
        return {client: results[client] for client in paths if client in results}

    def measured(self, report: FinalReport) -> Measured:
        """What serves the clients, as if each had answered a plain evaluate message with it."""
        unable = [client for client, result in report.clients.items() if result.best is None]
        if unable and report.selection != "leaf":
            log(
                WARNING,
                "Client(s) %s cannot evaluate several models: their figures are those of their "
                "own cluster's model, not of selection = %r.",
                ", ".join(in_order(unable)),
                report.selection,
            )
        self.messenger.tell_heavy(report.served)
        weighted_by = self.messenger.keys.weighted_by
        told = {
            client: as_record(own.metrics | {weighted_by: own.num_examples})
            for client, own in report.served.items()
        }
        return Measured(report.served, {c: RecordDict({"metrics": r}) for c, r in told.items()})

    def _ask_at_once(self, paths: Paths, telling: Collection[str]) -> dict[str, ClientResult]:
        """One message each, with all models on the path, and for some with other leaves'."""
        others = other_leaves(self.state.tree)
        models = {
            client: (others[client] if client in telling else {}) | {c.name: c for c in path}
            for client, path in paths.items()
        }
        results = {}
        for client, message in self.messenger.by_client(self._replies(models, WAY)):
            try:
                results[client] = self._read_path(client, message, paths[client])
            except BadReplyError as problem:
                self.messenger.set_aside(client, str(problem), fault_of(message))
        self._judge(results)
        told = [one for result in results.values() for one in result.measured]
        plausible = Range.of(told)
        return {
            client: result.each(partial(self.messenger.plausible, client, plausible=plausible))
            for client, result in results.items()
        }

    def _read_path(self, client: str, message: Message, path: tuple[Cluster, ...]) -> ClientResult:
        if message.has_error():
            raise BadReplyError(f"is an error: {first_line(message.error.reason)}")
        content = message.content
        names = [*(cluster.name for cluster in path), BEST, ENSEMBLE]
        if missing := set(names) - set(content.metric_records):
            raise BadReplyError(f"has no MetricRecord {', '.join(sorted(missing))}")
        weighted_by = self.messenger.keys.weighted_by
        read = {name: read_record(content.metric_records[name], weighted_by) for name in names}
        facts = self._facts(client, content)
        best, ensemble = read.pop(BEST), read.pop(ENSEMBLE)
        best_cluster = str(facts.get(BEST_CLUSTER))
        if best_cluster not in read:
            raise BadReplyError(f"says {BEST_CLUSTER}={best_cluster!r}, not on its way")
        result = self._result(client, read, facts, best, ensemble, best_cluster)
        return replace(result, entropies=self._entropies(content))

    def _entropies(self, content: RecordDict) -> dict[str, float]:
        """What a client told of leaves that there are."""
        record, clusters = content.get(ENTROPIES), self.state.tree.clusters
        if not isinstance(record, MetricRecord):
            return {}
        return {
            name: float(nats)
            for name, nats in record.items()
            if name in clusters
            and clusters[name].is_leaf
            and not isinstance(nats, list)
            and is_finite(nats)
            and nats >= 0
        }

    def _ask_in_turn(self, paths: Paths) -> dict[str, ClientResult]:
        """Plain evaluate messages: first with the leaf's model, then with the most general."""
        leaf = self._ask({client: path[-1] for client, path in paths.items()})
        longer = {c: path for c, path in paths.items() if len(path) > 1 and c in leaf.metrics}
        general = self._ask({client: path[0] for client, path in longer.items()})
        results = {}
        for client, metrics in leaf.metrics.items():
            first, last = paths[client][0].name, paths[client][-1].name
            facts = self._facts(client, leaf.contents[client])
            if client not in longer:
                only = {last: metrics}
                results[client] = self._result(client, only, facts, metrics, metrics, last)
            elif client in general.metrics:
                levels = {first: general.metrics[client], last: metrics}
                results[client] = self._result(client, levels, facts)
        return results

    def _facts(self, client: str, content: RecordDict) -> dict[str, Any]:
        """What a client told with its metrics, without what is of the wrong kind."""
        facts, problems = facts_in(content, FACTS)
        for problem in problems:
            log(WARNING, "What client %s tells is set aside: %s.", client, problem)
        return facts

    def _result(
        self,
        client: str,
        levels: Mapping[str, ClientMetrics],
        facts: Mapping[str, Any],
        best: ClientMetrics | None = None,
        ensemble: ClientMetrics | None = None,
        best_cluster: str | None = None,
    ) -> ClientResult:
        known = self.state.known.get(client)
        return ClientResult(
            self.state.tree.leaf_of(client).name,
            known.num_examples if known else None,
            levels,
            best,
            ensemble,
            best_cluster,
            dict(facts),
        )

    def _ask(self, assigned: Mapping[str, Cluster]) -> Measured:
        models = {client: {self.messenger.keys.arrays: c} for client, c in assigned.items()}
        measured = self.messenger.measured(self._replies(models, MessageType.EVALUATE))
        self._judge(measured.metrics)
        return measured

    def _replies(self, models: Mapping[str, Mapping[str, Cluster]], kind: str) -> Iterator[Message]:
        messages = self.messenger.messages_with(
            models, self.layout, kind, self.config, self.server_round
        )
        return self.messenger.exchange(self.grid, messages, self.timeout)

    def _judge(self, heard: Collection[str]) -> None:
        """Note the problems of an exchange; stop if the engine broke down."""
        answers = ExchangeOutcome(heard, self.messenger.drain_problems())
        if died := answers.worker_died:
            raise FederationError(f"The run stops in the final evaluation: {died}.")
        self.problems |= {name: problem.text for name, problem in answers.problems.items()}


def other_leaves(tree: ParameterTree) -> dict[str, dict[str, Cluster]]:
    """For every client the leaves to compare its own with, by their keys in the message.

    All others, but no more than `MOST_OTHERS`: the members of a leaf take turns, so that together
    they are sent as many different ones as can be.
    """
    chosen, leaves = {}, tree.leaves
    for own in leaves:
        others = [leaf for leaf in leaves if leaf.name != own.name]
        turns = cycle(others)
        for client in own.members:
            theirs = islice(turns, min(MOST_OTHERS, len(others)))
            chosen[client] = {f"{OTHER}{leaf.name}": leaf for leaf in theirs}
    return chosen
