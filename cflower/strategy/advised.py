"""`Advised`: any Flower Strategy, observed. Do its clients differ, and would separate models help?

The evidence is that of `AutoCriterion`. The question to the clients is that of `ClusteredFL` before
a split: the mean of a group's models of one round, which exists already, against the mean of all.
docs/evidence/advice.md has its rate of error.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from logging import INFO, WARNING
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from flwr.supercore import log

from cflower.algorithm.aggregation import WeightedMean
from cflower.algorithm.constants import SIGNIFICANT
from cflower.algorithm.criteria import Decision, Evidence, Memory, Outcome
from cflower.algorithm.projection import Projection
from cflower.algorithm.state import DECIDE, Ask, CFLState, KnownUpdate, Role, Training
from cflower.algorithm.tree import ROOT, ParameterTree
from cflower.algorithm.weights import Weights, norm
from cflower.auto.clustering import best_parts
from cflower.auto.criterion import AutoCriterion
from cflower.changes.vote import Ballot, Verdict, verdict_of
from cflower.errors import CFlowerError
from cflower.messages.arrays import records_in
from cflower.messages.exchange import PROGRESS
from cflower.messages.failures import ExchangeOutcome
from cflower.messages.metrics import ClientMetrics
from cflower.messages.replies import the_one
from cflower.messages.roll_call import RollCall
from cflower.metric import Metric
from cflower.ordering import counted, in_order, listed, only
from cflower.settings import require
from cflower.strategy.clustered_fl import ClusteredFL
from cflower.strategy.observers import Observer
from cflower.strategy.reports import RoundReport
from cflower.strategy.run import Call, Run
from cflower.strategy.settings import Settings

Groups = tuple[tuple[str, ...], ...]
YES, NO, CANNOT_TELL = "yes", "no", "cannot tell"
ASKED_AFTER = 3
"""Rounds after which the clients are asked, or later, once groups can be cut. Much later the models
of one round gain even by groups that one model serves as well (docs/evidence/advice.md)."""
RATE = "In a test 3 of 41 such answers were wrong."
"""Measured, see docs/evidence/advice.md."""


@dataclass(eq=False, repr=False)
class Observed(Settings):
    """The settings of an observation, with the name of the strategy."""

    strategy: str = ""


class Advised(Strategy):
    """Any strategy, which trains as without this wrapper, and an answer about its clients.

    After each round the log says whether the clients differ, and in which groups. In one round
    they also evaluate two models that are not trained further. At the end the log says whether
    separate models for the groups would help: yes, no or cannot tell.

    Parameters
    ----------
    strategy : flwr.serverapp.strategy.Strategy
        Such as ``FedAvg``, ``FedProx`` or ``FedAdam``. It does all the training.
    observers : sequence of Observer
        Such as `Recorder`, which writes a report. With observers, all clients evaluate the final
        model at the end.
    metric, higher_is_better : str, bool, optional
        As in `ClusteredFL`.

    Attributes
    ----------
    groups : tuple of tuple of str
        The clients' groups in the last round, by name; empty if they do not differ.
    answer : {"yes", "no", "cannot tell"}
        Whether separate models for the groups would help.
    reason : str
        Why, in one clause.

    Examples
    --------
    >>> from flwr.serverapp.strategy import FedAvg
    >>> Advised(FedAvg()).answer
    'cannot tell'
    """

    def __init__(
        self,
        strategy: Strategy,
        *,
        observers: Sequence[Observer] = (),
        metric: str = "accuracy",
        higher_is_better: bool | None = None,
    ) -> None:
        require(
            isinstance(strategy, Strategy) and not isinstance(strategy, ClusteredFL),
            f"Got Advised({strategy!r}), but expected a strategy that trains one model, such as "
            "FedAvg().",
        )
        super().__init__()
        self.strategy, self.observers = strategy, observers
        self._settings = Observed(
            AutoCriterion(),
            min_available_nodes=1,
            weighted_by_key=getattr(strategy, "weighted_by_key", "num-examples"),
            moving=False,
            personal=False,
            trial_rounds=0,
            metric=metric,
            higher_is_better=higher_is_better,
            strategy=type(strategy).__name__,
        )
        self._num_rounds, self._timeout = 0, 3600.0
        self._forget()

    def _forget(self) -> None:
        """Be as before any run."""
        self.groups: Groups = ()
        self.answer, self.reason = CANNOT_TELL, "the clients have not been asked"
        self._run: Run | None = None
        self._memory, self._known = Memory(), dict[str, KnownUpdate]()
        self._config = ConfigRecord()
        self._asked: Groups = ()
        self._replies: dict[str, Training] = {}
        self._failed = self._alone = False

    @property
    def advice(self) -> str:
        known = "No groups were found among the clients."
        if self.groups or self.answer == YES:
            may = "differ" if self.groups else "may differ"
            known = f"The clients {may}: {groups_in_words(self.groups or self._asked)}."
        answer = f"{self.answer.capitalize()}: {self.reason}."
        rate = "" if self.answer == CANNOT_TELL else f" {RATE}"
        return f"{known} Would separate models help? {answer}{rate}"

    def summary(self) -> None:
        self.strategy.summary()

    def start(self, grid: Grid, initial_arrays: ArrayRecord, *args: Any, **kwargs: Any) -> Result:
        """Run the rounds of the strategy, as ``Strategy.start``, and log the answer."""
        given = dict(zip(("num_rounds", "timeout"), args, strict=False)) | kwargs
        self._num_rounds, self._timeout = given.get("num_rounds", 3), given.get("timeout", 3600.0)
        self._forget()
        self._alone = True
        try:
            result = super().start(grid, initial_arrays, *args, **kwargs)
            log(INFO, "%s", self.advice, extra=PROGRESS)
            if self._run and self.observers:
                self._guarded(self._evaluate_at_end, self._run, result.arrays)
        finally:
            if self._run:
                self._run.end()
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        messages = list(self.strategy.configure_train(server_round, arrays, config, grid))
        if messages:
            self._guarded(self._meet, server_round, messages, grid)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The aggregate of the strategy; the replies are observed."""
        replies = list(replies)
        if self._run:
            self._guarded(self._observe, self._run, server_round, replies)
        return self.strategy.aggregate_train(server_round, replies)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        messages = self.strategy.configure_evaluate(server_round, arrays, config, grid)
        self._config = ConfigRecord(dict(config))
        return messages

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """The metrics of the strategy; then the clients are asked, if it is time."""
        metrics = self.strategy.aggregate_evaluate(server_round, replies)
        if self._run:
            self._guarded(self._ask, self._run, server_round)
            self._guarded(self._run.observe, 0.0)
        return metrics

    def _guarded(self, step: Callable[..., Any], *arguments: Any) -> None:
        """One step of the observation; if it fails, the training goes on without it."""
        if self._failed:
            return
        try:
            step(*arguments)
        except Exception as error:
            self._failed, cause = True, error if isinstance(error, CFlowerError) else repr(error)
            self.answer, self.reason = CANNOT_TELL, f"the observation failed ({cause})".rstrip(".")
            log(WARNING, "The run goes on without the observation of its clients: %s", cause)

    def _meet(self, server_round: int, messages: list[Message], grid: Grid) -> None:
        """Note the clients that are here, and the model that they are sent."""
        content, settings = messages[0].content, self._settings
        arrays, config = the_one(ArrayRecord, content), ConfigRecord()
        if self._run is None:
            (settings.arrayrecord_key,) = records_in(content, ArrayRecord)
            settings.configrecord_key = next(iter(records_in(content, ConfigRecord)), "config")
            settings.observers, settings.roll_call = self.observers, RollCall(asks=None)
            call = Call(grid, arrays, self._num_rounds, self._timeout, config, config)
            self._run = Run(settings, call)
        self._run.roll_call.update(grid)
        self._origin = self._run.layout.weights(arrays)
        self._run.messenger.sent_by_others(messages, server_round, self._origin)

    def _observe(self, run: Run, server_round: int, messages: list[Message]) -> None:
        """Decide from a round's updates, and keep the models for the question to the clients."""
        messenger, projection = run.messenger, run.cfl.projection
        report = RoundReport(server_round, run.state.tree, run.state, run.layout, self._num_rounds)
        replies = messenger.trainings(messages, run.state.tree, server_round)
        read = {reply.client: report.noted(reply) for reply in replies}
        read, here = only(read, in_order(read)), {*messenger.roll_call.nodes, *read}
        outcome = ExchangeOutcome(read, messenger.drain_problems())
        messenger.failures = messenger.failures.trained(outcome, 0, len(messenger.present))
        report.note(outcome.problems)
        origin = projection.project(self._origin.trained)
        for client, reply in read.items():
            known = reply.kept, reply.norm, reply.num_examples, origin
            self._known[client] = KnownUpdate(server_round, *known)
        absent = in_order(self._known.keys() - here)
        evidence = evidence_of(server_round, read, in_order(here), absent, projection)
        decision, self._memory = run.cfl.criterion.decide(evidence, self._memory)
        groups, differ = groups_in(decision), decision.outcome is Outcome.SPLIT
        self.groups = groups if differ else ()
        log(INFO, "\t%s", sentence(decision), extra=PROGRESS)
        shown = replace(decision, sides=(), unsure=())
        shown = replace(shown, outcome=Outcome.FOUND) if differ else shown
        run.state = CFLState(ParameterTree.initial(self._origin, self._known), dict(self._known))
        run.report = replace(report, trained=run.state.tree, decisions=(shown,))
        if server_round >= ASKED_AFTER and groups and not self._asked:
            self._asked, self._replies = groups, read

    def _mean(self, read: Mapping[str, Training]) -> Weights:
        mean = WeightedMean()
        for reply in read.values():
            mean.add(reply.update, reply.num_examples)
        return Weights(*(o + u for o, u in zip(self._origin, mean.mean(), strict=True)))

    def _ask(self, run: Run, server_round: int) -> None:
        """Let the clients evaluate the common model and their group's, and count the votes."""
        read, self._replies = self._replies, {}
        if not read:
            return
        if not self._alone or type(self.strategy).__name__.startswith("DifferentialPrivacy"):
            self.reason = "the models of the question would lack the noise of another wrapper"
            return
        if not run.conditions.evaluates:
            self.reason = "the ClientApp has no evaluate function"
            return
        parts = [part for group in self._asked if (part := only(read, group))]
        common, asks = self._mean(read), dict[Ask, Weights]()
        for part in parts:
            mean = self._mean(part)
            for client in only(part, run.roll_call.nodes):
                ask = Ask(client, ROOT, Role.OWN, server_round, "evaluate", DECIDE)
                asks |= {ask: mean, ask._replace(role=Role.CANDIDATE): common}
        replies = run.messenger.exchange(run.messenger.messages(asks, self._config))
        measured = {a.ask: ClientMetrics.of(a).scalars for a in run.messenger.answers(replies)}
        ballots = [
            Ballot(ROOT, own, measured[other])
            for ask, own in measured.items()
            if ask.role is Role.OWN and (other := ask._replace(role=Role.CANDIDATE)) in measured
        ]
        metric = run.leading.among([ballot.common for ballot in ballots])
        self.answer, self.reason = answer_of(verdict_of(ballots, metric), metric, server_round)

    def _evaluate_at_end(self, run: Run, arrays: ArrayRecord) -> None:
        tree = ParameterTree.initial(run.layout.weights(arrays), self._known)
        run.state = CFLState(tree, self._known)
        run.call = run.call._replace(evaluate_config=self._config)
        run.final_report = replace(run.close(), advice=self.advice)


