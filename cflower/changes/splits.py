"""A split is put to its clients before it is made.

Not in the paper. The parts' models exist already: they are what this round of training gave, as
does the common model. So the members of each part evaluate their part's model and the common one,
and the split is made only if that serves them better. A split that they refuse never happened: the
cluster goes on as one, and they may be asked again later.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from cflower.algorithm.change import Answer, Change, Proposal, Question
from cflower.algorithm.constants import FEW, PROBABLE
from cflower.algorithm.criteria import Decision, Evidence, Outcome, sampled
from cflower.algorithm.state import CFLState, Division
from cflower.algorithm.tree import Cluster, ParameterTree, Trial, is_below, mean_model
from cflower.algorithm.weights import Weights
from cflower.changes.vote import Verdict, Vote, verdict_of
from cflower.ordering import in_order, listed, without

VOTERS = 30
"""Members of a part that answer a question, a limit of what it sends: of 30 clients that gain or
lose, 22 decide a vote."""
NAME = "splits"
"""The place in `CFLState.memory` of the rounds from which refused splits are asked about again."""


class SplitQuestions(Change):
    """Asks the clients about every split that the criterion decides on."""

    def revised(self, state: CFLState, evidence: Evidence, decision: Decision) -> Decision:
        """The decision to split, as a proposal; or put off, if the clients refused one lately."""
        if decision.outcome is not Outcome.SPLIT:
            return decision
        again, now = waiting_until(state).get(decision.cluster, 0), decision.server_round
        if now < again:
            reason = f"the clients refused its last split, so it waits until round {again}"
        elif away := [s for s in decision.sides if evidence.just_heard.isdisjoint(s)]:
            reason = f"of {listed(away[0], 5)} nobody trained in this round, so nobody can be asked"
        else:
            return replace(decision, outcome=Outcome.PROPOSED)
        return replace(decision, outcome=Outcome.PUT_OFF, reason=reason, sides=(), unsure=())

    def proposed(self, state: CFLState, server_round: int, *, last: bool) -> Iterable[Proposal]:
        """A question to the members of each part of each split."""
        for division in state.divisions.values():
            after = replace(state, tree=state.tree.divided(*division))
            parts = [after.tree.clusters[child.name] for child in division.children]
            questions = (Question(p.name, p.model, voters(after, p, server_round)) for p in parts)
            yield SplitQuestion(server_round, tuple(questions), division)


def waiting_until(state: CFLState) -> dict[str, int]:
    """The rounds from which clusters with a refused split may be split, by their names."""
    return dict(state.memory.get(NAME, {}))


def voters(state: CFLState, part: Cluster, server_round: int) -> tuple[str, ...]:
    """Members of a part that answer: at most `VOTERS`, others in another round."""
    members = [*without(dict.fromkeys(state.tree.assigned(part)), state.absent)]
    places = sampled(np.arange(len(members)), part.name, server_round, most=VOTERS)
    return tuple(members[i] for i in places)


@dataclass(frozen=True)
class SplitQuestion(Proposal):
    """Does its own model serve each part of a cluster better than the common one?"""

    division: Division

    def put_off(self, decisions: tuple[Decision, ...]) -> tuple[Decision, ...]:
        """The decisions with the split put off, because no question is left in the budget."""
        reason = "the run has used up what it may ask its clients"
        return self._with(decisions, outcome=Outcome.PUT_OFF, reason=reason)

    def concluded(
        self, state: CFLState, decisions: tuple[Decision, ...], answers: Sequence[Answer]
    ) -> tuple[CFLState, tuple[Decision, ...]]:
        """The split is made or refused; and the decision on it."""
        cluster, children = self.division
        pairs = ((part, common) for answer in answers for common, part in answer.pairs)
        verdict = verdict_of(Answer(tuple(pairs), answers[0].metric))
        reason, now = verdict.reason, self.server_round
        if verdict.measured and not serves(verdict):
            again = asked_again(verdict.vote, now)
            waiting = waiting_until(state) | {cluster.name: again}
            state = replace(state, memory={**state.memory, NAME: waiting})
            reason += f"; the clients may be asked again from round {again} on"
            refusal = {"outcome": Outcome.REFUSED, "reason": reason, "figures": verdict.figures}
            return state, self._with(decisions, **refusal, sides=())
        tree, outcome = state.tree.divided(cluster, children), Outcome.CONFIRMED
        if verdict.measured:
            parts = tuple(tree.clusters[child.name].members for child in children)
            trial = Trial(now, now, parts, reason=verdict.reason)
            tree = tree.update(replace(tree.clusters[cluster.name], trial=trial))
            if losers := in_order(verdict.losers):
                common = state.tree.clusters[cluster.name].model
                tree = started_from(tree, losers, common)
                reason += f"; the common model serves {listed(losers)} better and replaces theirs"
        else:
            outcome, reason = Outcome.UNJUDGED, f"{reason}, so the split is final"
        decisions = self._with(decisions, outcome=Outcome.SPLIT, children=cluster.children)
        made = judged(decisions, cluster.name, now, outcome, reason, verdict.figures)
        return replace(state, tree=tree), (*decisions, made)

    def _with(self, decisions: tuple[Decision, ...], **changes: object) -> tuple[Decision, ...]:
        """The decisions with these changes to that on the cluster."""
        name = self.division.cluster.name
        return tuple(
            replace(made, **changes) if made.cluster == name else made  # type: ignore[arg-type]
            for made in decisions
        )


def serves(verdict: Verdict) -> bool:
    """Whether the clients show that a split serves them.

    Their gain is probable. Or each member of a part that is too small to win a vote gains more than
    everybody else, and these do not lose: of twelve clients, one changes little for the others.
    """
    vote, parts = verdict.vote, [part.gains for part in verdict.parts.values()]
    if vote.chance <= PROBABLE:
        return True
    others = (chain([0.0], *(o for o in parts if o is not part)) for part in parts)
    alone = (
        0.5 ** len(part) > PROBABLE and min(part, default=0.0) > max(rest)
        for part, rest in zip(parts, others, strict=True)
    )
    return not vote.opposite.likely and any(alone)


def asked_again(vote: Vote, now: int) -> int:
    """The round from which the clients may be asked about a refused split again.

    It is soon if more of them gain than lose, else when the number of rounds has doubled.
    """
    return now + FEW if vote.better > vote.worse else 2 * now


def started_from(tree: ParameterTree, names: Iterable[str], model: Weights) -> ParameterTree:
    """The tree in which these leaves continue from another model."""
    leaves = [tree.clusters[name] for name in names]
    return tree.update(*(replace(leaf, model=model, optimizer={}) for leaf in leaves))


def about_mean(state: CFLState, name: str, leaves: Sequence[Cluster], now: int) -> Question:
    """One about the mean of these leaves' models to their members."""
    clients = (client for leaf in leaves for client in voters(state, leaf, now))
    return Question(name, mean_model(leaves), tuple(clients))


