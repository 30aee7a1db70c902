"""What a split on trial means for the tree: who trains what, what has to wait, what is undone."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from cflower.algorithm.criteria import Decision, Outcome
from cflower.algorithm.tree import Cluster, ParameterTree
from cflower.algorithm.trial import LOOKS, Comparison, Measure, Standing, judge, not_again


def also_trained(
    tree: ParameterTree, client: str, server_round: int, inner_interval: int
) -> Cluster | None:
    """The inner cluster whose model a client trains in a round beside its own, if any.

    That of a split on trial; else, in every ``inner_interval``-th round, those on its path take
    turns, so that a client never trains more than two models in a round.
    """
    if client in tree.unassigned:
        return None
    above = tree.path(tree.leaf_of(client).name)[:-1]
    if on_trial := [cluster for cluster in above if cluster.on_trial]:
        return on_trial[0]
    split = [cluster for cluster in above if cluster.split_round is not None]
    if not split or not inner_interval or server_round % inner_interval:
        return None
    return split[server_round // inner_interval % len(split)]


def learned_on(cluster: Cluster, learned: Cluster) -> Cluster:
    """A split cluster whose model has learned on; θ*_v stays."""
    return replace(
        cluster, general=learned.model, optimizer=learned.optimizer, rounds=learned.rounds
    )


def put_off(decision: Decision, leaf: Cluster, tree: ParameterTree) -> Decision:
    """The decision to split, put off where the split cannot be made now."""
    parent = tree.parent(leaf.name)
    if parent is not None and parent.on_trial:
        reason = f"would split, but {parent.name}, which it comes from, is still on trial"
    else:
        reason = not_again(leaf.undone, decision.sides, decision.server_round) or ""
    if not reason:
        return decision
    return replace(decision, outcome=Outcome.PUT_OFF, reason=reason, sides=())


def still_on_trial(
    cluster: Cluster, server_round: int, mean_norm: float, max_norm: float
) -> Decision:
    """What is told of a split in a round of its trial, with the norms of its model's updates."""
    assert cluster.trial is not None
    reason = (
        f"its model learns on beside {' and '.join(cluster.children)}; the clients judge in round "
        f"{cluster.trial.until}"
    )
    return Decision(cluster.name, server_round, Outcome.ON_TRIAL, reason, mean_norm, max_norm)


def judged(
    tree: ParameterTree,
    decisions: Iterable[Decision],
    compared: Mapping[str, Sequence[Comparison]],
    measures: Sequence[Measure],
    trial_rounds: int,
) -> tuple[ParameterTree, tuple[Decision, ...]]:
    """Tree and decisions of a round after its clients have judged: splits confirmed or undone.

    Where they found neither gain nor loss, the trial goes on for as long again, up to `LOOKS`
    times: what a few clients learn alone may take longer to tell.

    Parameters
    ----------
    tree : ParameterTree
        After the round's training.
    decisions : iterable of Decision
        Of the round.
    compared : mapping of str to sequence of Comparison
        What the clients of each split cluster found.
    measures : sequence of Measure
        The metrics to go by, the leading one first.
    trial_rounds : int
        Rounds from one judgement to the next.
    """
    told = []
    for decision in decisions:
        cluster = tree.clusters.get(decision.cluster)
        if decision.cluster in compared and cluster is not None and cluster.trial is not None:
            finding = judge(compared[cluster.name], measures)
            trial, reason = cluster.trial, finding.reason
            now, longer = decision.server_round, decision.server_round + trial_rounds
            if finding.confirmed:
                outcome = Outcome.CONFIRMED
                trial = trial._replace(until=now, standing=Standing.CONFIRMED, reason=reason)
                tree = tree.update(replace(cluster, trial=trial, memory={}))
            elif finding.confirmed is None and longer <= trial.began + LOOKS * trial_rounds:
                outcome = Outcome.ON_TRIAL
                tree = tree.update(replace(cluster, trial=trial._replace(until=longer)))
                reason = f"{reason}; the clients judge again in round {longer}"
            else:
                outcome = Outcome.UNDONE
                trial = trial._replace(until=now, standing=Standing.UNDONE, reason=reason)
                tree = tree.rejoined(cluster.name, now, trial)
            decision = replace(decision, outcome=outcome, reason=reason, figures=finding.figures)
        told.append(decision)
    return tree, tuple(told)
