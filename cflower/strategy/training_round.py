"""The replies to a round of training: which can be used, and what becomes of the others."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from logging import INFO, WARNING

from flwr.app import Message
from flwr.supercore import log

from cflower.algorithm.round import CFL
from cflower.algorithm.state import Reply
from cflower.errors import FederationError
from cflower.messages.failures import (
    PATIENCE,
    BadReplyError,
    ExchangeOutcome,
    FailureRecord,
    Fault,
)
from cflower.messages.messenger import ClientMessenger, Sent
from cflower.ordering import in_order, listed, without
from cflower.strategy.reports import RoundReport

SILENT = (
    "Client(s) %s did not answer in %d rounds in a row: no round waits until they answer again."
)


def read_trainings(
    messenger: ClientMessenger, messages: Iterable[Message], cfl: CFL, report: RoundReport
) -> Iterator[Reply]:
    """The replies that can be used, as they come; the others are set aside with their reason.

    ``report.state`` is the state before the round.
    """

    def read(sent: Sent, message: Message) -> Reply:
        reply, asked = messenger.reply(sent, message, cfl.projection), sent.ask.server_round
        if asked == report.server_round:
            return reply
        reply = replace(reply, origin=sent.model)
        if problem := cfl.too_late(report.state, reply):
            raise BadReplyError(f"to round {asked} is too late: {problem}", Fault.ABSENT)
        return reply

    return (reply for _, reply in messenger.read(messages, read))


def failures_after(
    report: RoundReport,
    before: FailureRecord,
    messenger: ClientMessenger,
    exclude_after: int,
    num_present: int,
    simulated: bool,
) -> FailureRecord:
    """Report, log and return the failures after training; `FederationError` if the run stops."""
    outcome = ExchangeOutcome(report.measured.keys(), messenger.drain_problems())
    after = before.trained(outcome, exclude_after, num_present)
    excluded = without(after.excluded, before.excluded)
    report.note(outcome.problems, excluded)
    received, failed = len(report.measured), len(outcome.problems)
    log(INFO, "aggregate_train: Received %d results and %d failures", received, failed)
    for client, reason in excluded.items():
        log(WARNING, "Client %s is excluded: %s.", client, reason)
    if new := set(after.silent) - set(before.silent):
        log(WARNING, SILENT, listed(in_order(new)), PATIENCE)
    if back := set(before.silent) - set(after.silent):
        log(INFO, "Client(s) %s answer again.", listed(in_order(back)))
    for client, asked in report.late.items():
        log(INFO, "Client %s answers round %d late: its reply counts now.", client, asked)
    if busy := messenger.busy:
        owed = listed([f"{client} (round {asked})" for client, asked in busy.items()])
        log(INFO, "The round is closed without %s: their replies may still come.", owed)
    if stop := after.must_stop(outcome, report.server_round, simulated=simulated):
        raise FederationError(stop)
    return after
