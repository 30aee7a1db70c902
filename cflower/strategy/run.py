"""One run of `ClusteredFL`: everything that begins and ends with it."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from logging import INFO
from typing import NamedTuple

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from flwr.supercore import log

from cflower.algorithm.state import ALL_EXAMPLES, Ask, CFLState, Reply, Role, Task
from cflower.algorithm.tree import ROOT, ParameterTree
from cflower.algorithm.weights import Weights
from cflower.errors import CFlowerError, ConfigError, FederationError
from cflower.messages.client_names import PART, TASKS, app_of, mods_of_training
from cflower.messages.exchange import Quorum
from cflower.messages.failures import BadReplyError, Fault
from cflower.messages.flower import has_client_fn
from cflower.messages.layout import Layout
from cflower.messages.messenger import ClientMessenger
from cflower.messages.metrics import ClientMetrics, Leader, Metrics
from cflower.messages.own_models import as_kept
from cflower.messages.roll_call import RollCall
from cflower.ordering import counted, in_order, listed, only
from cflower.robust.robust_mean import RobustMean
from cflower.seeding import generator
from cflower.settings import require
from cflower.strategy.conditions import Conditions, affordable_length
from cflower.strategy.final_evaluation import final_report
from cflower.strategy.observers import Checkpoint, Observers, RunStart
from cflower.strategy.reports import FinalReport, RoundReport
from cflower.strategy.results import CentralEvaluation, central_mean
from cflower.strategy.round_log import (
    WeightLog,
    log_alone,
    log_decisions,
    log_limited_examples,
    log_parted,
    log_places,
    log_steps,
    log_unable,
)
from cflower.strategy.sampling import sample
from cflower.strategy.settings import Settings, plain
from cflower.strategy.wrappers import Wrapper, refuse_secure_aggregation, refuse_unfit_wrappers

ALL_TRAIN = (
    "From now on clients also train with the examples that decide, except in rounds after which "
    "they are asked something."
)
PATIENT = 300.0
"""Seconds to wait for nodes by default: a busy machine takes minutes to start a simulation."""


class Call(NamedTuple):
    """The arguments of `ClusteredFL.start`."""

    grid: Grid
    arrays: ArrayRecord
    num_rounds: int
    timeout: float
    train_config: ConfigRecord
    evaluate_config: ConfigRecord
    evaluate_fn: CentralEvaluation | None = None
    alone: bool = True
    """Whether `ClusteredFL.start` runs the rounds, no wrapper and no loop of the app's own."""

    def check(self) -> None:
        """Refuse configs with keys that the Strategy adds to them."""
        taken = sorted(
            {"cluster", PART, ALL_EXAMPLES} & {*self.train_config, *self.evaluate_config}
        )
        require(
            not taken, f"The config has {listed(taken)}, ClusteredFL's own key(s): rename yours."
        )


