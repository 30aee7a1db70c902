"""Several changes as one, and those that two settings of the Strategy switch on."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cflower.algorithm.change import Change
from cflower.algorithm.criteria import Decision, Evidence
from cflower.algorithm.state import Ask, CFLState, Pending
from cflower.algorithm.weights import Vector
from cflower.changes.joins import Joins
from cflower.changes.moves import Moves
from cflower.changes.questions import Proposer, Questions
from cflower.changes.splits import SplitTrials


@dataclass(frozen=True)
class Changes(Change):
    """Several changes, one after the other."""

    changes: tuple[Proposer, ...] = ()

    def asks(self, state: CFLState, client: str, server_round: int) -> Iterable[Ask]:
        """The further trainings of all changes."""
        return (ask for change in self.changes for ask in change.asks(state, client, server_round))

    def observed(self, state: CFLState, server_round: int) -> CFLState:
        """The state that all have observed."""
        for change in self.changes:
            state = change.observed(state, server_round)
        return state

    def revised(self, state: CFLState, evidence: Evidence, decision: Decision) -> Decision:
        """The decision that all have revised."""
        for change in self.changes:
            decision = change.revised(state, evidence, decision)
        return decision

    def followed(
        self, state: CFLState, decisions: Sequence[Decision], places: Mapping[str, Vector]
    ) -> CFLState:
        """The state after all have followed the decisions."""
        for change in self.changes:
            state = change.followed(state, decisions, places)
        return state

    def pending(
        self, state: CFLState, decisions: Sequence[Decision], server_round: int, *, last: bool
    ) -> Pending | None:
        """The questions of all changes."""
        proposals = [
            proposal
            for change in self.changes
            for proposal in change.proposed(state, decisions, server_round, last=last)
        ]
        if not proposals:
            return None
        return Questions(state, server_round, tuple(proposals), tuple(decisions))


def changes_of(trial_rounds: int, *, moving: bool) -> Changes:
    """What goes beyond the paper, by two settings; the clients judge nothing without trials."""
    moves = (Moves(judged=trial_rounds > 0),) if moving else ()
    trials = (SplitTrials(trial_rounds),) if trial_rounds else ()
    return Changes((*moves, *trials, *((Joins(),) if moves and trials else ())))
