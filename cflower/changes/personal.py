"""The personal step: a leaf's model moved towards each member's own, where members still differ.

Not in the paper. At the end of a run the members of a leaf train its model w by themselves. Then
they measure w + a_i (v_i − w), a_i = n_i / (n_i + κ), for a few κ on the examples that decide:
κ = ∞ is the leaf's model, κ = 0 the member's own v_i. All members together choose κ, because a
choice by one member's few examples costs what it gains. Each member's voice is about what the
others choose, so that no example judges a choice that it had a part in. A member that one of both
models serves far better on its own examples gets that one, whatever the others choose.

A client whose app can do it gets one message for the whole step. Any other trains and evaluates in
ordinary messages, first once: if that is better for nobody, it is over.

Shares of this form are the posterior mean under a normal prior around w (James and Stein, 1961).
APFL (Deng et al., arXiv 2003.13461) interpolates in this way too, with a share for each client.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from math import inf
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cflower.algorithm.constants import ERROR, MOST
from cflower.algorithm.similarity import Matrix
from cflower.algorithm.state import (
    ADAPT,
    DECIDE,
    Ask,
    CFLState,
    Pending,
    Personal,
    Reply,
    Role,
    RoundResult,
    Task,
)
from cflower.algorithm.weights import Rounding, Weights
from cflower.changes.vote import Ballot, Vote, deciding, measures_in
from cflower.metric import Metric
from cflower.ordering import counted, listed, only, without

KAPPAS = (0.0, 1 / 3, 1.0, 3.0)
"""Candidates for κ, in the median number of the members' training examples; ∞ is the other one."""
MOST_TRAININGS = 10
"""Trainings of a member at most: most models gain nothing after six, slow ones do."""
HELD_OUT = "held-out"
"""In the reply to a whole step: the number of examples by which the member measured."""
Metrics = Mapping[str, float]
Stage = Literal["adapt", "train", "look", "judge"]
STAGES: Mapping[Stage, tuple[Task, int]] = {
    "adapt": ("adapt", 1),
    "train": ("train", 1),
    "look": ("evaluate", 2),
    "judge": ("evaluate", 1 + len(KAPPAS)),
}
"""The task of each stage, and the number of models that a member gets for it."""


@dataclass(frozen=True)
class Leaf:
    """The members of a leaf that take part, and what is known of them."""

    name: str
    model: Weights
    sizes: Mapping[str, float]
    """n_i, the members' training examples."""
    own: Mapping[str, Weights] = field(default_factory=dict)
    """v_i of the members that have trained."""
    measured: Mapping[str, tuple[Metrics, ...]] = field(default_factory=dict)
    """Each member's metrics under the candidates so far: the leaf's model, then each κ."""
    examples: Mapping[str, float] = field(default_factory=dict)
    """Held-out examples by which the members measured."""

    @cached_property
    def kappas(self) -> tuple[float, ...]:
        """κ of each candidate in training examples; that of the leaf's model, ∞, comes first."""
        usual = float(np.median([*self.sizes.values()]))
        return (inf, *(factor * usual for factor in KAPPAS))

    def share(self, client: str, number: int) -> float:
        """a_i of a candidate."""
        return self.sizes[client] / (self.sizes[client] + self.kappas[number])

    def candidate(self, client: str, number: int) -> Weights:
        """W + a_i (v_i − w), w the leaf's model."""
        if not number:
            return self.model
        share, own = self.share(client, number), self.own[client]
        return Weights(*(w + share * (v - w) for w, v in zip(self.model, own, strict=True)))


def leaves_of(state: CFLState) -> dict[str, Leaf]:
    """Each leaf of two members or more with a known update, by name."""
    leaves = {}
    for leaf in state.tree.leaves:
        known = only(state.known, state.tree.assigned(leaf))
        sizes = {client: update.num_examples for client, update in known.items()}
        if len(sizes) > 1:
            leaves[leaf.name] = Leaf(leaf.name, leaf.model, sizes)
    return leaves


def received(leaf: Leaf, replies: Iterable[Reply], as_sent: Rounding) -> Leaf:
    """The leaf with the members that replied: their models, or their metrics by candidate."""
    own, found = dict(leaf.own), dict[str, tuple[Metrics, ...]]()
    examples = dict[str, float]()
    for reply in sorted(replies, key=lambda reply: reply.ask.number):
        client, before = reply.client, found.get(reply.client, ())
        examples[client] = float(reply.metrics.get(HELD_OUT, reply.num_examples))
        if reply.update is not None:
            start = leaf.own.get(client, leaf.model)
            own[client] = as_sent(Weights(*map(np.add, start, reply.update)))
            found[client] = each_candidate(reply.metrics)
        elif reply.ask.number == len(before):
            found[client] = (*before, reply.metrics)
    return replace(leaf, own=only(own, found), measured=found, examples=examples)


