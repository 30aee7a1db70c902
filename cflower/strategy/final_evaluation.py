"""The final evaluation: every client's metrics under each model on its path (section V-C).

A client that reported ``evaluates-way`` in the roll call gets all these models in one message,
because choosing among them and averaging their predictions needs them together. Any other gets
Flower's plain evaluate messages, with its own cluster's model and with θ*_root. A client that
reported ``tells-entropies`` also gets a few other leaves' models, and reports the mean entropy of
all their predictions on its examples: by it newcomers without labels are placed.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle, islice
from logging import WARNING
from math import inf
from typing import Any

from flwr.app import Message, MessageType, MetricRecord, RecordDict
from flwr.supercore import log

from cflower.algorithm.state import Ask, CFLState, Role
from cflower.algorithm.tree import Cluster, ParameterTree
from cflower.errors import FederationError
from cflower.messages.claims import facts_in
from cflower.messages.client_names import EVALUATE, FACTS, has_function
from cflower.messages.failures import BadReplyError, ExchangeOutcome
from cflower.messages.messenger import ClientMessenger, Sent
from cflower.messages.metrics import ClientMetrics
from cflower.messages.replies import content_of, read_metrics, read_record
from cflower.ordering import only, without
from cflower.strategy.reports import ClientResult
from cflower.strategy.results import Run

WAY = f"{MessageType.EVALUATE}.way"
"""The message with all models on a client's path, under their clusters' names; its reply has a
MetricRecord for each of them, and `BEST` and `ENSEMBLE`."""
BEST, ENSEMBLE = "best", "ensemble"
PERSONAL = "personal"
"""The key of a client's own model among its levels; no cluster has this name."""
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
Levels = dict[str, ClientMetrics]
"""A client's metrics by cluster, `BEST`, `ENSEMBLE` and `PERSONAL`."""


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
    state: CFLState
    problems: dict[str, str] = field(default_factory=dict)
    _levels: dict[str, Levels] = field(default_factory=lambda: defaultdict(dict))
    _facts: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    _entropies: dict[str, Mapping[str, float]] = field(default_factory=dict)

    def evaluate(
        self, clients: Iterable[str], facts: Mapping[str, Mapping[str, object]]
    ) -> dict[str, ClientResult]:
        """Clients of the tree under the models on their paths, given their facts.

        `FederationError` if the simulation engine broke down.
        """
        if not has_function(self.run.grid, EVALUATE, if_unknown=True):
            log(WARNING, "The ClientApp has no evaluate function: there are no held-out metrics.")
            return {}
        paths = {client: self.state.tree.path_of(client) for client in clients}
        at_once = self._at_once(paths, facts)
        self._ask(at_once, self._read_path, WAY)
        in_turn = without(paths, at_once)
        self._ask_for_one({client: path[-1] for client, path in in_turn.items()})
        general = {c: path[0] for c, path in in_turn.items() if path[1:] and c in self._levels}
        self._ask_for_one(general)
        personal = only(self.state.personal_models, paths)
        own = {c: replace(paths[c][-1], model=model) for c, model in personal.items()}
        self._ask_for_one(own, Role.PERSONAL)
        return {
            client: self._result(client, path)
            for client, path in paths.items()
            if path[0].name in self._levels[client]
        }

    def _at_once(
        self, paths: Mapping[str, Sequence[Cluster]], facts: Mapping[str, Mapping[str, object]]
    ) -> Models:
        """The models of the clients that evaluate all on their path in one message."""
        others, models = other_leaves(self.state.tree), dict[str, dict[str, Cluster]]()
        for client, path in paths.items():
            if path[1:] and facts[client].get("evaluates-way"):
                more = others[client] if facts[client].get("tells-entropies") else {}
                models[client] = more | {cluster.name: cluster for cluster in path}
        return models

    def _ask_for_one(self, clusters: Mapping[str, Cluster], role: Role = Role.OWN) -> None:
        """Ask the clients about one model each, in Flower's plain evaluate messages."""
        key = self.messenger.arrays_key
        self._ask({c: {key: cluster} for c, cluster in clusters.items()}, self._read_one, role=role)

    def _ask(
        self,
        models: Models,
        read: Callable[[Sent, Message], Levels],
        kind: str = MessageType.EVALUATE,
        role: Role = Role.OWN,
    ) -> None:
        """Ask the clients about the models that each gets; keep the plausible metrics."""
        asks, run, messenger = {}, self.run, self.messenger
        for client, clusters in models.items():
            # The last model is that of the client's own cluster, or the root's.
            *_, cluster = clusters.values()
            ask = Ask(client, cluster.name, role, run.num_rounds, "evaluate")
            asks[ask] = {key: cluster.model for key, cluster in clusters.items()}
        messages = messenger.messages(asks, run.evaluate_config, kind)
        replies = messenger.exchange(messages)
        levels = {sent.ask.client: one for sent, one in messenger.read(replies, read)}
        outcome = ExchangeOutcome(levels, messenger.drain_problems())
        if died := outcome.worker_died:
            raise FederationError(f"The run stops in the final evaluation: {died}.")
        self.problems |= {name: problem.text for name, problem in outcome.problems.items()}
        measured = {
            (c, name): metrics for c, one in levels.items() for name, metrics in one.items()
        }
        for (client, name), metrics in messenger.plausible(measured).items():
            self._levels[client][name] = metrics

    def _read_path(self, sent: Sent, message: Message) -> Levels:
        content, client = content_of(message), sent.ask.client
        path = [cluster.name for cluster in self.state.tree.path_of(client)]
        weighted_by, records = self.messenger.weighted_by, content.metric_records
        if missing := {*path, BEST, ENSEMBLE} - set(records):
            raise BadReplyError(f"has no MetricRecord {', '.join(sorted(missing))}")
        levels = {name: read_record(records[name], weighted_by) for name in (*path, BEST, ENSEMBLE)}
        best = self._read_facts(client, content).get(BEST_CLUSTER)
        if best not in path:
            raise BadReplyError(f"has {BEST_CLUSTER}={best!r}, not on its path")
        leaves = {leaf.name for leaf in self.state.tree.leaves}
        self._entropies[client] = {
            name: float(nats)
            for name, nats in records.get(ENTROPIES, MetricRecord()).items()
            if name in leaves and isinstance(nats, int | float) and 0 <= nats < inf
        }
        return levels

    def _read_one(self, sent: Sent, message: Message) -> Levels:
        metrics, ask = read_metrics(message, self.messenger.weighted_by), sent.ask
        if ask.role is Role.PERSONAL:
            return {PERSONAL: metrics}
        self._read_facts(ask.client, message.content)
        return {ask.cluster: metrics}

    def _read_facts(self, client: str, content: RecordDict) -> Mapping[str, Any]:
        """Keep and return the valid facts that a client reported with its metrics."""
        self._facts[client], problems = facts_in(content, FACTS)
        for problem in problems:
            log(WARNING, "A fact reported by client %s is ignored: %s.", client, problem)
        return self._facts[client]

    def _result(self, client: str, path: Sequence[Cluster]) -> ClientResult:
        measured, facts, leaf = self._levels[client], self._facts[client], path[-1].name
        known = self.state.known.get(client)
        sole = measured[leaf] if len(path) == 1 else None
        return ClientResult(
            leaf,
            known.num_examples if known else None,
            only(measured, [cluster.name for cluster in path]),
            measured.get(BEST, sole),
            measured.get(ENSEMBLE, sole),
            facts.get(BEST_CLUSTER) if BEST in measured else sole and leaf,
            facts,
            self._entropies.get(client, {}),
            measured.get(PERSONAL),
        )


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
