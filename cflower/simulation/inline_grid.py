"""A Grid in one process: the same apps without Ray, SuperLink and polling."""

from collections.abc import Callable, Iterable, Mapping, Set
from typing import Any
from uuid import uuid4

from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

ClientFunction = Callable[[Message, Context], Message]
CLIENT_FAILED = 2
"""Flower's error code of a ClientApp that raised, as one does that has no such function."""
SERVER_NODE_ID = 1
FIRST_NODE_ID = 1000


class InlineGrid(Grid):
    """Nodes that run their ClientApp when their reply is pulled, one after another.

    Parameters
    ----------
    client_app : ClientApp
        Or any function from a message and a context to the reply.
    num_nodes : int
    run_config : mapping
        Handed to every client, as Flower does.
    run_id : int
    """

    def __init__(
        self,
        client_app: ClientFunction,
        num_nodes: int,
        run_config: Mapping[str, Any],
        run_id: int = 1,
    ) -> None:
        # Flower's Message constructor reads these.
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, run_id, SERVER_NODE_ID
        self.client_app, self._run = client_app, Run.create_empty(run_id)
        self._contexts = {
            FIRST_NODE_ID + i: Context(
                run_id,
                FIRST_NODE_ID + i,
                {"partition-id": i, "num-partitions": num_nodes},
                RecordDict(),
                dict(run_config),
            )
            for i in range(num_nodes)
        }
        self._pending: dict[str, Message] = {}

    def set_run(self, run: Run) -> None:
        """The run to be in."""
        self._run = run

    @property
    def run(self) -> Run:
        """The run it is in."""
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """As Flower's grids: deprecated there in favour of ``Message(...)``."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """All nodes, always."""
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Keep the messages until their replies are asked for."""
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = message_id = str(uuid4())
            if message.metadata.dst_node_id in self._contexts:
                self._pending[message_id] = message
                ids.append(message_id)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The reply to the first of these messages that is still open."""
        wanted = message_ids if isinstance(message_ids, Set) else set(message_ids)
        for message_id in self._pending:
            if message_id in wanted:
                return [self._answer(self._pending.pop(message_id))]
        return []

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """All replies; nothing here can time out."""
        ids = self.push_messages(messages)
        return [reply for message_id in ids for reply in self.pull_messages([message_id])]

    def close(self) -> None:
        """End what runs beside this process: nothing here."""

    def client_failed(self, client: int, error: Exception) -> None:
        """Called with what a client raised, before its error reply is sent; for subclasses."""

    def _answer(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        reply, error = answered(self.client_app, message, self._contexts[node])
        if error is not None:
            self.client_failed(node - FIRST_NODE_ID, error)
        return reply


def answered(
    client_app: ClientFunction, message: Message, context: Context
) -> tuple[Message, Exception | None]:
    """A client's reply; an error reply, and what was raised, if it fails."""
    # Flower's strategies send one content to all: what a client wrote into it, the next would
    # read. Between processes Flower copies it.
    records: Iterable[tuple[str, Any]] = message.content.items()
    message.content = RecordDict({key: type(record)(dict(record)) for key, record in records})
    try:
        reply = client_app(message, context)
        if not isinstance(reply, Message):
            raise TypeError(f"the ClientApp returned {reply!r} instead of a Message")
        return reply, None
    except Exception as error:
        # A client that fails is data, as in every Flower grid: the server decides.
        reason = f"{type(error)}:<{str(error)!r}>"
        return Message(Error(CLIENT_FAILED, reason), reply_to=message), error
