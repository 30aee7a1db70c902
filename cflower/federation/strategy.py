"""`ClusteredFL`: Clustered Federated Learning as a Flower Strategy.

Sattler, Müller, Samek, "Clustered Federated Learning: Model-Agnostic Distributed Multi-Task
Optimization under Privacy Constraints", arXiv 1910.01991. This file is Flower's side of it;
the algorithm is in `cflower.algorithm`.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from logging import INFO, WARNING

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from flwr.supercore import log

from cflower.algorithm.auto import AutoCriterion
from cflower.algorithm.cfl_round import CFL, CFLState, Reply, Weighting
from cflower.algorithm.criteria import Criterion
from cflower.algorithm.optimizers import ServerOptimizer
from cflower.algorithm.tree import ParameterTree, Selection, in_order
from cflower.errors import ConfigError, FederationError
from cflower.federation.closing import Closing
from cflower.federation.conduct import Answers, Conduct, fault_of
from cflower.federation.layout import UNTRAINED, BadArraysError, Layout
from cflower.federation.norms import NormWatch
from cflower.federation.post import Keys, Measured, Post
from cflower.federation.replies import (
    Answer,
    BadReplyError,
    ClientMetrics,
    as_record,
    read_answer,
    weighted_mean,
)
from cflower.federation.reports import FinalReport, RoundReport
from cflower.federation.roll_call import RollCall
from cflower.federation.sampling import sample
from cflower.seeding import generator


class ClusteredFL(Strategy):
    """Train a model per cluster of clients that belong together, found from their updates.

    Takes the place of ``FedAvg`` in a ServerApp; the ClientApp needs no change. It differs from
    ``FedAvg`` only in which model a client gets: that of its own cluster.

    Parameters
    ----------
    criterion : Criterion, optional
        When to split a cluster; `AutoCriterion` if not given, which needs no thresholds.
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
    projection_dim : int
        Updates with more trained entries than this are kept as a random projection of this
        length, see `Projection`; 0 keeps all of them exactly. Memory grows with it times the
        number of clients.
    untrained : sequence of str
        Patterns of floating-point arrays that are averaged but not learned.
    max_norm_ratio : float
        A reply whose update is longer than this times the median of its cluster's other known
        updates is set aside, see `NormWatch`; 0: none is.
    exclude_after : int
        Bad replies to training in a row after which a client is asked no more; 0: never. It
        stays a member of its cluster, but no longer counts when that decides on a split.
    isolated : bool
        Every client is a cluster of its own from the start.
    selection : {"leaf", "best", "ensemble"}
        Which of the models on its way the closing evaluation's mean metrics take each client
        to be served by; all are in `final_report`, see `ClientResult`.
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
    conduct : Conduct
        How the clients behaved up to the last round.
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
        projection_dim: int = 16384,
        untrained: Sequence[str] = UNTRAINED,
        max_norm_ratio: float = 0.0,
        exclude_after: int = 5,
        isolated: bool = False,
        selection: Selection = "leaf",
        seed: int = 0,
        roll_call: RollCall | None = None,
        on_round: Callable[[RoundReport], None] | None = None,
    ) -> None:
        self.criterion = criterion or AutoCriterion()
        self.fraction_train, self.fraction_evaluate = fraction_train, fraction_evaluate
        self.min_train_nodes, self.min_evaluate_nodes = min_train_nodes, min_evaluate_nodes
        self.min_available_nodes = min_available_nodes
        self.keys = Keys(weighted_by_key, arrayrecord_key, configrecord_key)
        self.train_metrics_aggr_fn = train_metrics_aggr_fn
        self.evaluate_metrics_aggr_fn = evaluate_metrics_aggr_fn
        self.optimizer, self.weighting = optimizer or ServerOptimizer(), weighting
        self.similarity_layers, self.projection_dim = similarity_layers, projection_dim
        self.untrained = tuple(untrained)
        self.max_norm_ratio, self.exclude_after = max_norm_ratio, exclude_after
        self.isolated, self.seed = isolated, seed
        self.selection: Selection = selection
        self.roll_call = roll_call or RollCall()
        self.on_round = on_round
        self.state: CFLState
        self.layout: Layout
        self.conduct = Conduct()
        self.final_report: FinalReport | None = None
        self._finished_rounds = 0
        self._post = Post(self.roll_call, self.keys)
        self._measured: dict[str, ClientMetrics] = {}
        self._trained_on: dict[str, str] = {}
        self._told: dict[str, str] = {}

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
            When there are too few clients, no usable reply came in several rounds or at all,
            or the simulation engine broke down.
        """
        self.roll_call.gather(grid, max(self.min_available_nodes, 1))
        self._plant(initial_arrays)
        log(INFO, "Starting %s with %d clients:", type(self).__name__, len(self.tree.clients))
        self.summary()
        result = Result(arrays=initial_arrays)
        train_config = train_config or ConfigRecord()
        evaluate_config = evaluate_config or ConfigRecord()
        self._evaluate_centrally(0, evaluate_fn, result)
        for server_round in range(self._finished_rounds + 1, num_rounds + 1):
            began = time.monotonic()
            self._admit(grid, server_round)
            messages = self.configure_train(server_round, initial_arrays, train_config, grid)
            replies = self._post.exchange(grid, messages, timeout)
            arrays, metrics = self.aggregate_train(server_round, replies)
            if arrays is not None and metrics is not None:
                result.arrays, result.train_metrics_clientapp[server_round] = arrays, metrics
            if server_round < num_rounds:
                messages = self.configure_evaluate(
                    server_round, initial_arrays, evaluate_config, grid
                )
                replies = self._post.exchange(grid, messages, timeout)
                evaluated = self.aggregate_evaluate(server_round, replies)
                if evaluated is not None:
                    result.evaluate_metrics_clientapp[server_round] = evaluated
            self._evaluate_centrally(server_round, evaluate_fn, result)
            self._report(server_round, num_rounds, time.monotonic() - began)
        if num_rounds and (problem := self.conduct.must_not_end(simulated=self._simulated)):
            raise FederationError(problem)
        self.final_report = self._close(grid, num_rounds, evaluate_config, timeout, result)
        return result

    def resume(self, state: CFLState, server_round: int, conduct: Conduct | None = None) -> None:
        """Let `start` go on after ``server_round`` from this state instead of from the beginning.

        With the same settings and clients, the rounds that follow are those that would have
        followed without the interruption.
        """
        self.state, self._finished_rounds = state, server_round
        self.conduct = conduct or Conduct()

    # ---------------------------------------------------------------- training

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """A message for every sampled client, with the model of its own cluster.

        ``arrays`` is not used: the clusters' models are in ``tree``.
        """
        drawn = self._draw("train", server_round, self.fraction_train, self.min_train_nodes)
        assigned = {client: self.tree.trains_on(client) for client in drawn}
        kind = MessageType.TRAIN
        return self._post.messages(assigned, self.layout, kind, config, server_round)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """One round of the algorithm on the replies; θ_root and the mean metrics."""
        self._measured, self._trained_on, self._told = {}, {}, {}
        contents: list[RecordDict] = []
        result = self._cfl.run_round(
            self.state,
            self._usable(replies, contents),
            server_round=server_round,
            excluded=self.conduct.excluded,
        )
        self._decisions, self.state = result.decisions, result.state
        for client, fork in result.forks.items():
            log(INFO, "Client %s walks down to cluster %s: %s", client, *fork)
        self._judge(server_round)
        if not self._measured:
            return None, None
        metrics = as_record(weighted_mean(self._measured.values()))
        if self.train_metrics_aggr_fn is not None:
            metrics = self.train_metrics_aggr_fn(contents, self.keys.weighted_by)
        return self.layout.record(self.tree.root.model), metrics

    def _usable(self, replies: Iterable[Message], contents: list[RecordDict]) -> Iterator[Reply]:
        """The usable replies; the others are set aside with their reason."""
        watch = NormWatch(self.tree, self.state.known, self.max_norm_ratio)
        for client, update, norm, measured in watch.sift(self._read(replies), self._post.set_aside):
            self._measured[client] = measured
            self._trained_on[client] = self.tree.trains_on(client).name
            if self.train_metrics_aggr_fn is not None:
                weight = {self.keys.weighted_by: measured.num_examples}
                contents.append(RecordDict({"metrics": as_record(measured.metrics | weight)}))
            yield Reply(client, update, norm, measured.num_examples)

    def _read(self, replies: Iterable[Message]) -> Iterator[Answer]:
        for client, message in self._post.by_client(replies):
            origin = self.tree.trains_on(client).model
            try:
                yield read_answer(client, message, self.layout, self.keys.weighted_by, origin)
            except BadReplyError as problem:
                self._post.set_aside(client, str(problem), fault_of(message))

    def _judge(self, server_round: int) -> None:
        """Note how the round went; exclude clients, or stop the run."""
        answers = Answers(self._measured.keys(), self._post.take())
        before = self.conduct.excluded
        self.conduct = self.conduct.trained(answers, self.exclude_after, len(self._present))
        self._told = {client: problem.text for client, problem in answers.problems.items()}
        for client in self.conduct.excluded.keys() - before.keys():
            self._told[client] += "; it is excluded from now on"
            log(WARNING, "Client %s is excluded: %s.", client, self.conduct.excluded[client])
        stop = self.conduct.must_stop(answers, server_round, simulated=self._simulated)
        if stop:
            raise FederationError(stop)

    # -------------------------------------------------------------- evaluation

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """A message for every sampled client, with the model of its own cluster."""
        drawn = self._draw(
            "evaluate", server_round, self.fraction_evaluate, self.min_evaluate_nodes
        )
        assigned = {client: self.tree.leaf_of(client) for client in drawn}
        kind = MessageType.EVALUATE
        return self._post.messages(assigned, self.layout, kind, config, server_round)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """The clients' mean metrics, weighted by their examples."""
        measured = self._post.measured(replies)
        problems = self._post.take()
        self.conduct = replace(self.conduct, problems=self.conduct.noted(problems))
        for client, problem in problems.items():
            self._told.setdefault(client, problem.text)
        for client, new in measured.metrics.items():
            old = self._measured.get(client, new)
            self._measured[client] = new._replace(metrics={**old.metrics, **new.metrics})
        return self._mean_metrics(measured)

    def _close(
        self, grid: Grid, server_round: int, config: ConfigRecord, timeout: float, result: Result
    ) -> FinalReport:
        """The closing evaluation, of everyone who is there."""
        self.roll_call.update(grid)
        closing = Closing(grid, self._post, self.layout, self.state, config, server_round, timeout)
        results = closing.evaluate(self._present, self.roll_call.facts)
        report = FinalReport(self.state, results, closing.problems, self.conduct, self.selection)
        metrics = self._mean_metrics(closing.measured(report))
        if metrics is not None:
            result.evaluate_metrics_clientapp[server_round] = metrics
        return report

    def _mean_metrics(self, measured: Measured) -> MetricRecord | None:
        if not measured.metrics:
            return None
        if self.evaluate_metrics_aggr_fn is not None:
            contents = list(measured.contents.values())
            return self.evaluate_metrics_aggr_fn(contents, self.keys.weighted_by)
        return as_record(weighted_mean(measured.metrics.values()))

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

    @property
    def _present(self) -> tuple[str, ...]:
        """The clients that can be asked: connected, not excluded."""
        return tuple(c for c in self.roll_call.clients if c not in self.conduct.excluded)

    @property
    def _simulated(self) -> bool:
        """Whether the nodes are those of a simulation, which announce how many they are."""
        return any("num-partitions" in facts for facts in self.roll_call.facts.values())

    def _plant(self, initial_arrays: ArrayRecord) -> None:
        """The layout of the models, and unless resumed a tree with everyone in the root."""
        self.layout = Layout.of(initial_arrays, self.untrained)
        projection = self.layout.projection(self.projection_dim, self.seed, self.similarity_layers)
        self._cfl = CFL(
            self.criterion, projection, self.optimizer, self.weighting, self.layout.as_sent
        )
        if self._finished_rounds:
            return
        try:
            model = self.layout.weights(initial_arrays)
        except BadArraysError as problem:
            raise ConfigError(f"The initial model {problem}.") from None
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

    def _draw(self, purpose: str, server_round: int, fraction: float, least: int) -> Sequence[str]:
        rng = generator(self.seed, purpose, server_round)
        return sample(self.tree, self._present, fraction, least, rng)

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
                dict(self._told),
                seconds,
                self.conduct,
            )
        )
