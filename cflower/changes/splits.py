"""A split is put to its clients before it is made.

Not in the paper. The parts' models exist already: they are what this round of training gave, as
does the common model. So the members of each part evaluate their part's model and the common one,
and the split is made only if that serves them better. A split that they refuse never happened: the
cluster goes on as one, and they may be asked again when the number of its rounds has doubled.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cflower.algorithm.change import Answer, Change, Proposal, Question
from cflower.algorithm.constants import MOST
from cflower.algorithm.criteria import Decision, Evidence, Outcome, sampled
from cflower.algorithm.state import CFLState, Division
from cflower.algorithm.tree import Cluster, ParameterTree, Trial, is_below
from cflower.algorithm.weights import Weights
from cflower.changes.moves import changed_in
from cflower.changes.vote import Ballot, Verdict, verdict_of
from cflower.ordering import in_order, listed, without

VOTERS = 30
"""Members of a part that answer a question at most, a limit of what it sends: of 30 clients that
gain or lose, 22 decide a vote."""
NAME = "splits"
"""The place in `CFLState.memory` of the round of each cluster's last refused split."""
TRAINED_ON = (
    "its clients trained with the examples that decide, so they are asked only after another round"
)
"""Why a split is put off in a round with `CFLState.all_train`."""


class SplitQuestions(Change):
    """Asks the clients about every split that the criterion decides on."""

    def revised(self, state: CFLState, evidence: Evidence, decision: Decision) -> Decision:
        """The decision to split, as a proposal; or put off, if the clients refused one lately."""
        if decision.outcome is not Outcome.SPLIT:
            return decision
        cluster, now = state.tree.clusters[decision.cluster], decision.server_round
        again = asked_again(cluster, refused_in(state).get(cluster.name, cluster.born))
        if now < again:
            reason = f"the clients refused its last split, so it waits until round {again}"
        elif away := [s for s in decision.sides if evidence.heard_in(2).isdisjoint(s)]:
            reason = f"none of {listed(away[0], 5)} trained in the last two rounds"
        elif state.all_train:
            reason = TRAINED_ON
        else:
            return replace(decision, outcome=Outcome.PROPOSED)
        return replace(decision, outcome=Outcome.PUT_OFF, reason=reason, sides=(), unsure=())

    def proposed(self, state: CFLState, server_round: int, *, last: bool) -> Iterable[Proposal]:
        """A question to the members of each part of each split.

        If the data of all members of a part have changed, only they are asked. The others go on as
        before, so that they would gain or lose by chance alone, and outvote them.
        """
        changed, after = changed_in(state), if_made(state)
        for division in state.divisions.values():
            parts = [after.tree.clusters[child.name] for child in division.children]
            offered = [*zip(parts, division.models, strict=True)]
            to_changed = [pair for pair in offered if changed.keys() >= {*pair[0].members}]
            questions = (
                Question(part.name, model, voters(after, part, server_round))
                for part, model in to_changed or offered
            )
            yield SplitQuestion(server_round, tuple(questions), division)

    def will_ask(self, state: CFLState, decisions: Sequence[Decision], server_round: int) -> bool:
        """After a split that only waits until the examples that decide are held out again."""
        return any(decision.reason == TRAINED_ON for decision in decisions)


def if_made(state: CFLState) -> CFLState:
    """The state if all proposed splits are made."""
    tree = state.tree
    for division in state.divisions.values():
        tree = tree.divided(division.cluster, division.children)
    return replace(state, tree=tree)


def refused_in(state: CFLState) -> dict[str, int]:
    """The round of the last split that the clients of a cluster refused, by its name."""
    return dict(state.memory.get(NAME, {}))


def asked_again(cluster: Cluster, refused: int) -> int:
    """The round in which a cluster is twice as old as in that of its last refused split."""
    return 2 * refused - cluster.born


def voters(state: CFLState, part: Cluster, server_round: int) -> tuple[str, ...]:
    """Members of a part that answer: at most `VOTERS`, others in another round.

    They are no more than the clients that took part in the last round. So where few do, the budget,
    which grows with the rounds, suffices for several questions.
    """
    members = [*without(dict.fromkeys(state.tree.assigned(part)), state.absent)]
    trained = Counter(update.server_round for update in state.known.values())
    most = min(VOTERS, trained[max(trained)]) if trained else VOTERS
    places = sampled(np.arange(len(members)), part.name, server_round, most=most)
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
        cluster, children, _ = self.division
        ballots = [Ballot.of(part, common) for one in answers for common, part in one.pairs]
        verdict = verdict_of(ballots, answers[0].metric)
        reason, now = verdict.reason, self.server_round
        if verdict.measured and not serves(verdict):
            refused = refused_in(state) | {cluster.name: now}
            state = replace(state, memory={**state.memory, NAME: refused})
            again = asked_again(cluster, now)
            reason += f"; the clients may be asked again from round {again} on"
            refusal = {"outcome": Outcome.REFUSED, "reason": reason, "figures": verdict.figures}
            return state, self._with(decisions, **refusal, sides=())
        if not all(child.own_body for child in children):
            reason += "; its parts share all layers but the output layer"
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
    """Whether the clients are for a split that the criterion's evidence speaks for already.

    A likely gain is enough. So is a sum of gains and losses above zero, if a loss is not likely and
    at least as many gain as lose; in that sum nobody counts for more than `MOST` usual ones.
    """
    vote, gains = verdict.vote, np.array(verdict.vote.gains)
    most = MOST * np.median(np.abs(gains))
    in_all = vote.better >= vote.worse and gains.clip(-most, most).sum() > 0
    return vote.likely or bool(in_all and not verdict.may_be_worse)


def started_from(tree: ParameterTree, names: Iterable[str], model: Weights) -> ParameterTree:
    """The tree in which these leaves continue from another model, with a body of their own."""
    leaves = [tree.clusters[name] for name in names]
    started = (replace(leaf, model=model, optimizer={}, own_body=True) for leaf in leaves)
    return tree.update(*started)


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