def evidence_of(
    server_round: int,
    read: Mapping[str, Training],
    members: tuple[str, ...],
    absent: tuple[str, ...],
    projection: Projection,
) -> Evidence:
    """The updates of a round, as `AutoCriterion` sees those of one cluster."""
    kept = [reply.kept for reply in read.values()]
    weights = np.array([reply.num_examples for reply in read.values()])
    weights, output = weights / (weights.sum() or 1.0), projection.output
    return Evidence(
        cluster=ROOT,
        server_round=server_round,
        members=members,
        clients=tuple(read),
        vectors=tuple(map(projection.seen, kept)),
        norms=np.array([reply.norm for reply in read.values()]),
        weights=weights,
        mean_norm=norm(weights @ np.stack(kept)) if kept else 0.0,
        rounds=np.full(len(read), server_round),
        absent=absent,
        outputs=tuple(map(output.rows, kept)) if output else (),
    )


def groups_in(decision: Decision) -> Groups:
    """The groups that a decision found, or else that would be cut; empty if too little is known."""
    if decision.sides:
        return tuple((*side, *unsure) for side, unsure in decision.parts)
    if decision.similarity is None:
        return ()
    parts = zip(best_parts(decision.similarity).labels, decision.clients, strict=True)
    groups = defaultdict[int, list[str]](list)
    for part, client in parts:
        groups[part].append(client)
    return tuple(map(tuple, groups.values()))


