"""Messages out and replies back: which client gets which model, and who said what."""

from collections.abc import Iterable, Iterator, Mapping
from logging import WARNING
from typing import NamedTuple

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore import log

from cflower.algorithm.tree import Cluster
from cflower.federation.exchange import Exchange
from cflower.federation.failures import Fault, Problem, fault_of
from cflower.federation.layout import Layout
from cflower.federation.replies import BadReplyError, ClientMetrics, read_metrics
from cflower.federation.roll_call import RollCall


class Keys(NamedTuple):
    """The names in records, as in ``FedAvg``."""

    weighted_by: str = "num-examples"
    arrays: str = "arrays"
    config: str = "config"


class Measured(NamedTuple):
    """The usable metrics of an exchange by client, and the records they came in."""

    metrics: dict[str, ClientMetrics]
    contents: dict[str, RecordDict]


class ClientMessenger:
    """Sends messages to clients by name and attributes replies to clients.

    Parameters
    ----------
    roll_call : RollCall
        Where each client is.
    keys : Keys

    Attributes
    ----------
    problems : dict of str to Problem
        Why a client's reply was set aside or did not come, since `drain_problems` was last called.
    """

    def __init__(self, roll_call: RollCall, keys: Keys) -> None:
        self._roll_call, self.keys = roll_call, keys
        self._recipients: dict[str, int] = {}
        self._models: dict[str, str] = {}
        self.problems: dict[str, Problem] = {}

    def messages(
        self,
        assigned: Mapping[str, Cluster],
        layout: Layout,
        kind: str,
        config: ConfigRecord,
        server_round: int,
    ) -> list[Message]:
        """A message for every client with the model of the cluster assigned to it.

        Each message has records of its own, so that nothing one receiver does to them reaches
        another; the arrays in them are made once for each cluster.
        """
        ways = {client: {self.keys.arrays: cluster} for client, cluster in assigned.items()}
        return self.messages_with(ways, layout, kind, config, server_round)

    def messages_with(
        self,
        models: Mapping[str, Mapping[str, Cluster]],
        layout: Layout,
        kind: str,
        config: ConfigRecord,
        server_round: int,
    ) -> list[Message]:
        """As `messages`, with any number of models for a client: the last is its cluster's."""
        clusters = {c.name: c for named in models.values() for c in named.values()}
        arrays = {name: layout.record(cluster.model) for name, cluster in clusters.items()}
        messages = []
        for client, named in models.items():
            records = RecordDict()
            for key, cluster in named.items():
                records[key] = ArrayRecord(dict(arrays[cluster.name]))
            records[self.keys.config] = ConfigRecord(
                {**config, "server-round": server_round, "cluster": cluster.name}
            )
            node, group = self._roll_call.nodes[client], str(server_round)
            messages.append(Message(records, node, kind, group_id=group))
        return messages

    def exchange(
        self, grid: Grid, messages: Iterable[Message], timeout: float
    ) -> Iterator[Message]:
        """The replies as they come; who did not answer is noted at the end."""
        messages = list(messages)
        for message in messages:
            # What is not delivered by then is dropped; it would hold up its node's next round.
            message.metadata.ttl = timeout
        exchange = Exchange(grid, messages, timeout)
        self._recipients = exchange.recipients
        self._models = {
            m.metadata.message_id: str(m.content.config_records[self.keys.config]["cluster"])
            for m in messages
        }
        yield from exchange
        for node in exchange.silent:
            problem = f"did not come within {timeout:g} s"
            self.set_aside(self._roll_call.name_of(node), problem, Fault.ABSENT)
        for node in exchange.strays:
            problem = "came twice, or answers a message of another round"
            self.set_aside(self._roll_call.name_of(node), problem)

    def by_client(self, replies: Iterable[Message]) -> Iterator[tuple[str, Message]]:
        """Each reply with its sender's name; a second one to the same model is set aside."""
        seen = set()
        for message in replies:
            # An error reply may come from the SuperLink, so the message it answers tells.
            answered = message.metadata.reply_to_message_id
            client = self._roll_call.name_of(
                self._recipients.get(answered, message.metadata.src_node_id)
            )
            if (client, self.model_of(message)) in seen:
                self.set_aside(client, "came twice")
                continue
            seen.add((client, self.model_of(message)))
            yield client, message

    def model_of(self, reply: Message) -> str:
        """The cluster whose model was sent to whom this answers; empty if it is not known."""
        return self._models.get(reply.metadata.reply_to_message_id, "")

    def measured(self, replies: Iterable[Message]) -> Measured:
        """The usable metrics among the replies; the others are set aside."""
        measured = Measured({}, {})
        for client, message in self.by_client(replies):
            try:
                measured.metrics[client] = read_metrics(message, self.keys.weighted_by)
                measured.contents[client] = message.content
            except BadReplyError as problem:
                self.set_aside(client, str(problem), fault_of(message))
        return measured

    def drain_problems(self) -> dict[str, Problem]:
        """The problems so far; then there are none."""
        taken, self.problems = self.problems, {}
        return taken

    def set_aside(self, client: str, problem: str, fault: Fault = Fault.CLIENT) -> None:
        """Note and log that a reply is not used; ``problem`` completes "the reply ..."."""
        self.problems.setdefault(client, Problem(problem, fault))
        log(WARNING, "The round goes on without client %s: its reply %s.", client, problem)
