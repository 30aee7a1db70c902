"""A leaf that members with changed data begin may start from the run's first model.

Not in the paper. They evaluate that model against the one of the leaf that they leave: a small
model that knows the opposite of what they need is harder to correct than one that knows nothing.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from cflower.algorithm.change import Answer, Change, Proposal, Question
from cflower.algorithm.criteria import Decision
from cflower.algorithm.state import CFLState
from cflower.changes.joins import with_remark
from cflower.changes.moves import suspects_of
from cflower.changes.splits import if_made, started_from, voters
from cflower.changes.vote import Ballot, verdict_of
from cflower.ordering import without

BY_FAR = 1 / 3
"""The relative gain of a model whose score is half the other's."""


class NewStarts(Change):
    """Asks the members of leaves that members with changed data begin in this round."""

    def proposed(self, state: CFLState, server_round: int, *, last: bool) -> Iterable[Proposal]:
        """The new starts to judge after this round, also those of parts of proposed splits."""
        moved = {move.client for move in state.moves if move.server_round == server_round}
        changed, after = moved | suspects_of(state).keys(), if_made(state)
        for leaf in after.tree.leaves:
            if state.first and leaf.born == server_round and changed.issuperset(leaf.members):
                asked = voters(after, leaf, server_round)
                yield NewStart(server_round, (Question(leaf.name, state.first, asked),))


@dataclass(frozen=True)
class NewStart(Proposal):
    """Does the run's first model serve the members of a new leaf better than the one they left?"""

    def concluded(
        self, state: CFLState, decisions: tuple[Decision, ...], answers: Sequence[Answer]
    ) -> tuple[CFLState, tuple[Decision, ...]]:
        """The leaf starts from the first model if that is better by far for most of its members."""
        (question,), (answer,) = self.questions, answers
        leaf = state.tree.clusters.get(question.cluster)  # none if the split was refused
        ballots = [Ballot.of(first, own) for own, first in answer.pairs]
        gains = verdict_of(ballots, answer.metric).vote.gains
        if not leaf or 2 * sum(gain > BY_FAR for gain in gains) <= len(question.clients):
            return state, decisions
        tree = started_from(state.tree, [leaf.name], question.model)
        tree = tree.update(replace(tree.clusters[leaf.name], rounds=0))
        known = without(state.known, leaf.members)
        moves = [move for move in state.moves if move.target == leaf.name]
        left = moves[-1].origin if moves else leaf.parent
        remark = f"{leaf.name} starts from the run's first model, which serves its members better"
        return replace(state, tree=tree, known=known), with_remark(decisions, [left], remark)
