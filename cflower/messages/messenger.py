"""Messages out and replies back: which client gets which model, and who said what."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from logging import INFO, WARNING
from typing import NamedTuple

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid
from flwr.supercore import log

from cflower.algorithm.robust_mean import FAR_LESS, LASTING, MOST, TOLD
from cflower.algorithm.tree import Cluster
from cflower.messages.claims import line, listed
from cflower.messages.exchange import FOR_ALL, Closing, Exchange
from cflower.messages.failures import Fault, Problem, fault_of
from cflower.messages.layout import Layout
from cflower.messages.metrics import Range, counted
from cflower.messages.replies import BadReplyError, ClientMetrics, read_metrics
from cflower.messages.roll_call import RollCall
from cflower.ordering import in_order

OUTSTANDING = (
    "Client(s) %s count for less than they claim, down to %.2g of it: their updates are longer, or "
    "their examples more, than is usual in their clusters, and nobody counts for more than %g "
    "usual clients. So it is with a group of its own until it is split off."
)
FAR_ABOVE = (
    "Client(s) %s count for far less than they claim, or less for long, down to %.2g of it: their "
    "updates or numbers of examples are far above what is usual in their clusters, and nobody "
    "counts for more than %g usual clients. If you know that they are honest, raise max-influence."
)


class Keys(NamedTuple):
    """The names in records, as in ``FedAvg``."""

    weighted_by: str = "num-examples"
    arrays: str = "arrays"
    config: str = "config"


class Measured(NamedTuple):
    """The usable metrics of an exchange by client, and the records they came in."""

    metrics: dict[str, ClientMetrics]
    contents: dict[str, RecordDict]


class Asked(NamedTuple):
    """A message to a client, as far as a late reply to it needs it."""

    client: str
    server_round: int
    cluster: str
    """Whose model it was sent."""
    arrays: ArrayRecord
    """That model."""
    node: int = 0


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
    outstanding : dict of str to Asked
        By message id: to whom a round was closed before they answered. The reply may still come;
        past its time to live the grid itself answers with an error.
    """

    def __init__(self, roll_call: RollCall, keys: Keys) -> None:
        self._roll_call, self.keys = roll_call, keys
        self._asked: dict[str, Asked] = {}
        self.outstanding: dict[str, Asked] = {}
        self.problems: dict[str, Problem] = {}
        self._lowered_for: Counter[str] = Counter()
        self._told_of: dict[int, set[str]] = {INFO: set(), WARNING: set()}
        self._dropped: set[tuple[str, str]] = set()

    @property
    def busy(self) -> dict[str, int]:
        """Who still owes a reply, and to which round."""
        return {asked.client: asked.server_round for asked in self.outstanding.values()}

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
        """As `messages`, with any number of models for a client: the last is its cluster's.

        Of one name there is one model.
        """
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
        self,
        grid: Grid,
        messages: Iterable[Message],
        timeout: float,
        closing: Closing = FOR_ALL,
        *,
        late: bool = False,
    ) -> Iterator[Message]:
        """The replies as they come; who did not answer is noted at the end.

        Parameters
        ----------
        grid, messages, timeout, closing
            As for `Exchange`.
        late : bool
            Whether replies may also be to `outstanding` messages, and those to these messages may
            come in a later exchange.
        """
        messages, before = list(messages), self.outstanding if late else {}
        for message in messages:
            # What is not delivered by then is dropped; it would hold up its node's next round.
            message.metadata.ttl = timeout
        earlier = {message_id: asked.node for message_id, asked in before.items()}
        exchange = Exchange(grid, messages, timeout, closing, earlier)
        self._asked = before | {m.metadata.message_id: self._as_asked(m) for m in messages}
        yield from exchange
        if late:
            self.outstanding = {i: a for i, a in self._asked.items() if i in exchange.unanswered}
        else:
            for message_id in exchange.unanswered:
                problem = "did not come before the round was closed"
                self.set_aside(self._asked[message_id].client, problem, Fault.ABSENT)
        for node in exchange.silent:
            problem = f"did not come within {timeout:g} s"
            self.set_aside(self._roll_call.name_of(node), problem, Fault.ABSENT)
        for node in exchange.strays:
            problem = "came twice, or answers a message of another round"
            self.set_aside(self._roll_call.name_of(node), problem)

    def ask_again(
        self, grid: Grid, asked: Iterable[Asked], config: ConfigRecord, timeout: float
    ) -> None:
        """Send to those who are there what an earlier process of this run had asked of them."""
        messages = []
        for one in asked:
            if one.client in self._roll_call.nodes:
                told = {**config, "server-round": one.server_round, "cluster": one.cluster}
                records = RecordDict({self.keys.arrays: ArrayRecord(dict(one.arrays))})
                records[self.keys.config] = ConfigRecord(told)
                node, group = self._roll_call.nodes[one.client], str(one.server_round)
                kind = MessageType.TRAIN
                messages.append(Message(records, node, kind, ttl=timeout, group_id=group))
        pushed = set(grid.push_messages(messages))
        again = {m.metadata.message_id: self._as_asked(m) for m in messages}
        self.outstanding = {i: one for i, one in again.items() if i in pushed}

    def _as_asked(self, message: Message) -> Asked:
        node = message.metadata.dst_node_id
        config = message.content.config_records[self.keys.config]
        arrays = message.content.array_records.get(self.keys.arrays, ArrayRecord())
        server_round, cluster = int(str(config["server-round"])), str(config["cluster"])
        return Asked(self._roll_call.name_of(node), server_round, cluster, arrays, node)

    def asked(self, reply: Message) -> Asked | None:
        """What this answers; None if it is not known."""
        return self._asked.get(reply.metadata.reply_to_message_id)

    def by_client(self, replies: Iterable[Message]) -> Iterator[tuple[str, Message]]:
        """Each reply with its sender's name; a second one to the same model is set aside."""
        seen = set()
        for message in replies:
            # An error reply may come from the SuperLink, so the message it answers tells.
            asked = self.asked(message)
            sender = message.metadata.src_node_id
            client = asked.client if asked else self._roll_call.name_of(sender)
            if (client, self.model_of(message)) in seen:
                self.set_aside(client, "came twice")
                continue
            seen.add((client, self.model_of(message)))
            yield client, message

    def model_of(self, reply: Message) -> str:
        """The cluster whose model was sent to whom this answers; empty if it is not known."""
        asked = self.asked(reply)
        return asked.cluster if asked else ""

    def measured(self, replies: Iterable[Message]) -> Measured:
        """The usable metrics among the replies; the others are set aside."""
        measured = Measured({}, {})
        for client, message in self.by_client(replies):
            try:
                measured.metrics[client] = read_metrics(message, self.keys.weighted_by)
                measured.contents[client] = message.content
            except BadReplyError as problem:
                self.set_aside(client, str(problem), fault_of(message))
        plausible = Range.of(measured.metrics.values())
        for client, told in measured.metrics.items():
            measured.metrics[client] = self.plausible(client, told, plausible)
        return measured

    def plausible(self, client: str, told: ClientMetrics, plausible: Range) -> ClientMetrics:
        """A client's metrics without those that cannot be true; logged once a client and metric."""
        kept = plausible.sifted(told.metrics)
        dropped = {key for key in told.metrics if key not in kept}
        if new := [key for key in dropped if (client, key) not in self._dropped]:
            self._dropped |= {(client, key) for key in new}
            figures = ", ".join(f"{key} = {told.metrics[key]:.4g}" for key in sorted(new)[:5])
            log(WARNING, "What client %s measured cannot be and is set aside: %s.", client, figures)
        return told._replace(metrics=kept)

    def drain_problems(self) -> dict[str, Problem]:
        """The problems so far; then there are none."""
        taken, self.problems = self.problems, {}
        return taken

    def set_aside(self, client: str, problem: str, fault: Fault = Fault.CLIENT) -> None:
        """Note and log that a reply is not used; ``problem`` completes "the reply ..."."""
        problem = line(problem)
        self.problems.setdefault(client, Problem(problem, fault))
        log(WARNING, "The round goes on without client %s: its reply %s.", client, problem)

    def tell_lowered(
        self, lowered: Mapping[str, float], heard: Collection[str], most: float
    ) -> None:
        """Log who counts for less than it claims, and warn if for far less, or for long."""
        for client in heard:
            self._lowered_for[client] = self._lowered_for[client] + 1 if client in lowered else 0
        odd = {
            client
            for client, share in lowered.items()
            if share < FAR_LESS or self._lowered_for[client] >= LASTING
        }
        for level, clients, sentence in (
            (INFO, lowered.keys() - odd - self._told_of[WARNING], OUTSTANDING),
            (WARNING, odd, FAR_ABOVE),
        ):
            if new := clients - self._told_of[level]:
                self._told_of[level] |= new
                log(level, sentence, listed(in_order(new)), min(lowered[c] for c in new), most)

    def tell_heavy(self, measured: Mapping[str, ClientMetrics]) -> None:
        """Log whose number of examples counts for less than is claimed in a mean of metrics."""
        claimed = [one.num_examples for one in measured.values()]
        told = zip(measured, claimed, counted(claimed), strict=True)
        if heavy := [name for name, examples, believed in told if believed < TOLD * examples]:
            log(
                WARNING,
                "In the means of what clients measured, %s count for at most %g usual clients: "
                "their numbers of examples are far above the median.",
                listed(in_order(heavy)),
                MOST,
            )
