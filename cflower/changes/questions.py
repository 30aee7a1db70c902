"""One question for every change of the tree: do some clients do better with another model?

Not in the paper. A proposal names models that exist already, and clients that evaluate them and
their own on examples that decide. Nobody trains a model for it, so it costs an evaluation and can
be asked again at any time. Where clients agree, the mean of two leaves' models is the model that
all of them would have trained together; where they do not, it is far worse than either. (The
barrier of linear mode connectivity as a test: Frankle et al., arXiv 1912.05671.)
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Protocol

from cflower.algorithm.change import Change
from cflower.algorithm.criteria import Decision
from cflower.algorithm.state import (
    DECIDE,
    Ask,
    CFLState,
    Measure,
    Pending,
    Reply,
    Role,
    RoundResult,
)
from cflower.algorithm.weights import Rounding, Weights
from cflower.changes.vote import Ballot, Verdict, measures_in, verdict_of


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
    """The clients' replies to one question."""

    ballots: tuple[Ballot, ...]
    """Those of the clients that evaluated both models."""
    measures: tuple[Measure, ...]

    @property
    def verdict(self) -> Verdict:
        """The vote, counted."""
        return verdict_of(self.ballots, self.measures)


class Proposal(Protocol):
    """A change of the tree that some clients judge."""

    @property
    def questions(self) -> tuple[Question, ...]:
        """What these clients are asked."""

    def concluded(
        self, state: CFLState, decisions: tuple[Decision, ...], answers: Sequence[Answer]
    ) -> tuple[CFLState, tuple[Decision, ...]]:
        """The state and the round's decisions after the answers, one for each question."""


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
        return tuple(question for proposal in self.proposals for question in proposal.questions)

    @cached_property
    def asks(self) -> tuple[Ask, ...]:
        """For every client the evaluation of its own model, once, and of each candidate."""
        candidates = [
            Ask(c, q.cluster, Role.CANDIDATE, self.server_round, "evaluate", DECIDE, number)
            for number, q in enumerate(self.questions)
            for c in q.clients
        ]
        return (*dict.fromkeys(map(self._own, candidates)), *candidates)

    def _own(self, ask: Ask) -> Ask:
        leaf = self.state.tree.leaf_of(ask.client).name
        return ask._replace(cluster=leaf, role=Role.OWN, number=0)

    def model_of(self, ask: Ask) -> Weights:
        """The candidate of a question."""
        return self.questions[ask.number].model

    def answered(
        self,
        state: CFLState,
        replies: Iterable[Reply],
        metric: Measure,
        as_sent: Rounding,
    ) -> RoundResult:
        """The end of the round: every proposal is carried out or dropped."""
        by_ask = {reply.ask: reply for reply in replies}
        measures = tuple(measures_in((reply.metrics for reply in by_ask.values()), metric))
        ballots: list[list[Ballot]] = [[] for _ in self.questions]
        for ask in self.asks:
            own = self._own(ask)
            if ask.role is Role.CANDIDATE and {ask, own} <= by_ask.keys():
                one, other = by_ask[own].metrics, by_ask[ask].metrics
                ballot = Ballot(own.cluster, one, other, by_ask[own].num_examples)
                ballots[ask.number].append(ballot)
        answers = iter([Answer(tuple(some), measures) for some in ballots])
        state, decisions = replace(state, pending=None), self.decisions
        for proposal in self.proposals:
            mine = list(islice(answers, len(proposal.questions)))
            state, decisions = proposal.concluded(state, decisions, mine)
        return RoundResult(state, decisions)


class Proposer(Change):
    """A change that proposes."""

    def proposed(
        self, state: CFLState, decisions: Sequence[Decision], server_round: int, *, last: bool
    ) -> Iterable[Proposal]:
        """What the clients judge after this round; ``last``: the last one of the run."""
        return ()
