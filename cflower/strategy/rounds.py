"""The rounds of `ClusteredFL`: what is sent, and what is made of the replies."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from logging import INFO, WARNING

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.serverapp import Grid
from flwr.supercore import log

from cflower.algorithm.criteria import Decision
from cflower.algorithm.projection import affordable_length
from cflower.algorithm.round import CFL
from cflower.algorithm.state import CFLState
from cflower.algorithm.tree import ParameterTree
from cflower.errors import ConfigError, FederationError
from cflower.messages.claims import listed
from cflower.messages.client_names import EVALUATE, functions_of
from cflower.messages.failures import ExchangeOutcome, FailureRecord
from cflower.messages.layout import BadArraysError, Layout
from cflower.messages.messenger import Asked, Measured
from cflower.messages.metrics import mean_over_clients
from cflower.messages.replies import as_record
from cflower.ordering import in_order
from cflower.seeding import generator
from cflower.strategy.observers import Checkpoint, RunStart
from cflower.strategy.reports import RoundReport
from cflower.strategy.sampling import sample
from cflower.strategy.settings import plain
from cflower.strategy.strategy_settings import StrategySettings
from cflower.strategy.training_round import TrainingRound
from cflower.strategy.wrappers import refuse_clipping_on_the_server, with_noise_of


class Rounds(StrategySettings):
    """Flower's four methods, the beginning and the end of every round."""

    @property
    def tree(self) -> ParameterTree:
        """The parameter tree after the last round."""
        return self.state.tree

    # ----------------------------------------------------------- beginning, end of a round

    def resume(
        self,
        state: CFLState,
        server_round: int,
        failures: FailureRecord | None = None,
        outstanding: Sequence[Asked] = (),
    ) -> None:
        """Let `start` go on after ``server_round`` from this state instead of from the beginning.

        With the same settings and clients, the rounds that follow are those that would have
        followed without the interruption. Who still owed a reply is asked the same again, and
        answers the same; where that comes in another round, it counts in that one.
        """
        self.state, self._finished_rounds = state, server_round
        self.failures = failures or FailureRecord()
        self._to_ask_again = tuple(outstanding)

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
        num_clients = len(self.roll_call.clients)
        self.projection_dim = affordable_length(self.projection_dim, num_clients)
        projection = self.layout.projection(self.projection_dim, self.seed, self.similarity_layers)
        # What Flower's wrappers account for is one model a client and round.
        trial_rounds, inner_interval = (
            (self.trial_rounds, self.inner_interval) if self._own_start else (0, 0)
        )
        functions = functions_of(grid)
        if trial_rounds and functions is not None and EVALUATE not in functions:
            trial_rounds = 0
            log(INFO, "The ClientApp evaluates nothing: no split is on trial.")
        self._cfl = CFL(
            self.criterion,
            projection,
            self.optimizer,
            self.weighting,
            self.layout.as_sent,
            trial_rounds,
            self.moving,
            inner_interval,
        )
        facts = {name: self.roll_call.facts[name] for name in self.roll_call.clients}
        settings = {
            **self.settings,
            "train-config": plain(train_config),
            "evaluate-config": plain(evaluate_config or {}),
        }
        start = RunStart(num_rounds, self.metric, settings, self.layout, facts)
        if checkpoint := self._observers.start(start):
            try:
                self._take_up(checkpoint)
            except FederationError:
                self._observers.end(None)
                raise
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
        self.resume(
            checkpoint.state, checkpoint.server_round, checkpoint.failures, checkpoint.outstanding
        )

    def _report(self, server_round: int, num_rounds: int, seconds: float) -> None:
        this = self._round
        if this is None:
            return
        report = RoundReport(
            server_round,
            num_rounds,
            this.state.tree,
            self.state,
            this.decisions,
            this.trained_on,
            this.measured,
            this.problems,
            seconds,
            self.layout,
            self.failures,
            this.general,
            this.late,
            tuple(self._messenger.outstanding.values()),
        )
        self._by_round[server_round] = report.metrics()
        self._observers.round(report)

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
        cfl = self._cfl
        assert cfl is not None
        assigned = {client: self.tree.training_cluster(client) for client in drawn}
        looked_at = drawn if self._own_start else ()
        probes = {c: above for c in looked_at if (above := cfl.probes(self.state, c))}
        inner = {c: cfl.also_trains(self.tree, c, server_round) for c in drawn if c not in probes}
        grown = {client: cluster.grown for client, cluster in inner.items() if cluster}
        self._probed = {client: above.name for client, above in probes.items()}
        return [
            message
            for models in (assigned, grown, probes)  # of one cluster two models may be sent
            for message in self._messenger.messages(
                models, self.layout, MessageType.TRAIN, config, server_round
            )
        ]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """One round of the algorithm on the replies; θ_root and the mean metrics."""
        assert self._cfl is not None, "configure_train comes first"
        this = TrainingRound(
            server_round,
            self.state,
            self.layout,
            self._cfl.projection,
            self._messenger,
            self._cfl.weight_of,
            self.max_norm_ratio,
            self.max_influence,
            self._probed,
        )
        self._round = this
        before = len(self.state.moves)
        result = self._cfl.run_round(
            self.state,
            this.usable(replies),
            server_round=server_round,
            excluded=self.failures.excluded,
        )
        this.result, this.decisions, self.state = result, result.decisions, result.state
        self._note(this, server_round)
        for decision in this.decisions:
            log(INFO, "\tcluster %s, %s: %s", *said(decision))
        for move in result.state.moves[before:]:
            log(INFO, "Client %s moves from %s to %s: %s", *move[1:])
        for client, fork in result.forks.items():
            log(INFO, "Client %s walks down to cluster %s: %s", client, *fork)
        if not this.measured:
            return None, None
        metrics = as_record(mean_over_clients(this.measured.values()))
        if self.train_metrics_aggr_fn is not None:
            metrics = self.train_metrics_aggr_fn(this.contents, self.keys.weighted_by)
        self._returned = self.layout.record(self.tree.root.grown.model)
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
        for client, asked in this.late.items():
            log(INFO, "Client %s answers round %d late: its reply counts now.", client, asked)
        if busy := self._messenger.busy:
            owed = [f"{client} (round {asked})" for client, asked in busy.items()]
            log(INFO, "The round is closed without %s: their replies may still come.", listed(owed))
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

    def _mean_metrics(self, measured: Measured) -> MetricRecord | None:
        if not measured.metrics:
            return None
        if self.evaluate_metrics_aggr_fn is not None:
            contents = list(measured.contents.values())
            return self.evaluate_metrics_aggr_fn(contents, self.keys.weighted_by)
        return as_record(mean_over_clients(measured.metrics.values()))

    # ----------------------------------------------------------------- clients

    @property
    def _present(self) -> tuple[str, ...]:
        """The clients that can be asked: connected, not excluded."""
        return tuple(c for c in self.roll_call.clients if c not in self.failures.excluded)

    @property
    def _free(self) -> tuple[str, ...]:
        """Those of them who do not still owe a reply to an earlier round."""
        busy = self._messenger.busy
        return tuple(c for c in self._present if c not in busy)

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
        return sample(self.tree, self._free, fraction, least, rng)


def said(decision: Decision) -> tuple[str, str, str]:
    """What the log has of a decision."""
    return decision.cluster, decision.outcome, decision.reason