def each_candidate(metrics: Metrics) -> tuple[Metrics, ...]:
    """The metrics of each candidate, which have its number after their names.

    >>> each_candidate({"accuracy.0": 0.5, "accuracy.1": 0.75, "train-loss": 1.0})[:2]
    ({'accuracy': 0.5}, {'accuracy': 0.75})
    """
    found: list[dict[str, float]] = [{} for _ in range(1 + len(KAPPAS))]
    for key, value in metrics.items():
        name, _, number = key.rpartition(".")
        if number.isdecimal() and int(number) < len(found):
            found[int(number)][name] = value
    return tuple(found)


@dataclass(frozen=True)
class PersonalStep(Pending):
    """The personal steps of all leaves in progress."""

    server_round: int
    leaves: Mapping[str, Leaf]
    trainings: int
    """Trainings of each member in all."""
    stage: Stage
    """What is asked now: the whole step (`ADAPT`); or a training, a look at the members' models
    after the first one, or the judgement of all candidates after the last one."""
    done: int = 0
    """Trainings so far."""
    over: Mapping[str, Personal] = field(default_factory=dict)
    """The results of leaves in which one training was better for nobody."""

    @cached_property
    def asks(self) -> tuple[Ask, ...]:
        """One message to every member, or one for each candidate."""
        task, models = STAGES[self.stage]
        first = self.trainings if task == ADAPT else 0
        now = self.server_round + (self.done + 1 if task == "train" else 0)
        return tuple(
            Ask(client, name, Role.PERSONAL, now, task, DECIDE, number)
            for name, leaf in self.leaves.items()
            for client in (leaf.own if self.done else leaf.sizes)
            for number in range(first, first + models)
        )

    def model_of(self, ask: Ask) -> Weights:
        """The model that a member trains next, or a candidate."""
        leaf = self.leaves[ask.cluster]
        if ask.task == "evaluate":
            return leaf.candidate(ask.client, ask.number)
        return leaf.own.get(ask.client, leaf.model)

    def settings_of(self, ask: Ask) -> dict[str, int | list[float]]:
        """Of a whole step: the number of trainings, and each finite κ in training examples."""
        return {"trainings": ask.number, "kappas": list(self.leaves[ask.cluster].kappas[1:])}

    def answered(
        self, state: CFLState, replies: Iterable[Reply], metric: Metric, as_sent: Rounding
    ) -> RoundResult:
        """The next stage; the end after the last one, or if there is nothing left to gain."""
        grouped = defaultdict[str, list[Reply]](list)
        for reply in replies:
            grouped[reply.ask.cluster].append(reply)
        leaves = {
            name: received(leaf, grouped[name], as_sent) for name, leaf in self.leaves.items()
        }
        ended, stage, done = leaves, self.stage, self.done
        if stage == "look":
            ended = {name: leaf for name, leaf in leaves.items() if not any_gain(leaf, metric)}
            stage = "train"
        elif stage == "train":
            ended, done = {}, done + 1
            after: dict[int, Stage] = {1: "look", self.trainings: "judge"}
            stage = after.get(done, "train")
        trainings = self.done or self.trainings
        over = {**self.over, **concluded(ended, trainings, metric, as_sent)}
        leaves = without(leaves, ended)
        step = replace(self, leaves=leaves, stage=stage, done=done, over=over)
        if step.asks:
            return RoundResult(replace(state, pending=step), (), step.asks)
        return RoundResult(replace(state, pending=None, personal=step.over), ())


def any_gain(leaf: Leaf, metric: Metric) -> bool:
    """Whether more members are better off by themselves than worse, or one far better."""
    if not leaf.measured:
        return False
    vote = Vote(tuple(gains_of(leaf, metric)[:, 1].tolist()))
    alone = (ballot(leaf, client, 1, 0).shows(metric, ERROR) for client in leaf.measured)
    return vote.better > vote.worse or any(alone)


