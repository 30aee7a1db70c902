"""The personal step: a leaf's model moved towards each member's own, where members still differ.

Not in the paper. At the end of a run the members of a leaf train by themselves, from the leaf's
model w and from the run's first model, if their accuracy or loss on the examples that decide
improves on the whole. Then they evaluate w + a_i (v_i − w), a_i = n_i / (n_i + κ), for a few
κ: κ = ∞ is the leaf's model, κ = 0 the member's own v_i. All members together choose the start and
κ, because a choice by one member's few examples costs what it gains. The paired test judges the
choice: each member evaluates what the others choose, so that no example judges a choice that it had
a part in. A member that its own model serves far better on its own examples gets it whatever the
others choose, and goes on training if the others give a start up.

Shares of this form are the posterior mean under a normal prior around w (James and Stein, 1961).
APFL (Deng et al., arXiv 2003.13461) interpolates in this way too, with a share for each client.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from cflower.algorithm.constants import ERROR, MOST, OUTLIER
from cflower.algorithm.paired_comparison import Comparison, Measure, Verdict, judge
from cflower.algorithm.proposals import measures_in, usual_metrics
from cflower.algorithm.robust_mean import limited
from cflower.algorithm.similarity import Matrix
from cflower.algorithm.state import (
    DECIDE,
    KAPPAS,
    Ask,
    CFLState,
    Chain,
    Judging,
    OwnModels,
    Personal,
    Reply,
    Role,
)
from cflower.algorithm.weights import Weights
from cflower.ordering import counted, listed, only

MOST_TRAININGS = 10
"""Trainings of a member from each start: most models gain nothing after six, slow ones do."""
PATIENCE = 2
"""Models without a gain, after which a start is given up to save work."""
LEAST_ROUNDS = 4
"""Rounds in which a client must train on average, so that a run is more than its personal step."""


def proposed(state: CFLState, server_round: int) -> tuple[CFLState, tuple[Ask, ...]]:
    """The state with a personal step for each leaf of two members or more, and the first asks.

    ``state`` is that after the last round.
    """
    chains, more = dict[str, Chain](), (state.first,) if state.first else ()
    for leaf in state.tree.leaves:
        members = tuple(c for c in leaf.members if c not in state.tree.unassigned)
        if len(members) > 1:
            chains[leaf.name] = Chain(server_round, members, (leaf.model, *more))
    state = replace(state, judging=Judging((), (), chains) if chains else None, personal={})
    return state, next_asks(chains)


def next_asks(chains: Mapping[str, Chain]) -> tuple[Ask, ...]:
    """Evaluations of the leaves' models; then a training, until all have; then the candidates."""
    trainings = tuple(
        Ask(c, leaf, Role.PERSONAL, chain.server_round + chain.trainings + 1, "train", DECIDE)
        for leaf, chain in chains.items()
        if chain.measured and len(chain.own) < len(chain.starts)
        for c in chain.here or chain.members
    )
    return trainings or tuple(
        Ask(c, leaf, Role.PERSONAL, chain.server_round, "evaluate", DECIDE, len(chain.measured))
        for leaf, chain in chains.items()
        if len(chain.measured) < len(chain.candidates)
        for c in chain.judges
    )


def heard(
    state: CFLState,
    replies: Iterable[Reply],
    metric: Measure,
    as_sent: Callable[[Weights], Weights],
) -> tuple[CFLState, tuple[Ask, ...]]:
    """The state after the replies to `next_asks`, and the next asks; none once it is settled."""
    assert state.judging is not None
    chains, asked = dict(state.judging.chains), next_asks(state.judging.chains)
    answers: dict[str, dict[str, Reply]] = {ask.cluster: {} for ask in asked}
    for reply in replies:
        answers[reply.ask.cluster][reply.client] = reply
    for leaf, by_client in answers.items():
        chain = chains[leaf]
        if asked[0].task == "train":  # all are of the same task
            chains[leaf] = after_training(chain, by_client, metric, as_sent)
        else:
            # A member that did not evaluate the leaf's model is left out.
            members = chain.members if chain.measured else tuple(only(by_client, chain.members))
            chains[leaf] = replace(chain, members=members, measured=(*chain.measured, by_client))
    if asks := next_asks(chains):
        return replace(state, judging=state.judging._replace(chains=chains)), asks
    results = {leaf: settled(chain, metric) for leaf, chain in chains.items()}
    return replace(state, judging=None, personal=results), ()


def after_training(
    chain: Chain, replies: dict[str, Reply], metric: Measure, as_sent: Callable[[Weights], Weights]
) -> Chain:
    """The chain after one more training.

    A start is given up if its first models gain nothing. Only members that are far better off go on
    then.
    """
    trainings, trained = chain.trainings, dict[str, Weights]()
    for client, reply in replies.items():
        assert reply.update is not None
        trained[client] = as_sent(chain.trained(client, reply.update))
    gained = chain.gained or may_gain(chain, replies, metric)
    if trainings >= PATIENCE and not gained:
        trained = only(trained, far_better_than(chain.measured[0], replies, metric))
        gained = bool(trained)
    sizes = {**chain.sizes, **{client: reply.num_examples for client, reply in replies.items()}}
    chain = replace(chain, sizes=sizes, total=chain.total + 1)
    if trained and trainings + 1 < MOST_TRAININGS and (gained or trainings < PATIENCE):
        return replace(chain, here=trained, trainings=trainings + 1, gained=gained)
    last = OwnModels(trained, trainings + 1) if trained else OwnModels(chain.here, trainings)
    own = (*chain.own, last if gained else OwnModels())
    return replace(chain, own=own, here={}, trainings=0, gained=False)


