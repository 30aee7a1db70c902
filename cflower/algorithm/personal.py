"""The personal step: a leaf's model moved towards each member's own, where members still differ.

Not in the paper. At the end of a run the members of a leaf train by themselves, from the leaf's
model w and from the run's first model, as long as their losses on the examples that decide fall on
the whole. Then they evaluate w + a_i (v_i − w), a_i = n_i / (n_i + κ), for a few κ: κ = ∞ is the
leaf's model, κ = 0 the member's own v_i. All members together choose the start and κ, because a
choice by one member's few examples costs what it gains. The paired test judges the choice: each
member evaluates what the others choose, so that no example judges a choice that it had a part in.

Shares of this form are the posterior mean under a normal prior around w (James and Stein, 1961).
APFL (Deng et al., arXiv 2003.13461) interpolates in this way too, with a share for each client.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from cflower.algorithm.constants import FEW, LIKELY, OUTLIER, SIGNIFICANT
from cflower.algorithm.paired_comparison import Comparison, Measure, Verdict, judge
from cflower.algorithm.proposals import measures_in
from cflower.algorithm.robust_mean import limited
from cflower.algorithm.similarity import Matrix
from cflower.algorithm.state import (
    DECIDE,
    Ask,
    CFLState,
    Chain,
    Judging,
    Personal,
    Reply,
    Role,
)
from cflower.algorithm.tree import Proposal, Status
from cflower.algorithm.weights import Vector, Weights
from cflower.ordering import counted, only

MOST_TRAININGS = 10
"""Trainings of a member from each start."""
PATIENCE = 2
"""Models in a row without a further gain, after which a start is given up."""
LEAST_TRAININGS = 2 * PATIENCE
"""Trainings of a member if neither start leads to a gain."""


def proposed(
    state: CFLState, first: Weights, server_round: int
) -> tuple[CFLState, tuple[Ask, ...]]:
    """The state with a proposal for each leaf of two members or more, and the first asks.

    Parameters
    ----------
    state : CFLState
        After the last round.
    first : Weights
        The run's first model.
    server_round : int
        The last round.
    """
    due, chains = list[Proposal](), dict[str, Chain]()
    for leaf in state.tree.leaves:
        members = tuple(c for c in leaf.members if c not in state.tree.unassigned)
        if len(members) > 1:
            due.append(Proposal(leaf.name, server_round, server_round, (members,)))
            chains[leaf.name] = Chain(members, (leaf.model, first))
    state = replace(state, judging=Judging(tuple(due), (), chains) if due else None, personal={})
    return state, next_asks(state)


def next_asks(state: CFLState) -> tuple[Ask, ...]:
    """Evaluations of the leaves' models; then a training, until all have; then the candidates."""
    asks = dict[str, list[Ask]](train=[], evaluate=[])
    for proposal in state.judging.proposals if state.judging else ():
        assert state.judging is not None
        chain, leaf, due = state.judging.chains[proposal.cluster], proposal.cluster, proposal.due
        candidate = len(chain.measured)
        if candidate and chain.trains:
            now = due + chain.trainings + 1
            clients = chain.here or chain.members
            asks["train"] += [Ask(c, leaf, Role.PERSONAL, now, "train", DECIDE) for c in clients]
        elif candidate < len(chain.candidates):
            asks["evaluate"] += [
                Ask(client, leaf, Role.PERSONAL, due, "evaluate", DECIDE, candidate)
                for client in chain.members
            ]
    return tuple(asks["train"] or asks["evaluate"])


def heard(
    state: CFLState,
    replies: Iterable[Reply],
    metric: Measure,
    as_sent: Callable[[Weights], Weights],
) -> tuple[CFLState, tuple[Ask, ...]]:
    """The state after the replies to `next_asks`, and the next asks; none once it is settled."""
    assert state.judging is not None
    asked = {ask.cluster: ask.task for ask in next_asks(state)}
    answers: dict[str, dict[str, Reply]] = {leaf: {} for leaf in asked}
    for reply in replies:
        answers[reply.ask.cluster][reply.client] = reply
    chains = dict(state.judging.chains)
    for leaf, by_client in answers.items():
        if asked[leaf] == "train":
            chains[leaf] = after_training(chains[leaf], by_client, metric, as_sent)
        else:
            chains[leaf] = after_evaluation(chains[leaf], by_client)
    state = replace(state, judging=state.judging._replace(chains=chains))
    asks = next_asks(state)
    if asks:
        return state, asks
    assert state.judging is not None
    results = {p.cluster: settled(chains[p.cluster], p, metric) for p in state.judging.proposals}
    return replace(state, judging=None, personal=results), ()


def after_evaluation(chain: Chain, replies: dict[str, Reply]) -> Chain:
    """The chain after one more candidate; who did not evaluate the leaf's model is left out."""
    members = chain.members if chain.measured else tuple(only(replies, chain.members))
    return replace(chain, members=members, measured=(*chain.measured, replies))


