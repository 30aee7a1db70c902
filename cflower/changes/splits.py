"""A split is a hypothesis: its clients judge it by the mean of the leaves' models.

Not in the paper. As soon as the parts have trained apart, members of each evaluate their leaf's
model and the mean. A vote in which more of them gain than lose, but not significantly, is repeated
once. A split that is undone leaves the mean, which is the model that clients without disagreement
would have trained together.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cflower.algorithm.change import Answer, Change, Proposal, Question
from cflower.algorithm.criteria import Decision, Evidence, Outcome, sampled
from cflower.algorithm.state import CFLState
from cflower.algorithm.tree import Cluster, ParameterTree, Status, Trial, is_below, mean_model
from cflower.algorithm.weights import Vector, Weights
from cflower.changes.vote import Verdict, verdict_of
from cflower.ordering import in_order, listed, only

VOTERS = 30
"""Members of a leaf that answer a question, a limit of what it sends: of 30 clients that gain or
lose, 22 decide a vote."""


@dataclass(frozen=True)
class SplitTrials(Change):
    """Puts every split on trial."""

    rounds: int = 1
    """Rounds after a split until its clients judge it for the first time."""

    def revised(self, state: CFLState, evidence: Evidence, decision: Decision) -> Decision:
        """The decision to split, or its postponement.

        A leaf waits for the judgement of the split that made it, but not longer than until that was
        due: hostile members may have prevented it. After k splits were undone the cluster waits
        until the number of rounds has doubled k times; one that was refuted counts twice.
        """
        leaf = state.tree.clusters[decision.cluster]
        refused = [trial for trial in leaf.undone if trial.status is Status.UNDONE]
        doublings = sum(1 + trial.refuted for trial in refused)
        again = 2**doublings * max((trial.due for trial in refused), default=0)
        if decision.outcome is not Outcome.SPLIT:
            return decision
        above = state.tree.clusters[leaf.parent].trial if leaf.parent else None
        if above and above.status is Status.OPEN and above.due >= decision.server_round:
            reason = f"the clients have not judged the split of {leaf.parent} yet"
        elif decision.server_round < again:
            reason = f"the clients undid its last split, so it waits until round {again}"
        else:
            return decision
        return replace(decision, outcome=Outcome.PUT_OFF, reason=reason, sides=())

    def followed(
        self, state: CFLState, decisions: Sequence[Decision], places: Mapping[str, Vector]
    ) -> CFLState:
        """The state in which new splits are on trial."""
        tree = state.tree
        for made in decisions:
            if made.outcome is Outcome.SPLIT:
                now = made.server_round
                trial = Trial(now, now + self.rounds, made.sides)
                tree = tree.update(replace(tree.clusters[made.cluster], trial=trial))
        return replace(state, tree=tree)

    def proposed(self, state: CFLState, server_round: int, *, last: bool) -> Iterable[Proposal]:
        """The splits that are due; in the last round all on trial, but none below another."""
        for name in in_order(state.tree.clusters):
            trial = state.tree.clusters[name].trial
            if not trial or state.tree.on_trial(name) != (name,):
                continue
            waited = server_round >= 2 * trial.began or self._trained_apart(state, name, trial)
            if last or (trial.due <= server_round and waited):
                mean = about_mean(state.tree, name, state.tree.leaves_below(name), server_round)
                yield SplitTrial(server_round, (mean,), self.rounds, last)

    def _trained_apart(self, state: CFLState, name: str, trial: Trial) -> bool:
        """Whether every part has trained since the split, or since the last vote.

        The members of a part that takes part seldom would not be there to vote. The vote waits for
        them until the number of rounds has doubled: they may have left.
        """
        since = (trial.began + trial.due) // 2  # a second vote is due after twice as many rounds
        parts = (only(state.known, leaf.members) for leaf in state.tree.leaves_below(name))
        return all(any(u.server_round > since for u in part.values()) for part in parts)


def about_mean(tree: ParameterTree, name: str, leaves: Sequence[Cluster], now: int) -> Question:
    """One about the mean of these leaves' models to their members."""
    return Question(name, mean_model(leaves), voters(tree, leaves, now))