def may_gain(chain: Chain, replies: Mapping[str, Reply], metric: Measure) -> bool:
    """Whether the models that the members received gain accuracy or loss on the whole.

    A reply to a training also measures the model that the member received. A loss alone grows with
    every prediction that is too sure. An app that measures nothing in training cannot show that a
    start is of no use.
    """
    gains = gains_of(chain, replies, metric).sum(axis=1)
    return not gains.size or (chain.trainings > 0 and bool(np.any(gains > 0)))


def gains_of(chain: Chain, replies: Mapping[str, Reply], metric: Measure) -> Matrix:
    """The members' gains over the leaf's model by each measure, shape (measures, m).

    A gain is relative, (L(w) − L) / (L(w) + L) of a loss L, so from -1 to 1, and weighted by the
    member's examples, `limited` to a few usual claims. No member decides for the others: no loss
    counts for more than `MOST` usual gains, and a member that does not reply gains nothing. A
    metric that is missing in a reply counts as lost. Only measures that most of them report count.
    """
    first, usual = chain.measured[0], usual_metrics(replies.values())
    measures = [one for one in measures_in(first.values(), metric) if one.name in usual]
    gains = np.zeros((len(measures), len(chain.members)))
    for row, measure in zip(gains, measures, strict=True):
        sign = 1 if measure.higher_is_better else -1
        for place, client in enumerate(chain.members):
            before = first[client].metrics.get(measure.name)
            if client in replies and before is not None:
                now = replies[client].metrics.get(measure.name)
                row[place] = -1.0
                if now is not None:
                    row[place] = sign * (now - before) / (abs(now) + abs(before) or 1.0)
    gains *= limited(first[client].num_examples for client in chain.members)
    return np.maximum(gains, -MOST * np.median(np.abs(gains), axis=1, keepdims=True))


def settled(chain: Chain, metric: Measure) -> Personal:
    """The result of a personal step: the leaf's choice, and the members that it does not suit."""
    chosen, reason = chosen_by_all(chain, metric)
    numbers = serving(chain, chosen, metric)
    start = chain.candidates[max(numbers.values(), default=0)][0]
    if apart := [client for client, number in numbers.items() if number != chosen]:
        reason += f"; far better served by models of their own: {listed(apart)}"
    return Personal(
        reason,
        chain.kappa(chain.candidates[chosen][1]),
        start,
        chain.own[start].trainings if numbers else 0,
        chain.total,
        len(chain.measured),
        {client: chain.candidate(client, number) for client, number in numbers.items()},
        {client: chain.share(client, chain.candidates[n][1]) for client, n in numbers.items()},
    )


def chosen_by_all(chain: Chain, metric: Measure) -> tuple[int, str]:
    """The candidate that all choose, 0 unless a gain is likely, as after a trial; and the reason.

    A significant gain is too much to ask where one member of few gains a lot and the others little.
    """
    found = [gains_of(chain, replies, metric).sum(axis=0) for replies in chain.measured[1:]]
    gains = np.stack([np.zeros(len(chain.members)), *found])
    chosen = int(gains.sum(axis=1).argmax())
    verdict = judged(chain, choices_of_others(gains).tolist(), metric)
    if verdict.better and all(test.chance is None for test in verdict.tests):
        verdict = Verdict(None, "too few held-out examples to test models of their own")
    return chosen if verdict.better else 0, verdict.reason


def serving(chain: Chain, chosen: int, metric: Measure) -> dict[str, int]:
    """The number of the candidate that serves each member, without those with the leaf's model.

    It is the chosen one, unless the member's own model or the leaf's is far better. With the
    leaf's model chosen, own models are those from the first start with a gain.
    """
    if len(chain.candidates) == 1:
        return {}
    start, _ = chain.candidates[chosen or 1]
    own = chain.candidates.index((start, KAPPAS[0]))
    numbers = dict.fromkeys(chain.measured[chosen], chosen)
    for number in (0, own):
        better = far_better_than(chain.measured[chosen], chain.measured[number], metric)
        numbers |= dict.fromkeys(better, number)
    return {client: number for client, number in numbers.items() if number}


def far_better_than(
    before: Mapping[str, Reply], now: Mapping[str, Reply], metric: Measure
) -> list[str]:
    """The members whose few examples alone show that a model serves them better than another."""
    better = []
    for client, one in only(now, before).items():
        other = before[client]
        examples = min(one.num_examples, other.num_examples)
        if Comparison("", one.metrics, other.metrics, examples).shows(metric, ERROR):
            better.append(client)
    return better


def choices_of_others(gains: Matrix) -> NDArray[np.integer]:
    """For each member the candidate that the others gain most by, shape (m,).

    ``gains`` has shape (candidates, m).

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
    if not known:
        return known
    gains = np.array([c.own[measure.name] - c.common[measure.name] for c in known])
    away = np.abs(gains - np.median(gains))
    limit = OUTLIER * np.median(away) or np.inf
    return [c for c, far in zip(known, away, strict=True) if far <= limit]
