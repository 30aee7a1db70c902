"""Attacks as small programs of parts that can be drawn, changed one by one, and written as JSON."""

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import numpy as np
import typer
from numpy.typing import NDArray

from adversaries.attacks import (
    COMES_AND_GOES,
    NEW_NAMES,
    Attack,
    Measured,
    Moment,
    Turn,
    opposite,
    refusal,
)
from adversaries.runs import shift_of
from cflower.algorithm.weights import Vector, norm
from cflower.seeding import generator

CLIENTS = 20
OWN = "small_models"
REGRESSION = "regression"
"""442 patients of scikit-learn's diabetes data, a linear model."""
Mask = NDArray[np.bool_]


class Program(NamedTuple):
    """A federation and what some of its clients do: each part is one of `PARTS`."""

    model: str
    groups: str
    fraction: float
    rule: str
    """Server optimizer and aggregation."""
    hostile: int
    where: str
    """In which groups the hostile clients are."""
    when: str
    arrays: str
    rest: str
    """What they send in the other arrays."""
    direction: str
    length: float
    """Relative to the median length of the others' updates in these arrays: one of all that are
    trained, and one of each array that is not."""
    claim: float
    vote: str
    name: str
    silent: str
    presence: str
    """When its nodes are connected, and by which name."""

    @property
    def federation(self) -> dict[str, Any]:
        """The run config of the federation, but for the folder of `REGRESSION`."""
        optimizer, aggregation = self.rule.split("+")
        keys: dict[str, Any] = {"model": self.model, "aggregation": aggregation}
        keys["fraction-train"] = self.fraction
        rounds = 25 if self.fraction == 1 else 60
        keys |= {"server-optimizer": optimizer, "num-server-rounds": rounds}
        # A name that is refused is a client less.
        keys["min-available-nodes"] = CLIENTS - self.hostile
        if self.model == REGRESSION:
            keys |= {"model": "linear", "task": "regression", "label-column": "target"}
            return keys | {"learning-rate": 0.03, "shift": "none"}
        return keys | shift_of(self.groups)

    @property
    def clients(self) -> Collection[int]:
        """The hostile clients."""
        spread = [CLIENTS - 1, CLIENTS // 2 - 1, CLIENTS - 2, CLIENTS // 2 - 2]
        last = range(CLIENTS - self.hostile, CLIENTS)
        few = 2 * self.hostile < int(self.groups.rpartition(",")[2] or CLIENTS)
        return last if self.where == "last group" and few else spread[: self.hostile]

    @property
    def attack(self) -> Attack:
        """What the hostile clients do."""
        name = {"own": "", "another's": "partition-0", "unprintable": "\x1b[2J"}[self.name]
        return Attack(
            self.sent,
            self.claim,
            when=WHEN[self.when],
            report=VOTES[self.vote],
            silent=self.silent,
            name=name,
            presence=self.presence,
        )

    def sent(self, turn: Turn) -> Vector:
        """The update that a hostile client sends."""
        direction = np.asarray(DIRECTIONS[self.direction](turn), dtype=float)
        chosen, others = ARRAYS[self.arrays](turn), np.array(turn.others)
        update = np.where(chosen, 0.0, turn.own if self.rest == "own" else 0.0)
        trained = slice(0, turn.layout.num_trained)
        carried = (
            slice(trained.stop + e.place.start, trained.stop + e.place.stop)
            for e in turn.layout.entries
            if not e.trained
        )
        for place in (trained, *carried):
            here = np.where(chosen[place], direction[place], 0.0)
            if length := norm(here):
                usual = float(np.median(np.linalg.norm(others[:, place], axis=1))) or 1.0
                update[place] += self.length * usual / length * here
        return update


def random(turn: Turn, *seed: object) -> Vector:
    """Noise in which every entry is about as long as the others' are."""
    size = np.abs(turn.others).mean(axis=0) + np.abs(turn.own).mean() / 10
    return np.asarray(size * generator(0, "program", *map(str, seed)).normal(size=len(size)))


DIRECTIONS: Mapping[str, Callable[[Turn], Vector]] = {
    "own": lambda turn: turn.own,
    "mean": lambda turn: np.asarray(np.mean(turn.others, axis=0)),
    "another": lambda turn: turn.others[0],
    "noise": lambda turn: random(turn, *turn.moment),
    "even noise": lambda turn: generator(0, str(turn.moment)).normal(size=len(turn.own)),
    "same noise": lambda turn: random(turn),
    "same even noise": lambda turn: generator(0, "program").normal(size=len(turn.own)),
    "constant": lambda turn: np.ones_like(turn.own),
    "back": lambda turn: turn.back,
}


def trained(turn: Turn) -> Mask:
    return np.arange(len(turn.own)) < turn.layout.num_trained


def array(number: int) -> Callable[[Turn], Mask]:
    """One of the arrays that are trained."""

    def chosen(turn: Turn) -> Mask:
        mask = np.zeros(len(turn.own), dtype=bool)
        mask[[e.place for e in turn.layout.entries if e.trained][number]] = True
        return mask

    return chosen


def one_statistic(turn: Turn) -> Mask:
    """One entry of the last array of fractions that is not trained: BatchNorm's least variance."""
    mask, offset = np.zeros(len(turn.own), dtype=bool), turn.layout.num_trained
    fractions = [e.place for e in turn.layout.entries if not e.trained and e.dtype.kind == "f"]
    for place in fractions[-1:]:
        fallen = turn.back[offset:][place]  # since the first model, in which all are alike
        mask[offset + place.start + int(np.argmax(fallen))] = True
    return mask


def quiet(turn: Turn) -> Mask:
    """The tenth of the trained entries that the others change least: among them dead inputs."""
    change = np.abs(turn.others).mean(axis=0)
    return trained(turn) & (change <= np.quantile(change[: turn.layout.num_trained], 0.1))


ARRAYS: Mapping[str, Callable[[Turn], Mask]] = {
    "all": lambda turn: np.ones(len(turn.own), dtype=bool),
    "trained": trained,
    "statistics": lambda turn: ~trained(turn),
    "one statistic": one_statistic,
    "first": array(0),
    "second": array(1),
    "last": array(-1),
    "quiet": quiet,
}
WHEN: Mapping[str, Callable[[Moment], bool]] = {
    "always": lambda moment: True,
    "first": lambda moment: moment.asked <= 1,
    "odd": lambda moment: moment.asked % 2 == 1,
    "early": lambda moment: 4 * moment.server_round <= moment.rounds,
    "late": lambda moment: 2 * moment.server_round > moment.rounds,
    "last": lambda moment: moment.server_round > moment.rounds - 3,
    "split": lambda moment: moment.cluster.startswith("0."),
}
VOTES: Mapping[str, Callable[[Measured], tuple[float, float]]] = {
    "honest": lambda measured: measured[:2],
    "refuse": refusal,
    "opposite": opposite,
    "praise": lambda measured: (1.0, 0.0),
}
PARTS: Mapping[str, tuple[Any, ...]] = {
    # A value that is there more than once is drawn more often.
    "model": (
        "mlp",
        *(f"{OWN}:{m}" for m in ("frozen_batchnorm", "batchnorm", "normalised", "embedding")),
        REGRESSION,
    ),
    "groups": ("", "10,10", "14,6"),
    "fraction": (1.0, 0.1),
    "rule": ("fedavg+fedavg", "fedavg+fedavg", "fedadam+fedavg", "fedavg+fedmedian"),
    "hostile": (1, 2, 4),
    "where": ("last group", "all groups"),
    "when": tuple(WHEN),
    "arrays": tuple(ARRAYS),
    "rest": ("own", "nothing"),
    "direction": tuple(DIRECTIONS),
    "length": (-1e30, -1e6, -6.0, -3.0, -2.0, -1.0, 0.0, 0.5, 2.0, 3.0, 6.0, 1e6, 1e30),
    "claim": (0.01, 1.0, 3.0, 1e9),
    "vote": tuple(VOTES),
    "name": (*["own"] * 18, "another's", "unprintable"),
    "silent": (*[""] * 18, "train", "evaluate"),
    "presence": (*[""] * 6, COMES_AND_GOES, NEW_NAMES),
}


def parts(text: str) -> dict[str, Any]:
    """Parts of programs, as they are written on a command line.

    >>> parts("hostile=1,rule=fedavg+fedavg")
    {'hostile': 1, 'rule': 'fedavg+fedavg'}
    """
    found = {}
    for pair in filter(None, text.split(",")):
        name, _, written = pair.partition("=")
        values = {str(value): value for value in PARTS.get(name, ())}
        if written not in values:
            known = ", ".join(values) or ", ".join(PARTS)
            raise typer.BadParameter(f"{pair!r}: choose from {known}")
        found[name] = values[written]
    return found


def drawn(rng: np.random.Generator) -> Program:
    """A program of parts drawn one by one."""
    return Program(*(values[rng.integers(len(values))] for values in PARTS.values()))


def changed(program: Program, rng: np.random.Generator) -> Program:
    """A program with one part drawn anew."""
    name = list(PARTS)[rng.integers(len(PARTS))]
    values = [value for value in PARTS[name] if value != getattr(program, name)]
    return program._replace(**{name: values[rng.integers(len(values))]})


def mixed(one: Program, other: Program, rng: np.random.Generator) -> Program:
    """A program with each part from one of two."""
    return Program(*(pair[rng.integers(2)] for pair in zip(one, other, strict=True)))
