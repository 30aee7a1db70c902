"""One exchange over a Grid: messages out, replies back as they come."""

import math
import time
from collections.abc import Iterable, Iterator, Mapping
from logging import INFO
from typing import NamedTuple

from flwr.app import Message
from flwr.serverapp import Grid
from flwr.supercore import log

HOLD = 64
"""Replies that may wait for an earlier one. Bounds the server's memory; far above what the
simulation engine's workers overtake each other by, so there the order is always the same."""

TELL = 10.0
"""Seconds after which it is said how many have answered."""


class Closing(NamedTuple):
    """When an exchange closes although replies are still to come; never before anyone answered."""

    share: float = 1.0
    """Of the clients that owe replies, without those that answered with an error."""
    seconds: float = math.inf

    def due(self, answered: int, owing: int, owing_now: int, seconds: float) -> bool:
        """Whether an exchange closes now.

        Parameters
        ----------
        answered, owing : int
            Clients all of whose replies are in, not all of them errors, and the others.
        owing_now : int
            Those of the latter that owe a reply to this exchange's own messages.
        seconds : float
            Since it began.

        Examples
        --------
        One of ten may be missing, and once it is late, nobody waits for it:

        >>> Closing(0.9).due(8, 2, 2, 0.0), Closing(0.9).due(9, 1, 1, 0.0)
        (False, True)
        >>> Closing(0.9).due(8, 2, 1, 0.0), Closing(0.9).due(9, 1, 0, 0.0)
        (False, True)
        """
        enough = answered >= math.ceil(round(self.share * (answered + owing), 6))
        return answered > 0 and (enough or not owing_now or seconds > self.seconds)


FOR_ALL = Closing()
"""Everyone is waited for."""


class Exchange:
    """Sends messages and yields the replies, in the order of the messages where possible.

    Replies arrive in an order that depends on chance, and sums of floats depend on their order.
    So a reply that overtook others waits for them, unless `HOLD` are waiting already. Replies to
    earlier exchanges come last.

    Parameters
    ----------
    grid : Grid
    messages : iterable of Message
    timeout : float
        Seconds.
    closing : Closing
        When it goes on without those that have not answered. In process nothing is late: while a
        grid has something to bring, an exchange does not close.
    earlier : mapping of str to int
        Node id by message id, of messages of earlier exchanges that may be answered now.

    Attributes
    ----------
    recipients : dict of str to int
        Node id by message id, the earlier ones too. An error reply may come from the SuperLink
        instead of the node, so who failed is told by the message it answers.
    silent : list of int
        Nodes that did not answer in time; complete after the last reply.
    unanswered : tuple of str
        The messages to which replies were still to come when it closed; set after the last reply.
    strays : list of int
        Senders of replies to none of these messages, or to one that was answered already;
        they are not yielded. Complete after the last reply.
    """

    def __init__(
        self,
        grid: Grid,
        messages: Iterable[Message],
        timeout: float,
        closing: Closing = FOR_ALL,
        earlier: Mapping[str, int] | None = None,
    ) -> None:
        self._grid, self._deadline = grid, time.monotonic() + timeout
        self._closing = closing
        sent = list(messages)
        pushed = set(grid.push_messages(sent))
        by_id = {m.metadata.message_id: m.metadata.dst_node_id for m in sent}
        self._new = {i: node for i, node in by_id.items() if i in pushed}
        self.recipients = {**self._new, **(earlier or {})}
        self._left: set[str] = set()
        self.unanswered: tuple[str, ...] = ()
        self.silent = [node for i, node in by_id.items() if i not in pushed]
        self.strays: list[int] = []

    def __iter__(self) -> Iterator[Message]:
        early: dict[str, Message] = {}
        awaited = dict(self.recipients)
        for reply in self._arrivals():
            early[reply.metadata.reply_to_message_id] = reply
            while awaited and (next(iter(awaited)) in early or len(early) > HOLD):
                message_id = next(i for i in awaited if i in early)
                del awaited[message_id]
                yield early.pop(message_id)
        for message_id in [i for i in awaited if i in early]:
            del awaited[message_id]
            yield early.pop(message_id)
        self.unanswered = tuple(i for i in awaited if i in self._left)
        self.silent += [node for i, node in awaited.items() if i not in self._left]

    def _arrivals(self) -> Iterator[Message]:
        """Replies to what was sent, each once, as they come, until the deadline."""
        open_ids, started = set(self.recipients), time.monotonic()
        told, good = started, set[int]()
        while open_ids:
            before = time.monotonic()
            if before - told > TELL:
                told, there = before, len(self.recipients) - len(open_ids)
                progress = f"{there:,} of {len(self.recipients):,} clients have answered"
                log(INFO, "  %s", progress, extra={"progress": True})
            arrived = list(self._grid.pull_messages(open_ids))
            for reply in arrived:
                answered = reply.metadata.reply_to_message_id
                if answered in open_ids:
                    open_ids.discard(answered)
                    if not reply.has_error():
                        good.add(self.recipients[answered])
                    yield reply
                else:
                    self.strays.append(self.recipients.get(answered, reply.metadata.src_node_id))
            # In process the clients compute in there; and nobody waits while replies are read.
            self._deadline += time.monotonic() - before
            if time.monotonic() > self._deadline:
                return
            if arrived:
                continue
            owing = {self.recipients[i] for i in open_ids}
            now = {self._new[i] for i in open_ids & self._new.keys()}
            waited = time.monotonic() - started
            if self._closing.due(len(good - owing), len(owing), len(now), waited):
                self._left = open_ids
                return
            if open_ids:
                # Short waits for short rounds; a deployment is not asked more than once a second.
                time.sleep(min(1.0, max(0.05, (time.monotonic() - started) / 20)))