def gains_of(leaf: Leaf, metric: Metric) -> Matrix:
    """Each member's gain by each candidate over the leaf's model, shape (m, candidates).

    No member decides for the others: no loss counts for more than `MOST` usual gains, and a
    candidate that a member did not measure counts as such a loss.
    """
    reported = [some[0] for some in leaf.measured.values()]
    measures = deciding(reported, measures_in(reported, metric))
    gains = np.full((len(leaf.measured), 1 + len(KAPPAS)), -1.0)
    for row, (client, some) in zip(gains, leaf.measured.items(), strict=True):
        for number in range(len(some)):
            row[number] = ballot(leaf, client, number, 0).gain(measures)
    usual = np.median(np.abs(gains), axis=0, keepdims=True)
    return np.asarray(np.clip(gains, -MOST * usual, MOST * usual))


def ballot(leaf: Leaf, client: str, number: int, other: int) -> Ballot:
    """A member's metrics under two candidates: none under one that it did not measure."""
    some = [*leaf.measured[client], *[dict[str, float]()] * len(leaf.kappas)]
    return Ballot(leaf.name, some[number], some[other], leaf.examples[client])


def concluded(
    leaves: Mapping[str, Leaf], trainings: int, metric: Metric, as_sent: Rounding
) -> dict[str, Personal]:
    """The result of each leaf.

    The members of all leaves show together whether personal models serve them better. A leaf may
    then go by a likely gain: its own few members are seldom enough for a significant one.
    """
    measured = {name: leaf for name, leaf in leaves.items() if leaf.measured}
    choices = {name: choice_of(gains_of(leaf, metric)) for name, leaf in measured.items()}
    gains = chain.from_iterable(choice.vote.gains for choice in choices.values())
    together, over = Vote(tuple(gains)).significant, {}
    for name, leaf in leaves.items():
        chosen, reason = 0, "no member measured the models"
        if choice := choices.get(name):
            shown = choice.vote.significant or (together and choice.vote.likely)
            chosen = choice.number if shown else 0
            reason = choice.reason(accepted=chosen > 0)
        over[name] = served_by(leaf, chosen, reason, trainings, metric, as_sent)
    return over


def served_by(
    leaf: Leaf, chosen: int, reason: str, trainings: int, metric: Metric, as_sent: Rounding
) -> Personal:
    """A leaf whose members choose a candidate, and the members that this does not suit."""
    numbers = {client: suited(leaf, client, chosen, metric) for client in leaf.measured}
    if apart := [client for client, number in numbers.items() if number != chosen]:
        reason += f"; far better served otherwise: {listed(apart)}"
    served = {client: number for client, number in numbers.items() if number}
    return Personal(
        reason,
        leaf.kappas[chosen],
        trainings,
        max(map(len, leaf.measured.values()), default=0),
        {client: as_sent(leaf.candidate(client, number)) for client, number in served.items()},
        {client: leaf.share(client, number) for client, number in served.items()},
    )


def suited(leaf: Leaf, client: str, chosen: int, metric: Metric) -> int:
    """The chosen candidate, unless one member's examples show that w or v_i is far better."""
    better = (n for n in (0, 1) if ballot(leaf, client, n, chosen).shows(metric, ERROR))
    return next(better, chosen)


class Choice(NamedTuple):
    """What the members of a leaf choose together."""

    number: int
    """The candidate that they gain most by."""
    vote: Vote
    """Each member's gain by the candidate that the others chose; if every candidate loses more than
    it gains, by the best of these."""

    def reason(self, *, accepted: bool) -> str:
        """The vote in words.

        >>> Choice(0, Vote((0.2, 0.2, 0.2, -0.9, -0.9))).reason(accepted=False)
        'models of their own serve 3 of 5 members better, 2 worse, and these lose more'
        """
        better, worse = self.vote.better, self.vote.worse
        members = counted(len(self.vote.gains), "member")
        reason = f"models of their own serve {better} of {members} better, {worse} worse"
        if accepted or better <= worse:
            return reason
        return reason + (", which may be chance" if self.number else ", and these lose more")


def choice_of(gains: Matrix) -> Choice:
    """The choice that follows from `gains_of`."""
    chosen, others = int(gains.sum(axis=0).argmax()), choices_of_others(gains)
    if not others.any():  # nobody's voice would be about a model of its own
        chosen, others = 0, others + 1 + gains[:, 1:].sum(axis=0).argmax()
    return Choice(chosen, Vote(tuple(gains[np.arange(len(gains)), others].tolist())))


def choices_of_others(gains: Matrix) -> NDArray[np.integer]:
    """For each member the candidate that the others gain most by, from `gains_of`.

    >>> choices_of_others(np.array([[0, 1], [0, 1], [0, -9]]))
    array([0, 0, 1])
    """
    return np.asarray((gains.sum(axis=0) - gains).argmax(axis=1))
