"""`ClusteredFL`: Clustered Federated Learning as a Flower Strategy.

Sattler, Müller, Samek, "Clustered Federated Learning: Model-Agnostic Distributed Multi-Task
Optimization under Privacy Constraints", arXiv 1910.01991. This file is Flower's side of it: it
carries the asks of `cflower.algorithm.round.CFL` to the clients, and their replies back.
"""

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, field, replace
from logging import INFO

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from flwr.serverapp.strategy.strategy_utils import log_strategy_start_info
from flwr.supercore import log

from cflower.algorithm.aggregation import AGGREGATIONS, MEDIAN, Aggregation
from cflower.algorithm.constants import MOST
from cflower.algorithm.criteria import Criterion
from cflower.algorithm.optimizers import ServerOptimizer
from cflower.algorithm.projection import affordable_length
from cflower.algorithm.round import WEIGHTINGS, Weighting
from cflower.algorithm.state import Ask, CFLState, Role
from cflower.algorithm.tree import ROOT, SELECTIONS, ParameterTree, Selection
from cflower.auto.criterion import AutoCriterion
from cflower.errors import ConfigError, FederationError
from cflower.messages.client_names import EVALUATE, PART, has_function
from cflower.messages.exchange import Quorum
from cflower.messages.failures import BadReplyError, FailureRecord, Fault
from cflower.messages.layout import UNTRAINED, Layout
from cflower.messages.messenger import ClientMessenger, MetricsAggregation
from cflower.messages.metrics import ClientMetrics, LeadingMetric, Metric, Metrics
from cflower.messages.roll_call import RollCall
from cflower.ordering import in_order, listed, only
from cflower.robust.robust_mean import RobustMean
from cflower.seeding import generator
from cflower.settings import choice, number, require
from cflower.strategy.final_evaluation import FinalEvaluation
from cflower.strategy.observers import Checkpoint, Observer, Observers, RunStart
from cflower.strategy.reports import FinalReport, RoundReport
from cflower.strategy.results import CentralEvaluation, ClusteredResult, Run, keep, model_of
from cflower.strategy.round_log import log_alone, log_decisions, log_places, log_steps, log_unable
from cflower.strategy.sampling import admitted, sample
from cflower.strategy.settings import (
    NO_INNER_MODELS,
    algorithm_of,
    complete,
    decides,
    measure_of,
    personal_step,
    settings_of,
)
from cflower.strategy.wrappers import Wrapper, refuse_older_workflow, refuse_unfit_wrappers


