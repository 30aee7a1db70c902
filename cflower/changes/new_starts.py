"""A leaf that members with changed data begin may start from the run's first model.

Not in the paper. Such members evaluate that model against the one of the leaf that they left: a
model that learned the opposite of what they need may be harder to correct than one that learned
nothing.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from cflower.algorithm.change import Answer, Change, Proposal, Question
from cflower.algorithm.constants import SIGNIFICANT
from cflower.algorithm.criteria import Decision
from cflower.algorithm.state import CFLState
from cflower.changes.joins import with_remark
from cflower.changes.moves import suspects_of
from cflower.changes.splits import started_from
from cflower.changes.vote import Ballot
from cflower.ordering import without


class NewStarts(Change):
    """Asks the members of such leaves, in the round in which these begin."""

    def proposed(self, state: CFLState, server_round: int, *, last: bool) -> Iterable[Proposal]:
        """The new starts to judge after this round."""
        changed = {move.client for move in state.moves if move.server_round == server_round}
        changed |= suspects_of(state).keys()
        for leaf in state.tree.leaves:
            if state.first and leaf.born == server_round and {*leaf.members} <= changed:
                yield NewStart(server_round, (Question(leaf.name, state.first, leaf.members),))


@dataclass(frozen=True)
class NewStart(Proposal):
    """Does the run's first model serve the members of a new leaf better than their old one?"""

    def concluded(
        self, state: CFLState, decisions: tuple[Decision, ...], answers: Sequence[Answer]
    ) -> tuple[CFLState, tuple[Decision, ...]]:
        """The leaf starts with the first model if that serves most of its members better.

        Each by its own examples: such a leaf often has one member. The remark is on the decision
        about the leaf that they were in.
        """
        (question,), (answer,) = self.questions, answers
        swapped = [Ballot.of(candidate, own) for own, candidate in answer.pairs]
        better = sum(one.shows(answer.metric, SIGNIFICANT) for one in swapped)
        if 2 * better <= len(swapped):
            return state, decisions
        leaf = state.tree.clusters[question.cluster]
        tree = started_from(state.tree, [leaf.name], question.model)
        tree = tree.update(replace(tree.clusters[leaf.name], rounds=0))
        moved = {m.target: m.origin for m in state.moves if m.server_round == self.server_round}
        remark = f"{leaf.name} starts from the run's first model, which serves its members better"
        known = without(state.known, leaf.members)
        before = moved.get(leaf.name, leaf.parent)
        return replace(state, tree=tree, known=known), with_remark(decisions, [before], remark)