def reunited(tree: ParameterTree, name: str, past: Trial, model: Weights) -> ParameterTree:
    """The tree in which a split cluster is a leaf again, with this model."""
    cluster, leaves = tree.clusters[name], tree.leaves_below(name)
    # Clients that resembled no child got children of their own; no name is used twice.
    added = cluster.children[len(past.parts) :]
    past = past._replace(parts=(*past.parts, *(tree.clusters[child].members for child in added)))
    leaf = replace(
        cluster,
        model=model,
        born=past.judged,
        children=(),
        split_round=None,
        trial=None,
        undone=(*cluster.undone, past),
        left_out=(),
        optimizer={},
        rounds=max((leaf.rounds for leaf in leaves), default=cluster.rounds),
        weight=sum(leaf.weight for leaf in leaves),
    )
    return tree.rejoined(name, leaf)


def judged(
    decisions: Iterable[Decision],
    name: str,
    server_round: int,
    outcome: Outcome,
    reason: str,
    figures: Mapping[str, float],
) -> Decision:
    """The decision on a split, with the largest norms in those on the leaves below."""
    below = [(d.mean_norm, d.max_norm) for d in decisions if is_below(d.cluster, name)]
    mean_norm, max_norm = map(max, zip((0.0, 0.0), *below, strict=True))
    return Decision(name, server_round, outcome, reason, mean_norm, max_norm, figures=figures)
