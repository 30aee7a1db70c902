"""The personal step: a leaf's model moved towards each member's own, where members still differ.

Not in the paper. At the end of a run the members of a leaf train its model w by themselves. Then
each measures w and the mix w + a_i (v_i − w), a_i = n_i / (n_i + κ), on the examples that decide:
v_i is the model that it trained, n_i its number of training examples, and κ a tenth of the median
one. The members vote on the mix together, because a choice by one member's few examples overfits.
It must gain by the metric that leads and by a proper score: a model that trains longer is always
surer, and a score that pays for confidence elects models that only overfit.

Most leaves do not need the step, and one training is enough to see that. So the members make a
first attempt with one training, and go on from there, as often as they may, only where it promises
a gain. Where the run can afford no second attempt, the first has all trainings.

A member that is alone in a cluster of others has no majority. If its own examples show that its mix
serves it better, it gets that, whatever the others vote.

A client whose app can do it gets one message for the whole step. Any other trains and evaluates in
ordinary messages.

Shares of this form are the posterior mean under a normal prior around w (James and Stein, 1961).
APFL (Deng et al., arXiv 2003.13461) interpolates in this way too, with a share for each client.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from math import inf
from typing import Literal

import numpy as np

from cflower.algorithm.constants import SIGNIFICANT
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
    Training,
)
from cflower.algorithm.weights import Rounding, Weights
from cflower.changes.vote import Ballot, Vote, compared, vote_of
from cflower.metric import Metric
from cflower.ordering import counted, in_order, listed, only, without

KAPPA = 0.1
"""κ in the median number of the members' training examples."""
LEAF, MIX = 0, 1
"""The numbers of the two models that a member measures."""
EVALUATIONS = 2
"""Models that a member evaluates in an attempt."""
DECIDING = "deciding-examples"
"""In the reply to a whole step: the number of examples by which the member measured."""
MOST_TRAININGS = 10
"""Trainings of a member at most: most models gain nothing after six, slow ones do."""
Metrics = Mapping[str, float]
Stage = Literal["adapt", "train", "judge"]
STAGES: Mapping[Stage, tuple[Task, tuple[int, ...]]] = {
    "adapt": ("adapt", (LEAF,)),
    "train": ("train", (LEAF,)),
    "judge": ("evaluate", (LEAF, MIX)),
}
"""The task of each stage, and the models that a member gets for it."""


@dataclass(frozen=True)
class Leaf:
    """The members of a leaf that take part, and what is known of them."""

    name: str
    model: Weights
    sizes: Mapping[str, float]
    """n_i, the members' training examples."""
    own: Mapping[str, Weights] = field(default_factory=dict)
    """v_i of the members that have trained."""
    measured: Mapping[str, Mapping[int, Metrics]] = field(default_factory=dict)
    """Each member's metrics of the leaf's model and of its mix."""
    examples: Mapping[str, float] = field(default_factory=dict)
    """The number of examples by which each member measured them."""
    evaluated: int = 0
    """Models that each member evaluated in the attempt before."""

    @cached_property
    def kappa(self) -> float:
        """κ in training examples."""
        return KAPPA * float(np.median([*self.sizes.values()]))

    @cached_property
    def ballots(self) -> dict[str, Ballot]:
        """Each member's metrics of its mix, and of the leaf's model."""
        both = self.measured.items()
        return {c: Ballot(self.name, one.get(MIX, {}), one.get(LEAF, {})) for c, one in both}

    @property
    def with_mix(self) -> list[str]:
        """The members that measured their mix."""
        return [client for client, ballot in self.ballots.items() if ballot.own]

    def sure(self, metric: Metric) -> list[str]:
        """The members whose own examples show that their mix serves them better."""
        return [c for c, one in self.ballots.items() if one.shows(metric, self.examples.get(c, 0))]

    def again(self, *, at_once: bool) -> "Leaf":
        """The leaf before a second attempt; members with the whole step have kept their models."""
        own = {} if at_once else self.own
        return replace(self, own=own, measured={}, evaluated=EVALUATIONS)

    def share(self, client: str) -> float:
        """a_i, the share of a member's own model in its mix."""
        return self.sizes[client] / (self.sizes[client] + self.kappa)

    def mix(self, client: str) -> Weights:
        """The mix w + a_i (v_i − w) of the leaf's model w and the member's own v_i."""
        share, own = self.share(client), self.own[client]
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
    """The leaf with the members that replied: their models, or their metrics of both models."""
    own, measured = dict(leaf.own), defaultdict[str, dict[int, Metrics]](dict)
    examples = dict[str, float]()
    for reply in replies:
        client = reply.client
        if isinstance(reply, Training):
            start = leaf.own.get(client, leaf.model)
            own[client] = as_sent(Weights(*map(np.add, start, reply.update)))
            measured[client] = by_number(reply.metrics)
            examples[client] = float(reply.metrics.get(DECIDING, 0))
        else:
            measured[client][reply.ask.number] = reply.metrics
            examples[client] = reply.num_examples
    return replace(leaf, own=only(own, measured), measured=measured, examples=examples)


