"""What `bench` measures: how a server round grows with clients, parameters and leaves."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from statistics import median

import numpy as np
from flwr.app import Message

from benchmarks.measure import Figure, alternate
from benchmarks.server import ALWAYS, ask_all, replies, run_of, strategy_for
from cflower.algorithm.aggregation import add_scaled, empty_sum
from cflower.algorithm.criteria import NeverSplit
from cflower.algorithm.projection import Projection
from cflower.algorithm.weights import Difference, Vector, blocks, squared
from cflower.strategy.clustered_fl import ClusteredFL

LINEAR = 12.0
"""The ratio asked for at ten times the size: linear, with a fifth for the processor's cache."""


def growth(quick: bool) -> Iterator[Figure]:
    """A server round without a decision, each size against the one before."""
    clients = (10, 20) if quick else (1_000, 10_000, 100_000)
    sizes = (100, 1_000) if quick else (1_000_000, 10_000_000, 100_000_000)
    leaves = (1, 4) if quick else (1, 4, 16)
    turns = 1 if quick else 3
    yield from compared("replies x 80 parameters", clients, lambda n: of_size(n, 80), turns)
    yield from compared("parameters, 4 replies", sizes, lambda d: of_size(4, d), turns)
    length = 800 if quick else 100_000
    yield from compared("leaves, 64 replies x 0.1 M", leaves, lambda k: of_leaves(k, length), turns)


def compared(
    what: str, sizes: tuple[int, ...], at: Callable[[int], Callable[[], object]], turns: int
) -> Iterator[Figure]:
    """The CPU time at each size against that at the one before."""
    before = 0.0
    for number, size in enumerate(sizes):
        now = taken(at(size), turns)
        if number:
            against, goal = f"{sizes[number - 1]:,}", LINEAR * size / sizes[number - 1] / 10
            yield Figure(f"server round, {size:,} {what}", against, now, before, goal)
        before = now


def taken(thing: Callable[[], object], turns: int) -> float:
    """CPU seconds, the median of several turns; one turn before these does not count."""
    return median(alternate({"": thing}, turns)[""])


def of_size(clients: int, parameters: int) -> Callable[[], object]:
    """A round with so many replies of models of so many parameters, in eight arrays."""
    shapes = ((parameters // 8,),) * 8
    messages, strategy = list(replies(clients, shapes)), strategy_for(clients, shapes, NeverSplit())
    return partial(strategy.aggregate_train, 1, messages)


def of_leaves(number: int, parameters: int) -> Callable[[], object]:
    """A round of 64 clients in so many leaves: a rule that splits every leaf runs until then."""
    shapes = ((parameters // 8,),) * 8
    messages = list(replies(64, shapes))
    strategy, server_round = strategy_for(64, shapes, ALWAYS), 1
    while len(strategy.tree.leaves) < number:
        arrays, _ = strategy.aggregate_train(server_round, messages)
        server_round += 1
        ask_all(strategy, server_round, arrays)
    run = run_of(strategy)
    run.cfl = replace(run.cfl, criterion=NeverSplit())
    return partial(again, strategy, server_round, messages)


def again(strategy: ClusteredFL, server_round: int, messages: list[Message]) -> None:
    """The replies of one round, from the same state each time."""
    run = run_of(strategy)
    state = run.state
    strategy.aggregate_train(server_round, messages)
    run.state = state


class Added(Difference):
    """A difference whose parts are added to a sum as they are read: the least passes there are."""

    def __init__(self, received: Sequence[Vector], origin: Vector, total: Vector):
        super().__init__(received, origin)
        self._total = total

    def __getitem__(self, place: slice) -> Vector:
        part = super().__getitem__(place)
        add_scaled(self._total[place], part, 0.5)
        return part


def parts_of_a_reply(millions: str) -> dict[str, float]:
    """Milliseconds of what is done with one reply of so many million parameters, each by itself."""
    size = int(float(millions) * 1e6)
    rng = np.random.default_rng(0)
    received, origin = (rng.standard_normal(size, dtype=np.float32) for _ in range(2))
    update, projection = Difference([received], origin), Projection(size, 16_384)
    whole, total = update[:], empty_sum(update)

    def measured_and_added() -> None:
        projection.measured(update)
        add_scaled(total, update, 0.5)

    def at_once() -> None:
        projection.measured(Added([received], origin, total))

    parts: dict[str, Callable[[], object]] = {
        "difference": lambda: [None for _ in blocks(update)],
        "norm": lambda: sum(squared(block) for _, block in blocks(whole)),
        "norm and projection": lambda: projection.measured(whole),
        "sum": partial(add_scaled, total, whole, 0.5),
        "all, difference read twice": measured_and_added,
        "all in one pass, added before it is checked": at_once,
    }
    return {name: round(1e3 * taken(part, 9), 2) for name, part in parts.items()}
