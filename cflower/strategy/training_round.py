"""One round of training as the strategy reads it: usable replies out, all else in its report."""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from logging import INFO, WARNING

from flwr.app import Message
from flwr.supercore import log

from cflower.algorithm.projection import Projection
from cflower.algorithm.round import CFL
from cflower.algorithm.state import CFLState, Reply, Role
from cflower.errors import FederationError
from cflower.messages.claims import listed
from cflower.messages.failures import (
    PATIENCE,
    BadReplyError,
    ExchangeOutcome,
    FailureRecord,
    Fault,
    Problem,
)
from cflower.messages.layout import Layout
from cflower.messages.messenger import ClientMessenger, Sent
from cflower.messages.metrics import ClientMetrics
from cflower.messages.replies import read_training
from cflower.ordering import in_order, without
from cflower.strategy.reports import RoundReport

SILENT = (
    "Client(s) %s did not answer in %d rounds in a row: no round waits until they answer again."
)


@dataclass
class TrainingRound:
    """The replies of one round.

    Attributes
    ----------
    report : RoundReport
        Filled from the replies; its ``state`` is that before the round.
    """

    report: RoundReport
    cfl: CFL
    messenger: ClientMessenger

    def read(self, messages: Iterable[Message]) -> Iterator[Reply]:
        """The replies that can be used; the others are set aside with their reason."""
        for _, reply in self.messenger.read(messages, self._read):
            yield reply

    def _read(self, sent: Sent, message: Message) -> Reply:
        report, ask = self.report, sent.ask
        assert sent.model is not None  # a message to train has one model
        projection, weighted_by = self.cfl.projection, self.messenger.weighted_by
        reply = read_training(message, ask, sent.model, report.layout, projection, weighted_by)
        if ask.server_round == report.server_round:
            return reply
        reply = replace(reply, origin=sent.model)
        if problem := self.cfl.too_late(report.state, reply):
            text = f"to round {ask.server_round} is too late: {problem}"
            raise BadReplyError(text, Fault.ABSENT)
        return reply

    def noted(self, replies: Iterable[Reply]) -> Iterator[Reply]:
        """The replies, each noted with its metrics as it passes."""
        report = self.report
        for reply in replies:
            client, cluster, role, *_ = reply.ask
            metrics = ClientMetrics(dict(reply.metrics), reply.num_examples)
            if role is Role.GENERAL:
                report.general.setdefault(cluster, {})[client] = metrics
            elif role is Role.OWN or client in report.trained.unassigned:
                report.measured[client], report.trained_on[client] = metrics, cluster
                if reply.origin is not None:
                    report.late[client] = reply.ask.server_round
            yield reply
        for measured in (report.measured, *report.general.values()):
            kept = self.messenger.plausible(measured, measured.values())
            measured.update(zip(measured, kept, strict=True))

    def note(self, problems: Mapping[str, Problem], excluded: Container[str] = ()) -> None:
        """Add problems of replies; the first of each client counts."""
        for client, problem in problems.items():
            ended = "; it is excluded from now on" if client in excluded else ""
            self.report.problems.setdefault(client, problem.text + ended)

    def failures_after(
        self, before: FailureRecord, exclude_after: int, num_present: int, simulated: bool
    ) -> FailureRecord:
        """Log and return the failures after training; `FederationError` if the run must stop."""
        report, busy = self.report, self.messenger.busy
        outcome = ExchangeOutcome(report.measured.keys(), self.messenger.drain_problems())
        after = before.trained(outcome, exclude_after, num_present)
        excluded = without(after.excluded, before.excluded)
        self.note(outcome.problems, excluded)
        received, failed = len(report.measured), len(outcome.problems)
        log(INFO, "aggregate_train: Received %d results and %d failures", received, failed)
        for client, reason in excluded.items():
            log(WARNING, "Client %s is excluded: %s.", client, reason)
        log_silent(before.silent, after.silent)
        for client, asked in report.late.items():
            log(INFO, "Client %s answers round %d late: its reply counts now.", client, asked)
        if busy:
            owed = listed([f"{client} (round {asked})" for client, asked in busy.items()])
            log(INFO, "The round is closed without %s: their replies may still come.", owed)
        if stop := after.must_stop(outcome, report.server_round, simulated=simulated):
            raise FederationError(stop)
        return after

    def evaluated(self, measured: Mapping[str, ClientMetrics]) -> None:
        """Add the clients' metrics from the evaluation of this round."""
        for client, new in measured.items():
            old = self.report.measured.get(client, new)
            self.report.measured[client] = new._replace(metrics={**old.metrics, **new.metrics})


def log_silent(before: Sequence[str], after: Sequence[str]) -> None:
    """Log which clients the next rounds no longer wait for, and which they wait for again."""
    if new := set(after) - set(before):
        log(WARNING, SILENT, listed(in_order(new)), PATIENCE)
    if back := set(before) - set(after):
        log(INFO, "Client(s) %s answer again.", listed(in_order(back)))


def read_trainings(
    messenger: ClientMessenger, messages: Iterable[Message], state: CFLState, layout: Layout
) -> list[Reply]:
    """The replies to trainings of a proposal: updates that fit, metrics that are plausible."""
    weighted_by, projection = messenger.weighted_by, Projection(layout.num_trained)
    replies = [
        reply
        for _, reply in messenger.read(
            messages,
            lambda sent, message: read_training(
                message, sent.ask, state.model_of(sent.ask), layout, projection, weighted_by
            ),
        )
    ]
    metrics = [ClientMetrics(dict(reply.metrics), reply.num_examples) for reply in replies]
    kept = messenger.plausible([reply.client for reply in replies], metrics)
    return [replace(r, metrics=one.scalars) for r, one in zip(replies, kept, strict=True)]


def read_evaluations(messenger: ClientMessenger, messages: Iterable[Message]) -> list[Reply]:
    """The clients' evaluations of proposals: metrics that are plausible."""
    measured = messenger.metrics(messages).items()
    return [Reply(ask, metrics.num_examples, metrics.scalars) for ask, metrics in measured]
