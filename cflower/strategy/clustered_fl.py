"""`ClusteredFL`: Clustered Federated Learning as a Flower Strategy.

Sattler, Müller, Samek, "Clustered Federated Learning: Model-Agnostic Distributed Multi-Task
Optimization under Privacy Constraints", arXiv 1910.01991. This file is Flower's side of it;
the algorithm is in `cflower.algorithm`.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from logging import INFO, WARNING

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from flwr.serverapp.strategy.strategy_utils import log_strategy_start_info
from flwr.supercore import log

from cflower.algorithm.merging import judged_joins
from cflower.algorithm.splits_on_trial import judged
from cflower.errors import FederationError
from cflower.messages.client_names import EVALUATE, functions_of
from cflower.messages.replies import ClientMetrics, as_record, weighted_mean
from cflower.ordering import in_order
from cflower.strategy.final_evaluation import FinalEvaluation
from cflower.strategy.reports import FinalReport
from cflower.strategy.results import ClusteredResult, tree_lines
from cflower.strategy.rounds import Rounds, said
from cflower.strategy.trials import ask, measures_of


class ClusteredFL(Rounds):
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
        length, see `Projection`, or shorter where so many clients' would not fit in memory, see
        `affordable_length`; 0 keeps all of them exactly, with memory for clients times entries.
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
    round_share : float
        A round of training or evaluation closes when this share of its clients has answered, see
        `Closing`. A reply to training that comes later counts in the round in which it
        comes, for the less the further its cluster's model has moved on (AsyncFedED, Wang et al.,
        arXiv 2205.13797), or is set aside with a reason where its client trains another model by
        then. Nobody is asked again before it has answered. Splits on trial and the final
        evaluation wait for everyone who is asked. No effect in process, where nothing is late.
    round_seconds : float
        Seconds after which it closes if anyone has answered; 0: only after the ``timeout`` of
        `start`, when replies are given up.
    isolated : bool
        Every client is a cluster of its own from the start.
    trial_rounds : int, optional
        Rounds after a split in which it is on trial: the common model goes on learning beside its
        parts, then the clients judge, see `cflower.algorithm.trial`; if they find neither gain nor
        loss, after as many rounds again, three times at most. 0: splits are final. If not given,
        the criterion's own: 4 for `AutoCriterion`, 0 for `NormCriterion`.
    moving : bool, optional
        Whether a client whose data change goes to the cluster that it resembles now, see
        `cflower.algorithm.moving`. If not given, the criterion's own: yes for `AutoCriterion`, no
        for `NormCriterion`.
    inner_interval : int, optional
        In every so many-th round clients also train the model of a cluster above their own; 0:
        those of split clusters stay as they are. If not given, the criterion's own: 10 for
        `AutoCriterion`, 0 for `NormCriterion`.
    selection : {"leaf", "best", "ensemble"}
        Which of the models on its way the final evaluation's mean metrics take each client
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
        The final evaluation, once `start` has returned.

    Notes
    -----
    Flower's wrappers for differential privacy with clipping on the clients may be put around it:
    the noise that they add to the one model they see is added to every cluster's model, longer by
    the factor by which the cluster is smaller. Those that clip on the server are refused.
    """

    def __repr__(self) -> str:
        """Settings and clusters in one line."""
        return f"{type(self).__name__}({self.criterion}, {self.tree})"

    @property
    def models(self) -> dict[str, ArrayRecord]:
        """The model of every cluster, the split ones too, in the app's own keys."""
        return {
            name: self.layout.record(self.tree.clusters[name].grown.model)
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
        """Run the rounds and a final evaluation.

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
            which learns no more once the root's split is final, or in some rounds only; and each
            cluster's model, clients and metrics.

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
            self._messenger.ask_again(grid, self._to_ask_again, train_config, timeout)
            self._evaluate_centrally(0, evaluate_fn, result)
            for server_round in range(self._finished_rounds + 1, num_rounds + 1):
                began = time.monotonic()
                log(INFO, "")
                log(INFO, "[ROUND %d/%d]", server_round, num_rounds)
                messages = self.configure_train(server_round, arrays, train_config, grid)
                replies = self._messenger.exchange(
                    grid, messages, timeout, self._closing, late=True
                )
                new, metrics = self.aggregate_train(server_round, replies)
                if new is not None and metrics is not None:
                    result.arrays = arrays = new
                    result.train_metrics_clientapp[server_round] = metrics
                    log(INFO, "\t└──> Aggregated MetricRecord: %s", metrics)
                if server_round < num_rounds:
                    messages = self.configure_evaluate(server_round, arrays, evaluate_config, grid)
                    replies = self._messenger.exchange(grid, messages, timeout, self._closing)
                    evaluated = self.aggregate_evaluate(server_round, replies)
                    if evaluated is not None:
                        result.evaluate_metrics_clientapp[server_round] = evaluated
                        log(INFO, "\t└──> Aggregated MetricRecord: %s", evaluated)
                self._judge_trials(grid, server_round, evaluate_config, timeout)
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

    def _judge_trials(
        self, grid: Grid, server_round: int, config: ConfigRecord, timeout: float
    ) -> None:
        """Let the clients decide about splits whose trial ends now, and leaves that may be one."""
        assert self._round is not None
        joins = self._round.result.joins if self._round.result else {}
        common = [self.tree.clusters[name].grown for name in self.tree.trials_due(server_round)]
        common += [join.common for join in joins.values()]
        if not common:
            return
        compared = ask(
            grid,
            self._messenger,
            self.layout,
            self.tree,
            common,
            self._free,
            config,
            server_round,
            timeout,
        )
        problems = self._messenger.drain_problems()
        self.failures = replace(self.failures, problems=self.failures.noted(problems))
        self._round.note(problems)
        measures = measures_of(compared, self.metric)
        tree, decisions = judged(
            self.tree, self._round.decisions, compared, measures, self.trial_rounds
        )
        self.state = replace(self.state, tree=tree)
        self.state, decisions = judged_joins(
            self.state, decisions, joins, compared, measures, server_round
        )
        self._round.decisions = decisions
        asked = {*compared, *(leaf for join in joins.values() for leaf in join.leaves)}
        for decision in decisions:
            if decision.cluster in asked:
                log(INFO, "	cluster %s, %s: %s", *said(decision))

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

    def _close(
        self, grid: Grid, server_round: int, config: ConfigRecord, timeout: float, result: Result
    ) -> FinalReport:
        """The final evaluation, of everyone who is there."""
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
            self.state,
            results,
            server_round,
            closing.problems,
            self.failures,
            self.selection,
            self._by_round,
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