def sentence(decision: Decision) -> str:
    """Whether the clients differ after a round, and in which groups."""
    if not decision.sides:
        early = decision.similarity is None
        first = "It is too early to tell whether" if early else "Nothing shows that"
        return f"{first} the clients differ: {decision.reason}."
    sure = decision.outcome is Outcome.SPLIT
    may = "differ" if sure else "may differ"
    return f"The clients {may}: {groups_in_words(groups_in(decision))} ({decision.reason})."


def groups_in_words(groups: Groups) -> str:
    """The number of groups and their members.

    >>> groups_in_words((("a", "b"), ("c",)))
    '2 groups (a, b; c)'
    """
    return f"{counted(len(groups), 'group')} ({'; '.join(listed(g, 5) for g in groups)})"


def answer_of(verdict: Verdict, metric: Metric, server_round: int) -> tuple[str, str]:
    """The answer by the votes of the clients, and a clause with their numbers.

    Yes for a significant gain, if the leading metric is better in the mean too. No where a loss is
    likely, or where no gain is, although all voices together would be significant.
    """
    vote, name = verdict.vote, metric.name
    if not verdict.measured:
        return CANNOT_TELL, "no client evaluated both models"
    means = [verdict.figures.get(f"{name}_{which}", 0.0) for which in ("own", "common")]
    gained = means[0] != means[1] and metric.best(means) == means[0]
    enough = 0.5 ** len(vote.gains) <= SIGNIFICANT
    no = verdict.may_be_worse or (enough and not vote.likely)
    answer = YES if vote.significant and gained else NO if no else CANNOT_TELL
    clients = counted(len(vote.gains), "client")
    return answer, (
        f"after round {server_round} the mean of its group's models served {vote.better} of "
        f"{clients} better than the mean of all models, and {vote.worse} worse"
    )
