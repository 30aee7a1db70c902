"""What `bench` measures: aggregation and decisions of the server, and the personal step."""

import gc
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from command import quieten_flower
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from flwr.supercore.task_identity import TaskIdentity
from peers import own

from benchmarks.measure import Figure, alternate, in_a_process, now_mb, peak_mb
from cflower import Advised, ClusteredFL
from cflower.algorithm.criteria import Criterion, Evidence, Memory, NeverSplit
from cflower.algorithm.norm_criterion import NormCriterion
from cflower.algorithm.state import CFLState
from cflower.auto.averages import Averages
from cflower.auto.criterion import AutoCriterion
from cflower.simulation.inline_grid import FIRST_NODE_ID, InlineGrid
from cflower.strategy.run import Run

SHAPES = ((32, 1, 5, 5), (32,), (64, 32, 5, 5), (64,), (3136, 332), (332,), (332, 62), (62,))
"""A convolutional network for 28x28 images and 62 classes: 1,114,226 parameters."""
PARAMETERS = sum(int(np.prod(shape)) for shape in SHAPES)
CLIENTS = 100
GROUPS = 4
GOALS = {10_000: (1.5, 0.5), 100_000: (10.0, 2.0), 1_000_000: (120.0, 6.0)}
"""Of a decision over so many members: CPU seconds and GB."""
ALWAYS = NormCriterion(eps1=1e9, eps2=1e-9, gamma_max=0.0, min_cluster_size=1)
"""Splits whatever it is shown."""


def record(arrays: Iterator[np.ndarray]) -> ArrayRecord:
    """A model of these arrays."""
    return ArrayRecord({f"layer{i}": Array(array) for i, array in enumerate(arrays)})


def reply_of(client: int, groups: np.ndarray, shapes: tuple[tuple[int, ...], ...]) -> Message:
    """A client's reply to training from zeros: its group's direction and noise as long."""
    rng = np.random.default_rng([1, client])
    update = (groups[client % GROUPS] + rng.standard_normal(groups.shape[1])) / 100
    ends = np.cumsum([np.prod(shape) for shape in shapes])
    parts = zip(np.split(update.astype(np.float32), ends[:-1]), shapes, strict=True)
    return trained(client, record(part.reshape(shape) for part, shape in parts))


def trained(client: int, arrays: ArrayRecord) -> Message:
    """A client's reply to training with this model."""
    request = Message(RecordDict(), FIRST_NODE_ID + client, "train")
    request.metadata.__dict__["_message_id"] = str(client)
    content = RecordDict(
        {
            "arrays": arrays,
            "metrics": MetricRecord({"num-examples": 100 + client, "train-loss": 1.0}),
        }
    )
    return Message(content, reply_to=request)


