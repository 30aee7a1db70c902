"""Messages to clients and their replies: which client gets which model, and what it replies to."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from logging import INFO, WARNING
from typing import Any, NamedTuple, TypeVar

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.supercore import log

from cflower.algorithm.projection import Projection
from cflower.algorithm.state import Ask, Reply, Role, Task, Training
from cflower.algorithm.tree import ROOT, ParameterTree
from cflower.algorithm.weights import Weights
from cflower.messages.arrays import copy_of
from cflower.messages.client_names import EVALUATE_PATH, PART, TASKS
from cflower.messages.exchange import FOR_ALL, SLOW, UPLOAD, Exchange, Quorum
from cflower.messages.failures import BadReplyError, FailureRecord, Fault, Problem
from cflower.messages.grouped_log import GroupedLog
from cflower.messages.layout import Layout
from cflower.messages.local_arrays import LocalArrays
from cflower.messages.metrics import (
    ClientMetrics,
    mean_over_clients,
    metrics_size,
    plausible,
)
from cflower.messages.older_api import as_records, instructions
from cflower.messages.replies import read_metrics, read_training, too_late
from cflower.messages.roll_call import RollCall
from cflower.ordering import in_order, line, listed, only, without

Read = TypeVar("Read")
MetricsAggregation = Callable[[list[RecordDict], str], MetricRecord]
WITHOUT = "The %s goes on without {clients}: the reply {cause}."
NO_EXAMPLES = (
    "Without held-out examples: {clients}. They train like the others, but no figure is of their "
    "data."
)
HURRIED = (
    "Client(s) %s kept rounds waiting for longer than the timeout in all. Rounds now wait for them "
    "%g times as long as for the others; a reply to training that comes later still counts."
)


class Sent(NamedTuple):
    """An ask that was sent, with what a late reply to it needs."""

    ask: Ask
    models: Mapping[str, Weights]
    """The models that were sent, by their keys in the message."""


@dataclass
class ClientMessenger:
    """Sends asks to clients by name and attributes replies to asks."""

    grid: Grid
    timeout: float
    """Seconds until an exchange goes on without the missing replies."""
    roll_call: RollCall
    layout: Layout
    projection: Projection
    """Projection of the updates, for comparisons."""
    failures: FailureRecord
    weighted_by: str
    """This and the next two are names in messages, as in ``FedAvg``."""
    arrays_key: str
    config_key: str
    older: bool = False
    """Whether the ClientApp has a ``client_fn`` (`older_api`)."""
    problems: dict[str, Problem] = field(default_factory=dict)
    """Why a client's reply was set aside or is missing, since `drain_problems` was last called."""
    outstanding: dict[str, Sent] = field(default_factory=dict)
    """By message id: asks without a reply when their round was closed. The reply may still come;
    past its time to live the grid itself answers with an error."""
    local: LocalArrays = field(init=False)
    _sent: list[tuple[Message, Sent]] = field(default_factory=list)
    grouped: GroupedLog = field(default_factory=GroupedLog)
    """Problems with single replies; logged at the end of an exchange."""

    def __post_init__(self) -> None:
        self.local = LocalArrays(self.layout)

    @property
    def rounds_outstanding(self) -> dict[str, int]:
        """The clients with an outstanding reply to an earlier round, and that round."""
        return {sent.ask.client: sent.ask.server_round for sent in self.outstanding.values()}

    @property
    def present(self) -> tuple[str, ...]:
        return tuple(without(self.roll_call.nodes, self.failures.excluded))

    @property
    def absent(self) -> set[str]:
        """The clients for which no decision waits, hurried ones while a reply is outstanding."""
        hurried = self.hurried & self.rounds_outstanding.keys()
        return self.failures.absent | hurried | self.roll_call.only_evaluating

    @property
    def hurried(self) -> set[str]:
        """The clients for which no exchange waits much longer than for the others."""
        waiting = self.failures.counts("waiting")
        return {client for client, seconds in waiting.items() if seconds > self.timeout}

    @property
    def free(self) -> set[str]:
        """The present clients without an outstanding reply to an earlier round."""
        return set(self.present) - self.rounds_outstanding.keys()

    def messages(
        self,
        asks: Mapping[Ask, Weights | Mapping[str, Weights]],
        config: ConfigRecord,
        settings_of: Callable[[Ask], Mapping[str, Any]] = lambda ask: {},
    ) -> list[Message]:
        """A message for every ask with its model, or with several by their keys: `EVALUATE_PATH`.

        Each message has records of its own, so that nothing one receiver does to them reaches
        another; the arrays in them are made once for each model. ``server-round``, ``cluster``,
        ``part`` and what ``settings_of`` returns are added to the config.
        """
        self._sent, made, nodes = [], dict[int, ArrayRecord](), self.roll_call.nodes
        for ask, asked in asks.items():
            models = {self.arrays_key: asked} if isinstance(asked, Weights) else asked
            content = RecordDict()
            for key, model in models.items():
                if id(model) not in made:
                    made[id(model)] = self.layout.record(model)
                content[key] = copy_of(made[id(model)])
            about = {"cluster": ask.cluster, PART: ask.part, **settings_of(ask)}
            about["server-round"] = ask.server_round
            content[self.config_key] = ConfigRecord({**config, **about})
            if self.older:
                content = instructions(ask.task, content)
            kind = TASKS[ask.task].message_type if len(models) == 1 else EVALUATE_PATH
            message = Message(content, nodes[ask.client], kind, group_id=str(ask.server_round))
            self._sent.append((message, Sent(ask, models)))
        return [message for message, _ in self._sent]

    def exchange(
        self, messages: Iterable[Message], quorum: Quorum = FOR_ALL, *, late: bool = False
    ) -> Iterator[Message]:
        """The replies as they come, as `Exchange`; missing ones are noted at the end.

        With ``late``, replies may also answer `outstanding` asks, and those to these messages may
        come in a later exchange.
        """
        before = self.outstanding if late else {}
        messages = list(messages)
        earlier = {message_id: sent.ask.client for message_id, sent in before.items()}
        name_of, remote = self.roll_call.name_of, self.roll_call.remote
        given = self.grid, messages, self.timeout, quorum, earlier, set(self.failures.silent)
        exchange = Exchange(*given, self.hurried, name_of=name_of, expire=remote)
        asked = {name_of(message.metadata.dst_node_id) for message in messages}
        self.failures = self.failures.asked(s.ask for _, s in self._sent if s.ask.client in asked)
        yield from exchange
        if remote:  # simulated clients wait for cores
            self._charge(exchange.seconds)
        left = only(before | self._by_id, exchange.outstanding if exchange.closed else ())
        if late:
            self.outstanding, left = left, {}
        closed = [sent.ask.client for sent in left.values()]
        task = self._sent[0][1].ask.task if self._sent else "train"
        for clients, problem, fault in (
            (closed, "did not come before the round was closed", Fault.ABSENT),
            (exchange.lost, "cannot come: its node is no longer connected", Fault.ABSENT),
            (exchange.silent, f"did not come within {self.timeout:g} s", Fault.SILENT),
        ):
            for client in clients:
                self.set_aside(client, problem, fault, task)

    def _charge(self, seconds: Mapping[str, float]) -> None:
        before = self.hurried
        self.failures = self.failures.waited(seconds, self.timeout)
        if new := self.hurried - before:
            log(WARNING, HURRIED, listed(in_order(new)), SLOW)

    @property
    def _by_id(self) -> dict[str, Sent]:
        return {message.metadata.message_id: sent for message, sent in self._sent}

    def sent_by_others(
        self, messages: Iterable[Message], server_round: int, model: Weights
    ) -> None:
        """Note messages of another strategy, which train one model, to read their replies."""
        self._sent = []
        for message in messages:
            client = self.roll_call.name_of(message.metadata.dst_node_id)
            ask = Ask(client, ROOT, Role.OWN, server_round)
            self._sent.append((message, Sent(ask, {self.arrays_key: model})))
        self.failures = self.failures.asked(sent.ask for _, sent in self._sent)

    def send_again(self, outstanding: Iterable[Sent], config: ConfigRecord) -> None:
        """Send what an earlier process of this run had sent to clients that are connected."""
        sent = dict[Ask, Mapping[str, Weights]](outstanding)
        nodes = self.roll_call.nodes
        messages = self.messages({a: sent[a] for a in sent if a.client in nodes}, config)
        for message in messages:
            message.metadata.ttl = self.timeout + UPLOAD
        pushed = list(self.grid.push_messages(messages))  # messages have ids once they are sent
        self.outstanding = only(self._by_id, pushed)

    def read(
        self, replies: Iterable[Message], reader: Callable[[Sent, Message], Read]
    ) -> Iterator[tuple[Sent, Read]]:
        """Each usable reply, as ``reader`` returns it, with what it answers.

        A reply that the reader refuses, and a second one to the same ask, is set aside. An error
        reply may come from the SuperLink instead of the client's node, so the message that it
        answers shows the client. A wrapper around the strategy sends messages of its own: then
        the client's only ask is the one that it answers.
        """
        by_client = {sent.ask.client: sent for _, sent in reversed(self._sent)}
        by_id, seen = dict[str, Sent](), set[Ask]()
        megabytes, reading = defaultdict[str, float](float), defaultdict[str, float](float)
        for reply in replies:
            by_id = by_id or self.outstanding | self._by_id  # messages have ids once they are sent
            sender = self.roll_call.name_of(reply.metadata.src_node_id)
            sent = by_id.get(reply.metadata.reply_to_message_id, by_client.get(sender))
            if sent is None:
                self.set_aside(sender, "answers no message of this run")
                continue
            client, task = sent.ask.client, sent.ask.task
            if problem := "came twice" if sent.ask in seen else self.failures.used_up(client):
                self.set_aside(client, problem, task=task)
                continue
            seen.add(sent.ask)
            began, content = time.perf_counter(), None
            try:
                if self.older and reply.has_content():
                    reply.content = as_records(reply.content, self.layout, self.weighted_by)
                content = reader(sent, reply)
            except BadReplyError as bad:
                self.set_aside(client, str(bad), bad.fault, task)
            megabytes[client] += metrics_size(reply) / 1e6
            reading[client] += time.perf_counter() - began
            if content is not None:
                yield sent, content
        self.failures = self.failures.added(megabytes=megabytes, reading=reading)

    def training(self, sent: Sent, message: Message) -> Training:
        """The reply to a training, for `read`."""
        model, known = sent.models[self.arrays_key], (self.layout, self.projection)
        return read_training(message, sent.ask, model, *known, self.weighted_by, self.local.keys)

    def reply(self, sent: Sent, message: Message) -> Reply:
        """The reply to an ask about one model, for `read`."""
        if TASKS[sent.ask.task].trains:
            return self.training(sent, message)
        metrics, num_examples = read_metrics(message, self.weighted_by)
        return Reply(sent.ask, num_examples, metrics)

    def trainings(
        self, messages: Iterable[Message], tree: ParameterTree, server_round: int
    ) -> Iterator[Training]:
        """The usable replies to a round's training; late ones with the model that was sent."""
        for sent, reply in self.read(self.local.after_most(messages), self.training):
            asked = sent.ask.server_round
            late = replace(reply, origin=sent.models[self.arrays_key])
            if asked == server_round:
                yield reply
            elif problem := too_late(tree, late):
                text = f"to round {asked} is too late: {problem}"
                self.set_aside(reply.client, text, Fault.ABSENT)
            else:
                yield late

    def answers(self, messages: Iterable[Message]) -> list[Reply]:
        answers = {sent.ask: reply for sent, reply in self.read(messages, self.reply)}
        measured = {ask: ClientMetrics.of(reply) for ask, reply in answers.items()}
        kept = plausible(measured, self.grouped)
        return [replace(reply, metrics=kept[ask].metrics) for ask, reply in answers.items()]

    def mean(
        self, measured: Mapping[str, ClientMetrics], aggregation: MetricsAggregation | None
    ) -> MetricRecord | None:
        """The clients' mean metrics, by the app's own aggregation if there is one; None without."""
        key = self.weighted_by
        if not measured:
            return None
        if aggregation is None:
            return MetricRecord(mean_over_clients(measured.values()))
        records = (MetricRecord({**m.metrics, key: m.num_examples}) for m in measured.values())
        return aggregation([RecordDict({"metrics": record}) for record in records], key)

    def drain_problems(self) -> dict[str, Problem]:
        """The problems so far, which are then logged and forgotten."""
        self.grouped.flush()
        taken, self.problems = self.problems, {}
        return taken

    def noted_problems(self) -> dict[str, Problem]:
        """The drained problems of an exchange other than training, counted in `failures`."""
        problems = self.drain_problems()
        self.failures = self.failures.noted(problems)
        return problems

    def set_aside(
        self, client: str, problem: str, fault: Fault = Fault.CLIENT, task: Task = "train"
    ) -> None:
        """Note that a reply is not used; ``problem`` completes "the reply ..."."""
        problem, trains = line(problem), TASKS[task].trains
        if fault is Fault.EMPTY and not trains:
            self.grouped.note(INFO, NO_EXAMPLES, client, "")
            return
        fault = Fault.CLIENT if fault is Fault.EMPTY else fault
        self.problems.setdefault(client, Problem(problem, fault))
        sentence = WITHOUT % ("round" if trains else "evaluation")
        self.grouped.note(WARNING, sentence, client, problem)
