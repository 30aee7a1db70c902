"""Changes of the tree that the clients judge: one life cycle for a split and for a join.

Not in the paper. A split is a hypothesis. For some rounds after it the common model goes on
learning from all clients; then every client evaluates both models on the part of its examples that
decides, and the paired test decides. A join of two leaves is the same question with the roles
exchanged: their members train the model above them now and then, and if their updates of it no
longer differ, they evaluate the mean of both models against their own. Members with changed data
that begin a leaf evaluate the run's first model against their leaf's: a model that learned the
opposite of what they need may be harder to correct than one that learned nothing.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np

from cflower.algorithm.constants import FEW, RESEMBLES, SIGNIFICANT
from cflower.algorithm.criteria import Decision, Outcome
from cflower.algorithm.paired_comparison import Comparison, Measure, Verdict, judge
from cflower.algorithm.similarity import cosine_similarity
from cflower.algorithm.state import DECIDE, Ask, CFLState, Move, Reply, Role
from cflower.algorithm.tree import Cluster, ParameterTree, Proposal, Status
from cflower.algorithm.weights import Vector
from cflower.ordering import in_order, only, without

MOST_COMPARED = 50
"""Members of a leaf with updates that show whether it still differs from another: a limit of
work."""


# ------------------------------------------------------------------------------- a split


def postponed(decision: Decision, leaf: Cluster, tree: ParameterTree) -> Decision:
    """The decision to split, or its postponement.

    A leaf waits while the split that made it is on trial. After a split was undone the cluster
    waits until the number of rounds has doubled, so that trials that fail take ever fewer rounds. A
    join does not make it wait.
    """
    if leaf.parent and tree.clusters[leaf.parent].on_trial:
        reason = f"would split, but the split of {leaf.parent} is still on trial"
        return replace(decision, outcome=Outcome.PUT_OFF, reason=reason, sides=())
    for trial in leaf.undone:
        waits = not trial.leaves and trial.status is Status.UNDONE
        if waits and decision.server_round < 2 * trial.due:
            reason = f"would split, but waits until round {2 * trial.due}: its split was undone"
            return replace(decision, outcome=Outcome.PUT_OFF, reason=reason, sides=())
    return decision


# -------------------------------------------------------------------------------- a join


def similar_leaves(
    tree: ParameterTree, updates: Mapping[str, Mapping[str, Vector]]
) -> Iterator[tuple[Cluster, Cluster]]:
    """The two most similar leaves below each cluster, if their members' updates hardly differ.

    The mean cosine between the leaves must be more than half of that within them. That is no test:
    it saves the clients most of the evaluations, and they judge the others. The larger leaf comes
    first.

    ``updates`` are those of the split clusters' models in this round, by cluster and client, shape
    (k,).
    """
    for name, by_client in updates.items():
        if tree.awaits_trial(name):
            continue
        known = {}
        for child in only(tree.clusters, tree.clusters[name].children).values():
            there = list(only(by_client, child.members).values())
            if child.is_leaf and len(there) >= np.clip(len(child.members), 1, 2):
                known[child.name] = there[:MOST_COMPARED]
        ratios = {(a, b): between_to_within(known[a], known[b]) for a, b in combinations(known, 2)}
        pair = max(ratios, key=ratios.__getitem__, default=None)
        if pair and ratios[pair] > RESEMBLES:
            first, second = only(tree.clusters, pair).values()
            yield (first, second) if len(first.members) >= len(second.members) else (second, first)


def between_to_within(one: Sequence[Vector], other: Sequence[Vector]) -> float:
    """Ratio of the mean cosine between two leaves' updates to that within them.

    Two leaves of one member each have nothing within: there it counts as 1.

    >>> up, right = np.array([0.0, 1.0]), np.array([1.0, 0.0])
    >>> between_to_within([up, up], [right]), between_to_within([up, up], [up])
    (0.0, 1.0)
    """
    cosines = cosine_similarity(np.stack([*one, *other]))
    side = np.arange(len(cosines)) < len(one)
    same = side[:, None] == side
    between = float(cosines[~same].mean())
    np.fill_diagonal(same, val=False)
    within = float(cosines[same].mean()) if same.any() else 1.0
    return between / within if within > 0 else 0.0


# ---------------------------------------------------------------------- the clients judge


def judges(tree: ParameterTree, proposals: Iterable[Proposal]) -> tuple[Ask, ...]:
    """The evaluations of these proposals: for every client its own model and the common one."""
    pairs = [pair for proposal in proposals for pair in judged_by(tree, proposal)]
    return (*dict.fromkeys(own for own, _ in pairs), *(common for _, common in pairs))


def judged_by(tree: ParameterTree, proposal: Proposal) -> list[tuple[Ask, Ask]]:
    """The two evaluations of each client that a proposal concerns: own model and common one."""
    clusters = proposal.leaves or (proposal.cluster,)
    members = [c for name in clusters for c in tree.clusters[name].members]
    asks = [
        Ask(c, tree.leaf_of(c).name, Role.OWN, proposal.due, "evaluate", DECIDE)
        for c in members
        if c not in tree.unassigned
    ]
    return [(own, own._replace(cluster=proposal.cluster, role=Role.COMMON)) for own in asks]


def settled(
    state: CFLState, replies: Iterable[Reply], metric: Measure, trial_rounds: int
) -> tuple[CFLState, tuple[Decision, ...]]:
    """The state and the round's decisions after the clients have judged its proposals.

    A client that did not evaluate both models does not count. An open split is judged again after
    ``trial_rounds``; 0: never, so that it is undone.
    """
    assert state.judging is not None
    due, decisions, _ = state.judging
    state = replace(state, judging=None)
    evaluations = {reply.ask: reply for reply in replies}
    measures = measures_in(evaluations.values(), metric)
    for proposal in due:
        compared = comparisons(state.tree, proposal, evaluations)
        if len(proposal.leaves) == 1:
            state, decisions = settled_start(state, decisions, proposal, compared, metric)
            continue
        verdict = judge(compared, measures)
        if proposal.leaves:
            state, decisions = settled_join(state, decisions, proposal, verdict)
        else:
            state, decisions = settled_split(state, decisions, proposal, verdict, trial_rounds)
    return state, decisions


def measures_in(replies: Iterable[Reply], metric: Measure) -> list[Measure]:
    """The leading metric, and the loss if most clients measure one.

    Accuracy on a few examples moves in steps; the loss shows the change between them.
    """
    names = sorted(usual_metrics(replies) - {metric.name})
    losses = [name for name in names if "loss" in re.split(r"[\W_]+", name.lower())]
    return [metric, *(Measure(name, higher_is_better=False) for name in losses[:1])]


def usual_metrics(replies: Iterable[Reply]) -> set[str]:
    """The metrics that most replies report: no client can invent one for all."""
    reported = [reply.metrics.keys() for reply in replies]
    counts = Counter(name for names in reported for name in names)
    return {name for name, count in counts.items() if 2 * count > len(reported)}


def comparisons(
    tree: ParameterTree, proposal: Proposal, evaluations: Mapping[Ask, Reply]
) -> list[Comparison]:
    """Both models on the examples of each client that evaluated both."""
    compared = []
    for own, common in judged_by(tree, proposal):
        if own in evaluations and common in evaluations:
            one, other = evaluations[own], evaluations[common]
            compared.append(Comparison(own.cluster, one.metrics, other.metrics, one.num_examples))
    return compared


def settled_split(
    state: CFLState,
    decisions: tuple[Decision, ...],
    trial: Proposal,
    verdict: Verdict,
    trial_rounds: int,
) -> tuple[CFLState, tuple[Decision, ...]]:
    """A split after its judgement: confirmed, undone, or judged again some rounds later."""
    cluster, reason = state.tree.clusters[trial.cluster], verdict.reason
    later = trial.due + trial_rounds
    if verdict.better:
        outcome = Outcome.CONFIRMED
        trial = trial._replace(status=Status.CONFIRMED, reason=reason)
        tree = state.tree.update(replace(cluster, trial=trial, memory={}))
    elif verdict.better is None and trial.due < later <= trial.began + FEW * trial_rounds:
        outcome, reason = Outcome.ON_TRIAL, f"{reason}; the clients judge again in round {later}"
        tree = state.tree.update(replace(cluster, trial=trial._replace(due=later)))
    else:
        outcome = Outcome.UNDONE
        # Clients that resembled no child got children of their own; no name is used twice.
        added = cluster.children[len(trial.parts) :]
        parts = (*trial.parts, *(state.tree.clusters[name].members for name in added))
        # The end of a run refutes nothing: if the run is resumed, the split may be made again.
        status = Status.UNDONE if trial_rounds or verdict.better is False else Status.OPEN
        trial = trial._replace(status=status, reason=reason, parts=parts)
        tree = state.tree.rejoined(cluster.name, undone(cluster, trial))
    return replace(state, tree=tree), tuple(
        replace(d, outcome=outcome, reason=reason, figures=verdict.figures)
        if d.cluster == trial.cluster and d.outcome is Outcome.ON_TRIAL
        else d
        for d in decisions
    )


def settled_start(
    state: CFLState,
    decisions: tuple[Decision, ...],
    proposal: Proposal,
    compared: Sequence[Comparison],
    metric: Measure,
) -> tuple[CFLState, tuple[Decision, ...]]:
    """A new leaf with the run's first model if that serves most of its members better.

    The remark is on the decision about the leaf that they were in.
    """
    swapped = [c._replace(own=c.common, common=c.own) for c in compared]
    better = [one for one in swapped if one.shows(metric, SIGNIFICANT)]
    if 2 * len(better) <= len(compared):
        return state, decisions
    assert proposal.common is not None
    leaf = state.tree.clusters[proposal.cluster]
    again = replace(leaf, model=proposal.common, optimizer={}, rounds=0)
    moved = {move.target: move.origin for move in state.moves if move.server_round == proposal.due}
    remark = f"{leaf.name} starts from the run's first model, which serves its members better"
    known = without(state.known, leaf.members)
    state = replace(state, tree=state.tree.update(again), known=known)
    return state, with_remark(decisions, {moved.get(leaf.name, leaf.parent): remark})


def settled_join(
    state: CFLState, decisions: tuple[Decision, ...], proposal: Proposal, verdict: Verdict
) -> tuple[CFLState, tuple[Decision, ...]]:
    """Two leaves after their judgement: one leaf, unless separate models serve the clients better.

    If there is no other leaf next to them, the cluster above is a leaf again. Otherwise the members
    of the second move to the first, and the second stays as history, closed for Algorithm 4.
    """
    tree, now = state.tree, proposal.due
    first, second = (tree.clusters[name] for name in proposal.leaves)
    parent = tree.clusters[proposal.cluster]
    alike = f"the updates of {first.name} and {second.name} no longer differ"
    if verdict.better:
        refused = f"{alike}, but {verdict.reason}"
        return state, with_remark(decisions, dict.fromkeys(proposal.leaves, refused))
    assert proposal.common is not None
    reason = f"{alike}, and {verdict.reason}"
    parts = tuple(tree.clusters[child].members for child in parent.children)
    if sum(map(bool, parts)) > 2:
        members = in_order((*first.members, *second.members))
        joined = replace(first, model=proposal.common, memory={}, members=members)
        closed = replace(second, members=(), edge={}, memory={})
        moves = [Move(now, client, second.name, first.name, reason) for client in second.members]
        tree, known = tree.update(joined, closed), without(state.known, second.members)
        state = replace(state, tree=tree, known=known, moves=(*state.moves, *moves))
        return state, with_remark(decisions, {second.name: f"it is joined to {first.name}"})
    past = proposal._replace(parts=parts, status=Status.UNDONE, reason=reason, common=None)
    learned = replace(parent, optimizer=first.optimizer, rounds=first.rounds, memory={})
    leaf = undone(replace(learned, general=proposal.common), past)
    norms = [(d.mean_norm, d.max_norm) for d in decisions if d.cluster in proposal.leaves]
    mean_norm, max_norm = map(max, zip((0.0, 0.0), *norms, strict=True))
    decision = Decision(
        parent.name, now, Outcome.UNDONE, reason, mean_norm, max_norm, figures=verdict.figures
    )
    return replace(state, tree=tree.rejoined(parent.name, leaf)), (*decisions, decision)


def undone(cluster: Cluster, proposal: Proposal) -> Cluster:
    """A split cluster as a leaf again, with its common model."""
    past = (*cluster.undone, proposal)
    leaf = replace(cluster.grown, general=None, children=(), split_round=None, trial=None)
    return replace(leaf, born=proposal.due, undone=past, left_out=())


def with_remark(decisions: Sequence[Decision], remarks: Mapping[str, str]) -> tuple[Decision, ...]:
    """The decisions with a further remark on some clusters."""
    return tuple(
        replace(d, reason=f"{d.reason}; {remarks[d.cluster]}") if d.cluster in remarks else d
        for d in decisions
    )
