"""How the server's work grows, for `bench.py`: with clients, parameters, clusters and members.

Each curve is kept in ``docs/results/growth.csv`` and drawn in ``docs/growth.png``. The slope is
that of a line through the logarithms of the larger half of the points: 1 is proportional.
"""

import csv
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from benchmarks.measure import Figure, in_a_process
from benchmarks.server import ask_all, strategy_for
from cflower.algorithm.state import CFLState
from cflower.algorithm.tree import Cluster, ParameterTree
from cflower.simulation.inline_grid import FIRST_NODE_ID

DOCS = Path(__file__).parents[2] / "docs"
ENTRIES = 1024
GOALS = {10_000: (1.5, 0.5), 100_000: (10.0, 2.0), 1_000_000: (120.0, 6.0)}
"""Of a decision over so many members: CPU seconds and GB."""
SIZES = {
    "clients": [10, 30, 100, 300, 1000],
    "parameters": [10**4, 10**5, 10**6, 10**7, 10**8],
    "clusters": [1, 2, 4, 8, 16, 32],
    "members": [1000, *GOALS],
}
"""Of a round of 200,000 parameters; 4 clients under parameters, 96 under clusters. And of one
decision of `auto` over members with `ENTRIES` entries."""


def growth(quick: bool) -> Iterator[Figure]:
    """The slopes of the curves over clients, parameters and clusters."""
    for curve in ("clients", "parameters", "clusters"):
        sizes = SIZES[curve][: 2 if quick else None]
        times = [seconds_of_round(curve, size) for size in sizes]
        if not quick:
            keep(curve, sizes, times)
        steep = slope(sizes, times)
        yield Figure(f"slope over {curve}", "proportional", steep, 1.0, steep, 1.25, unit="")


def decisions(quick: bool) -> Iterator[Figure]:
    """CPU time and peak memory of decisions over many members, each in a process of its own."""
    sizes: list[int] = [400] if quick else SIZES["members"]
    times = []
    norms = ("norms", sizes[-1] if quick else 10_000)
    for rule, size in [norms, *(("auto", size) for size in sizes)]:
        found = in_a_process("--alone", "decision", rule, str(size), str(ENTRIES))
        seconds, memory = GOALS.get(size, GOALS[10_000])
        what = f"decision of `{rule}`, {size:,} members x {ENTRIES:,}"
        for name, unit, goal in (("seconds", "s CPU", seconds), ("gb", "GB", memory)):
            ours = found[name]
            yield Figure(what, f"{goal:g} {unit} asked for", ours, goal, ours / goal, 1, unit=unit)
        if rule == "auto":
            times.append(found["seconds"])
    if not quick:
        keep("members", sizes, times)


def seconds_of_round(curve: str, size: int) -> float:
    """Median CPU seconds of `aggregate_train`, replies one by one, after a round of warmth."""
    clients, parameters, clusters = {
        "clients": (size, 200_000, 1),
        "parameters": (4, size, 1),
        "clusters": (96, 200_000, size),
    }[curve]
    strategy = strategy_for(clients, ((parameters,),))
    strategy.state = CFLState(grown(strategy.tree, clusters))
    rng = np.random.default_rng(0)
    model = ArrayRecord({"layer0": Array(rng.standard_normal(parameters, dtype=np.float32))})
    times, arrays = [], model
    for server_round in range(1, 3 if parameters >= 10**7 else 5):
        ask_all(strategy, server_round, arrays)
        began = time.process_time()
        arrays, _ = strategy.aggregate_train(server_round, replies(clients, model))
        times.append(time.process_time() - began)
    return median(times[1:])


def replies(clients: int, model: ArrayRecord) -> Iterator[Message]:
    """The same model from everyone: what a round costs does not depend on the numbers in it."""
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
    for client in range(clients):
        request = Message(RecordDict(), FIRST_NODE_ID + client, "train")
        request.metadata.__dict__["_message_id"] = str(client)
        metrics = MetricRecord({"num-examples": 100})
        yield Message(RecordDict({"arrays": model, "metrics": metrics}), reply_to=request)


def grown(tree: ParameterTree, clusters: int) -> ParameterTree:
    """The tree with its clients dealt out to so many leaves."""
    if clusters == 1:
        return tree
    root, members = tree.root, tree.root.members
    leaves = [Cluster(f"0.{i}", members[i::clusters], root.model, born=0) for i in range(clusters)]
    parent = replace(root, children=tuple(leaf.name for leaf in leaves), split_round=0)
    return tree.update(parent, *leaves)


def slope(sizes: Sequence[int], times: Sequence[float]) -> float:
    """Of the larger half of the points, in logarithms.

    >>> round(slope([1, 10, 100, 1000], [5.0, 7.0, 20.0, 200.0]), 6)
    1.0
    """
    half = len(sizes) // 2 if len(sizes) > 2 else 0
    return float(np.polyfit(np.log(sizes[half:]), np.log(times[half:]), 1)[0])


def keep(curve: str, sizes: Sequence[int], times: Sequence[float]) -> None:
    """Replace one curve's points in the table, and draw all of them."""
    table = DOCS / "results" / "growth.csv"
    with table.open() as file:
        points = [row for row in csv.reader(file) if row[0] != curve]
    points += [
        [curve, str(size), f"{seconds:.4g}"] for size, seconds in zip(sizes, times, strict=True)
    ]
    with table.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(points)
    draw(points[1:], DOCS / "growth.png")


def draw(points: list[list[str]], path: Path) -> None:
    """The curves side by side."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, len(SIZES), figsize=(13, 3.2), layout="constrained")
    for axis, curve in zip(axes, SIZES, strict=True):
        mine = [(int(size), float(seconds)) for name, size, seconds in points if name == curve]
        if mine:
            sizes, times = zip(*mine, strict=True)
            axis.loglog(sizes, times, "o-")
            axis.set_title(f"{curve}: slope {slope(sizes, times):.2f}", loc="left")
        axis.set_xlabel(curve)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("CPU seconds of a round, server")
    axes[-1].set_ylabel("CPU seconds of a decision")
    figure.savefig(path, dpi=130)
    plt.close(figure)