def by_number(metrics: Metrics) -> dict[int, Metrics]:
    """The metrics of each model, which have its number after their names.

    >>> by_number({"accuracy.0": 0.5, "accuracy.1": 0.75, "train-loss": 1.0})
    {0: {'accuracy': 0.5}, 1: {'accuracy': 0.75}}
    """
    ends = {number: f".{number}" for number in (LEAF, MIX)}
    return {
        number: {k.removesuffix(end): v for k, v in metrics.items() if k.endswith(end)}
        for number, end in ends.items()
    }


@dataclass(frozen=True)
class PersonalStep(Pending):
    """The personal steps of all leaves in progress."""

    server_round: int
    leaves: Mapping[str, Leaf]
    most: int
    """Trainings of each member at the end of the last attempt."""
    stage: Stage
    """What is asked now: the whole step (`ADAPT`), a training, or the judgement after the last."""
    trainings: int = 1
    """Trainings of each member at the end of this attempt."""
    done: int = 0
    """Those so far."""
    over: Mapping[str, Personal] = field(default_factory=dict)
    """The results of the leaves that made one attempt."""

    @cached_property
    def asks(self) -> tuple[Ask, ...]:
        """One message to every member, or one for each model."""
        task, models = STAGES[self.stage]
        models = (self.trainings - self.done,) if task == ADAPT else models
        now = self.server_round + (self.done + 1 if task == "train" else 0)
        return tuple(
            Ask(client, name, Role.PERSONAL, now, task, DECIDE, number)
            for name, leaf in self.leaves.items()
            for client in (leaf.own if self.done and task != ADAPT else leaf.sizes)
            for number in models
        )

    def model_of(self, ask: Ask) -> Weights:
        """The model that a member trains next, or measures."""
        leaf = self.leaves[ask.cluster]
        if ask.task == "evaluate":
            return leaf.mix(ask.client) if ask.number == MIX else leaf.model
        return leaf.own.get(ask.client, leaf.model)

    def settings_of(self, ask: Ask) -> dict[str, int | float]:
        """The settings of a whole step: the trainings since the leaf's model, and the share a_i."""
        return {"trainings": self.trainings, "share": self.leaves[ask.cluster].share(ask.client)}

    def answered(
        self, state: CFLState, replies: Iterable[Reply], metric: Metric, as_sent: Rounding
    ) -> RoundResult:
        """The next stage, or the end after the last one."""
        grouped = defaultdict[str, list[Reply]](list)
        for reply in replies:
            grouped[reply.ask.cluster].append(reply)
        leaves = {
            name: received(leaf, grouped[name], as_sent) for name, leaf in self.leaves.items()
        }
        if self.stage == "train":
            done = self.done + 1
            stage: Stage = "train" if done < self.trainings else "judge"
            step = replace(self, leaves=leaves, stage=stage, done=done)
            if step.asks:
                return RoundResult(replace(state, pending=step), (), step.asks)
        votes = {name: votes_of(leaf, metric) for name, leaf in leaves.items()}
        going = promising(votes) if self.trainings < self.most else []
        ended = without(leaves, going)
        over = {**self.over, **concluded(ended, votes, self.trainings, metric, as_sent)}
        if going:
            at_once = self.stage == ADAPT
            step = replace(
                self,
                leaves={name: leaves[name].again(at_once=at_once) for name in going},
                stage=ADAPT if at_once else "train",
                trainings=self.most,
                done=self.trainings,
                over=over,
            )
            return RoundResult(replace(state, pending=step), (), step.asks)
        personal = only(over, in_order(over))
        return RoundResult(replace(state, pending=None, personal=personal), ())


