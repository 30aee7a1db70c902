"""One exchange over a Grid: messages out, replies back as they come."""

import time
from collections.abc import Iterable, Iterator
from logging import INFO

from flwr.app import Message
from flwr.serverapp import Grid
from flwr.supercore import log

HOLD = 64
"""Replies that may wait for an earlier one. Bounds the server's memory; far above what the
simulation engine's workers overtake each other by, so there the order is always the same."""

TELL = 10.0
"""Seconds after which it is said how many have answered."""


class Exchange:
    """Sends messages and yields the replies, in the order of the messages where possible.

    Replies arrive in an order that depends on chance, and sums of floats depend on their order.
    So a reply that overtook others waits for them, unless `HOLD` are waiting already.

    Attributes
    ----------
    recipients : dict of str to int
        Node id by message id. An error reply may come from the SuperLink instead of the node,
        so who failed is told by the message it answers.
    silent : list of int
        Nodes that did not answer in time; complete after the last reply.
    strays : list of int
        Senders of replies to none of these messages, or to one that was answered already;
        they are not yielded. Complete after the last reply.
    """

    def __init__(self, grid: Grid, messages: Iterable[Message], timeout: float) -> None:
        self._grid, self._deadline = grid, time.monotonic() + timeout
        sent = list(messages)
        pushed = set(grid.push_messages(sent))
        by_id = {m.metadata.message_id: m.metadata.dst_node_id for m in sent}
        self.recipients = {i: node for i, node in by_id.items() if i in pushed}
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
        self.silent += awaited.values()

    def _arrivals(self) -> Iterator[Message]:
        """Replies to what was sent, each once, as they come, until the deadline."""
        open_ids, started = set(self.recipients), time.monotonic()
        told = started
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
                    yield reply
                else:
                    self.strays.append(self.recipients.get(answered, reply.metadata.src_node_id))
            # In process the clients compute in there; and nobody waits while replies are read.
            self._deadline += time.monotonic() - before
            if time.monotonic() > self._deadline:
                return
            if open_ids and not arrived:
                # Short waits for short rounds; a deployment is not asked more than once a second.
                time.sleep(min(1.0, max(0.05, (time.monotonic() - started) / 20)))
