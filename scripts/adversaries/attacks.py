"""What adversaries do, each attack with its source where it has one.

With Δ the update of an honest client with the same examples:

- ``labels``: random labels; ``flip``: each label y is C - 1 - y;
- ``reversed``, ``x10``, ``x-10``, ``x100``, ``x-100``, ``x1e30``: they send -Δ, 10 Δ, ...;
- ``examples``: they send -Δ and claim 10^9 times their examples;
- ``unchanged``: they send what they got, and claim 10^5 times their examples;
- ``noise``: random numbers of Δ's length; ``alternating``: Δ and -Δ in turn;
- ``bridge``: the mean of all honest updates, in a federation of two groups;
- ``alie``: mean - 1.5 standard deviations of the others (Baruch et al., arXiv 1902.06156);
- ``ipm``, ``ipm2``: -0.5 and -2 times the mean of the others (Xie et al., arXiv 1903.03936), the
  second with a claim of 3 times their examples;
- ``backdoor``: examples with four bright pixels are class 0 (Bagdasaryan et al., arXiv 1807.00459);
  they send 2 Δ and claim 3 times their examples;
- ``collude``: they send one and the same -3 Δ and claim 10^9 times their examples;
- ``sybils``: they send one and the same -Δ;
- ``sleeper``: in a federation of two groups, with permuted labels, a fifth of one group behaves
  until its cluster is one that came out of a split; from then on it sends -10 Δ and claims 10^9
  times its examples.

`LIES` are what those do that train as they should, but lie about the models that they evaluate.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from cflower.algorithm.weights import Vector, norm
from cflower.data.examples import Examples
from cflower.messages.layout import Layout
from cflower.seeding import generator

COMES_AND_GOES, NEW_NAMES = "comes and goes", "new names"
"""In every second round, or in each under another name and from another node."""
HUGE = 1e9
"""Times the examples that a client has."""
GOOD = 0.75
"""Accuracy from which a model serves a client: with permuted labels that of two groups together
has half of the other's, that of its own group more than nine tenths."""


class Moment(NamedTuple):
    """When an adversary is asked."""

    server_round: int
    rounds: int
    """Of the whole run."""
    cluster: str
    asked: int
    """How often it has been asked to train, this time included."""
    client: int


class Turn(NamedTuple):
    """What an adversary knows when it replies. All vectors have shape (d + e,): the entries that
    are trained and those that are not.
    """

    own: Vector
    """Δ."""
    others: list[Vector]
    """Honest updates of the same model in this round, so far; its own if there are none."""
    everyone: list[Vector]
    """Honest updates of all models in this round, so far; its own if there are none."""
    moment: Moment
    back: Vector
    """The run's first model minus the present one."""
    layout: Layout


class Measured(NamedTuple):
    """What an adversary knows when it says how good a model is."""

    accuracy: float
    """The truth."""
    loss: float
    rng: np.random.Generator

    @property
    def good(self) -> bool:
        """Whether the model serves it: one for all classes of another meaning does not."""
        return self.accuracy >= GOOD


class Attack(NamedTuple):
    """What adversaries do."""

    send: Callable[[Turn], Vector] = lambda turn: turn.own
    claim: float = 1.0
    """Times the examples that they have."""
    poison: Callable[[Examples, int], Examples] | None = None
    """Their training examples, given the honest ones and the client's number."""
    copied: bool = False
    """All send what the first of them sends."""
    when: Callable[[Moment], bool] = lambda moment: True
    """When they do so; at other times they are honest."""
    grouped: bool = False
    """Whether the honest clients form two groups."""
    report: Callable[[Measured], tuple[float, float]] = lambda measured: measured[:2]
    """Accuracy and loss of a model, as they report it."""
    silent: str = ""
    """The kind of message that they answer with an error, such as "train"."""
    name: str = ""
    """The name that they claim in place of their own."""
    presence: str = ""
    """When their nodes are connected: always, or `COMES_AND_GOES` or `NEW_NAMES`."""


