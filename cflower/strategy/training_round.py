"""One round of training as the strategy reads it: usable replies out, everything else noted."""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite

from flwr.app import Message, RecordDict

from cflower.algorithm.criteria import Decision
from cflower.algorithm.difference import TOGETHER, Difference
from cflower.algorithm.projection import Projection, norm
from cflower.algorithm.robust_mean import MOST, Influence
from cflower.algorithm.round import Reply, RoundResult
from cflower.algorithm.state import CFLState
from cflower.messages.failures import Fault, Problem, fault_of
from cflower.messages.layout import Layout
from cflower.messages.messenger import Asked, ClientMessenger, Measured
from cflower.messages.metrics import Range
from cflower.messages.replies import (
    Answer,
    BadReplyError,
    ClientMetrics,
    TooLateError,
    TrainReply,
    as_record,
    measured_replies,
    read_answer,
    read_train_reply,
)


@dataclass
class TrainingRound:
    """The replies of one round.

    Attributes
    ----------
    state : CFLState
        Before the round.
    measured : dict of str to ClientMetrics
        What each client heard from measured: in training, and in the evaluation if there is one.
    trained_on : dict of str to str
        The cluster whose model each of them trained.
    problems : dict of str to str
        Why a client's reply was set aside, or that it did not answer.
    decisions : tuple of Decision
        What was decided about every leaf.
    result : RoundResult or None
        What the algorithm made of the replies, before splits on trial are judged.
    probed : mapping of str to str
        The split cluster whose θ*_v each client that stands out was sent, see `CFL.probes`.
    general : dict of str to dict
        What clients measured in training an inner cluster's model, by its name.
    late : dict of str to int
        By client whose late reply is used: the round that it answers.
    """

    server_round: int
    state: CFLState
    layout: Layout
    projection: Projection
    messenger: ClientMessenger
    weight: Callable[[float], float] = float
    """w_i before normalisation, from a number of examples."""
    max_norm_ratio: float = 0.0
    max_influence: float = MOST
    probed: Mapping[str, str] = field(default_factory=dict)
    measured: dict[str, ClientMetrics] = field(default_factory=dict)
    trained_on: dict[str, str] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    decisions: tuple[Decision, ...] = ()
    result: RoundResult | None = None
    general: dict[str, dict[str, ClientMetrics]] = field(default_factory=dict)
    late: dict[str, int] = field(default_factory=dict)

    @property
    def contents(self) -> list[RecordDict]:
        """What each client measured, as Flower's aggregation functions expect it."""
        weighted_by = self.messenger.keys.weighted_by
        return [
            RecordDict({"metrics": as_record(metrics | {weighted_by: num_examples})})
            for metrics, num_examples in self.measured.values()
        ]

    def usable(self, replies: Iterable[Message]) -> Iterator[Reply]:
        """The usable replies; the others are set aside with their reason."""
        tree = self.state.tree
        probes: list[TrainReply] = []
        influence = Influence(
            tree,
            self.state.known,
            self.layout,
            self.weight,
            self.max_norm_ratio,
            self.max_influence,
        )
        answers = self._without_probes(self._read(replies), probes)
        for reply, share in influence.sift(answers, self.messenger.set_aside):
            if reply.general:
                self.general.setdefault(reply.general, {})[reply.client] = reply.measured
            else:
                self.measured[reply.client] = reply.measured
                self.trained_on[reply.client] = tree.training_cluster(reply.client).name
            yield as_counted(reply, share)
        yield from map(as_counted, probes)
        self.late = {c: asked for c, asked in self.late.items() if c in self.measured}
        self.messenger.tell_lowered(influence.lowered, self.measured, self.max_influence)
        plausible = Range.of(self.measured.values())
        for client, told in self.measured.items():
            self.measured[client] = self.messenger.plausible(client, told, plausible)
        for found in self.general.values():
            plausible = Range.of(found.values())
            for client, told in found.items():
                found[client] = self.messenger.plausible(client, told, plausible)

    @staticmethod
    def _without_probes(
        answers: Iterable[TrainReply], probes: list[TrainReply]
    ) -> Iterator[TrainReply]:
        """The answers that may move a model; the others are put aside in ``probes``."""
        for answer in answers:
            # One too long for a float is set aside with the others.
            if answer.probe and isfinite(answer.norm):
                probes.append(answer)
            else:
                yield answer

    def note(self, problems: Mapping[str, Problem], excluded: Container[str] = ()) -> None:
        """Add problems of replies; of one client the first counts."""
        for client, problem in problems.items():
            ended = "; it is excluded from now on" if client in excluded else ""
            self.problems.setdefault(client, problem.text + ended)

    def evaluated(self, measured: Measured) -> None:
        """Add what clients measured in the evaluation of this round."""
        for client, new in measured.metrics.items():
            old = self.measured.get(client, new)
            self.measured[client] = new._replace(metrics={**old.metrics, **new.metrics})

    def _read(self, replies: Iterable[Message]) -> Iterator[TrainReply]:
        """The replies that can be read; large ones a few of one model at a time."""
        tree = self.state.tree
        waiting: dict[tuple[str, bool], list[Answer]] = {}
        for client, message in self.messenger.by_client(replies):
            asked = self.messenger.asked(message)
            try:
                if asked is not None and asked.server_round < self.server_round:
                    yield self._read_late(asked, message)
                    self.late[client] = asked.server_round
                    continue
                answer = self._read_timely(client, message)
            except TooLateError as problem:
                self.messenger.set_aside(client, str(problem), Fault.ABSENT)
                continue
            except BadReplyError as problem:
                self.messenger.set_aside(client, str(problem), fault_of(message))
                continue
            # Who walks or probes is no term of a sum.
            counts = not answer.probe and client not in tree.unassigned
            sent = answer.general or tree.training_cluster(client).name
            waits = waiting.setdefault((sent, counts), [])
            waits.append(answer)
            if len(waits) == TOGETHER or not isinstance(answer.update.trained, Difference):
                yield from self._measured(waiting.pop((sent, counts)))
        for waits in waiting.values():
            yield from self._measured(waits)

    def _measured(self, answers: Sequence[Answer]) -> Iterator[TrainReply]:
        for reply in measured_replies(answers, self.layout, self.projection, self.weight):
            if isinstance(reply, TrainReply):
                yield reply
            else:
                answer, problem = reply
                self.messenger.set_aside(answer.client, str(problem), fault_of(answer.message))

    def _read_timely(self, client: str, message: Message) -> Answer:
        cluster = self.state.tree.training_cluster(client)
        sent = self.messenger.model_of(message) or cluster.name
        general = "" if sent == cluster.name else sent
        probe = bool(general) and self.probed.get(client) == sent
        above = self.state.tree.clusters[sent]
        origin = above.grown.model if general and not probe else above.model
        weighted_by = self.messenger.keys.weighted_by
        answer = read_answer(client, message, self.layout, weighted_by, origin)
        return answer._replace(general=general, probe=probe)

    def _read_late(self, asked: Asked, message: Message) -> TrainReply:
        """A reply to an earlier round, if its client still trains that cluster's model.

        One that walks down the tree trains a model that stays as it was when it was split: what it
        answers tells its way as long as that model was near, see `is_fresh`.
        """
        weighted_by, tree = self.messenger.keys.weighted_by, self.state.tree
        sent = self.layout.weights(asked.arrays)
        answer = read_train_reply(message, self.layout, self.projection, weighted_by, sent)
        here = tree.training_cluster(asked.client)
        told = f"to round {asked.server_round} is too late: cluster {asked.cluster}, whose model it"
        if asked.cluster not in tree.clusters:
            raise TooLateError(f"{told} trained, was joined again")
        if asked.cluster != here.name:
            raise TooLateError(f"{told} trained, is not the one that it trains now, {here.name}")
        away = norm(sent.trained - here.model.trained)
        if here.is_leaf and here.born >= asked.server_round:
            raise TooLateError(f"{told} trained, was split and joined again")
        if not here.is_leaf and away > answer.norm:
            raise TooLateError(f"{told} trained, had moved on before it was split")
        return answer._replace(client=asked.client, origin=sent)


def as_counted(reply: TrainReply, share: float = 1.0) -> Reply:
    """A reply as the algorithm takes it, with the part of its weight that counts."""
    return Reply(
        reply.client,
        reply.update,
        reply.norm,
        reply.measured.num_examples,
        reply.general,
        share,
        reply.probe,
        reply.kept,
        reply.origin,
    )