def voters(tree: ParameterTree, leaves: Iterable[Cluster], server_round: int) -> tuple[str, ...]:
    """Members whose leaf is known: at most `VOTERS` of each leaf, others in another round."""
    chosen = list[str]()
    for leaf in leaves:
        members = tree.assigned(leaf)
        places = sampled(np.arange(len(members)), leaf.name, server_round, most=VOTERS)
        chosen.extend(members[i] for i in places)
    return tuple(chosen)


@dataclass(frozen=True)
class SplitTrial(Proposal):
    """Are the leaves of a split cluster better than their mean?"""

    rounds: int
    last: bool
    """Whether the run ends with this round."""

    def put_off(self, decisions: tuple[Decision, ...]) -> tuple[Decision, ...]:
        """The decisions with one that says that the split is open at the end of the run.

        It is not undone, even if the one before was: next to hostile clients that prevented the
        vote, the mean would be a model that they have spoiled.
        """
        if not self.last:
            return decisions
        name, now = self.questions[0].cluster, self.server_round
        reason = "the run is too short to ask the clients about it"
        return (*decisions, judged(decisions, name, now, Outcome.ON_TRIAL, reason, {}))

    def concluded(
        self, state: CFLState, decisions: tuple[Decision, ...], answers: Sequence[Answer]
    ) -> tuple[CFLState, tuple[Decision, ...]]:
        """The split is confirmed, undone, or judged again; and the decision on it."""
        name, now, (answer,) = self.questions[0].cluster, self.server_round, answers
        cluster, verdict = state.tree.clusters[name], verdict_of(answer)
        assert cluster.trial is not None
        reason, trial = verdict.reason, cluster.trial._replace(due=now, reason=verdict.reason)
        if not verdict.measured:
            outcome, reason = Outcome.UNJUDGED, f"{reason}, so the split is final"
            tree = state.tree.update(replace(cluster, trial=None))
        elif verdict.better:
            outcome, trial = Outcome.CONFIRMED, trial._replace(status=Status.CONFIRMED)
            losers = in_order(verdict.losers)
            tree = state.tree.update(replace(cluster, trial=trial))
            tree = started_from(tree, losers, self.questions[0].model)
            if losers:
                reason += (
                    f"; the common model serves {listed(losers)} better: it goes on from there"
                )
        elif again := self._next_vote(trial, verdict):
            outcome = Outcome.ON_TRIAL
            reason += f"; the clients judge again in round {again}"
            tree = state.tree.update(replace(cluster, trial=trial._replace(due=again)))
        else:
            outcome = Outcome.UNDONE
            # The end of a run refutes nothing: if the run is resumed, the split may be made again.
            open_end = self.last and verdict.better is None
            status = Status.OPEN if open_end else Status.UNDONE
            past = trial._replace(status=status, refuted=verdict.better is False)
            tree = reunited(state.tree, name, past, self.questions[0].model)
        made = judged(decisions, name, now, outcome, reason, verdict.figures)
        return replace(state, tree=tree), (*decisions, made)

    def _next_vote(self, trial: Trial, verdict: Verdict) -> int:
        """The round in which the clients judge again; 0 if they do not.

        They do once, after twice as many rounds, if more of them gain than lose.
        """
        later = 2 * trial.due - trial.began
        leaning = verdict.better is None and verdict.vote.better > verdict.vote.worse
        soon = later <= trial.began + 2 * self.rounds
        return later if leaning and soon and not self.last else 0


def started_from(tree: ParameterTree, names: Iterable[str], model: Weights) -> ParameterTree:
    """The tree in which these leaves continue from another model."""
    leaves = [tree.clusters[name] for name in names]
    return tree.update(*(replace(leaf, model=model, optimizer={}) for leaf in leaves))


def reunited(tree: ParameterTree, name: str, past: Trial, model: Weights) -> ParameterTree:
    """The tree in which a split cluster is a leaf again, with this model."""
    cluster, leaves = tree.clusters[name], tree.leaves_below(name)
    # Clients that resembled no child got children of their own; no name is used twice.
    added = cluster.children[len(past.parts) :]
    past = past._replace(parts=(*past.parts, *(tree.clusters[child].members for child in added)))
    leaf = replace(
        cluster,
        model=model,
        born=past.due,
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
