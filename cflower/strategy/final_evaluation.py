"""The final evaluation: every client's metrics under each model on its path (section V-C).

A client that reported ``evaluates-way`` in the roll call gets all these models in one message,
because choosing among them and averaging their predictions needs them together. Any other gets
Flower's plain evaluate messages, with its own cluster's model and with θ*_root.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from logging import WARNING
from typing import Any

from flwr.app import ConfigRecord, Message, MetricRecord
from flwr.supercore import log

from cflower.algorithm.state import Ask, CFLState, Role
from cflower.algorithm.weights import Weights
from cflower.errors import FederationError
from cflower.messages.arrays import records_in
from cflower.messages.claims import CheckedFacts, facts_in
from cflower.messages.client_names import BEST, BEST_CLUSTER, ENSEMBLE, FACTS
from cflower.messages.failures import BadReplyError, ExchangeOutcome
from cflower.messages.messenger import ClientMessenger, Sent
from cflower.messages.metrics import ClientMetrics, plausible
from cflower.messages.replies import content_of, metrics_in, read_metrics
from cflower.ordering import in_order, only
from cflower.strategy.reports import ClientResult, FinalReport

PERSONAL_LEVEL = "personal"
"""The key of a client's own model among its levels; no cluster has this name."""
INVALID_FACT = "A fact about the data of {clients} is ignored: {cause}."
Levels = dict[str, ClientMetrics]
"""A client's metrics by cluster, `BEST`, `ENSEMBLE` and `PERSONAL_LEVEL`."""


def final_report(
    messenger: ClientMessenger, state: CFLState, num_rounds: int, config: ConfigRecord | None
) -> FinalReport:
    """The connected clients of the tree under the models on their paths.

    ``config`` is that of the messages; None if the ClientApp has no evaluate function.
    `FederationError` if the simulation engine broke down.
    """
    report = FinalReport(state, {}, num_rounds, failures=messenger.failures)
    if config is None:
        log(WARNING, "The ClientApp has no evaluate function: there are no held-out metrics.")
        return report
    clients = in_order(set(messenger.present) & set(state.tree.clients))
    asks = dict(asks_of(clients, messenger, state, num_rounds))
    replies = messenger.exchange(messenger.messages(asks, config))
    facts, levels = dict[str, Mapping[str, Any]](), dict[tuple[str, str], ClientMetrics]()
    for sent, (measured, reported) in messenger.read(replies, partial(levels_in, messenger, state)):
        client = sent.ask.client
        levels |= {(client, level): metrics for level, metrics in measured.items()}
        if sent.ask.role is Role.OWN:
            facts[client] = reported.facts
            for problem in reported.problems:
                messenger.grouped.note(WARNING, INVALID_FACT, client, problem)
    outcome = ExchangeOutcome({client for client, _ in levels}, messenger.drain_problems())
    if died := outcome.worker_died:
        raise FederationError(f"The run stops in the final evaluation: {died}.")
    by_client = defaultdict[str, Levels](dict)
    for (client, level), metrics in plausible(levels, messenger.grouped).items():
        by_client[client][level] = metrics
    results = {c: result_of(c, by_client[c], facts.get(c, {}), state) for c in clients}
    return replace(
        report,
        clients={client: result for client, result in results.items() if result},
        problems={name: problem.text for name, problem in outcome.problems.items()},
        failures=messenger.failures,
    )


def asks_of(
    clients: Iterable[str], messenger: ClientMessenger, state: CFLState, server_round: int
) -> Iterator[tuple[Ask, Weights | dict[str, Weights]]]:
    """The asks of each client with the model, or with all models on its path by their clusters."""
    personal, facts = state.personal_models, messenger.roll_call.facts
    for client in clients:
        path = state.path_of(client)
        root, leaf = path[0], path[-1]
        own = Ask(client, leaf.name, Role.OWN, server_round, "evaluate")
        if root is not leaf and facts[client].get("evaluates-way"):
            yield own, {cluster.name: cluster.model for cluster in path}
        else:
            yield own, leaf.model
            if root is not leaf:
                yield own._replace(cluster=root.name), root.model
        if client in personal:
            yield own._replace(role=Role.PERSONAL), personal[client]


def levels_in(
    messenger: ClientMessenger, state: CFLState, sent: Sent, message: Message
) -> tuple[Levels, CheckedFacts]:
    """A client's metrics under the models that were sent, and the facts that it reported."""
    weighted_by, content = messenger.weighted_by, content_of(message)
    if sent.ask.role is Role.PERSONAL:
        return {PERSONAL_LEVEL: read_metrics(message, weighted_by)}, CheckedFacts({})
    reported = facts_in(content, FACTS)
    if len(sent.models) == 1:
        return {sent.ask.cluster: read_metrics(message, weighted_by)}, reported
    path = [cluster.name for cluster in state.path_of(sent.ask.client)]
    records = records_in(content, MetricRecord)
    if missing := {*path, BEST, ENSEMBLE} - set(records):
        raise BadReplyError(f"has no MetricRecord {', '.join(sorted(missing))}")
    best = reported.facts.get(BEST_CLUSTER)
    if best not in path:
        raise BadReplyError(f"has {BEST_CLUSTER}={best!r}, not on its path")
    return {n: metrics_in(records[n], weighted_by) for n in (*path, BEST, ENSEMBLE)}, reported


def result_of(
    client: str, measured: Levels, facts: Mapping[str, Any], state: CFLState
) -> ClientResult | None:
    """A client's result; None unless its leaf's and the root's model were evaluated."""
    path = [cluster.name for cluster in state.path_of(client)]
    leaf, known = path[-1], state.known.get(client)
    if not {path[0], leaf} <= measured.keys():
        return None
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
