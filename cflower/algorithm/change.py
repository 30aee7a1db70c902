"""Where the paper ends: what goes beyond it plugs into a round here, and nowhere else.

`CFL.run_round` is Algorithm 5. A change observes the round, may revise a criterion's decision, and
may propose something. A proposal is one question: do some clients do better with another model,
which exists already, than with that of their leaf? They evaluate both on examples that decide.
Nobody trains a model for it, so it can be asked at any time, and again. `cflower.changes` has the
changes that there are.
"""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, count

from cflower.algorithm.criteria import Decision, Evidence
from cflower.algorithm.state import DECIDE, Ask, CFLState, Pending, Reply, Role, RoundResult
from cflower.algorithm.weights import Rounding, Vector, Weights
from cflower.metric import Metric


@dataclass(frozen=True)
class Question:
    """Would these clients do better with another model than with that of their leaf?"""

    cluster: str
    """The cluster that the change is about."""
    model: Weights
    """The candidate."""
    clients: tuple[str, ...]


@dataclass(frozen=True)
class Answer:
    """The replies to one question of the clients that evaluated both models."""

    pairs: tuple[tuple[Reply, Reply], ...]
    """Each client's reply for its leaf's model, and for the candidate."""
    metric: Metric
    """The one that leads."""


@dataclass(frozen=True)
class Proposal(ABC):
    """A change of the tree that some clients judge."""

    server_round: int
    questions: tuple[Question, ...]

    @abstractmethod
    def concluded(
        self, state: CFLState, decisions: tuple[Decision, ...], answers: Sequence[Answer]
    ) -> tuple[CFLState, tuple[Decision, ...]]:
        """The state and the round's decisions after the answers, one for each question."""

    def put_off(self, decisions: tuple[Decision, ...]) -> tuple[Decision, ...]:
        """The round's decisions if the questions would exceed the run's budget."""
        return decisions


class Change:
    """Takes part in every round; each method has a default that does nothing."""

    def asked(self, state: CFLState, asks: list[Ask]) -> list[Ask]:
        """The trainings of a round: these, or others for some members."""
        return asks

    def observed(self, state: CFLState, server_round: int) -> CFLState:
        """The state after the updates of a round have come and newcomers have been placed."""
        return state

    def revised(self, state: CFLState, evidence: Evidence, decision: Decision) -> Decision:
        """The decision on a leaf: the criterion's, or another one."""
        return decision

    def followed(
        self, state: CFLState, decisions: Sequence[Decision], places: Mapping[str, Vector]
    ) -> CFLState:
        """The state after the decisions of a round.

        ``places`` are the updates, shape (k,), of members that trained a split cluster's model.
        """
        return state

    def proposed(self, state: CFLState, server_round: int, *, last: bool) -> Iterable[Proposal]:
        """The proposals that clients judge after this round; ``last``: the last one of the run."""
        return ()

    def will_ask(self, state: CFLState, decisions: Sequence[Decision], server_round: int) -> bool:
        """Whether clients may have to judge something after the round that follows this one."""
        return False


@dataclass(frozen=True)
class Questions(Pending):
    """The proposals of one round, until their clients have answered."""

    state: CFLState
    """After the round."""
    server_round: int
    proposals: tuple[Proposal, ...]
    decisions: tuple[Decision, ...]
    """The round's decisions so far."""

    @cached_property
    def questions(self) -> tuple[Question, ...]:
        """Those of all proposals, one after the other."""
        return tuple(chain.from_iterable(proposal.questions for proposal in self.proposals))

    @cached_property
    def asks(self) -> tuple[Ask, ...]:
        """For every client the evaluation of its own model, once, and of each candidate."""
        candidates = [
            Ask(c, q.cluster, Role.CANDIDATE, self.server_round, "evaluate", DECIDE, number)
            for number, q in enumerate(self.questions)
            for c in q.clients
        ]
        return (*dict.fromkeys(map(self._own, candidates)), *candidates)

    @classmethod
    def within(
        cls,
        budget: float,
        state: CFLState,
        server_round: int,
        proposals: Iterable[Proposal],
        decisions: tuple[Decision, ...],
    ) -> RoundResult:
        """The round with the questions for which so many models suffice; the others wait."""
        questions = cls(state, server_round, (), decisions)
        for proposal in proposals:
            more = replace(questions, proposals=(*questions.proposals, proposal))
            if state.asked + len(more.asks) <= budget:
                questions = more
            else:
                decisions = proposal.put_off(questions.decisions)
                questions = replace(questions, decisions=decisions)
        asks = questions.asks
        state = replace(state, pending=questions if asks else None, asked=state.asked + len(asks))
        return RoundResult(state, questions.decisions, asks)

    def _own(self, ask: Ask) -> Ask:
        leaf = self.state.tree.leaf_of(ask.client).name
        return ask._replace(cluster=leaf, role=Role.OWN, number=0)

    def model_of(self, ask: Ask) -> Weights:
        """The candidate of a question."""
        return self.questions[ask.number].model

    def answered(
        self, state: CFLState, replies: Iterable[Reply], metric: Metric, as_sent: Rounding
    ) -> RoundResult:
        """The end of the round: every proposal is carried out or dropped."""
        by_ask = {reply.ask: reply for reply in replies}
        pairs = defaultdict[int, list[tuple[Reply, Reply]]](list)
        for ask in self.asks:
            own = self._own(ask)
            if ask.role is Role.CANDIDATE and {ask, own} <= by_ask.keys():
                pairs[ask.number].append((by_ask[own], by_ask[ask]))
        state, decisions, numbers = replace(state, pending=None), self.decisions, count()
        for proposal in self.proposals:
            # A candidate may become a leaf's model, which is one that clients can receive.
            models = [replace(q, model=as_sent(q.model)) for q in proposal.questions]
            answers = [Answer(tuple(pairs[next(numbers)]), metric) for _ in models]
            proposal = replace(proposal, questions=tuple(models))
            state, decisions = proposal.concluded(state, decisions, answers)
        return RoundResult(state, decisions)
