"""A Grid in one process, without Ray, SuperLink and polling."""

import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Set
from itertools import islice
from typing import Any

from flwr.app import ArrayRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from cflower.errors import CFlowerError
from cflower.messages.arrays import copy_of, records_in
from cflower.messages.client_names import ROLL_CALL
from cflower.messages.failures import CLIENT_FAILED
from cflower.messages.flower import Run, give_id, identify

ClientFunction = Callable[[Message, Context], Message]
Failure = Exception | SystemExit
"""An exception that ends a client's function; many command lines end their process."""
SERVER_NODE_ID = 1
FIRST_NODE_ID = 1000
SEEN_AHEAD = 64
"""Messages that a ClientApp may look at in advance."""


class InlineGrid(Grid):
    """Nodes that run their ClientApp when their reply is pulled, one after another.

    The ClientApp may be any function from a message and a context to the reply. ``run_config`` is
    in every client's context, ``node_config`` in place of its number. A ClientApp with a method
    ``look_ahead`` gets the messages that come next with their contexts before the first of them, up
    to `SEEN_AHEAD` of one type, and may compute for several at once.
    """

    def __init__(
        self,
        client_app: ClientFunction,
        num_nodes: int,
        run_config: Mapping[str, Any],
        run_id: int = 1,
        node_config: Mapping[str, Any] | None = None,
    ) -> None:
        identify(run_id, SERVER_NODE_ID)
        self.client_app, self._run = client_app, Run.create_empty(run_id)
        self._contexts = {}
        for i in range(num_nodes):
            place: dict[str, Any] = {"partition-id": i, "num-partitions": num_nodes}
            node = FIRST_NODE_ID + i
            place = place if node_config is None else dict(node_config)
            self._contexts[node] = Context(run_id, node, place, RecordDict(), dict(run_config))
        self.num_bytes = 0
        """Bytes of the arrays that were sent, by server and clients."""
        self._pending: dict[str, Message] = {}
        self._printed = set[str]()
        self._seen_ahead = set[str]()

    def forget(self) -> None:
        """Count the bytes from 0 again, and empty what the clients kept: for a run of its own."""
        self.num_bytes = 0
        for context in self._contexts.values():
            context.state = RecordDict()

    def set_run(self, run: Run) -> None:
        self._run = run

    @property
    def run(self) -> Run:
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Keep the messages until their replies are asked for."""
        ids = []
        for message in messages:
            message_id = give_id(message)
            if message.metadata.dst_node_id in self._contexts:
                self._pending[message_id] = message
                self.num_bytes += bytes_of_arrays(message)
                ids.append(message_id)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The reply to the first of these messages that is still open."""
        wanted = message_ids if isinstance(message_ids, Set) else set(message_ids)
        for message_id in self._pending:
            if message_id in wanted:
                message = self._pending.pop(message_id)
                context = self._contexts[message.metadata.dst_node_id]
                reply, failure = self.run_client(message, context)
                # A plain function in place of a ClientApp gets the roll call without knowing it.
                knows = isinstance(self.client_app, ClientApp)
                if message.metadata.message_type != ROLL_CALL or knows:
                    self._print(failure, context)
                self.num_bytes += bytes_of_arrays(reply)
                return [reply]
        return []

    def _print(self, failure: Failure | None, context: Context) -> None:
        """The traceback of a client's error, once for each place in the code.

        It is lost in the error reply, and where most people look for a mistake. cflower's own
        errors need none.
        """
        if failure is None or isinstance(failure, CFlowerError):
            return
        places = traceback.extract_tb(failure.__traceback__)[-1:]
        if not self._printed.issuperset(map(str, places)):
            self._printed.update(map(str, places))
            name = context.node_config.get("partition-id", context.node_id)
            print(f"Client {name} failed:", file=sys.stderr)
            traceback.print_exception(failure)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        ids = self.push_messages(messages)
        return [reply for message_id in ids for reply in self.pull_messages([message_id])]

    def close(self) -> None:
        """End other processes; for subclasses."""

    def run_client(self, message: Message, context: Context) -> tuple[Message, Failure | None]:
        """A client's reply, and its exception if that is an error reply."""
        look_ahead = getattr(self.client_app, "look_ahead", None)
        if look_ahead and message.metadata.message_id not in self._seen_ahead:
            kind = message.metadata.message_type
            alike = (m for m in self._pending.values() if m.metadata.message_type == kind)
            coming = [message, *islice(alike, SEEN_AHEAD - 1)]
            self._seen_ahead = {m.metadata.message_id for m in coming}
            look_ahead([(m, self._contexts[m.metadata.dst_node_id]) for m in coming])
        return answered(self.client_app, message, context)


def bytes_of_arrays(message: Message) -> int:
    if message.has_error():
        return 0
    models = records_in(message.content, ArrayRecord).values()
    return sum(len(array.data) for model in models for array in model.values())


def own(record: Any) -> Any:
    return copy_of(record) if isinstance(record, ArrayRecord) else type(record)(dict(record))


def answered(
    client_app: ClientFunction, message: Message, context: Context
) -> tuple[Message, Failure | None]:
    """A client's reply; or an error reply and the exception."""
    # Flower's strategies send one content to all clients, which would see each other's changes.
    # Between processes Flower copies it.
    records: Iterable[tuple[str, Any]] = message.content.items()
    message.content = RecordDict({key: own(record) for key, record in records})
    try:
        reply = client_app(message, context)
        if not isinstance(reply, Message):
            raise TypeError(f"the ClientApp returned {reply!r} instead of a Message")
        if reply.metadata.reply_to_message_id != message.metadata.message_id:
            # Flower's clipping mods answer the reply instead of the message if its arrays have
            # other keys, or another order: nobody would ever get that.
            reason = f": {reply.error.reason}" if reply.has_error() else ""
            raise ValueError(f"the ClientApp answered another message{reason}")
        return reply, None
    except (Exception, SystemExit) as error:
        # As in every Flower grid the server decides what to do about a client that fails.
        reason = f"{type(error)}:<{str(error)!r}>"
        return Message(Error(CLIENT_FAILED, reason), reply_to=message), error
