"""One round of training as the strategy reads it: usable replies out, everything else noted."""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from flwr.app import Message, RecordDict

from cflower.algorithm.cfl_round import CFLState, Reply, RoundResult
from cflower.algorithm.criteria import Decision
from cflower.algorithm.difference import TOGETHER, Difference
from cflower.algorithm.projection import Projection
from cflower.federation.failures import Problem, fault_of
from cflower.federation.influence import MOST, Influence
from cflower.federation.layout import Layout
from cflower.federation.messenger import ClientMessenger, Measured
from cflower.federation.plausible import Range
from cflower.federation.replies import (
    Answer,
    BadReplyError,
    ClientMetrics,
    TrainReply,
    as_record,
    measured_replies,
    read_answer,
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
    """

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
            yield for_the_algorithm(reply, share)
        for reply in probes:
            yield for_the_algorithm(reply)
        self.messenger.tell_lowered(influence.lowered)
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
            if answer.probe:
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
        waiting: dict[tuple[str, bool], list[Answer]] = {}
        for client, message in self.messenger.by_client(replies):
            cluster = self.state.tree.training_cluster(client)
            sent = self.messenger.model_of(message) or cluster.name
            general = "" if sent == cluster.name else sent
            probe = bool(general) and self.probed.get(client) == sent
            above = self.state.tree.clusters[sent]
            origin = above.grown.model if general and not probe else above.model
            try:
                weighted_by = self.messenger.keys.weighted_by
                answer = read_answer(client, message, self.layout, weighted_by, origin)
            except BadReplyError as problem:
                self.messenger.set_aside(client, str(problem), fault_of(message))
                continue
            # Who walks or probes is no term of a sum.
            counts = not probe and client not in self.state.tree.unassigned
            waits = waiting.setdefault((sent, counts), [])
            waits.append(answer._replace(general=general, probe=probe))
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


def for_the_algorithm(reply: TrainReply, share: float = 1.0) -> Reply:
    """A reply that is used."""
    client, update, norm, measured, general, probe, kept = reply
    return Reply(client, update, norm, measured.num_examples, general, share, probe, kept)
