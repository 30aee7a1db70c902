"""`ClusteredFL`: Clustered Federated Learning as a Flower Strategy.

Sattler, Müller, Samek, "Clustered Federated Learning: Model-Agnostic Distributed Multi-Task
Optimization under Privacy Constraints", arXiv 1910.01991. This file is Flower's side of it: it
carries the asks of `cflower.algorithm.round.CFL` to the clients, and their replies back.
"""

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from logging import INFO, WARNING
from typing import Any, NoReturn

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from flwr.serverapp.strategy.strategy_utils import log_strategy_start_info
from flwr.supercore import log

from cflower.algorithm.aggregation import Aggregation
from cflower.algorithm.auto.criterion import AutoCriterion
from cflower.algorithm.constants import MOST
from cflower.algorithm.criteria import Criterion, Decision
from cflower.algorithm.optimizers import ServerOptimizer
from cflower.algorithm.personal import MOST_TRAININGS
from cflower.algorithm.projection import affordable_length
from cflower.algorithm.robust_mean import RobustMean
from cflower.algorithm.round import CFL, Weighting
from cflower.algorithm.state import Ask, CFLState, Move, Role
from cflower.algorithm.tree import ParameterTree, Selection
from cflower.errors import ConfigError, FederationError
from cflower.messages.claims import listed
from cflower.messages.exchange import PROGRESS, Quorum
from cflower.messages.failures import BadReplyError, FailureRecord
from cflower.messages.layout import UNTRAINED, Layout
from cflower.messages.messenger import ClientMessenger, MetricsAggregation, Sent
from cflower.messages.metrics import (
    ClientMetrics,
    Metric,
    Metrics,
    leading_among,
    weighted_mean,
)
from cflower.messages.roll_call import RollCall
from cflower.ordering import in_order, only
from cflower.seeding import generator
from cflower.strategy.final_evaluation import FinalEvaluation
from cflower.strategy.observers import Observer, Observers, RunStart
from cflower.strategy.reports import FinalReport, RoundReport
from cflower.strategy.results import (
    CentralEvaluation,
    ClusteredResult,
    Run,
    log_tree,
    step_in_words,
)
from cflower.strategy.sampling import admitted, sample
from cflower.strategy.settings import algorithm_of, measure_of, settings_of, trimmed_share
from cflower.strategy.training_round import TrainingRound, read_evaluations, read_trainings
from cflower.strategy.wrappers import (
    NOT_CLIPPED,
    OLDER_WORKFLOW,
    not_clipped,
    refuse_unfit_wrappers,
    with_noise_of,
)

AGGREGATED = "\t└──> Aggregated MetricRecord: %s"
PERSONAL_STEP = (
    "Personal step: the members of each cluster train its model by themselves, up to %d times, and "
    "judge whether this serves them better."
)
CHOOSE = "choose another with ClusteredFL(metric=...), or later with `cflower report --metric`."
LEADS = f"No client sent the metric accuracy: %s leads instead; {CHOOSE}"
UNASKED = "%d more nodes are connected; they are asked for their names when they are sampled."
NOT_SENT = f"No client sent the metric %r (they sent %s): {CHOOSE}"