@dataclass(eq=False, repr=False)
class ClusteredFL(Strategy):
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
    aggregation, beta : {"fedavg", "fedmedian", "fedtrimmedavg"}, float in (0, 0.5)
        The mean update of a cluster: eq. 2, or each coordinate's median, or mean without a share of
        ``beta`` at each end; these two withstand many hostile clients, ignore ``weighting`` and
        keep a round's updates in memory.
    similarity_layers : str
        Comma-separated patterns of the arrays that similarity compares.
    projection_dim : int
        Length of the random projections of longer updates; 0: updates are compared whole.
    untrained : sequence of str
        Patterns of floating-point arrays that are averaged but not learned.
    max_norm_ratio : float
        Updates longer than this times the median of the cluster are refused; 0: none.
    max_influence : float
        Number of usual clients for which one may count (`RobustMean`); 0: any, eq. 2 exactly.
    exclude_after : int
        Unusable replies to training in a row that exclude a client; 0: never.
    round_share, round_seconds : float
        Share of the clients whose replies close a round, and seconds after which it closes with the
        replies it has (0: ``timeout``). A later reply to training counts when it comes, for less
        the further the cluster's model has moved (AsyncFedED, arXiv 2205.13797).
    isolated : bool
        Every client is a cluster of its own from the start.
    trial_rounds : int, optional
        Rounds after a split until the clients judge it for the first time; 0: splits are final.
        This and the next two are the criterion's if not given: 1, True and True for
        `AutoCriterion`, else off.
    moving, personal : bool, optional
        Whether members with changed data move to other leaves, which are joined if their clients
        agree, and leaves' models in the end towards each member's own, where that serves better.
    inner_interval : None
        Had a meaning in earlier versions.
    selection : {"leaf", "best", "ensemble"}
        The model on its path by which a client is served in the final mean metrics.
    seed : int
        Of the sampling of clients.
    metric, higher_is_better : str, bool, optional
        The clients' metric that leads in trials, logs, tables and reports; its name decides the
        direction if not given (loss, perplexity, rmse, mae: lower). Where most clients send no
        ``accuracy``, another that means it leads, such as ``eval_acc``.
    observers : sequence of Observer
        Called at the start, after every round and at the end, such as `cflower.Recorder`.
    roll_call : RollCall
        The connected clients, by default under their names (`cflower.name_clients`) or node ids.

    Attributes
    ----------
    state : CFLState
        Parameter tree and known updates after the last round.
    final_report : FinalReport or None
        The final evaluation, once `start` has returned.
    """

    criterion: Criterion | None = None
    _: KW_ONLY
    fraction_train: float = number(1.0, above=0, most=1)
    fraction_evaluate: float = number(1.0, least=0, most=1)
    min_train_nodes: int = number(2, least=0)
    min_evaluate_nodes: int = number(2, least=0)
    min_available_nodes: int = number(2, least=0)
    weighted_by_key: str = "num-examples"
    arrayrecord_key: str = "arrays"
    configrecord_key: str = "config"
    train_metrics_aggr_fn: MetricsAggregation | None = None
    evaluate_metrics_aggr_fn: MetricsAggregation | None = None
    optimizer: ServerOptimizer | None = None
    weighting: Weighting = choice("examples", WEIGHTINGS)
    aggregation: Aggregation = choice("fedavg", AGGREGATIONS)
    beta: float = number(0.2, above=0, below=MEDIAN)
    similarity_layers: str = "*"
    projection_dim: int = number(16384, least=0)
    untrained: Sequence[str] = UNTRAINED
    max_norm_ratio: float = number(0.0, least=0)
    max_influence: float = number(MOST, least=0)
    exclude_after: int = number(5, least=0)
    round_share: float = number(1.0, above=0, most=1)
    round_seconds: float = number(0.0, least=0)
    isolated: bool = False
    trial_rounds: int | None = number(None, least=0)
    moving: bool | None = None
    personal: bool | None = None
    inner_interval: InitVar[None] = None
    selection: Selection = choice("leaf", SELECTIONS)
    seed: int = number(0, least=0)
    metric: str = "accuracy"
    higher_is_better: bool | None = None
    observers: Sequence[Observer] = ()
    # A busy machine takes minutes to start a simulation; FedAvg would wait for ever.
    roll_call: RollCall = field(default_factory=lambda: RollCall(timeout=300.0, asks=None))

    def __post_init__(self, inner_interval: None) -> None:
        require(inner_interval is None, f"Got inner_interval={inner_interval!r}: {NO_INNER_MODELS}")
        self.criterion = self.criterion or AutoCriterion()
        self.optimizer = self.optimizer or ServerOptimizer()
        complete(self)
        self.roll_call.share, self.roll_call.seed = self.fraction_train, self.seed
        self.leading = LeadingMetric(Metric.of(self.metric, self.higher_is_better))
        self.higher_is_better = self.leading.asked.higher_is_better
        self.state = CFLState(ParameterTree({}))
        self.layout = Layout((), np.dtype(np.float32))
        self.final_report: FinalReport | None = None
        self._run: Run  # like `_cfl` and `_messenger`, from `_begin` on
        self._observers = Observers(self.observers)
        self._round = RoundReport(0, self.tree, self.state, self.layout)
        self._judges: Sequence[Ask] = ()
        self._by_round: dict[int, Metrics] = {}
        self._wrapper = Wrapper()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.criterion}, {self.tree})"

    @property
    def tree(self) -> ParameterTree:
        """The parameter tree after the last round."""
        return self.state.tree

    @property
    def models(self) -> dict[str, ArrayRecord]:
        """The model of every cluster, the split ones too, in the app's own keys."""
        clusters = self.tree.clusters
        return {n: self.layout.record(self.tree.model_of(n)) for n in in_order(clusters)}

    @property
    def failures(self) -> FailureRecord:
        """The clients' failures up to the last round; none before `start`."""
        return self._messenger.failures if hasattr(self, "_messenger") else FailureRecord()

    def cluster_of(self, client: str) -> str:
        """The name of a client's cluster; `FederationError` if there is no such client."""
        if client not in self.tree.clients:
            raise FederationError(f"No client is {client!r}: {listed(self.tree.clients, 5)} are.")
        return self.tree.leaf_of(client).name

    def model_of(self, client: str) -> ArrayRecord:
        """The model that serves a client: its own by a personal step, else its cluster's."""
        self.cluster_of(client)
        return model_of(self.state, client, self.layout)

    settings = property(settings_of)

    def summary(self) -> None:
        """Log the effective settings."""
        for key, value in self.settings.items():
            log(INFO, "\t├──> %s: %s", key, value)

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
        taken = sorted({"cluster", PART} & {*configs[0], *configs[1]})
        require(
            not taken, f"The config has {listed(taken)}, ClusteredFL's own key(s): rename yours."
        )
        result = Result(initial_arrays)
        before = self._begin(Run(grid, result, num_rounds, timeout, *configs, evaluate_fn))
        clients = len(self.tree.clients), self.roll_call.connected
        log(INFO, "Starting %s with %d of %d connected clients:", type(self).__name__, *clients)
        log(INFO, "The metric that leads: %s.", self.leading.asked.in_full)
        log_strategy_start_info(num_rounds, initial_arrays, *configs)
        self.summary()
        try:
            self._messenger.send_again(before.outstanding, configs[0])
            self._run.evaluate_centrally(before.server_round, self.tree, self.layout)
            for server_round in range(before.server_round + 1, num_rounds + 1):
                if self._play(server_round):
                    log(INFO, "An observer ends the run after round %d.", server_round)
                    self._run = self._run._replace(num_rounds=server_round)
                    break
            problem = self.failures.must_not_end(simulated=self.roll_call.simulated)
            if num_rounds and problem:
                raise FederationError(problem)
            self.final_report = self._close()
        finally:
            self._observers.end(self.final_report)
        clustered = ClusteredResult.of(result, self.final_report, self.models)
        if not self.observers:  # they show the clusters, each in its own way
            log(INFO, "%s", clustered)
        return clustered

    def _begin(self, run: Run) -> Checkpoint:
        """Wait for the clients and lay out the model; the state from which the run goes on."""
        self._run, roll_call, least = run, self.roll_call, max(self.min_available_nodes, 1)
        clients = roll_call.gather(run.grid, least)
        self.layout = Layout.of(run.result.arrays, self.untrained)
        self.projection_dim = affordable_length(self.projection_dim, roll_call.connected)
        try:
            first = self.layout.weights(run.result.arrays)
        except BadReplyError as problem:
            raise ConfigError(f"The initial model {problem}.") from None
        self._cfl = algorithm_of(self, run)
        facts, settings = only(roll_call.facts, clients), self.settings | run.settings
        # Data that are dealt out depend on the number of clients.
        settings["clients"] = roll_call.announced if roll_call.simulated else 0
        start = RunStart(run.num_rounds, self.leading.now, settings, self.layout, facts)
        before = self._observers.start(start)
        if before:
            roll_call.share = 1.0  # its clients may be at any node
            clients = roll_call.gather(run.grid, least)
            self._observers.refuse_other_clients(before.state.tree.clients, clients)
            run.result.arrays = self.layout.record(before.state.tree.model_of(ROOT))
        else:
            tree = ParameterTree.initial(first, clients, isolated=self.isolated)
            before = Checkpoint(0, CFLState(tree, first=first))
        keys = self.weighted_by_key, self.arrayrecord_key, self.configrecord_key
        known = roll_call, self.layout, before.failures
        self._messenger = ClientMessenger(run.grid, run.timeout, *known, *keys)
        self.state, self.final_report, self._by_round = before.state, None, {}
        return before

    def _play(self, server_round: int) -> bool:
        """One round; whether an observer ends the run after it."""
        began, run, result = time.monotonic(), self._run, self._run.result
        log(INFO, "")
        log(INFO, "[ROUND %d/%d]", server_round, run.num_rounds)
        quorum = Quorum(self.round_share, self.round_seconds or math.inf)
        messages = self.configure_train(server_round, result.arrays, run.train_config, run.grid)
        replies = self._messenger.exchange(messages, quorum, late=True)
        arrays, metrics = self.aggregate_train(server_round, replies)
        result.arrays = arrays or result.arrays
        keep(result.train_metrics_clientapp, server_round, metrics)
        if server_round < run.num_rounds:
            asked = server_round, result.arrays, run.evaluate_config, run.grid
            replies = self._messenger.exchange(self.configure_evaluate(*asked), quorum)
            metrics = self.aggregate_evaluate(server_round, replies)
            keep(result.evaluate_metrics_clientapp, server_round, metrics)
        self._settle(self._judges, server_round)
        run.evaluate_centrally(server_round, self.tree, self.layout)
        return self._report(time.monotonic() - began)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """A message for every ask of the round.

        What a wrapper added to ``arrays``, such as noise, is added to the clusters' models.
        """
        if not self.layout.entries:
            self._begin(Run(grid, Result(arrays), 0, 0.0, config, ConfigRecord(), alone=False))
        tree = self.tree
        if not self._run.alone:
            refuse_unfit_wrappers(self.aggregation)
            self._wrapper.config = config
            tree = self._wrapper.tree_with_noise(arrays, tree, self.layout)
        self.roll_call.update(grid)
        tree = admitted(tree, self.roll_call.clients, server_round, isolated=self.isolated)
        self.state = replace(self.state, tree=tree)
        drawn = self._draw("train", server_round, self.fraction_train, self.min_train_nodes)
        asks = self._cfl.asks(self.state, server_round, drawn)
        return self._messenger.plain_messages(asks, self.state, config)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """One round of the algorithm on the replies; θ_root and the mean metrics."""
        cfl, before, messenger = self._cfl, self.state, self._messenger
        report = RoundReport(server_round, before.tree, before, self.layout, self._run.num_rounds)
        limits = self.max_norm_ratio, self.max_influence
        refuse = messenger.set_aside
        bounds = RobustMean(before, self.layout.carried, cfl.weight_of, refuse, *limits)
        usable = bounds.bounded(messenger.trainings(replies, cfl, before, server_round))
        last = server_round == self._run.num_rounds
        self.state, decisions, self._judges = cfl.heard(
            before, report.noted(usable), server_round, self.failures.absent, last=last
        )
        self._round = replace(report, decisions=decisions)
        messenger.log_lowered(report.lowered, report.measured, self.max_influence)
        self._wrapper.warn_not_clipped(self.state, server_round)
        report.close(messenger, self.exclude_after)
        log_decisions(decisions)
        log_places(self.state, self.state.moves[len(before.moves) :])
        if not report.measured:
            return None, None
        metrics = messenger.mean(report.measured, self.train_metrics_aggr_fn)
        arrays = self._wrapper.returned = self.layout.record(self.tree.model_of(ROOT))
        return arrays, metrics

    def _settle(self, asks: Sequence[Ask], server_round: int) -> None:
        """Carry the asks of proposals to the clients until there are none left."""
        run, messenger, before = self._run, self._messenger, self._round.decisions
        silent = set[str]()
        while asks:
            free, trains = messenger.free - silent, asks[0].task != "evaluate"
            asks = [ask for ask in asks if ask.client in free]
            config = run.train_config if trains else run.evaluate_config
            replies = messenger.exchange(messenger.plain_messages(asks, self.state, config))
            answers = messenger.answers(replies, self._cfl.projection)
            if not trains:
                leading = self.leading.among([answer.metrics for answer in answers])
                self._cfl = replace(self._cfl, metric=measure_of(leading))
            answers = [replace(a, metrics=ClientMetrics.of(a).scalars) for a in answers]
            problems = messenger.noted_problems()
            silent |= {c for c, problem in problems.items() if problem.fault is Fault.SILENT}
            self._round.note(problems)
            heard = self._cfl.heard(self.state, answers, server_round)
            self.state, decisions, asks = heard
            log_decisions(decision for decision in decisions if decision not in before)
            self._round = replace(self._round, decisions=decisions or before)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """A message for every sampled client, with the model of its own cluster."""
        if not self.layout.entries:
            return []  # an app's own loop may begin with an evaluation: nothing is trained yet
        if not has_function(grid, EVALUATE, if_unknown=True):
            return []
        fraction, least = self.fraction_evaluate, self.min_evaluate_nodes
        asks = [
            Ask(client, self.tree.leaf_of(client).name, Role.OWN, server_round, "evaluate")
            for client in self._draw("evaluate", server_round, fraction, least)
        ]
        return self._messenger.plain_messages(asks, self.state, config)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """The clients' mean metrics, weighted by their examples."""
        if not self._round.server_round:
            return None
        answers = self._messenger.answers(replies, self._cfl.projection)
        measured = {answer.client: ClientMetrics.of(answer) for answer in answers}
        self.leading.among([one.metrics for one in measured.values()])
        problems = self._messenger.noted_problems()
        if measured or problems:
            received = len(measured), len(problems)
            log(INFO, "aggregate_evaluate: Received %d results and %d failures", *received)
        self._round.note(problems)
        self._round.evaluated(measured)
        if not self._run.alone:
            self._report(0.0)
        return self._messenger.mean(measured, self.evaluate_metrics_aggr_fn)

    def _close(self) -> FinalReport:
        """The final evaluation, of all clients that are connected."""
        run, cfl = self._run, self._cfl
        self.roll_call.update(run.grid, at_least=0)  # a newcomer would come too late
        if step := personal_step(self, run):
            self.state = replace(self.state, pending=step)
            log_alone(step)
            self._settle(step.asks, run.num_rounds)
            log_steps(self.state.personal)
        report = FinalEvaluation(run, self._messenger, self.state).report()
        report = replace(
            report,
            selection=self.selection,
            by_round=self._by_round,
            metric=self.leading.among([one.leaf.metrics for one in report.clients.values()]),
            judged=decides(cfl) or step is not None or self.selection != "leaf",
        )
        self._messenger.log_limited_examples(report.served)
        log_unable(report)
        if metrics := self._messenger.mean(report.by_clusters, self.evaluate_metrics_aggr_fn):
            run.result.evaluate_metrics_clientapp[run.num_rounds] = metrics
        return report

    def _report(self, seconds: float) -> bool:
        """Call the observers after a round; whether one of them ends the run."""
        result, server_round = self._run.result, self._round.server_round
        report = replace(
            self._round,
            state=self.state,
            seconds=seconds,
            failures=self.failures,
            outstanding=tuple(self._messenger.outstanding.values()),
            metric=self.leading.now,
            central=dict(result.evaluate_metrics_serverapp.get(server_round, {})),
        )
        self._by_round[server_round] = report.metrics()
        return self._observers.round(report)

    def _draw(self, task: str, server_round: int, fraction: float, least: int) -> Sequence[str]:
        rng = generator(self.seed, task, server_round)
        first = self.roll_call.drawn if task == "train" else set()
        drawn = sample(self.tree, self._messenger.free, fraction, least, rng, first)
        first.difference_update(drawn)
        if drawn or task == "train":
            total = len(self._messenger.present)
            log(INFO, "configure_%s: Sampled %d nodes (out of %d)", task, len(drawn), total)
        return drawn