class Run:
    """The state of one run, and what becomes of it in a round.

    Made at the start: it waits for the clients, lays out the model, and takes the state from which
    an observer lets the run go on. `CFlowerError` if there are too few clients, the model or a
    setting does not fit, or an observer refuses the run.
    """

    def __init__(self, settings: Settings, call: Call) -> None:
        settings.check()  # again: they can be changed before the start
        call.check()
        if not call.alone:
            refuse_unfit_wrappers(settings.aggregation)
        refuse_secure_aggregation(mods_of_training(app_of(call.grid)))
        self.settings, self.call, self.num_rounds = settings, call, call.num_rounds
        self.grid, self.result = call.grid, Result(call.arrays)
        self.roll_call = settings.roll_call or RollCall(timeout=PATIENT, asks=None)
        self.roll_call.share, self.roll_call.seed = settings.fraction_train, settings.seed
        clients = self._gather()
        self.layout = Layout.of(call.arrays, settings.untrained)
        around = call.grid, self.roll_call, self.layout, call.alone
        self.conditions = Conditions(settings, *around)
        length = affordable_length(settings.projection_dim, self.roll_call.connected)
        self.plain_settings = settings.as_plain() | {"projection-dim": length}
        try:
            first = self.layout.weights(call.arrays)
        except BadReplyError as problem:
            raise ConfigError(f"The initial model {problem}.") from None
        self.cfl = self.conditions.algorithm(length, call.num_rounds)
        self.leading = Leader(settings.leading)
        self.observers = Observers(settings.observers)
        tree = ParameterTree.initial(first, clients, isolated=settings.isolated)
        try:
            before = self._resumed(clients) or Checkpoint(0, CFLState(tree, first=first))
        except CFlowerError:
            self.observers.end(None)  # such as the recorder, which holds a lock
            raise
        self.before, self.state = before, before.state
        keys = settings.weighted_by_key, settings.arrayrecord_key, settings.configrecord_key
        known = self.roll_call, self.layout, self.cfl.projection, before.failures, *keys
        older = has_client_fn(app_of(call.grid))
        self.messenger = ClientMessenger(call.grid, call.timeout, *known, older)
        self.wrapper, self.weight_log = Wrapper(), WeightLog()
        self.report = RoundReport(0, self.state.tree, self.state, self.layout)
        self.final_report: FinalReport | None = None
        self.over = False
        self._asks: Sequence[Ask] = ()
        self._by_round: dict[int, Metrics] = {}
        self._aggregated: int | None = None

    def _gather(self) -> tuple[str, ...]:
        clients = self.roll_call.gather(self.grid, max(self.settings.min_available_nodes, 1))
        if not self.roll_call.only_evaluating.issuperset(clients):
            return clients
        raise FederationError(
            f"All {counted(len(clients), 'client')} of this run only evaluate (evaluate-only): at "
            "least one has to train."
        )

    def _resumed(self, clients: Sequence[str]) -> Checkpoint | None:
        """The checkpoint from which an observer lets the run go on; None to begin with round 1."""
        configs = {"train-config": self.call.train_config}
        configs["evaluate-config"] = self.call.evaluate_config
        settings = self.plain_settings | {key: plain(config) for key, config in configs.items()}
        # Data that are dealt out depend on the number of clients.
        settings["clients"] = self.roll_call.announced if self.roll_call.simulated else 0
        facts = only(self.roll_call.facts, clients)
        start = RunStart(self.num_rounds, self.leading.now, settings, self.layout, facts)
        before = self.observers.start(start)
        if before is not None:
            self.roll_call.share = 1.0  # its clients may be at any node
            before.refuse_other_clients(self._gather())
            self.result.arrays = self.layout.record(before.state.tree.model_of(ROOT))
        return before

    def continues_with(self, server_round: int, arrays: ArrayRecord, grid: Grid) -> bool:
        """Whether a call of ``configure_train`` is about this run, and no other one begins.

        A wrapper or an app's own loop says only by the number of the round that it began again.
        """
        if self.over or grid is not self.grid:
            return False
        if self._aggregated is None:
            return self.call.alone or arrays is self.call.arrays
        return self.call.alone or server_round > self._aggregated

    def is_at(self, server_round: int, grid: Grid) -> bool:
        """Whether an evaluation after this round is of the models that this run has trained."""
        trained = self._aggregated
        return (
            not self.over and grid is self.grid and trained is not None and trained <= server_round
        )

    def rounds(self) -> Iterator[int]:
        """The rounds that are left, until an observer ends the run."""
        server_round = self.before.server_round
        self.messenger.send_again(self.before.outstanding, self.call.train_config)
        self.evaluate_centrally(server_round)
        while server_round < self.num_rounds:
            if server_round == self.cfl.all_train_after:
                log(INFO, ALL_TRAIN)
            server_round += 1
            yield server_round

    def training_messages(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord
    ) -> Iterable[Message]:
        """A message for every ask of a round's training."""
        tree = self.state.tree
        if not self.call.alone:
            self.wrapper.config = config
            tree = self.wrapper.tree_with_noise(arrays, tree, self.layout)
        self.roll_call.update(self.grid)
        clients, isolated = self.roll_call.clients, self.settings.isolated
        if new := in_order(set(clients) - set(tree.clients)):
            log(INFO, "New client(s): %s", listed(new))
            tree = tree.admit(new, server_round, isolated=isolated)
        self.messenger.failures = self.messenger.failures.met(clients)
        self.state = replace(self.state, tree=tree)
        share, least = self.settings.fraction_train, self.settings.min_train_nodes
        drawn = self._draw("train", server_round, share, least)
        return self.messages(self.cfl.asks(self.state, server_round, drawn), config)

    def trained(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """One round of the algorithm on the replies; θ_root and the mean metrics."""
        cfl, messenger, settings = self.cfl, self.messenger, self.settings
        before = replace(self.state, absent=in_order(messenger.absent))
        report = RoundReport(server_round, before.tree, before, self.layout, self.num_rounds)
        bounds = RobustMean(before, cfl.weight_of, messenger.set_aside, settings.max_influence)
        # One after the other, so that a large federation's replies need not all be in memory: each
        # is read, bounded and noted as the algorithm takes it.
        usable = messenger.trainings(replies, before.tree, server_round)
        noted = map(report.noted, bounds.bounded(usable))
        last = server_round == self.num_rounds
        self.state, decisions, self._asks = cfl.heard(before, noted, server_round, last=last)
        self.report, self._aggregated = replace(report, decisions=decisions), server_round
        self.weight_log.lowered(report.lowered, report.measured, settings.max_influence)
        self.wrapper.warn_not_clipped(self.state, server_round)
        report.close(messenger, settings.exclude_after)
        log_decisions(decisions)
        log_parted(before.tree, self.state.tree)
        log_places(self.state, self.state.moves[len(before.moves) :])
        if not report.measured:
            return None, None
        metrics = messenger.mean(report.measured, settings.train_metrics_aggr_fn)
        arrays = self.wrapper.returned = self.layout.record(self.state.tree.model_of(ROOT))
        return arrays, metrics

    def evaluation_messages(self, server_round: int, config: ConfigRecord) -> Iterable[Message]:
        """A message for every sampled client, with the model of its own cluster."""
        if not self.conditions.evaluates:
            return []
        share, least = self.settings.fraction_evaluate, self.settings.min_evaluate_nodes
        asks = dict[Ask, Weights]()
        for client in self._draw("evaluate", server_round, share, least):
            cluster = self.state.path_of(client)[-1]
            ask = Ask(client, cluster.name, Role.OWN, server_round, "evaluate")
            asks[ask] = cluster.model
        return self.messenger.messages(asks, config)

    def evaluated(self, replies: Iterable[Message]) -> MetricRecord | None:
        answers = self.messenger.answers(replies)
        measured = {answer.client: ClientMetrics.of(answer) for answer in answers}
        self.leading.among([one.scalars for one in measured.values()])
        problems = self.messenger.noted_problems()
        if measured or problems:
            received = len(measured), len(problems)
            log(INFO, "aggregate_evaluate: Received %d results and %d failures", *received)
        self.report.note(problems)
        self.report.evaluated(measured)
        if not self.call.alone:
            self.observe(0.0)
        return self.messenger.mean(measured, self.settings.evaluate_metrics_aggr_fn)

    def settle(self, server_round: int, asks: Sequence[Ask] | None = None) -> None:
        """Carry the asks of proposals, or of the personal step, until there are none left."""
        asks = self._asks if asks is None else asks
        before, silent = self.report.decisions, set[str]()
        while asks:
            free = self.messenger.free - silent
            answers = self._answers(asks[0].task, [ask for ask in asks if ask.client in free])
            problems = self.messenger.noted_problems()
            silent |= {c for c, problem in problems.items() if problem.fault is Fault.SILENT}
            self.report.note(problems)
            self.state, decisions, asks = self.cfl.heard(self.state, answers, server_round)
            log_decisions(decision for decision in decisions if decision not in before)
            self.report = replace(self.report, decisions=decisions or before)

    def _answers(self, task: Task, asks: Sequence[Ask]) -> list[Reply]:
        """The replies to asks of one task. The metric that leads those to evaluations decides."""
        trains = TASKS[task].trains
        config = self.call.train_config if trains else self.call.evaluate_config
        replies = self.messenger.exchange(self.messages(asks, config))
        answers = self.messenger.answers(replies)
        answers = [replace(a, metrics=ClientMetrics.of(a).scalars) for a in answers]
        if not trains:
            leading = self.leading.among([answer.metrics for answer in answers])
            self.cfl = replace(self.cfl, metric=leading)
        return answers

    def close(self) -> FinalReport:
        """The personal step, then the final evaluation, of all clients that are connected.

        `FederationError` for a run without usable replies.
        """
        problem = self.messenger.failures.must_not_end(simulated=self.roll_call.simulated)
        if self.num_rounds and problem:
            raise FederationError(problem)
        self.roll_call.update(self.grid, at_least=0)  # a newcomer would come too late
        if step := self.conditions.personal_step(self.state, self.num_rounds):
            self.state = replace(self.state, pending=step)
            log_alone(step)
            self.settle(self.num_rounds, step.asks)
            self.state = as_kept(self.state, self.layout)
            log_steps(self.state.personal)
        config = self.call.evaluate_config if self.conditions.evaluates else None
        report = final_report(self.messenger, self.state, self.num_rounds, config)
        decided = self.state.asked or any(one.evaluations for one in self.state.personal.values())
        report = replace(
            report,
            selection=self.settings.selection,
            by_round=self._by_round,
            metric=self.leading.among([one.leaf.scalars for one in report.clients.values()]),
            judged=bool(decided) or self.settings.selection != "leaf",
        )
        log_limited_examples(report.served)
        log_unable(report)
        aggregation = self.settings.evaluate_metrics_aggr_fn
        by_clusters = {n: one.by_cluster(report.selection) for n, one in report.clients.items()}
        if metrics := self.messenger.mean(by_clusters, aggregation):
            self.result.evaluate_metrics_clientapp[self.num_rounds] = metrics
        self.final_report = report
        return report

    def end(self) -> None:
        """End the run, once: the observers end, and what it has stays as it is."""
        if not self.over:
            self.over = True
            self.observers.end(self.final_report)

    def observe(self, seconds: float) -> bool:
        """Call the observers after a round; whether one of them ends the run."""
        server_round = self.report.server_round
        report = replace(
            self.report,
            state=self.state,
            seconds=seconds,
            failures=self.messenger.failures,
            outstanding=tuple(self.messenger.outstanding.values()),
            metric=self.leading.now,
            central=dict(self.result.evaluate_metrics_serverapp.get(server_round, {})),
        )
        self._by_round[server_round] = report.metrics()
        return self.observers.round(report)

    def evaluate_centrally(self, server_round: int) -> None:
        if self.call.evaluate_fn is not None:
            evaluate = partial(self.call.evaluate_fn, server_round)
            if mean := central_mean(evaluate, self.state.tree, self.layout):
                self.result.evaluate_metrics_serverapp[server_round] = mean

    @property
    def quorum(self) -> Quorum:
        return Quorum(self.settings.round_share, self.settings.round_seconds or math.inf)

    def messages(self, asks: Iterable[Ask], config: ConfigRecord) -> list[Message]:
        models = {ask: self.state.model_of(ask) for ask in asks}
        return self.messenger.messages(models, config, self.state.settings_of)

    def _draw(self, task: str, server_round: int, share: float, least: int) -> Sequence[str]:
        rng = generator(self.settings.seed, task, server_round)
        first, free = set[str](), self.messenger.free
        if task == "train":
            first = self.roll_call.drawn
            first.difference_update(self.roll_call.only_evaluating)
            free -= self.roll_call.only_evaluating
        drawn = sample(self.state.tree, free, share, least, rng, first)
        first.difference_update(drawn)
        if drawn or task == "train":
            total = len(self.messenger.present)
            log(INFO, "configure_%s: Sampled %d nodes (out of %d)", task, len(drawn), total)
        return drawn
