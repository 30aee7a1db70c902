"""`ClusteredFL`: Clustered Federated Learning as a Flower Strategy.

Sattler, Müller, Samek, "Clustered Federated Learning: Model-Agnostic Distributed Multi-Task
Optimization under Privacy Constraints", arXiv 1910.01991. This file is Flower's side of it;
the algorithm is in `cflower.algorithm`.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from logging import INFO, WARNING
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from flwr.supercore import log

from cflower.algorithm.cfl_round import CFL, CFLState, Reply, Weighting
from cflower.algorithm.criteria import Criterion, NormCriterion
from cflower.algorithm.optimizers import ServerOptimizer
from cflower.algorithm.tree import Cluster, ParameterTree, in_order
from cflower.errors import FederationError
from cflower.federation.exchange import Exchange
from cflower.federation.layout import UNTRAINED, BadArraysError, Layout
from cflower.federation.replies import (
    BadReplyError,
    ClientMetrics,
    as_record,
    read_metrics,
    weighted_mean,
)
from cflower.federation.reports import ClientResult, FinalReport, RoundReport
from cflower.federation.roll_call import FACTS, RollCall
from cflower.seeding import generator

PATIENCE = 3
"""Rounds in a row without one usable reply after which a run gives up."""


class ClusteredFL(Strategy):
    """Train a model per cluster of clients that belong together, found from their updates.

    Takes the place of ``FedAvg`` in a ServerApp; the ClientApp needs no change. It differs from
    ``FedAvg`` only in which model a client gets: that of its own cluster.

    Parameters
    ----------
    criterion : Criterion, optional
        When to split a cluster; `NormCriterion` with its defaults if not given.
    fraction_train, fraction_evaluate : float
        Share of every cluster's clients that train, and that evaluate, in a round. The last
        round is evaluated by everyone. With ``fraction_evaluate=0`` the rounds before it are
        not evaluated in an exchange of their own.
    min_train_nodes, min_evaluate_nodes, min_available_nodes : int
        As in ``FedAvg``.
    weighted_by_key, arrayrecord_key, configrecord_key : str
        As in ``FedAvg``.
    train_metrics_aggr_fn, evaluate_metrics_aggr_fn : callable, optional
        As in ``FedAvg``, over the clients of all clusters.
    optimizer : ServerOptimizer, optional
        How a cluster's model follows the mean update; eq. 2 if not given.
    weighting : {"examples", "uniform"}
        w_i = |D_i|/|D_c| (eq. 2) or 1/|c| (Algorithm 5).
    similarity_layers : str
        Comma-separated patterns of the arrays whose updates similarity looks at.
    untrained : sequence of str
        Patterns of floating-point arrays that are averaged but not learned.
    isolated : bool
        Every client is a cluster of its own from the start.
    seed : int
        For the sampling of clients: the same in every round of every run.
    roll_call : RollCall, optional
        Who is there; a new one if not given.
    on_round : callable, optional
        Called with a `RoundReport` after every round.

    Attributes
    ----------
    state : CFLState
        Tree and known updates after the last round; ``strategy.tree`` for short.
    layout : Layout
        How the models' arrays lie in the algorithm's vectors.
    final_report : FinalReport or None
        The closing evaluation, once `start` has returned.
    """

    def __init__(
        self,
        criterion: Criterion | None = None,
        *,
        fraction_train: float = 1.0,
        fraction_evaluate: float = 1.0,
        min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2,
        min_available_nodes: int = 2,
        weighted_by_key: str = "num-examples",
        arrayrecord_key: str = "arrays",
        configrecord_key: str = "config",
        train_metrics_aggr_fn: Callable[[list[RecordDict], str], MetricRecord] | None = None,
        evaluate_metrics_aggr_fn: Callable[[list[RecordDict], str], MetricRecord] | None = None,
        optimizer: ServerOptimizer | None = None,
        weighting: Weighting = "examples",
        similarity_layers: str = "*",
        untrained: Sequence[str] = UNTRAINED,
        isolated: bool = False,
        seed: int = 0,
        roll_call: RollCall | None = None,
        on_round: Callable[[RoundReport], None] | None = None,
    ) -> None:
        self.criterion = criterion or NormCriterion()
        self.fraction_train, self.fraction_evaluate = fraction_train, fraction_evaluate
        self.min_train_nodes, self.min_evaluate_nodes = min_train_nodes, min_evaluate_nodes
        self.min_available_nodes = min_available_nodes
        self.weighted_by_key = weighted_by_key
        self.arrayrecord_key, self.configrecord_key = arrayrecord_key, configrecord_key
        self.train_metrics_aggr_fn = train_metrics_aggr_fn
        self.evaluate_metrics_aggr_fn = evaluate_metrics_aggr_fn
        self.optimizer, self.weighting = optimizer or ServerOptimizer(), weighting
        self.similarity_layers, self.untrained = similarity_layers, tuple(untrained)
        self.isolated, self.seed = isolated, seed
        self.roll_call = roll_call or RollCall()
        self.on_round = on_round
        self.state: CFLState
        self.layout: Layout
        self.final_report: FinalReport | None = None
        self._recipients: dict[str, int] = {}
        self._measured: dict[str, ClientMetrics] = {}
        self._trained_on: dict[str, str] = {}
        self._problems: dict[str, str] = {}

    @property
    def tree(self) -> ParameterTree:
        """The parameter tree after the last round."""
        return self.state.tree

    def summary(self) -> None:
        """Log the effective settings."""
        log(INFO, "\t├──> Clusters split by: %s", self.criterion)
        log(INFO, "\t├──> Within a cluster: %s, weighted by %s", self.optimizer, self.weighting)
        log(
            INFO,
            "\t└──> Sampled per cluster: train (%.2f) | evaluate (%.2f)",
            self.fraction_train,
            self.fraction_evaluate,
        )

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run the rounds and a closing evaluation.

        Parameters
        ----------
        grid, initial_arrays, num_rounds, train_config, evaluate_config
            As in every Flower strategy. The configs are copied, never changed.
        timeout : float
            Seconds after which an exchange goes on without the clients that did not answer.
        evaluate_fn : callable, optional
            Called with the round and a model, for every cluster's model in turn. What it
            returns is averaged over the clusters, weighted by their number of members.

        Returns
        -------
        Result
            ``arrays`` is θ*_root, the model of conventional federated learning, from which the
            clusters' models in ``strategy.tree`` were specialised; metrics are over all clients.

        Raises
        ------
        FederationError
            When there are too few clients, or no usable reply came in several rounds.
        """
        self.roll_call.gather(grid, max(self.min_available_nodes, 1))
        self._plant(initial_arrays)
        log(INFO, "Starting %s with %d clients:", type(self).__name__, len(self.tree.clients))
        self.summary()
        result, unanswered = Result(arrays=initial_arrays), 0
        train_config = train_config or ConfigRecord()
        evaluate_config = evaluate_config or ConfigRecord()
        self._evaluate_centrally(0, evaluate_fn, result)
        for server_round in range(1, num_rounds + 1):
            began, last = time.monotonic(), server_round == num_rounds
            self._admit(grid, server_round)
            messages = self.configure_train(server_round, initial_arrays, train_config, grid)
            replies = self._exchange(grid, messages, timeout)
            arrays, metrics = self.aggregate_train(server_round, replies)
            unanswered = 0 if metrics else unanswered + 1
            if unanswered and (server_round == 1 or unanswered >= PATIENCE):
                raise FederationError(self._nobody(server_round))
            if arrays is not None and metrics is not None:
                result.arrays, result.train_metrics_clientapp[server_round] = arrays, metrics
            evaluated = self._evaluate(grid, server_round, evaluate_config, timeout, last)
            if evaluated is not None:
                result.evaluate_metrics_clientapp[server_round] = evaluated
            self._evaluate_centrally(server_round, evaluate_fn, result)
            self._report(server_round, num_rounds, time.monotonic() - began)
        return result

    # ---------------------------------------------------------------- training

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """A message for every sampled client, with the model of its own cluster.

        ``arrays`` is not used: the clusters' models are in ``tree``.
        """
        clients = self._sample("train", server_round, self.fraction_train, self.min_train_nodes)
        return self._messages(
            {client: self.tree.trains_on(client) for client in clients},
            MessageType.TRAIN,
            config,
            server_round,
        )

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """One round of the algorithm on the replies; θ_root and the mean metrics."""
        self._measured, self._trained_on, self._problems = {}, {}, {}
        contents: list[RecordDict] = []
        result = self._cfl.run_round(
            self.state, self._read(replies, contents), server_round=server_round
        )
        self._decisions, self.state = result.decisions, result.state
        for client, fork in result.forks.items():
            log(INFO, "Client %s walks down to cluster %s: %s", client, *fork)
        if not self._measured:
            return None, None
        metrics = as_record(weighted_mean(self._measured.values()))
        if self.train_metrics_aggr_fn is not None:
            metrics = self.train_metrics_aggr_fn(contents, self.weighted_by_key)
        return self.layout.record(self.tree.root.model), metrics

    def _read(self, replies: Iterable[Message], contents: list[RecordDict]) -> Iterator[Reply]:
        """The usable replies; the others are set aside with their reason."""
        for message, client in self._by_client(replies):
            try:
                measured = read_metrics(message, self.weighted_by_key)
                records = list(message.content.array_records.values())
                if len(records) != 1:
                    raise BadReplyError(f"has {len(records)} ArrayRecords instead of one")
                weights = self.layout.weights(records[0])
            except (BadReplyError, BadArraysError) as problem:
                self._set_aside(client, str(problem))
                continue
            self._measured[client] = measured
            self._trained_on[client] = self.tree.trains_on(client).name
            if self.train_metrics_aggr_fn is not None:
                contents.append(RecordDict(dict(message.content.metric_records)))
            yield Reply(client, weights, measured.num_examples)

    # -------------------------------------------------------------- evaluation

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """A message for every sampled client, with the model of its own cluster."""
        clients = self._sample(
            "evaluate", server_round, self.fraction_evaluate, self.min_evaluate_nodes
        )
        assigned = {client: self.tree.leaf_of(client) for client in clients}
        return self._messages(assigned, MessageType.EVALUATE, config, server_round)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """The clients' mean metrics, weighted by their examples."""
        measured, contents = self._read_metrics(replies)
        self._measured |= {c: merged(self._measured.get(c), m) for c, m in measured.items()}
        if not measured:
            return None
        if self.evaluate_metrics_aggr_fn is not None:
            return self.evaluate_metrics_aggr_fn(list(contents.values()), self.weighted_by_key)
        return as_record(weighted_mean(measured.values()))

    def _evaluate(
        self, grid: Grid, server_round: int, config: ConfigRecord, timeout: float, last: bool
    ) -> MetricRecord | None:
        if last:
            return self._evaluate_all(grid, server_round, config, timeout)
        messages = self.configure_evaluate(server_round, ArrayRecord(), config, grid)
        return self.aggregate_evaluate(server_round, self._exchange(grid, messages, timeout))

    def _evaluate_all(
        self, grid: Grid, server_round: int, config: ConfigRecord, timeout: float
    ) -> MetricRecord | None:
        """Every client under its own cluster's model and under θ*_root."""

        def ask(cluster_of: Callable[[str], Cluster]) -> Iterator[Message]:
            assigned = {c: cluster_of(c) for c in self.roll_call.clients}
            messages = self._messages(assigned, MessageType.EVALUATE, config, server_round)
            return self._exchange(grid, messages, timeout)

        own, contents = self._read_metrics(ask(self.tree.leaf_of))
        federated = own
        if self.tree.root.split_round is not None:
            federated, _ = self._read_metrics(ask(lambda _: self.tree.root))
        known = self.state.known
        results = {
            client: ClientResult(
                cluster=self.tree.leaf_of(client).name,
                num_examples=known[client].num_examples if client in known else None,
                own=measured,
                federated=federated[client],
                facts=dict(contents[client].config_records.get(FACTS, {})),
            )
            for client, measured in own.items()
            if client in federated
        }
        self.final_report = FinalReport(self.state, results, dict(self._problems))
        if not own:
            return None
        if self.evaluate_metrics_aggr_fn is not None:
            return self.evaluate_metrics_aggr_fn(list(contents.values()), self.weighted_by_key)
        return as_record(weighted_mean(own.values()))

    def _read_metrics(
        self, replies: Iterable[Message]
    ) -> tuple[dict[str, ClientMetrics], dict[str, RecordDict]]:
        measured, contents = {}, {}
        for message, client in self._by_client(replies):
            try:
                measured[client] = read_metrics(message, self.weighted_by_key)
                contents[client] = message.content
            except BadReplyError as problem:
                self._set_aside(client, str(problem))
        return measured, contents

    def _evaluate_centrally(
        self,
        server_round: int,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None,
        result: Result,
    ) -> None:
        if evaluate_fn is None:
            return
        measured = []
        for leaf in self.tree.leaves:
            metrics = evaluate_fn(server_round, self.layout.record(leaf.model))
            if metrics is not None:
                measured.append(ClientMetrics(dict(metrics.items()), len(leaf.members)))
        if measured:
            result.evaluate_metrics_serverapp[server_round] = as_record(weighted_mean(measured))

    # ----------------------------------------------------------------- clients

    def _plant(self, initial_arrays: ArrayRecord) -> None:
        """The tree of a new run: everyone in the root, under the initial model."""
        self.layout = Layout.of(initial_arrays, self.untrained)
        self._cfl = CFL(
            self.criterion,
            self.optimizer,
            self.weighting,
            self.layout.mask(self.similarity_layers),
            self.layout.as_sent,
        )
        model = self.layout.weights(initial_arrays)
        self.state = CFLState(
            ParameterTree.plant(model, self.roll_call.clients, isolated=self.isolated)
        )

    def _admit(self, grid: Grid, server_round: int) -> None:
        """Find out who is there; newcomers become clients."""
        self.roll_call.update(grid)
        tree = self.tree
        for client in self.roll_call.clients:
            tree = tree.admit(client, server_round, isolated=self.isolated)
        newcomers = set(tree.clients) - set(self.tree.clients)
        if newcomers:
            log(INFO, "New client(s): %s", ", ".join(in_order(newcomers)))
        self.state = replace(self.state, tree=tree)

    def _sample(self, purpose: str, server_round: int, fraction: float, least: int) -> list[str]:
        """Connected clients, the same share of every cluster; all who walk down the tree."""
        if fraction == 0:
            return []
        rng = generator(self.seed, purpose, server_round)
        chosen, others = [], []
        for leaf in self.tree.leaves:
            there = [name for name in leaf.members if name in self.roll_call.nodes]
            walking = [name for name in there if name in self.tree.walking]
            settled = [name for name in there if name not in self.tree.walking]
            order = [settled[i] for i in rng.permutation(len(settled))]
            share = max(1, round(fraction * len(order)))
            chosen += walking + order[:share]
            others += order[share:]
        return list(in_order(chosen + others[: max(0, least - len(chosen))]))

    def _messages(
        self, assigned: dict[str, Cluster], kind: str, config: ConfigRecord, server_round: int
    ) -> list[Message]:
        """A message a client, each with records of its own; the arrays are made once a cluster."""
        models = {cluster.name: cluster.model for cluster in assigned.values()}
        arrays = {name: self.layout.record(model) for name, model in models.items()}
        return [
            Message(
                RecordDict(
                    {
                        self.arrayrecord_key: ArrayRecord(dict(arrays[cluster.name])),
                        self.configrecord_key: ConfigRecord(
                            {**config, "server-round": server_round, "cluster": cluster.name}
                        ),
                    }
                ),
                self.roll_call.nodes[client],
                kind,
                group_id=str(server_round),
            )
            for client, cluster in assigned.items()
        ]

    def _exchange(
        self, grid: Grid, messages: Iterable[Message], timeout: float
    ) -> Iterator[Message]:
        exchange = Exchange(grid, messages, timeout)
        self._recipients = exchange.recipients
        yield from exchange
        for node in exchange.silent:
            self._set_aside(self.roll_call.name_of(node), f"did not come within {timeout:g} s")

    def _by_client(self, replies: Iterable[Message]) -> Iterator[tuple[Message, str]]:
        """Each message with its sender's name, the first of each sender."""
        seen = set()
        for message in replies:
            answered = message.metadata.reply_to_message_id
            node = self._recipients.get(answered, message.metadata.src_node_id)
            client = self.roll_call.name_of(node)
            if client in seen:
                self._set_aside(client, "came twice")
                continue
            seen.add(client)
            yield message, client

    def _set_aside(self, client: str, problem: str) -> None:
        self._problems[client] = problem
        log(WARNING, "Round goes on without client %s: its reply %s", client, problem)

    # --------------------------------------------------------------- reporting

    def _report(self, server_round: int, num_rounds: int, seconds: float) -> None:
        if self.on_round is None:
            return
        self.on_round(
            RoundReport(
                server_round,
                num_rounds,
                self.state,
                self._decisions,
                dict(self._trained_on),
                dict(self._measured),
                dict(self._problems),
                seconds,
            )
        )

    def _nobody(self, server_round: int) -> str:
        reasons: dict[str, Any] = {}
        for client, problem in self._problems.items():
            reasons.setdefault(problem, client)
        told = "; ".join(f"{client}: the reply {problem}" for problem, client in reasons.items())
        return f"No usable reply in round {server_round}. {told or 'Nobody was asked.'}"


def merged(first: ClientMetrics | None, second: ClientMetrics) -> ClientMetrics:
    """Metrics of training and evaluation of one client; the evaluation's win."""
    if first is None:
        return second
    return ClientMetrics({**first.metrics, **second.metrics}, second.num_examples)
