"""`ClusteredFL`: Clustered Federated Learning as a Flower Strategy.

Sattler, Müller, Samek, "Clustered Federated Learning: Model-Agnostic Distributed Multi-Task
Optimization under Privacy Constraints", arXiv 1910.01991. This file is Flower's side of it;
the algorithm is in `cflower.algorithm`.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from logging import INFO, WARNING
from typing import Any, NoReturn

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from flwr.serverapp.strategy.strategy_utils import log_strategy_start_info
from flwr.supercore import log

from cflower.algorithm.auto import AutoCriterion
from cflower.algorithm.cfl_round import CFL, CFLState, Weighting
from cflower.algorithm.criteria import Criterion
from cflower.algorithm.optimizers import ServerOptimizer
from cflower.algorithm.tree import ParameterTree, Selection
from cflower.errors import ConfigError, FederationError
from cflower.federation.client_names import EVALUATE, functions_of
from cflower.federation.describing import described, plain
from cflower.federation.failures import ExchangeOutcome, FailureRecord
from cflower.federation.final_evaluation import FinalEvaluation
from cflower.federation.influence import MOST
from cflower.federation.layout import UNTRAINED, BadArraysError, Layout
from cflower.federation.messenger import ClientMessenger, Keys, Measured
from cflower.federation.observers import Checkpoint, Observer, Observers, RunStart
from cflower.federation.plausible import mean_over_clients
from cflower.federation.replies import ClientMetrics, as_record, weighted_mean
from cflower.federation.reports import FinalReport, Metric, RoundReport
from cflower.federation.results import ClusteredResult, tree_lines
from cflower.federation.roll_call import RollCall
from cflower.federation.sampling import sample
from cflower.federation.training_round import TrainingRound
from cflower.federation.wrappers import refuse_clipping_on_the_server, with_noise_of
from cflower.ordering import in_order
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
        updates is set aside, see `Influence`; 0: none is.
    max_influence : float
        As how many usual clients of its cluster one may count in the mean update, by its examples
        and the length of its update, see `Influence`; 0: as many as it claims: eq. 2 exactly.
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
    metric : str
        The clients' metric that leads in logs, tables and reports.
    higher_is_better : bool, optional
        Of that metric; if not given its name tells (loss, perplexity, rmse, mae: lower is better).
    observers : sequence of Observer
        Told of the start, of every round and of the end, such as `cflower.Recorder`.
    roll_call : RollCall, optional
        Who is there. If not given, clients are asked for their names where the ClientApp can
        answer, see `cflower.name_clients`; else their node ids are their names.

    Attributes
    ----------
    models : dict of str to ArrayRecord
        The model of every cluster of the tree, by name.
    state : CFLState
        Tree and known updates after the last round; ``strategy.tree`` for short.
    layout : Layout
        How the models' arrays lie in the algorithm's vectors.
    failures : FailureRecord
        How the clients behaved up to the last round.
    final_report : FinalReport or None
        The closing evaluation, once `start` has returned.

    Notes
    -----
    Flower's wrappers for differential privacy with clipping on the clients may be put around it:
    the noise that they add to the one model they see is added to every cluster's model, longer by
    the factor by which the cluster is smaller. Those that clip on the server are refused.
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
        max_influence: float = MOST,
        exclude_after: int = 5,
        isolated: bool = False,
        selection: Selection = "leaf",
        seed: int = 0,
        metric: str = "accuracy",
        higher_is_better: bool | None = None,
        observers: Sequence[Observer] = (),
        roll_call: RollCall | None = None,
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
        self.max_norm_ratio, self.max_influence = max_norm_ratio, max_influence
        self.exclude_after = exclude_after
        self.isolated, self.seed = isolated, seed
        self.selection: Selection = selection
        self.metric = Metric.of(metric, higher_is_better)
        # A busy machine takes minutes to start a simulation; FedAvg would wait forever.
        self.roll_call = roll_call or RollCall(timeout=300.0, asks=None)
        self.state = CFLState(ParameterTree({}))
        self.layout = Layout((), np.dtype(np.float32))
        self.failures = FailureRecord()
        self.final_report: FinalReport | None = None
        self._observers = Observers(observers)
        self._cfl: CFL | None = None
        self._round: TrainingRound | None = None
        self._finished_rounds = 0
        self._own_start = False
        self._returned: ArrayRecord | None = None
        self._messenger = ClientMessenger(self.roll_call, self.keys)

    def __repr__(self) -> str:
        """Settings and clusters in one line."""
        return f"{type(self).__name__}({self.criterion}, {self.tree})"

    @property
    def tree(self) -> ParameterTree:
        """The parameter tree after the last round."""
        return self.state.tree

    @property
    def models(self) -> dict[str, ArrayRecord]:
        """The model of every cluster, the split ones too, in the app's own keys."""
        return {
            name: self.layout.record(self.tree.clusters[name].model)
            for name in in_order(self.tree.clusters)
        }

    def cluster_of(self, client: str) -> str:
        """The cluster whose model a client has.

        Raises
        ------
        FederationError
            If there is no such client.
        """
        if client not in self.tree.clients:
            known = ", ".join(self.tree.clients[:5]) or "none"
            raise FederationError(f"There is no client {client!r} in this run (it has {known}).")
        return self.tree.leaf_of(client).name

    @property
    def settings(self) -> dict[str, Any]:
        """How the run is set up, as plain values under kebab-case keys."""
        return {
            "method": self._method,
            "criterion": described(self.criterion),
            "server-optimizer": described(self.optimizer),
            "weighting": self.weighting,
            "fraction-train": self.fraction_train,
            "fraction-evaluate": self.fraction_evaluate,
            "similarity-layers": self.similarity_layers,
            "projection-dim": self.projection_dim,
            "untrained": list(self.untrained),
            "max-norm-ratio": self.max_norm_ratio,
            "max-influence": self.max_influence,
            "exclude-after": self.exclude_after,
            "selection": self.selection,
            "seed": self.seed,
            "metric": self.metric.name,
            "higher-is-better": self.metric.higher_is_better,
            "arrayrecord-key": self.keys.arrays,
            "configrecord-key": self.keys.config,
            "weighted-by-key": self.keys.weighted_by,
        }

    @property
    def _method(self) -> str:
        if self.isolated:
            return "isolated"
        return "federated" if described(self.criterion)["name"] == "never" else "clustered"

    def initialize_parameters(self, client_manager: object) -> NoReturn:
        """Refuse Flower's older workflows, with them SecAgg+: they begin with this call.

        Raises
        ------
        ConfigError
        """
        raise ConfigError(
            "ClusteredFL cannot run under SecAggPlusWorkflow or another of Flower's older "
            "workflows: secure aggregation shows the server only sums of updates, and clusters "
            "are found by comparing single ones. Call ClusteredFL.start; against a curious server "
            "there are LocalDpMod and cflower.PermutationMod."
        )

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
    ) -> ClusteredResult:
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
        ClusteredResult
            Flower's Result: its metrics are over all clients, its ``arrays`` the root's model,
            which learns no more once the root is split; and each cluster's model, clients and
            metrics.

        Raises
        ------
        CFlowerError
            When there are too few clients, no usable reply came in several rounds or at all,
            the simulation engine broke down, or an observer refuses the run.
        """
        self._own_start = True
        train_config = train_config or ConfigRecord()
        evaluate_config = evaluate_config or ConfigRecord()
        self._begin(grid, initial_arrays, num_rounds, train_config, evaluate_config)
        log(INFO, "Starting %s with %d clients:", type(self).__name__, len(self.tree.clients))
        log_strategy_start_info(num_rounds, initial_arrays, train_config, evaluate_config)
        self.summary()
        arrays = initial_arrays
        result = Result(arrays)
        try:
            self._evaluate_centrally(0, evaluate_fn, result)
            for server_round in range(self._finished_rounds + 1, num_rounds + 1):
                began = time.monotonic()
                log(INFO, "")
                log(INFO, "[ROUND %d/%d]", server_round, num_rounds)
                messages = self.configure_train(server_round, arrays, train_config, grid)
                replies = self._messenger.exchange(grid, messages, timeout)
                new, metrics = self.aggregate_train(server_round, replies)
                if new is not None and metrics is not None:
                    result.arrays = arrays = new
                    result.train_metrics_clientapp[server_round] = metrics
                    log(INFO, "\t└──> Aggregated MetricRecord: %s", metrics)
                if server_round < num_rounds:
                    messages = self.configure_evaluate(server_round, arrays, evaluate_config, grid)
                    replies = self._messenger.exchange(grid, messages, timeout)
                    evaluated = self.aggregate_evaluate(server_round, replies)
                    if evaluated is not None:
                        result.evaluate_metrics_clientapp[server_round] = evaluated
                        log(INFO, "\t└──> Aggregated MetricRecord: %s", evaluated)
                self._evaluate_centrally(server_round, evaluate_fn, result)
                self._report(server_round, num_rounds, time.monotonic() - began)
            if num_rounds and (problem := self.failures.must_not_end(simulated=self._simulated)):
                raise FederationError(problem)
            self.final_report = self._close(grid, num_rounds, evaluate_config, timeout, result)
            log(INFO, "")
            log(INFO, "Clusters found:")
            for line in tree_lines(self.final_report, self.metric):
                log(INFO, "\t%s", line)
        finally:
            self._observers.end(self.final_report)
            self._own_start = False
        return ClusteredResult.of(result, self.final_report, self.models)

    def resume(
        self, state: CFLState, server_round: int, failures: FailureRecord | None = None
    ) -> None:
        """Let `start` go on after ``server_round`` from this state instead of from the beginning.

        With the same settings and clients, the rounds that follow are those that would have
        followed without the interruption.
        """
        self.state, self._finished_rounds = state, server_round
        self.failures = failures or FailureRecord()

    def _begin(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int,
        train_config: ConfigRecord,
        evaluate_config: ConfigRecord | None = None,
    ) -> None:
        """Wait for the clients and lay out the model, once a run."""
        self.roll_call.gather(grid, max(self.min_available_nodes, 1))
        self.layout = Layout.of(initial_arrays, self.untrained)
        projection = self.layout.projection(self.projection_dim, self.seed, self.similarity_layers)
        self._cfl = CFL(
            self.criterion, projection, self.optimizer, self.weighting, self.layout.as_sent
        )
        facts = {name: self.roll_call.facts[name] for name in self.roll_call.clients}
        settings = {
            **self.settings,
            "train-config": plain(train_config),
            "evaluate-config": plain(evaluate_config or {}),
        }
        start = RunStart(num_rounds, self.metric, settings, self.layout, facts)
        if checkpoint := self._observers.start(start):
            self._take_up(checkpoint)
        if self._finished_rounds:
            return
        try:
            model = self.layout.weights(initial_arrays)
        except BadArraysError as problem:
            raise ConfigError(f"The initial model {problem}.") from None
        self.state = CFLState(
            ParameterTree.initial(model, self.roll_call.clients, isolated=self.isolated)
        )

    def _take_up(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint, if it is one of these clients."""
        if not set(checkpoint.state.tree.clients) & set(self.roll_call.clients):
            raise FederationError(
                "Cannot resume: none of the run's clients "
                f"({', '.join(checkpoint.state.tree.clients[:3])}, ...) is here, but "
                f"{', '.join(self.roll_call.clients[:3])}, ... are. Node ids change from run to "
                "run: give the clients lasting names with cflower.name_clients(app) in the "
                "ClientApp."
            )
        self.resume(checkpoint.state, checkpoint.server_round, checkpoint.failures)

    # ---------------------------------------------------------------- training

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """A message for every sampled client, with the model of its own cluster.

        ``arrays`` is what `aggregate_train` returned last. If it is not, as when a wrapper added
        noise, the difference is added to the clusters' models.
        """
        if self._cfl is None:
            self._begin(grid, arrays, 0, config)
        if not self._own_start:
            refuse_clipping_on_the_server()
            if self._returned is not None and arrays is not self._returned:
                noisy = with_noise_of(arrays, self._returned, self.tree, self.layout)
                self.state = replace(self.state, tree=noisy)
        self._admit(grid, server_round)
        drawn = self._draw("train", server_round, self.fraction_train, self.min_train_nodes)
        log(INFO, "configure_train: Sampled %d nodes (out of %d)", len(drawn), len(self._present))
        assigned = {client: self.tree.training_cluster(client) for client in drawn}
        kind = MessageType.TRAIN
        return self._messenger.messages(assigned, self.layout, kind, config, server_round)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """One round of the algorithm on the replies; θ_root and the mean metrics."""
        assert self._cfl is not None, "configure_train comes first"
        this = TrainingRound(
            self.state,
            self.layout,
            self._messenger,
            self._cfl.weight_of,
            self.max_norm_ratio,
            self.max_influence,
        )
        self._round = this
        result = self._cfl.run_round(
            self.state,
            this.usable(replies),
            server_round=server_round,
            excluded=self.failures.excluded,
        )
        this.decisions, self.state = result.decisions, result.state
        self._note(this, server_round)
        for decision in this.decisions:
            log(INFO, "\tcluster %s, %s: %s", decision.cluster, decision.outcome, decision.reason)
        for client, fork in result.forks.items():
            log(INFO, "Client %s walks down to cluster %s: %s", client, *fork)
        if not this.measured:
            return None, None
        metrics = as_record(mean_over_clients(this.measured.values()))
        if self.train_metrics_aggr_fn is not None:
            metrics = self.train_metrics_aggr_fn(this.contents, self.keys.weighted_by)
        self._returned = self.layout.record(self.tree.root.model)
        return self._returned, metrics

    def _note(self, this: TrainingRound, server_round: int) -> None:
        """Note how the clients behaved in the round; exclude some, or stop the run."""
        before = self.failures.excluded
        answers = ExchangeOutcome(this.measured.keys(), self._messenger.drain_problems())
        self.failures = self.failures.trained(answers, self.exclude_after, len(self._present))
        excluded = {c: self.failures.excluded[c] for c in self.failures.excluded if c not in before}
        this.note(answers.problems, excluded)
        log(
            INFO,
            "aggregate_train: Received %d results and %d failures",
            len(this.measured),
            len(answers.problems),
        )
        for client, reason in excluded.items():
            log(WARNING, "Client %s is excluded: %s.", client, reason)
        stop = self.failures.must_stop(answers, server_round, simulated=self._simulated)
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
        if drawn:
            total = len(self._present)
            log(INFO, "configure_evaluate: Sampled %d nodes (out of %d)", len(drawn), total)
        assigned = {client: self.tree.leaf_of(client) for client in drawn}
        kind = MessageType.EVALUATE
        return self._messenger.messages(assigned, self.layout, kind, config, server_round)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """The clients' mean metrics, weighted by their examples."""
        measured = self._messenger.measured(replies)
        problems = self._messenger.drain_problems()
        self.failures = replace(self.failures, problems=self.failures.noted(problems))
        if measured.metrics or problems:
            log(
                INFO,
                "aggregate_evaluate: Received %d results and %d failures",
                len(measured.metrics),
                len(problems),
            )
        if self._round is not None:
            self._round.note(problems)
            self._round.evaluated(measured)
        if not self._own_start:
            self._report(server_round, 0, 0.0)
        return self._mean_metrics(measured)

    def _close(
        self, grid: Grid, server_round: int, config: ConfigRecord, timeout: float, result: Result
    ) -> FinalReport:
        """The closing evaluation, of everyone who is there."""
        self.roll_call.update(grid)
        closing = FinalEvaluation(
            grid, self._messenger, self.layout, self.state, config, server_round, timeout
        )
        functions, results = functions_of(grid), {}
        if functions is None or EVALUATE in functions:
            results = closing.evaluate(self._present, self.roll_call.facts)
        else:
            log(WARNING, "The ClientApp evaluates nothing: there are no held-out metrics.")
        report = FinalReport(
            self.state, results, server_round, closing.problems, self.failures, self.selection
        )
        seen = {key for one in results.values() for key in one.leaf.metrics}
        if results and self.metric.name not in seen:
            log(
                WARNING,
                "No client sent the metric %r (they sent %s): name the one that leads with "
                "ClusteredFL(metric=...).",
                self.metric.name,
                ", ".join(sorted(seen)) or "none",
            )
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
        return as_record(mean_over_clients(measured.metrics.values()))

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
        return tuple(c for c in self.roll_call.clients if c not in self.failures.excluded)

    @property
    def _simulated(self) -> bool:
        """Whether the nodes are those of a simulation, which announce how many they are."""
        return self.roll_call.simulated

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
        this = self._round
        if this is None:
            return
        self._observers.round(
            RoundReport(
                server_round,
                num_rounds,
                self.state,
                this.decisions,
                this.trained_on,
                this.measured,
                this.problems,
                seconds,
                self.layout,
                self.failures,
            )
        )