def replies(clients: int, shapes: tuple[tuple[int, ...], ...]) -> Iterator[Message]:
    """One round's replies, made as they are asked for; four planted groups that cancel out."""
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
    size = sum(int(np.prod(shape)) for shape in shapes)
    halves = np.random.default_rng(0).standard_normal((GROUPS // 2, size), dtype=np.float32)
    groups = np.concatenate([halves, -halves])
    return (reply_of(client, groups, shapes) for client in range(clients))


def strategy_for(
    clients: int, shapes: tuple[tuple[int, ...], ...], criterion: Criterion | None = None
) -> ClusteredFL:
    """A strategy at the start of round 1, with everyone there and a model of zeros."""
    quieten_flower()
    strategy = ClusteredFL(criterion, min_available_nodes=clients)
    grid = InlineGrid(ClientApp(), clients, {})
    ask_all(strategy, 1, record(np.zeros(shape, np.float32) for shape in shapes), grid)
    return strategy


def run_of(strategy: ClusteredFL) -> Run:
    """The run that a strategy is in, whose state is put back to measure one round again."""
    assert strategy._run is not None
    return strategy._run


def ask_all(
    strategy: Any, server_round: int, arrays: ArrayRecord | None, grid: Grid | None = None
) -> None:
    """Ask all clients for a round's training, in messages with the ids that `reply_of` answers."""
    grid = grid or run_of(strategy).grid
    arrays = arrays or ArrayRecord()
    for message in strategy.configure_train(server_round, arrays, ConfigRecord(), grid):
        client = message.metadata.dst_node_id - FIRST_NODE_ID
        message.metadata.__dict__["_message_id"] = str(client)


def aggregation(quick: bool) -> Iterator[Figure]:
    """`aggregate_train` against FedAvg's on the same list of messages: time and peak memory."""
    clients = 10 if quick else CLIENTS
    shapes = SHAPES[:2] if quick else SHAPES
    messages = list(replies(clients, shapes))
    steady = strategy_for(clients, shapes)
    fedavg = FedAvg()
    splitting = {
        "auto": strategy_for(clients, shapes),
        "norms": strategy_for(clients, shapes, ALWAYS),
    }
    state = {}
    for name, strategy in splitting.items():
        for server_round in range(1, 20):
            state[name] = strategy.state, server_round
            arrays, _ = strategy.aggregate_train(server_round, messages)
            if len(strategy.tree.leaves) > 1:
                break
            ask_all(strategy, server_round + 1, arrays)
        else:
            raise RuntimeError(f"{name} never split the planted groups.")
    # The same replies round after round are settled at once: before the third round in which
    # `auto` sees the same parts nothing is split, and its work in round 2 is that of any other.
    never = strategy_for(clients, shapes, NeverSplit())
    for strategy in (steady, never):
        arrays, _ = strategy.aggregate_train(1, messages)
        ask_all(strategy, 2, arrays)
    before = steady.state
    advised = Advised(FedAvg(min_available_nodes=clients))
    first = record(np.zeros(shape, np.float32) for shape in shapes)
    ask_all(advised, 1, first, InlineGrid(ClientApp(), clients, {}))
    advised.aggregate_train(1, messages)

    def quiet() -> None:
        run_of(steady).state = before
        steady.aggregate_train(2, messages)
        assert len(steady.tree.leaves) == 1

    def split(name: str) -> None:
        strategy, (then, server_round) = splitting[name], state[name]
        run_of(strategy).state = then
        strategy.aggregate_train(server_round, messages)
        assert len(strategy.tree.leaves) > 1

    took = alternate(
        {
            "quiet": quiet,
            "fedavg": lambda: fedavg.aggregate_train(1, messages),
            "never": lambda: never.aggregate_train(2, messages),
            "advised": lambda: advised.aggregate_train(2, messages),
            "auto": lambda: split("auto"),
            "norms": lambda: split("norms"),
        },
        2 if quick else 9,
    )
    size = sum(int(np.prod(shape)) for shape in shapes)
    what = f"{clients} replies x {size / 1e6:.2f} M"
    theirs, fast = "FedAvg.aggregate_train", took["fedavg"]
    compared = Figure.of_times
    yield compared(f"aggregate_train, {what}, no split", theirs, took["quiet"], fast, 1.15)
    title = f"aggregate_train of Advised(FedAvg()), {what}"
    yield compared(title, theirs, took["advised"], fast, 2.5)
    title, alone = f"aggregate_train with `auto`, {what}", "the same without a criterion"
    yield compared(title, alone, took["quiet"], took["never"], 1.05)
    for name in splitting:
        yield compared(f"aggregate_train, {what}, split by {name}", theirs, took[name], fast, 1.5)
    yield from large_models(quick)
    yield from peaks(clients, quick, what)


def large_models(quick: bool) -> Iterator[Figure]:
    """`aggregate_train` without a criterion against FedAvg's, few replies of large models."""
    sizes = [
        (10, 1, 300, 1.3),
        (10, 1, 8, 1.3),
        (10, 10, 8, 1.3),
        (4, 30, 8, 2.0),
        (4, 100, 8, 2.0),
    ]
    for clients, millions, arrays, goal in [(2, 0.01, 8, 2.0)] if quick else sizes:
        shapes = ((int(millions * 1e6) // arrays,),) * arrays
        messages, fedavg = list(replies(clients, shapes)), FedAvg()
        strategy = strategy_for(clients, shapes, NeverSplit())
        model, _ = strategy.aggregate_train(1, messages)
        ask_all(strategy, 2, model)

        def ours(strategy: ClusteredFL, before: CFLState, messages: list[Message]) -> None:
            run_of(strategy).state = before
            strategy.aggregate_train(2, messages)

        took = alternate(
            {
                "ours": partial(ours, strategy, strategy.state, messages),
                "theirs": partial(fedavg.aggregate_train, 1, messages),
            },
            2 if quick else 5,
        )
        what = f"aggregate_train, {clients} replies x {millions:g} M, {arrays} arrays"
        yield Figure.of_times(what, "FedAvg.aggregate_train", took["ours"], took["theirs"], goal)


def peaks(clients: int, quick: bool, replies: str) -> Iterator[Figure]:
    """Peak growth of memory, each as it is in a run: replies as a stream, and as a list."""

    def peak(who: str) -> float:
        if quick:
            return peak_of(who, clients, 1000)["mb"]
        # A fixed threshold makes the allocator give freed arrays back at once, which takes time.
        return in_a_process("--alone", "round", who, MALLOC_MMAP_THRESHOLD_=str(2**20))["mb"]

    found = {who: peak(who) for who in ("stream", "list", "fedavg")}
    for who, title in (("stream", "as they come"), ("list", "given as a list too")):
        what = f"peak memory of aggregate_train, {replies}, {title}"
        yield Figure(what, "FedAvg with its list", found[who], found["fedavg"], 0.25, "MB")


def peak_of(who: str, clients: str | int = CLIENTS, parameters: str | int = 0) -> dict[str, float]:
    """By how many MB this process grows at its peak in one `aggregate_train`, replies included."""
    clients, shapes = int(clients), ((int(parameters),),) if parameters else SHAPES
    strategy = strategy_for(clients, shapes) if who != "fedavg" else FedAvg()
    # Once with few replies first: modules, the projection and the allocator are there then.
    strategy.aggregate_train(1, list(replies(3, shapes)))
    if isinstance(strategy, ClusteredFL):
        run_of(strategy).state = strategy_for(clients, shapes).state
    made = replies(clients, shapes)
    before = now_mb()
    strategy.aggregate_train(1, made if who == "stream" else list(made))
    return {"mb": peak_mb() - before}


def models_of(clients: str, millions: str) -> dict[str, float]:
    """By how many models each of two rounds raises a server's memory, with replies one by one."""
    size, number = int(float(millions) * 1e6), int(clients)
    shapes = ((size // 8,),) * 8
    strategy, rng = strategy_for(number, shapes, NeverSplit()), np.random.default_rng(0)

    def made() -> Iterator[Message]:
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
        for client in range(number):
            parts = (rng.standard_normal(shape, dtype=np.float32) for shape in shapes)
            yield trained(client, record(parts))

    grown = dict[str, float]()
    for server_round in (1, 2):
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5")  # the peak from now on
        before = now_mb()
        arrays, _ = strategy.aggregate_train(server_round, made())
        grown[f"round {server_round}"] = round((peak_mb() - before) / (size * 4e-6), 2)
        ask_all(strategy, server_round + 1, arrays)
    return grown


def personal(quick: bool) -> Iterator[Figure]:
    """What the personal step asks of a client, and its share of a run's CPU time.

    20 clients in four groups, which are found; and ten clients that all differ.
    """
    for clients, groups in ((20, 4), (10, 10)):
        keys = {"shift": "label-permutation", "num-groups": groups, "min-available-nodes": clients}
        keys |= {"model": "mlp", "num-server-rounds": 4 if quick else 40}
        runs = {
            name: partial(own.run, "cflower", keys | {"personal": name == "with"})
            for name in ("with", "without")
        }
        summary, _ = runs["with"]()
        steps = list(summary["personal"].values())
        what = f"personal step, {clients} clients in {groups} groups"
        for name, limit in (("trainings", 20), ("evaluations", 10)):
            most = float(max((step[name] for step in steps), default=0))
            asked_for = f"{limit} {name} asked for"
            yield Figure(what, asked_for, most, limit, 1, f"{name} a client")
        times = alternate(runs, 1 if quick else 3)
        title = f"run with a {what}"
        yield Figure.of_times(title, "without", times["with"], times["without"], 1.5)


def decisions(quick: bool) -> Iterator[Figure]:
    """CPU time and peak memory of decisions over many members, each in a process of its own."""
    sizes = [400] if quick else [1000, *GOALS]
    for rule, size in [("norms", sizes[min(1, len(sizes) - 1)]), *(("auto", n) for n in sizes)]:
        found = in_a_process("--alone", "decision", rule, str(size), "1024")
        seconds, memory = GOALS.get(size, GOALS[10_000])
        what = f"decision of `{rule}`, {size:,} members x 1,024"
        for name, unit, goal in (("seconds", "s CPU", seconds), ("gb", "GB", memory)):
            ours = found[name]
            yield Figure(what, f"{goal:g} {unit} asked for", ours, goal, 1, unit)


def decision(rule: str, members: str, entries: str) -> dict[str, float]:
    """CPU seconds of a decision over groups, one of 1 % among them, GB beyond imports, and parts.

    Of more than 100,000 members a tenth replies in each round.
    """
    m, k, before = int(members), int(entries), now_mb()
    rng = np.random.default_rng(0)
    shares = np.array([0.01, 0.09, 0.1, 0.1, 0.1, 0.2, 0.2, 0.2])
    groups = rng.choice(len(shares), m, p=shares)
    centres = rng.standard_normal((len(shares), k), dtype=np.float32)
    centres -= ((np.bincount(groups, minlength=len(shares)) / m) @ centres).astype(np.float32)
    names, turns = tuple(map(str, range(m))), 1 + 9 * (m > 100_000)

    def replied(server_round: int) -> Evidence:
        here = slice(server_round % turns, None, turns)
        updates = rng.standard_normal((len(names[here]), k), dtype=np.float32)
        for group, centre in enumerate(centres):
            updates[groups[here] == group] += centre
        count, vectors = len(updates), tuple(updates)
        norms, weights, rounds = (
            np.full(count, value) for value in (np.sqrt(2 * k), 1 / count, server_round)
        )
        clients = names[here]
        return Evidence("0", server_round, names, clients, vectors, norms, weights, 0.1, rounds)

    memory: Memory = {}
    criterion: Criterion = ALWAYS
    if rule == "auto":
        criterion = AutoCriterion(min_stable_rounds=1)
        for server_round in range(2 * turns):
            memory = vars(Averages(**memory).updated(replied(server_round)))
    evidence, began = replied(30), time.process_time()
    parts = len(criterion.decide(evidence, memory)[0].sides)
    seconds, gb = time.process_time() - began, (peak_mb() - before) / 1000
    return {"seconds": seconds, "gb": gb, "parts": parts}


ALONE: dict[str, Callable[..., dict[str, float]]] = {
    "round": peak_of,
    "memory": models_of,
    "decision": decision,
}
"""What `bench` measures in a process of its own."""
