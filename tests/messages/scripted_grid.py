"""A Grid with scripted nodes: which are connected, what they reply, and in which order."""

from collections.abc import Callable, Iterable, Sequence

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.run import Run


class ScriptedGrid(Grid):
    """Every pull returns the next batch of ``arrivals``, nodes; without them, all replies.

    ``answer`` gives the reply to a message, or None for a silent node. Nodes that are not ``live``
    accept no messages. Three methods that are abstract in Flower's `Grid` raise: an exchange that
    called them would no longer stream.
    """

    def __init__(
        self,
        answer: Callable[[Message], Message | None],
        live: Iterable[int],
        arrivals: Sequence[Sequence[int]] | None = None,
    ) -> None:
        self.answer, self.live = answer, set(live)
        self.arrivals = None if arrivals is None else list(arrivals)
        self.asked: list[int] = []
        self.arrived = 0
        self._open: dict[str, Message] = {}

    def set_run(self, run: Run) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Run:
        return Run.create_empty(1)

    def create_message(self, *args: object, **kwargs: object) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return sorted(self.live)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            message_id = f"message-{len(self.asked)}"
            message.metadata.__dict__["_message_id"] = message_id
            self.asked.append(message.metadata.dst_node_id)
            if message.metadata.dst_node_id in self.live:
                self._open[message_id] = message
                ids.append(message_id)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        wanted = set(message_ids)
        if self.arrivals is None:
            due = [i for i in self._open if i in wanted]
        else:
            batch = self.arrivals.pop(0) if self.arrivals else []
            by_node = {m.metadata.dst_node_id: i for i, m in self._open.items() if i in wanted}
            due = [by_node[node] for node in batch]
        replies = [self.answer(self._open.pop(i)) for i in due]
        came = [reply for reply in replies if reply is not None]
        self.arrived += len(came)
        return came

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        raise NotImplementedError


def echo(message: Message) -> Message:
    """An empty reply."""
    return Message(RecordDict(), reply_to=message)
