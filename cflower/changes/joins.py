"""Leaves whose clients are served as well by one model are one leaf again.

Not in the paper. It is the question of a split, asked again. Groups may become one so slowly that
no member is noticed, several clients may get leaves of their own with the same new data, and a
split may be confirmed by chance. So now and then the two nearest leaves are compared.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, starmap

from cflower.algorithm.change import Answer, Change, Proposal, Question
from cflower.algorithm.constants import ERROR
from cflower.algorithm.criteria import Decision, Outcome
from cflower.algorithm.state import CFLState, Move
from cflower.algorithm.tree import Cluster, ParameterTree, Status, Trial, is_below, mean_model
from cflower.algorithm.weights import Weights, norm
from cflower.changes.splits import judged, started_from, voters
from cflower.changes.vote import Ballot, Verdict, verdict_of
from cflower.ordering import in_order, listed, only, without

INTERVAL = 10
"""Rounds for which an answer is taken to hold."""


class Joins(Change):
    """Asks about the two nearest leaves now and then."""

    def proposed(self, state: CFLState, server_round: int, *, last: bool) -> Iterable[Proposal]:
        """The joins to judge after this round."""
        tree, now = state.tree, server_round
        if now % INTERVAL == 0 and not last:
            pairs = [pair for pair in combinations(tree.leaves, 2) if is_due(tree, pair, now)]
            if pair := min(pairs, key=distance, default=None):
                first, second = sorted(pair, key=lambda leaf: -len(leaf.members))
                clients = tuple(c for leaf in pair for c in voters(state, leaf, now))
                mean = Question(common_ancestor(tree, pair), mean_model(pair), clients)
                other = Question(first.name, first.model, voters(state, second, now))
                yield Join(now, (mean, other), (first.name, second.name))

    def will_ask(self, state: CFLState, decisions: Sequence[Decision], server_round: int) -> bool:
        """Before each round after which leaves are compared."""
        return (server_round + 1) % INTERVAL == 0 and len(state.tree.leaves) > 1


def is_due(tree: ParameterTree, pair: Sequence[Cluster], now: int) -> bool:
    """Whether to ask about two leaves: after a change, else in round 10, 20, 40 ...

    Not if the split between them, or one above it, was judged in the last `INTERVAL` rounds.
    """
    turn, since = now // INTERVAL, now - INTERVAL
    changed = any(leaf.born > since for leaf in pair)
    above = tree.path(common_ancestor(tree, pair))
    judged_lately = any(cluster.trial and cluster.trial.judged > since for cluster in above)
    return (changed or turn & (turn - 1) == 0) and not judged_lately


def distance(pair: Sequence[Cluster]) -> float:
    """Distance of two leaves' models."""
    first, second = pair
    return norm(first.model.trained - second.model.trained)


def common_ancestor(tree: ParameterTree, pair: Sequence[Cluster]) -> str:
    """The lowest cluster above two leaves."""
    first, second = pair
    *_, name = (c.name for c in tree.path(first.name) if is_below(second.name, c.name))
    return name


@dataclass(frozen=True)
class Join(Proposal):
    """Are some leaves better than their mean? Is the second better than the first's model?"""

    leaves: tuple[str, ...]
    """Their names; the first question is about the lowest cluster above them."""

    def concluded(
        self, state: CFLState, decisions: tuple[Decision, ...], answers: Sequence[Answer]
    ) -> tuple[CFLState, tuple[Decision, ...]]:
        """One leaf, if that is likely to serve the clients better, and no part of them worse."""
        names = self.leaves
        if not {*names} <= {leaf.name for leaf in state.tree.leaves}:
            return state, decisions  # another proposal of this round has changed them
        verdicts = [verdict_of(starmap(Ballot.of, one.pairs), one.metric) for one in answers]
        # The first leaf's model may be kept, but from then on all train it towards the mean.
        on_mean = verdicts[0]
        harmful = names[0] in on_mean.parts and on_mean.parts[names[0]].chance < ERROR
        for question, verdict in zip(self.questions, verdicts, strict=True):
            if verdict.may_be_worse and not (verdict.may_be_better or harmful):
                return self._joined(state, decisions, question.model, verdict)
        tree, losers = state.tree, in_order(on_mean.losers)
        remark = f"the clusters {listed(names)} stay apart: {on_mean.reason}"
        if losers:
            tree = started_from(tree, losers, self.questions[0].model)
            remark += f"; the common model replaces that of {listed(losers)}"
        first = [made.cluster for made in decisions if made.cluster in names][:1]
        return replace(state, tree=tree), with_remark(decisions, first, remark)

    def _joined(
        self, state: CFLState, decisions: tuple[Decision, ...], model: Weights, verdict: Verdict
    ) -> tuple[CFLState, tuple[Decision, ...]]:
        """The leaves as one.

        If there is no other leaf below the cluster above them, it is a leaf again. Otherwise all
        members move to the first of them, and the others stay as history, closed for Algorithm 4.
        """
        tree, now, names = state.tree, self.server_round, self.leaves
        leaves = first, *others = [tree.clusters[name] for name in names]
        cluster = tree.clusters[self.questions[0].cluster]
        reason = f"the clusters {listed(names)} are one again: {verdict.reason}"
        if len(tree.leaves_below(cluster.name)) == len(names):
            began = cluster.trial.began if cluster.trial else now
            parts = tuple(tree.clusters[child].members for child in cluster.children)
            past = Trial(began, now, parts, Status.JOINED, reason)
            tree = tree.rejoined(cluster.name, reunited(cluster, leaves, past, model))
            made = judged(decisions, cluster.name, now, Outcome.UNDONE, reason, verdict.figures)
            return replace(state, tree=tree), (*decisions, made)
        moving = {client: leaf.name for leaf in others for client in leaf.members}
        moves = [Move(now, client, left, first.name, reason) for client, left in moving.items()]
        weight = sum(leaf.weight for leaf in leaves)
        joined = replace(first, model=model, own_body=True, memory={}, weight=weight, optimizer={})
        tree = tree.update(joined).moved(dict.fromkeys(moving, first.name)).closed(names)
        state = replace(state, tree=tree, moves=(*state.moves, *moves))
        state = replace(state, known=without(state.known, moving))
        return state, with_remark(decisions, names, reason)


def reunited(cluster: Cluster, leaves: Sequence[Cluster], past: Trial, model: Weights) -> Cluster:
    """A split cluster as a leaf again, in place of the leaves below it."""
    return replace(
        cluster,
        model=model,
        own_body=True,
        born=past.judged,
        children=(),
        split_round=None,
        trial=None,
        undone=(*cluster.undone, past),
        left_out=(),
        optimizer={},
        rounds=max(leaf.rounds for leaf in leaves),
        weight=sum(leaf.weight for leaf in leaves),
    )


def with_remark(
    decisions: Sequence[Decision], names: Sequence[str], remark: str
) -> tuple[Decision, ...]:
    """The decisions with a further remark on the last one about each of some clusters."""
    last = {made.cluster: number for number, made in enumerate(decisions)}
    remarked = only(last, names).values()
    return tuple(
        replace(made, reason=f"{made.reason}; {remark}") if number in remarked else made
        for number, made in enumerate(decisions)
    )