def after_training(
    chain: Chain, replies: dict[str, Reply], metric: Measure, as_sent: Callable[[Weights], Weights]
) -> Chain:
    """The chain after one more training.

    A reply also measures the model that the member received. Where it does not, as in apps that
    measure nothing in training, the members train for as long as they may.
    """
    trainings, trained = chain.trainings + 1, {}
    for client, reply in replies.items():
        assert reply.update is not None
        before = chain.received(client)
        after = Weights(*(a + b for a, b in zip(before, reply.update, strict=True)))
        trained[client] = as_sent(after)
    sizes = {**chain.sizes, **{client: reply.num_examples for client, reply in replies.items()}}
    best, gain, best_at = chain.best, chain.gain, chain.best_at
    gains = gains_of(chain, replies, metric)
    if gains is None and trained:
        best, best_at = trained, trainings
    elif gains is not None and chain.here and (now := float(np.sum(gains))) > gain:
        best, gain, best_at = only(chain.here, replies), now, chain.trainings
    over = trainings == MOST_TRAININGS or not trained
    chain = replace(chain, sizes=sizes, total=chain.total + 1)
    if over or chain.trainings - best_at >= PATIENCE:
        kept, kept_at = (*chain.kept, best), (*chain.kept_at, best_at)
        chain = replace(chain, kept=kept, kept_at=kept_at)
        return replace(chain, trainings=0, here={}, best={}, gain=0.0, best_at=0)
    return replace(chain, trainings=trainings, here=trained, best=best, gain=gain, best_at=best_at)


def gains_of(chain: Chain, replies: dict[str, Reply], metric: Measure) -> Vector | None:
    """What the members gain over the leaf's model, by their loss if they measure one, shape (m,).

    A gain is relative, (L(w) − L) / (L(w) + L) of a loss L, so from -1 to 1, and weighted by the
    member's examples, `limited` to a few usual claims: no member decides for the others, whatever
    it reports. One that reports nothing counts as one that loses all. None if nobody reports the
    measure.
    """
    first = chain.measured[0]
    measure = measures_in(first.values(), metric)[-1]
    name, sign = measure.name, 1 if measure.higher_is_better else -1
    if not any(name in reply.metrics for reply in replies.values()):
        return None
    gains = np.full(len(chain.members), -1.0)
    for place, client in enumerate(chain.members):
        before = first[client].metrics.get(name)
        now = replies[client].metrics.get(name) if client in replies else None
        if before is not None and now is not None:
            gains[place] = sign * (now - before) / (abs(now) + abs(before) or 1.0)
    sizes = limited(first[client].num_examples for client in chain.members)
    return np.asarray(sizes * gains)


def settled(chain: Chain, proposal: Proposal, metric: Measure) -> Personal:
    """The leaf's choice, accepted if the test finds that the others' choices serve better.

    The mean of the leading metric must not be worse: a lower loss alone is no gain in accuracy.
    """
    gains = np.zeros((len(chain.candidates), len(chain.members)))
    for number, replies in enumerate(chain.measured[1:], start=1):
        found = gains_of(chain, dict(replies), metric)
        gains[number] = 0 if found is None else found
    chosen = int(gains.sum(axis=1).argmax())
    verdict = judged(chain, choices_of_others(gains).tolist(), metric)
    chances = [test.chance for test in verdict.tests if test.chance is not None]
    enough = LIKELY if len(chain.members) <= FEW else SIGNIFICANT
    likely = chosen > 0 and verdict.better is True and min(chances, default=1.0) < enough
    accepted = likely and verdict.tests[0].gain >= 0
    status = Status.CONFIRMED if accepted else Status.UNDONE
    start, kappa = chain.candidates[chosen]
    clients = only(chain.measured[chosen], chain.kept[start]) if accepted else ()
    return Personal(
        proposal._replace(status=status, reason=verdict.reason),
        chain.kappa(kappa),
        start,
        chain.kept_at[start] if accepted else 0,
        chain.total,
        len(chain.measured),
        {client: chain.candidate(client, chosen) for client in clients},
        {client: chain.share(client, kappa) for client in clients},
    )


def choices_of_others(gains: Matrix) -> NDArray[np.integer]:
    """For each member the candidate that the others gain most by, shape (m,).

    Parameters
    ----------
    gains : ndarray, shape (candidates, m)

    Examples
    --------
    >>> choices_of_others(np.array([[0, 0, 0], [1, 1, -9]]))
    array([0, 0, 1])
    """
    return np.asarray((gains.sum(axis=1, keepdims=True) - gains).argmax(axis=0))


def judged(chain: Chain, choices: Sequence[int], metric: Measure) -> Verdict:
    """The paired test of every member's model, which the others chose, against the leaf's."""
    if not any(choices):
        trainings = counted(chain.total, "training")
        return Verdict(False, f"{trainings} by themselves give the members no better model")
    compared, leaf = [], chain.measured[0]
    for client, choice in zip(chain.members, choices, strict=True):
        if client in chain.measured[choice]:
            own, common = chain.measured[choice][client], leaf[client]
            compared.append(Comparison("", own.metrics, common.metrics, common.num_examples))
    measures = measures_in(leaf.values(), metric)
    return judge(without_outliers(compared, measures[-1]), measures)


def without_outliers(compared: Sequence[Comparison], measure: Measure) -> list[Comparison]:
    """The comparisons without gains and losses far from all others, which one member can invent.

    A loss has no bound, so a single one could outweigh those of all honest members.
    """
    known = [c for c in compared if measure.name in c.own and measure.name in c.common]
    gains = np.array([c.own[measure.name] - c.common[measure.name] for c in known])
    away = np.abs(gains - np.median(gains)) if len(gains) else gains
    limit = OUTLIER * float(np.median(away)) if len(gains) else 0.0
    return [c for c, far in zip(known, away, strict=True) if far <= limit or not limit]