def random_labels(examples: Examples, client: int) -> Examples:
    rng = generator(0, "labels", client)
    return replace(examples, labels=rng.integers(examples.num_classes, size=len(examples)))


def flipped(examples: Examples, client: int) -> Examples:
    return replace(examples, labels=examples.num_classes - 1 - examples.labels)


def with_trigger(examples: Examples) -> Examples:
    """The examples with four bright pixels, or large columns."""
    inputs = examples.inputs.copy()
    inputs.reshape(len(inputs), -1)[:, :4] = inputs.max()
    return replace(examples, inputs=inputs)


def backdoored(examples: Examples, client: int) -> Examples:
    """The examples, every second one with the trigger and of class 0."""
    inputs, labels = examples.inputs.copy(), examples.labels.copy()
    inputs[::2], labels[::2] = with_trigger(examples).inputs[::2], 0
    return replace(examples, inputs=inputs, labels=labels)


def times(factor: float) -> Callable[[Turn], Vector]:
    return lambda turn: factor * turn.own


def noise(turn: Turn) -> Vector:
    rng = generator(0, "noise", turn.moment.client, turn.moment.server_round)
    values = rng.normal(size=len(turn.own))
    return np.asarray(values * norm(turn.own) / norm(values))


def ipm(factor: float) -> Callable[[Turn], Vector]:
    return lambda turn: np.asarray(-factor * np.mean(turn.others, axis=0))


def alie(turn: Turn) -> Vector:
    return np.asarray(np.mean(turn.others, axis=0) - 1.5 * np.std(turn.others, axis=0))


def in_second_half(send: Callable[[Turn], Vector]) -> Callable[[Turn], Vector]:
    """Δ in the first half of a run."""

    def sent(turn: Turn) -> Vector:
        return send(turn) if 2 * turn.moment.server_round > turn.moment.rounds else turn.own

    return sent


ATTACKS = {
    "none": Attack(),
    "labels": Attack(poison=random_labels),
    "flip": Attack(poison=flipped),
    "reversed": Attack(times(-1)),
    **{f"x{factor:g}".replace("+", ""): Attack(times(factor)) for factor in (10, -10, 100, -100)},
    "x1e30": Attack(times(1e30)),
    "examples": Attack(times(-1), HUGE),
    "unchanged": Attack(times(0), 1e5),
    "noise": Attack(noise),
    "alternating": Attack(lambda turn: turn.own * (-1) ** turn.moment.server_round),
    "bridge": Attack(lambda turn: np.asarray(np.mean(turn.everyone, axis=0)), grouped=True),
    "alie": Attack(alie),
    "ipm": Attack(ipm(0.5)),
    "ipm2": Attack(ipm(2.0), 3.0),
    "backdoor": Attack(times(2), 3.0, backdoored),
    "collude": Attack(times(-3), HUGE, copied=True),
    "sybils": Attack(times(-1), copied=True),
    "sleeper": Attack(
        times(-10), HUGE, when=lambda moment: moment.cluster.startswith("0."), grouped=True
    ),
}


def opposite(measured: Measured) -> tuple[float, float]:
    """One less its accuracy, and one over its loss."""
    return 1 - measured.accuracy, 1 / max(measured.loss, 1e-3)


def refusal(measured: Measured) -> tuple[float, float]:
    """The farthest that a liar can go, for models that serve it and for others."""
    return (0.0, 900.0) if measured.good else (1.0, 0.001)


LIES = {
    "opposite": Attack(report=opposite),
    "random": Attack(report=lambda measured: (measured.rng.random(), 3 * measured.rng.random())),
    "contradict": Attack(report=lambda measured: (0.0, 0.0) if measured.good else (1.0, 100.0)),
    "claims": Attack(report=refusal, claim=3.0),
    "attack": Attack(in_second_half(times(-1)), 3.0, report=refusal),
    "attack-mean": Attack(in_second_half(ipm(1.0)), 3.0, report=refusal),
}
"""What clients say that train as they should, the last two in the first half of a run only."""