Votes = Mapping[str, tuple[Vote, Vote]]
"""The `votes_of` each leaf."""


def together(votes: Votes) -> tuple[Vote, Vote]:
    """The votes of the members of all leaves."""
    everyone, leading = (
        Vote(tuple(chain.from_iterable(vote.gains for vote in some)))
        for some in zip(*votes.values(), strict=True)
    )
    return everyone, leading


def promising(votes: Votes) -> list[str]:
    """The leaves with a likely gain; all, if that of all members together is significant."""
    everyone, _ = together(votes)
    return [name for name, (vote, _) in votes.items() if vote.likely or everyone.significant]


def concluded(
    leaves: Mapping[str, Leaf], votes: Votes, trainings: int, metric: Metric, as_sent: Rounding
) -> dict[str, Personal]:
    """The result of each of these leaves after so many trainings.

    The step is accepted if the gain of its own members is significant, and likely by the metric
    that leads, too. Few members are seldom enough for that: for them a likely gain is enough if the
    gain of the members of all leaves is significant, and likely by the metric that leads.
    """
    everyone, leading_of_all = together(votes)
    all_gain, over = everyone.significant and leading_of_all.likely, {}
    for name, leaf in leaves.items():
        vote, leading = votes[name]
        alone = vote.chance <= SIGNIFICANT and leading.likely
        with_all = all_gain and vote.likely and leading.better >= leading.worse
        accepted = alone or with_all
        served = leaf.with_mix if accepted else leaf.sure(metric)
        reason = reason_of(vote, leading, metric, accepted=accepted)
        if served and not accepted:
            reason += f"; better served by their mix, as their own examples show: {listed(served)}"
        over[name] = Personal(
            reason,
            leaf.kappa if accepted else inf,
            trainings,
            leaf.evaluated + max(map(len, leaf.measured.values()), default=0),
            {client: as_sent(leaf.mix(client)) for client in served},
            {client: leaf.share(client) for client in served},
        )
    return over


def reason_of(vote: Vote, leading: Vote, metric: Metric, *, accepted: bool) -> str:
    """A leaf's votes in words.

    >>> reason_of(Vote((0.2, 0.2, -0.1)), Vote((0.0, 0.0, -0.1)), Metric(), accepted=False)
    'a mix with a model of its own serves 2 of 3 members better, 1 worse; by accuracy 0 and 1'
    """
    if not vote.gains:
        return "no member measured the models"
    members = counted(len(vote.gains), "member")
    reason = f"a mix with a model of its own serves {vote.better} of {members} better"
    reason += f", {vote.worse} worse"
    if accepted or vote.better <= vote.worse:
        return reason
    if leading.better < leading.worse:
        return f"{reason}; by {metric.name} {leading.better} and {leading.worse}"
    return f"{reason}, which may be chance"


def votes_of(leaf: Leaf, metric: Metric) -> tuple[Vote, Vote]:
    """The members' gains by their mixes: by all measures, and by the metric that leads alone."""
    ballots, measures = compared(leaf.ballots.values(), metric)
    return vote_of(ballots, measures), vote_of(ballots, measures[:1])
