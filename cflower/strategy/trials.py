"""The clients judge a split on trial: both models on their held-out examples, in plain messages."""

from collections.abc import Collection, Mapping, Sequence

from flwr.app import ConfigRecord, MessageType
from flwr.serverapp import Grid

from cflower.algorithm.tree import Cluster, ParameterTree
from cflower.algorithm.trial import Comparison, Measure
from cflower.messages.failures import fault_of
from cflower.messages.layout import Layout
from cflower.messages.messenger import ClientMessenger
from cflower.messages.metrics import Range, counted
from cflower.messages.replies import BadReplyError, ClientMetrics, read_metrics
from cflower.strategy.reports import Metric


def ask(
    grid: Grid,
    messenger: ClientMessenger,
    layout: Layout,
    tree: ParameterTree,
    models: Collection[Cluster],
    present: Collection[str],
    config: ConfigRecord,
    server_round: int,
    timeout: float,
) -> Mapping[str, list[Comparison]]:
    """What the members of each of these common models measure under it and under their own.

    One exchange of evaluate messages, two for each client that is there and in its place.

    Returns
    -------
    mapping of str to list of Comparison
        By common model; without the clients that did not answer for both.
    """
    common = {
        client: cluster
        for cluster in models
        for client in cluster.members
        if client in present and client not in tree.unassigned
    }
    own = {client: tree.leaf_of(client) for client in common}
    kind = MessageType.EVALUATE
    messages = [
        message
        for assigned in (own, common)
        for message in messenger.messages(assigned, layout, kind, config, server_round)
    ]
    told: dict[tuple[str, str], ClientMetrics] = {}
    for client, message in messenger.by_client(messenger.exchange(grid, messages, timeout)):
        try:
            measured = read_metrics(message, messenger.keys.weighted_by)
            told[client, messenger.model_of(message)] = measured
        except BadReplyError as problem:
            messenger.set_aside(client, str(problem), fault_of(message))
    plausible = Range.of(told.values())
    told = {key: messenger.plausible(key[0], one, plausible) for key, one in told.items()}
    believed = dict(zip(told, counted(one.num_examples for one in told.values()), strict=True))
    compared: dict[str, list[Comparison]] = {cluster.name: [] for cluster in models}
    for client, cluster in common.items():
        child = own[client].name
        if (client, child) in told and (client, cluster.name) in told:
            mine, theirs = told[client, child], told[client, cluster.name]
            compared[cluster.name].append(
                Comparison(child, numbers(mine), numbers(theirs), float(believed[client, child]))
            )
    return compared


def numbers(measured: ClientMetrics) -> dict[str, float]:
    """The metrics that are single numbers."""
    return {k: float(v) for k, v in measured.metrics.items() if not isinstance(v, list)}


def measures_of(compared: Mapping[str, Sequence[Comparison]], metric: Metric) -> list[Measure]:
    """What the models are compared by: the leading metric, and the loss where clients tell one.

    Accuracy on a few examples moves in steps; the loss sees what happens between them.
    """
    names = {name for found in compared.values() for one in found for name in one.own}
    losses = sorted(name for name in names if "loss" in name.lower() and name != metric.name)
    return [Measure(*metric), *(Measure(name, False) for name in losses[:1])]