@dataclass(eq=False, repr=False)
class ClusteredFL(Strategy):
    """Train a model per cluster of clients that belong together, detected from their updates.

    Replaces ``FedAvg`` in a ServerApp; each client gets the model of its own cluster.

    Parameters
    ----------
    criterion : Criterion, optional
        When to split a cluster; `AutoCriterion` if not given, which needs no thresholds.
    fraction_train, fraction_evaluate : float
        Share of every cluster's clients that train or evaluate in a round.
    min_train_nodes, min_evaluate_nodes, min_available_nodes : int
    weighted_by_key, arrayrecord_key, configrecord_key : str
    train_metrics_aggr_fn, evaluate_metrics_aggr_fn : callable, optional
        As in ``FedAvg``, over the clients of all clusters.
    optimizer : ServerOptimizer, optional
        How a cluster's model follows the mean update; eq. 2 if not given.
    weighting : {"examples", "uniform"}
        ``w_i = |D_i|/|D_c|`` (eq. 2) or ``1/|c|`` (Algorithm 5).
    aggregation : {"fedavg", "fedmedian", "fedtrimmedavg"}
        The mean update of a cluster: eq. 2, or the median or trimmed mean of each coordinate, under
        the names of Flower's strategies. These withstand many hostile clients, ignore ``weighting``
        and need all updates of a round in memory.
    beta : float in (0, 0.5)
        Share of the values that "fedtrimmedavg" leaves out at each end.
    similarity_layers : str
        Comma-separated patterns of the arrays with updates that similarity compares.
    projection_dim : int
        Longer updates are kept as a random projection of this length, or shorter if memory demands
        it (`affordable_length`); 0 keeps them whole.
    untrained : sequence of str
        Patterns of floating-point arrays that are averaged but not learned.
    max_norm_ratio : float
        Replies with updates longer than this times the median of the cluster are refused; 0: none.
    max_influence : float
        Number of usual clients for which one may count (`RobustMean`); 0: any, eq. 2 exactly.
    exclude_after : int
        Unusable replies to training in a row that exclude a client; 0: never.
    round_share : float
        Share of the clients whose replies close a round. A later reply to training counts in the
        round in which it comes, for less the further the cluster's model has moved (AsyncFedED,
        Wang et al., arXiv 2205.13797). Proposals and the final evaluation wait for all clients.
    round_seconds : float
        Seconds after which a round closes with the replies it has; 0: ``timeout``.
    isolated : bool
        Every client is a cluster of its own from the start.
    trial_rounds : int, optional
        Rounds after a split until the clients judge it (`cflower.algorithm.proposals`); 0: splits
        are final. The criterion's if not given: 4 for `AutoCriterion`, else 0.
    moving : bool, optional
        Whether members with changed data move to other leaves (`cflower.algorithm.moves`). The
        criterion's if not given: yes for `AutoCriterion`, else no.
    inner_interval : int, optional
        Split clusters go on learning in every so many-th round; 0: they do not. The criterion's
        if not given: 10 for `AutoCriterion`, else 0.
    personal : bool, optional
        Whether the run ends with the personal step (`cflower.algorithm.personal`): leaves' models
        move towards each member's own where that serves the members better. The criterion's if not
        given: yes for `AutoCriterion`, else no.
    selection : {"leaf", "best", "ensemble"}
        The model on its path by which a client is served in the final mean metrics.
    seed : int
        Of the sampling of clients.
    metric : str
        The clients' metric that leads in trials, logs, tables and reports. Where most clients send
        no ``accuracy``, another that means it leads, such as ``eval_acc``.
    higher_is_better : bool, optional
        Of that metric; if not given, its name decides (loss, perplexity, rmse, mae: lower).
    observers : sequence of Observer
        Called at the start, after every round and at the end, such as `cflower.Recorder`.
    roll_call : RollCall
        The connected clients. If not given, clients have the names that a ClientApp reports
        (`cflower.name_clients`), or else their node ids.

    Attributes
    ----------
    state : CFLState
        Parameter tree and known updates after the last round.
    layout : Layout
        The places of the models' arrays in the algorithm's vectors.
    failures : FailureRecord
        Up to the last round.
    final_report : FinalReport or None
        The final evaluation, once `start` has returned.

    Notes
    -----
    Flower's wrappers for differential privacy with clipping on the clients may be put around it:
    their noise is added to every cluster's model, longer by the factor by which it is smaller.
    """

    criterion: Criterion | None = None
    _: KW_ONLY
    fraction_train: float = 1.0
    fraction_evaluate: float = 1.0
    min_train_nodes: int = 2
    min_evaluate_nodes: int = 2
    min_available_nodes: int = 2
    weighted_by_key: str = "num-examples"
    arrayrecord_key: str = "arrays"
    configrecord_key: str = "config"
    train_metrics_aggr_fn: MetricsAggregation | None = None
    evaluate_metrics_aggr_fn: MetricsAggregation | None = None
    optimizer: ServerOptimizer | None = None
    weighting: Weighting = "examples"
    aggregation: Aggregation = "fedavg"
    beta: float = 0.2
    similarity_layers: str = "*"
    projection_dim: int = 16384
    untrained: Sequence[str] = UNTRAINED
    max_norm_ratio: float = 0.0
    max_influence: float = MOST
    exclude_after: int = 5
    round_share: float = 1.0
    round_seconds: float = 0.0
    isolated: bool = False
    trial_rounds: int | None = None
    moving: bool | None = None
    inner_interval: int | None = None
    personal: bool | None = None
    selection: Selection = "leaf"
    seed: int = 0
    metric: str = "accuracy"
    higher_is_better: bool | None = None
    observers: Sequence[Observer] = ()
    # A busy machine takes minutes to start a simulation; FedAvg would wait for ever.
    roll_call: RollCall = field(default_factory=lambda: RollCall(timeout=300.0, asks=None))

    def __post_init__(self) -> None:
        self.criterion = self.criterion or AutoCriterion()
        self.optimizer = self.optimizer or ServerOptimizer()
        trimmed_share(self)
        for name in ("trial_rounds", "moving", "inner_interval", "personal"):
            if getattr(self, name) is None:
                setattr(self, name, getattr(self.criterion, name, 0))
        self.moving, self.personal = bool(self.moving), bool(self.personal)
        self.roll_call.share, self.roll_call.seed = self.fraction_train, self.seed
        self.leading = Metric.of(self.metric, self.higher_is_better)
        self.higher_is_better = self.leading.higher_is_better
        self.state = CFLState(ParameterTree({}))
        self.layout = Layout((), np.dtype(np.float32))
        self.failures = FailureRecord()
        self.final_report: FinalReport | None = None
        self._observers = Observers(self.observers)
        self._messenger = ClientMessenger(
            self.roll_call, self.weighted_by_key, self.arrayrecord_key, self.configrecord_key
        )
        self._quorum = Quorum(self.round_share, self.round_seconds or math.inf)
        self._cfl: CFL | None = None
        self._round: TrainingRound | None = None
        self._outstanding: Sequence[Sent] = ()
        self._decisions: tuple[Decision, ...] = ()
        self._by_round: dict[int, Metrics] = {}
        self._finished_rounds = self._last_round = 0
        self._own_start = False
        self._returned: ArrayRecord | None = None
        self._sent_config, self._clipped = ConfigRecord(), True
        self._metrics_noted = False

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
        clusters = self.tree.clusters
        return {n: self.layout.record(clusters[n].grown.model) for n in in_order(clusters)}

    def cluster_of(self, client: str) -> str:
        """The name of a client's cluster; `FederationError` if there is no such client."""
        if client not in self.tree.clients:
            known = ", ".join(self.tree.clients[:5]) or "none"
            raise FederationError(f"There is no client {client!r} in this run (it has {known}).")
        return self.tree.leaf_of(client).name

    @property
    def settings(self) -> dict[str, object]:
        """The effective settings, as plain values under kebab-case keys."""
        return settings_of(self)

    def summary(self) -> None:
        """Log the effective settings."""
        for key, value in self.settings.items():
            log(INFO, "\t├──> %s: %s", key, value)

    def initialize_parameters(self, client_manager: object) -> NoReturn:
        """Raise a ConfigError: Flower's older workflows, such as SecAgg+, begin with this call."""
        raise ConfigError(OLDER_WORKFLOW)

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
        """Run the rounds and a final evaluation.

        Parameters
        ----------
        grid, initial_arrays, num_rounds, train_config, evaluate_config
            As in every Flower strategy; the configs are not changed.
        timeout : float
            Seconds after which an exchange goes on without the clients that did not answer; in a
            simulation, where clients wait for cores, since the last reply.
        evaluate_fn : callable, optional
            Called with the round and each cluster's model in turn. Its results are averaged over
            the clusters, weighted by their number of members.

        Returns
        -------
        ClusteredResult
            Its ``arrays`` are the root's model, its other metrics means over all clients.

        Raises
        ------
        CFlowerError
            If there are too few clients or usable replies, the simulation engine broke down, or an
            observer refuses the run.
        """
        self._own_start = True
        configs = train_config or ConfigRecord(), evaluate_config or ConfigRecord()
        run = Run(grid, Result(initial_arrays), num_rounds, timeout, *configs, evaluate_fn)
        self._begin(run)
        log(INFO, "Starting %s with %d clients:", type(self).__name__, len(self.tree.clients))
        if unasked := self.roll_call.connected - len(self.roll_call.nodes):
            log(INFO, UNASKED, unasked)
        log_strategy_start_info(num_rounds, initial_arrays, *configs)
        self.summary()
        try:
            self._messenger.send_again(
                grid, self._outstanding, self.layout, run.train_config, timeout
            )
            self._evaluate_centrally(run, 0)
            for server_round in range(self._finished_rounds + 1, num_rounds + 1):
                began = time.monotonic()
                log(INFO, "")
                log(INFO, "[ROUND %d/%d]", server_round, num_rounds)
                self._train(run, server_round)
                if server_round < num_rounds:
                    self._evaluate(run, server_round)
                self._judge(run, server_round)
                self._evaluate_centrally(run, server_round)
                central = run.result.evaluate_metrics_serverapp.get(server_round)
                if self._report(server_round, num_rounds, time.monotonic() - began, central):
                    log(INFO, "An observer ends the run after round %d.", server_round)
                    run = run._replace(num_rounds=server_round)
                    break
            problem = self.failures.must_not_end(simulated=self.roll_call.simulated)
            if num_rounds and problem:
                raise FederationError(problem)
            self.final_report = self._close(run)
            log_tree(self.final_report, self.leading)
        finally:
            self._observers.end(self.final_report)
            self._own_start = False
        return ClusteredResult.of(run.result, self.final_report, self.models)

    def resume(
        self,
        state: CFLState,
        server_round: int,
        failures: FailureRecord | None = None,
        outstanding: Sequence[Sent] = (),
    ) -> None:
        """Let `start` go on after ``server_round`` from this state instead of from the beginning.

        The rounds that follow are those of an uninterrupted run. Clients that owe a reply are sent
        the same ask again; it counts when it comes.
        """
        self.state, self._finished_rounds = state, server_round
        self.failures = failures or FailureRecord()
        self._messenger.silent = self.failures.silent
        self._outstanding = tuple(outstanding)

    def _begin(self, run: Run) -> None:
        """Wait for the clients and lay out the model."""
        clients = self.roll_call.gather(run.grid, max(self.min_available_nodes, 1))
        self.layout = Layout.of(run.result.arrays, self.untrained)
        self.projection_dim = affordable_length(self.projection_dim, self.roll_call.connected)
        try:
            self._first = self.layout.weights(run.result.arrays)
        except BadReplyError as problem:
            raise ConfigError(f"The initial model {problem}.") from None
        self._cfl = algorithm_of(self, run.grid, run.num_rounds, alone=self._own_start)
        self._last_round = run.num_rounds
        facts = only(self.roll_call.facts, clients)
        settings = self.settings | run.settings
        start = RunStart(run.num_rounds, self.leading, settings, self.layout, facts)
        if self._finished_rounds:
            self._gather_all(run.grid)
        if checkpoint := self._observers.start(start, lambda: self._gather_all(run.grid)):
            server_round, state, failures, outstanding = checkpoint
            self.resume(state, server_round, failures, outstanding)
        if not self._finished_rounds:
            tree = ParameterTree.initial(self._first, clients, isolated=self.isolated)
            self.state = CFLState(tree)

    def _gather_all(self, grid: Grid) -> tuple[str, ...]:
        """All clients: those of a resumed run may be at any node."""
        self.roll_call.share = 1.0
        return self.roll_call.gather(grid, max(self.min_available_nodes, 1))

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """A message for every ask of the round.

        ``arrays`` is the last result of `aggregate_train`. If it is not, as when a wrapper added
        noise, the difference is added to the clusters' models.
        """
        if self._cfl is None:
            self._begin(Run(grid, Result(arrays), 0, 0.0, config, ConfigRecord()))
        assert self._cfl is not None
        tree = self.tree
        if not self._own_start:
            refuse_unfit_wrappers(self.aggregation)
            self._sent_config = config
            tree = with_noise_of(arrays, self._returned, tree, self.layout)
        self.roll_call.update(grid)
        tree = admitted(tree, self.roll_call.clients, server_round, isolated=self.isolated)
        self.state = replace(self.state, tree=tree)
        drawn = self._draw("train", server_round, self.fraction_train, self.min_train_nodes)
        return self._messages(self._cfl.asks(self.state, server_round, drawn), config)

    def _train(self, run: Run, server_round: int) -> None:
        messages = self.configure_train(server_round, run.result.arrays, run.train_config, run.grid)
        replies = self._messenger.exchange(run.grid, messages, run.timeout, self._quorum, late=True)
        arrays, metrics = self.aggregate_train(server_round, replies)
        if arrays is not None and metrics is not None:
            run.result.arrays = arrays
            run.result.train_metrics_clientapp[server_round] = metrics
            log(INFO, AGGREGATED, metrics)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """One round of the algorithm on the replies; θ_root and the mean metrics."""
        cfl = self._cfl
        assert cfl is not None, "configure_train comes first"
        report = RoundReport(server_round, self.tree, self.state, self.layout)
        this = self._round = TrainingRound(report, cfl, self._messenger)
        bounds = RobustMean(
            self.state, self.layout.carried, cfl.weight_of, self.max_norm_ratio, self.max_influence
        )
        passed = this.noted(bounds.bounded(this.read(replies)))
        after, self._decisions, self._judges = cfl.heard(
            self.state,
            passed,
            server_round,
            {*self.failures.excluded, *self.failures.silent},
            last=server_round == self._last_round,
        )
        for client, problem in bounds.refused.items():
            self._messenger.set_aside(client, problem)
        self._messenger.log_lowered(bounds.lowered, report.measured, self.max_influence)
        moves = after.moves[len(self.state.moves) :]
        self.state = after
        if self._clipped and (long := not_clipped(after, server_round, self._sent_config)):
            self._clipped = False
            log(WARNING, NOT_CLIPPED, listed(in_order(long)))
        self.failures = this.failures_after(
            self.failures, self.exclude_after, len(self._present), self.roll_call.simulated
        )
        self._messenger.silent = self.failures.silent
        log_decisions(self._decisions)
        log_places(after, moves)
        metrics = self._messenger.mean(report.measured, self.train_metrics_aggr_fn)
        if metrics is None:
            return None, None
        self._returned = self.layout.record(self.tree.root.grown.model)
        return self._returned, metrics

    def _judge(self, run: Run, server_round: int) -> None:
        """Let the clients evaluate the round's proposals, if there are any."""
        if self.state.judging is None:
            return
        assert self._cfl is not None
        proposals = self.state.judging.proposals
        judged = {name for proposal in proposals for name in (proposal.cluster, *proposal.leaves)}
        self._decisions = self._settle(run, self._judges, server_round)
        log_decisions(decision for decision in self._decisions if decision.cluster in judged)

    def _settle(self, run: Run, asks: Sequence[Ask], server_round: int) -> tuple[Decision, ...]:
        """Carry the asks of proposals to the clients until there are none left."""
        assert self._cfl is not None
        decisions: tuple[Decision, ...] = ()
        while asks:
            free, trains = self._free, asks[0].task == "train"
            asks = [ask for ask in asks if ask.client in free]
            messages = self._messages(asks, run.train_config if trains else run.evaluate_config)
            replies = self._messenger.exchange(run.grid, messages, run.timeout)
            if trains:
                answers = read_trainings(self._messenger, replies, self.state, self.layout)
            else:
                answers = read_evaluations(self._messenger, replies)
                self._note_metrics([answer.metrics for answer in answers])
            self._note_problems()
            last = server_round == self._last_round
            self.state, decisions, asks = self._cfl.heard(
                self.state, answers, server_round, last=last
            )
        return decisions

    def _personalise(self, run: Run) -> None:
        """The personal step at the end of the run, if it is on."""
        cfl = self._cfl
        assert cfl is not None
        if cfl.personal:
            self.state, _, asks = cfl.personalised(self.state, self._first, run.num_rounds)
            if asks:
                log(INFO, PERSONAL_STEP, 2 * MOST_TRAININGS, extra=PROGRESS)
            self._settle(run, asks, run.num_rounds)
        for leaf, step in self.state.personal.items():
            log(INFO, "Personal step of cluster %s, %s", leaf, step_in_words(step))

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """A message for every sampled client, with the model of its own cluster."""
        fraction, least = self.fraction_evaluate, self.min_evaluate_nodes
        asks = [
            Ask(client, self.tree.leaf_of(client).name, Role.OWN, server_round, "evaluate")
            for client in self._draw("evaluate", server_round, fraction, least)
        ]
        return self._messages(asks, config)

    def _evaluate(self, run: Run, server_round: int) -> None:
        arrays, config = run.result.arrays, run.evaluate_config
        messages = self.configure_evaluate(server_round, arrays, config, run.grid)
        replies = self._messenger.exchange(run.grid, messages, run.timeout, self._quorum)
        metrics = self.aggregate_evaluate(server_round, replies)
        if metrics is not None:
            run.result.evaluate_metrics_clientapp[server_round] = metrics
            log(INFO, AGGREGATED, metrics)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """The clients' mean metrics, weighted by their examples."""
        metrics = self._messenger.metrics(replies)
        measured = {ask.client: one for ask, one in metrics.items()}
        self._note_metrics([one.metrics for one in measured.values()])
        problems = self._note_problems()
        if measured or problems:
            results = len(measured)
            log(INFO, "aggregate_evaluate: Received %d results and %d failures", results, problems)
        if self._round is not None:
            self._round.evaluated(measured)
        if not self._own_start:
            self._report(server_round, 0, 0.0)
        return self._messenger.mean(measured, self.evaluate_metrics_aggr_fn)

    def _close(self, run: Run) -> FinalReport:
        """The final evaluation, of all clients that are connected."""
        self.roll_call.update(run.grid, at_least=0)  # a newcomer would come too late
        self._personalise(run)
        members = set(self.tree.clients)
        clients = [client for client in self._present if client in members]
        closing = FinalEvaluation(run, self._messenger, self.layout, self.state)
        assert self._cfl is not None
        cfl, results = self._cfl, closing.evaluate(clients, self.roll_call.facts)
        self._note_metrics([result.leaf.metrics for result in results.values()])
        report = FinalReport(
            self.state,
            results,
            run.num_rounds,
            closing.problems,
            self.failures,
            self.selection,
            self._by_round,
            self.leading,
            judged=cfl.trial_rounds > 0 or cfl.personal or self.selection != "leaf",
        )
        report.warn_unable()
        self._messenger.log_limited_examples(report.served)
        if metrics := self._messenger.mean(report.served, self.evaluate_metrics_aggr_fn):
            run.result.evaluate_metrics_clientapp[run.num_rounds] = metrics
        return report

    def _evaluate_centrally(self, run: Run, server_round: int) -> None:
        """Keep the mean of the central evaluation of the clusters' models, by their sizes."""
        if run.evaluate_fn is None:
            return
        log(INFO, "Global evaluation")
        measured = []
        for leaf in self.tree.leaves:
            metrics = run.evaluate_fn(server_round, self.layout.record(leaf.model))
            if metrics is not None:
                measured.append(ClientMetrics(dict(metrics.items()), len(leaf.members)))
                log(INFO, "\tcluster %s: %s", leaf.name, metrics)
        if measured:
            mean = MetricRecord(weighted_mean(measured))
            log(INFO, "\t└──> MetricRecord: %s", mean)
            run.result.evaluate_metrics_serverapp[server_round] = mean

    def _note_metrics(self, sent: Sequence[Mapping[str, Any]]) -> None:
        """Let the metric lead that means accuracy; log once which one, or that there is none.

        Every evaluation decides anew, so that the final one, of all clients, has the last word.
        """
        names = sorted({name for metrics in sent for name in metrics})
        found = leading_among(Metric.of(self.metric, self.higher_is_better), sent)
        if found.name in names and self._cfl is not None:
            self.leading = found
            self._cfl = replace(self._cfl, metric=measure_of(found))
        if sent and not self._metrics_noted:
            if self.leading.name not in names:
                log(WARNING, NOT_SENT, self.leading.name, ", ".join(names) or "none")
            elif self.leading.name != self.metric:
                log(INFO, LEADS, self.leading.name)
            self._metrics_noted = True

    def _report(
        self,
        server_round: int,
        num_rounds: int,
        seconds: float,
        central: Mapping[str, Any] | None = None,
    ) -> bool:
        """Call the observers; whether one of them ends the run."""
        if self._round is None:
            return False
        report = replace(
            self._round.report,
            num_rounds=num_rounds,
            state=self.state,
            decisions=self._decisions,
            seconds=seconds,
            failures=self.failures,
            outstanding=tuple(self._messenger.outstanding.values()),
            metric=self.leading,
            central=dict(central or {}),
        )
        self._by_round[server_round] = report.metrics()
        return self._observers.round(report)

    def _messages(self, asks: Iterable[Ask], config: ConfigRecord) -> list[Message]:
        """A plain message for each ask, with its one model."""
        models = {ask: {self.arrayrecord_key: self.state.model_of(ask)} for ask in asks}
        return self._messenger.messages(models, self.layout, config)

    def _note_problems(self) -> int:
        """Note the problems of an exchange other than training; their number."""
        problems = self._messenger.drain_problems()
        self.failures = replace(self.failures, problems=self.failures.noted(problems))
        if self._round is not None:
            self._round.note(problems)
        return len(problems)

    @property
    def _present(self) -> tuple[str, ...]:
        """The clients that can be asked: connected, not excluded."""
        return tuple(c for c in self.roll_call.clients if c not in self.failures.excluded)

    @property
    def _free(self) -> set[str]:
        """The present clients that do not owe a reply to an earlier round."""
        return set(self._present) - self._messenger.busy.keys()

    def _draw(self, task: str, server_round: int, fraction: float, least: int) -> Sequence[str]:
        rng = generator(self.seed, task, server_round)
        first = self.roll_call.drawn if task == "train" else set()
        drawn = sample(self.tree, self._free, fraction, least, rng, first)
        first.difference_update(drawn)
        if drawn or task == "train":
            total = len(self._present)
            log(INFO, "configure_%s: Sampled %d nodes (out of %d)", task, len(drawn), total)
        return drawn


def log_places(state: CFLState, moves: Iterable[Move]) -> None:
    """Log the clients that moved to another leaf in a round, or were placed in one."""
    for move in moves:
        log(INFO, "Client %s moves from %s to %s: %s", *move[1:])
    for client, placement in state.placed.items():
        cluster = state.tree.training_cluster(client).name
        log(INFO, "Client %s is placed in %s: %s", client, cluster, placement)


def log_decisions(decisions: Iterable[Decision]) -> None:
    """Log one line for each decision."""
    for decision in decisions:
        log(INFO, "\tcluster %s, %s: %s", decision.cluster, decision.outcome, decision.reason)
