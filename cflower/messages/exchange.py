"""One exchange over a Grid: messages out, replies back as they arrive.

A message without a reply is outstanding. At the end its client is silent if the time was up; if the
quorum closed the exchange, the reply may still come, late.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from heapq import heappop, heappush
from logging import INFO
from typing import NamedTuple

from flwr.app import Message
from flwr.serverapp import Grid
from flwr.supercore import log

from cflower.ordering import only, without

HOLD = 64
"""Maximum number of replies that wait for an earlier one. It bounds the server's memory; in
simulation replies overtake each other by far less, so there the order is always the same."""
LOG_INTERVAL = 10.0
"""Seconds between log lines about the progress of an exchange."""
UPLOAD = 200.0
"""Seconds that a message lives longer than its exchange waits. Flower delivers no reply while
another is being uploaded, up to 180 s if its node dies meanwhile: finished ones must outlive it."""
PROGRESS = {"progress": True}
"""Attribute of log records that `cflower simulate` also prints."""


class Quorum(NamedTuple):
    """When an exchange may end although replies are missing; never before the first reply."""

    share: float = 1.0
    """Share of the clients that have to reply; those that sent an error do not count."""
    seconds: float = math.inf
    """Time since the start of the exchange."""

    def reached(self, answered: int, outstanding: int, waited: float) -> bool:
        """Whether the exchange may end after ``waited`` seconds with so many clients' replies.

        >>> Quorum(0.9).reached(8, 2, 0.0), Quorum(0.9).reached(9, 1, 0.0)
        (False, True)
        """
        needed = math.ceil(round(self.share * (answered + outstanding), 6))
        return answered >= needed or waited > self.seconds


SLOW = 3.0
"""Times as long as the others need that an exchange waits for clients that are ``hurried``."""
FOR_ALL = Quorum()


class Exchange:
    """Sends messages and yields the replies, in the order of the messages where possible.

    Sums of floats depend on their order. A reply that overtook others therefore waits for them,
    unless `HOLD` replies are waiting already. Replies to earlier exchanges come last; second
    replies and those to other messages are ignored.

    ``timeout`` is in seconds, for the next reply: slow clients that share the cores of a simulation
    are awaited as long as one after another replies. ``quorum`` ends the exchange once the grid
    delivers no more at the moment. Clients are named by ``name_of`` their nodes. ``earlier``
    messages, with their clients, may be answered now. Replies of ``unawaited`` clients count if
    they come. For ``hurried`` ones it waits `SLOW` times as long as for the others. Messages that
    ``expire`` are dropped `UPLOAD` after the timeout; those that wait for cores do not.
    """

    def __init__(
        self,
        grid: Grid,
        messages: Iterable[Message],
        timeout: float,
        quorum: Quorum = FOR_ALL,
        earlier: Mapping[str, str] | None = None,
        unawaited: Set[str] = frozenset(),
        hurried: Set[str] = frozenset(),
        *,
        name_of: Callable[[int], str] = str,
        expire: bool = True,
    ) -> None:
        self._grid, self._quorum, self._unawaited = grid, quorum, unawaited
        self._timeout, self._deadline = timeout, time.monotonic() + timeout
        self._started = time.monotonic()
        sent = list(messages)
        for message in sent if expire else ():
            # What is not delivered by then is dropped; it would delay its node's next rounds.
            message.metadata.ttl = timeout + UPLOAD
        pushed = set(grid.push_messages(sent))
        names = {m.metadata.message_id: name_of(m.metadata.dst_node_id) for m in sent}
        few = 2 * len(hurried & {*names.values()}) < len({*names.values()})
        self._hurried = hurried if few else frozenset()
        lost = without(names, pushed)
        self._new = without(names, lost)
        self.recipients = {**self._new, **(earlier or {})}
        """Client by message id, including the earlier messages. The sender of an error reply may be
        the SuperLink, so replies are attributed by the message that they answer."""
        self.lost = list(lost.values())
        """Clients to which the grid could not send."""
        self.outstanding = {message_id: i for i, message_id in enumerate(self.recipients)}
        """The places of the messages without a reply so far."""
        self.closed = False
        """Whether the quorum ended the exchange."""
        self.seconds = dict[str, float]()
        """By client: the time until its reply came, or until the end of the exchange."""
        self._others: float | None = None
        """The time until only hurried clients were missing."""
        self._successful: set[str] = set()
        """Clients with a reply that is not an error."""

    def __iter__(self) -> Iterator[Message]:
        early: list[tuple[int, Message]] = []
        for reply in self._arrivals():
            heappush(early, reply)
            first_place = next(iter(self.outstanding.values()), math.inf)
            while early and (early[0][0] < first_place or len(early) > HOLD):
                yield heappop(early)[1]
        for _, message in sorted(early):
            yield message
        waited = time.monotonic() - self._started
        self.seconds |= dict.fromkeys(only(self._new, self.outstanding).values(), waited)

    @property
    def silent(self) -> list[str]:
        """Once it has ended: the clients that did not answer in time, after the last reply."""
        return [] if self.closed else [self.recipients[one] for one in self.outstanding]

    def _arrivals(self) -> Iterator[tuple[int, Message]]:
        """Each expected reply once with its place, as it arrives, until deadline or quorum."""
        self._started = last_log = time.monotonic()
        while self.outstanding:
            before = time.monotonic()
            if before - last_log > LOG_INTERVAL:
                last_log, total = before, len(self.recipients)
                progress = f"{total - len(self.outstanding):,} of {total:,} answers"
                log(INFO, "  %s", progress, extra=PROGRESS)
            arrived = list(self._grid.pull_messages(self.outstanding.keys()))
            for reply in arrived:
                message_id = reply.metadata.reply_to_message_id
                if message_id not in self.outstanding:
                    continue
                if not reply.has_error():
                    self._successful.add(self.recipients[message_id])
                if message_id in self._new:
                    self.seconds[self._new[message_id]] = before - self._started
                yield self.outstanding.pop(message_id), reply
                self._deadline = before + self._timeout
            # In process the clients compute during the pull. Reading a reply takes time too.
            self._deadline += time.monotonic() - before
            now, waited = time.monotonic(), time.monotonic() - self._started
            if now > self._deadline:
                return
            if not arrived and self._may_end(waited):
                self.closed = True
                return
            if not arrived:
                # Short waits in short rounds; a deployment is polled at most once a second.
                time.sleep(min(1.0, max(0.05, waited / 20)))

    def _may_end(self, waited: float) -> bool:
        """Whether enough clients replied, or all to which this exchange sent a message."""
        awaited = {self.recipients[message_id] for message_id in self.outstanding} - self._unawaited
        answered = len(self._successful - awaited)
        only_earlier = self.outstanding.keys().isdisjoint(self._new)
        if answered and awaited <= self._hurried and self._others is None:
            self._others = waited
        late = self._others is not None and waited > SLOW * self._others
        enough = only_earlier or late or self._quorum.reached(answered, len(awaited), waited)
        return answered > 0 and enough
