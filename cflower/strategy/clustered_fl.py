"""`ClusteredFL`: Clustered Federated Learning as a Flower Strategy.

Sattler, Müller, Samek, "Clustered Federated Learning: Model-Agnostic Distributed Multi-Task
Optimization under Privacy Constraints", arXiv 1910.01991. This file is Flower's side of it: the
loop over rounds, and the methods that Flower's wrappers call.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from logging import INFO
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from flwr.supercore import log

from cflower.algorithm.state import CFLState
from cflower.algorithm.tree import ParameterTree
from cflower.errors import FederationError
from cflower.messages.failures import FailureRecord
from cflower.messages.layout import Layout
from cflower.ordering import counted, in_order, listed
from cflower.strategy.reports import FinalReport
from cflower.strategy.results import CentralEvaluation, ClusteredResult, keep_metrics
from cflower.strategy.run import Call, Run
from cflower.strategy.settings import Settings, other_than_default, plain, settings_in_words
from cflower.strategy.wrappers import refuse_older_workflow


@dataclass(eq=False, repr=False)
class ClusteredFL(Settings, Strategy):
    """Train a model per cluster of clients that belong together, detected from their updates.

    Replaces ``FedAvg`` in a ServerApp; each client gets the model of its own cluster. Flower's
    wrappers for differential privacy with clipping on the clients may be put around it.

    Parameters
    ----------
    criterion : Criterion, optional
        When to split a cluster; `AutoCriterion`, which needs no thresholds, if not given.
    fraction_train, fraction_evaluate : float
        Share of every cluster's clients that train or evaluate in a round.
    min_train_nodes, min_evaluate_nodes, min_available_nodes : int
    weighted_by_key, arrayrecord_key, configrecord_key : str
    train_metrics_aggr_fn, evaluate_metrics_aggr_fn : callable, optional
        As in ``FedAvg``, over the clients of all clusters; the two functions get one record
        ``metrics`` for each client.
    optimizer : ServerOptimizer, optional
        How a cluster's model follows the mean update; eq. 2 if not given.
    weighting : {"examples", "uniform"}
        ``w_i = |D_i|/|D_c|`` (eq. 2) or ``1/|c|`` (Algorithm 5).
    aggregation, beta : {"fedavg", "fedmedian", "fedtrimmedavg"} or Aggregator, float in (0, 0.5]
        The mean update of a cluster: eq. 2, or each coordinate's median, or mean without a share of
        ``beta`` at each end; these two withstand many hostile clients, ignore ``weighting`` and
        keep a round's updates in memory, as does an `Aggregator` of your own.
    similarity_layers : str
        Comma-separated patterns of the arrays that similarity compares.
    projection_dim : int
        Length of the random projections of longer updates; 0: updates are compared whole.
    untrained : sequence of str
        Patterns of floating-point arrays that are not trained: each entry becomes the middle one
        of those that the clients send.
    max_influence : float
        Number of usual clients for which one may count (`RobustMean`); 0: any, eq. 2 exactly.
    exclude_after : int
        Unusable replies to training in a row after which a client is not asked for 5 rounds, and if
        the next reply is unusable too for 10, 20 and so on; 0: never.
    round_share, round_seconds : float
        Share of the clients whose replies close a round, and seconds after which it closes with the
        replies it has (0: ``timeout``). A later reply to training counts when it comes, for less
        the further the cluster's model has moved (AsyncFedED, arXiv 2205.13797).
    isolated : bool
        Every client is a cluster of its own from the start.
    trial_rounds : int, optional
        0: a split is made at once and is final; else its clients are asked before it is made.
        This and the next two are the criterion's if not given: 1, True and True for
        `AutoCriterion`, else off.
    moving, personal : bool, optional
        Whether members with changed data move to other leaves, which are joined if their clients
        agree, and leaves' models in the end towards each member's own, where that serves better.
    selection : {"leaf", "best", "ensemble"}
        The model on its path by which a client is served in the final mean metrics.
    seed : int
        Of the sampling of clients.
    metric, higher_is_better : str, bool, optional
        The clients' metric that leads in votes, logs, tables and reports; its name decides the
        direction if not given (loss, perplexity, rmse, mae: lower). Where most clients send no
        ``accuracy``, another that means it leads, such as ``eval_acc``.
    observers : sequence of Observer
        Called at the start, after every round and at the end, such as `cflower.Recorder`.
    roll_call : RollCall
        The connected clients, by default under their names (`cflower.name_clients`) or node ids.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self._run: Run | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.rules.criterion}, {self.tree})"

    @property
    def state(self) -> CFLState:
        """Parameter tree and known updates after the last round."""
        return self._run.state if self._run else CFLState(ParameterTree({}))

    @property
    def tree(self) -> ParameterTree:
        return self.state.tree

    @property
    def layout(self) -> Layout:
        """The model's arrays in the vectors of `state`."""
        return self._run.layout if self._run else Layout((), np.dtype(np.float32))

    @property
    def models(self) -> dict[str, ArrayRecord]:
        """The model of every cluster, the split ones too, in the app's own keys."""
        clusters = self.tree.clusters
        return {n: self.layout.record(self.tree.model_of(n)) for n in in_order(clusters)}

    @property
    def failures(self) -> FailureRecord:
        """The clients' failures up to the last round; none before `start`."""
        return self._run.messenger.failures if self._run else FailureRecord()

    @property
    def final_report(self) -> FinalReport | None:
        """The final evaluation, once `start` has returned."""
        return self._run.final_report if self._run else None

    @property
    def settings(self) -> dict[str, Any]:
        """The effective settings of the run, before it of the next one, as plain values."""
        return self._run.plain_settings if self._run else self.as_plain()

    def cluster_of(self, client: str) -> str:
        """The name of a client's cluster; `FederationError` if there is no such client."""
        if client not in self.tree.clients:
            raise FederationError(f"No client is {client!r}: {listed(self.tree.clients, 5)} are.")
        return self.tree.leaf_of(client).name

    def model_of(self, client: str) -> ArrayRecord:
        """The model that serves a client: its own by a personal step, else its cluster's."""
        self.cluster_of(client)
        own = self.state.personal_models.get(client)
        return self.layout.record(own or self.state.path_of(client)[-1].model)

    def summary(self) -> None:
        """Log the effective settings that are not the defaults."""
        if changed := other_than_default(self.settings):
            log(INFO, "Settings that are not the defaults: %s.", settings_in_words(changed))

    initialize_parameters = refuse_older_workflow

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: CentralEvaluation | None = None,
    ) -> ClusteredResult:
        """Run the rounds and a final evaluation, as every Flower strategy.

        After ``timeout`` seconds an exchange goes on without the clients that did not answer; in a
        simulation, where clients wait for cores, they count from the last reply. ``evaluate_fn`` is
        called with the round and each cluster's model in turn; its results are averaged over the
        clusters, weighted by their number of members. The configs are not changed.

        The result's ``arrays`` are the root's model, its other metrics means over all clients.
        `CFlowerError` if there are too few clients or usable replies, the simulation engine broke
        down, or an observer refuses the run.
        """
        configs = train_config or ConfigRecord(), evaluate_config or ConfigRecord()
        run = self._begin(Call(grid, initial_arrays, num_rounds, timeout, *configs, evaluate_fn))
        try:
            clients = len(self.tree.clients), run.roll_call.connected
            size = sum(len(array.data) for array in initial_arrays.values()) / 1e6
            begins = type(self).__name__, counted(num_rounds, "round"), *clients, size
            log(INFO, "%s: %s, %d of %d connected clients, a model of %.2f MB.", *begins)
            log(INFO, "The metric that leads: %s.", run.leading.asked.in_full)
            self.summary()
            for name, config in zip(("train", "evaluate"), configs, strict=True):
                if words := settings_in_words(plain(config)):
                    log(INFO, "Config of %s messages: %s.", name, words)
            for server_round in run.rounds():
                if self._play(run, server_round):
                    log(INFO, "An observer ends the run after round %d.", server_round)
                    run.num_rounds = server_round
            report = run.close()
        finally:
            run.end()
        clustered = ClusteredResult(**vars(run.result), models=self.models, report=report)
        if not self.observers:  # they show the clusters, each in its own way
            log(INFO, "%s", clustered)
        return clustered

    def _begin(self, call: Call) -> Run:
        """A new run; the one before, such as a wrapper's, which has no end of its own, is over."""
        if self._run:
            self._run.end()
        self._run = Run(self, call)
        return self._run

    def _play(self, run: Run, server_round: int) -> bool:
        """One round; whether an observer ends the run after it."""
        began, result = time.monotonic(), run.result
        log(INFO, "")
        log(INFO, "[ROUND %d/%d]", server_round, run.num_rounds)
        train = server_round, result.arrays, run.call.train_config, run.grid
        replies = run.messenger.exchange(self.configure_train(*train), run.quorum, late=True)
        arrays, metrics = self.aggregate_train(server_round, replies)
        result.arrays = arrays or result.arrays
        keep_metrics(result.train_metrics_clientapp, server_round, metrics)
        if server_round < run.num_rounds:
            evaluate = server_round, result.arrays, run.call.evaluate_config, run.grid
            replies = run.messenger.exchange(self.configure_evaluate(*evaluate), run.quorum)
            metrics = self.aggregate_evaluate(server_round, replies)
            keep_metrics(result.evaluate_metrics_clientapp, server_round, metrics)
        run.settle(server_round)
        run.evaluate_centrally(server_round)
        return run.observe(time.monotonic() - began)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """A message for every ask of the round.

        What a wrapper added to ``arrays``, such as noise, is added to the clusters' models.
        """
        run = self._run
        if not (run and run.continues_with(server_round, arrays, grid)):
            run = self._begin(Call(grid, arrays, 0, 0.0, config, ConfigRecord(), alone=False))
        return run.training_messages(server_round, arrays, config)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        if self._run is None:
            raise FederationError("aggregate_train was called before configure_train.")
        return self._run.trained(server_round, replies)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """A message for every sampled client, with the model of its own cluster.

        None before the first training, with which an app's own loop need not begin.
        """
        if not (self._run and self._run.is_at(server_round, grid)):
            return []
        return self._run.evaluation_messages(server_round, config)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        if not (self._run and self._run.is_at(server_round, self._run.grid)):
            return None
        return self._run.evaluated(replies)
