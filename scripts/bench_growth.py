"""How the server's work in a round grows: with clients, with parameters, with clusters.

    OMP_NUM_THREADS=1 python scripts/bench_growth.py [clients] [parameters] [clusters]

Measures `ClusteredFL.aggregate_train` on synthetic replies that come one by one, in CPU seconds,
median of three rounds (one, from 10 M parameters on), writes ``docs/results/growth.csv`` and draws
``docs/growth.png`` from it. The slope is that of a line through the logarithms of the larger half
of the points: 1 is proportional. A curve that is not named keeps its points.
"""

import csv
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
from benchmarks.server import strategy_for
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from cflower.algorithm.cfl_round import CFLState
from cflower.algorithm.tree import Cluster, ParameterTree

DOCS = Path(__file__).parents[1] / "docs"
Point = tuple[str, int, float]
"""Curve, size, CPU seconds."""


def over_clients() -> Iterator[tuple[int, float]]:
    """10 to 1,000 clients, 200,000 parameters, one cluster."""
    for clients in (10, 30, 100, 300, 1000):
        yield clients, seconds_of_round(clients, 200_000)


def over_parameters() -> Iterator[tuple[int, float]]:
    """10 k to 100 M parameters, four clients, one cluster."""
    for parameters in (10**4, 10**5, 10**6, 10**7, 10**8):
        turns = 1 if parameters >= 10**7 else 3
        yield parameters, seconds_of_round(4, parameters, turns=turns)


def over_clusters() -> Iterator[tuple[int, float]]:
    """1 to 32 clusters of together 96 clients, 200,000 parameters."""
    for clusters in (1, 2, 4, 8, 16, 32):
        yield clusters, seconds_of_round(96, 200_000, clusters)


CURVES: dict[str, Callable[[], Iterator[tuple[int, float]]]] = {
    "clients": over_clients,
    "parameters": over_parameters,
    "clusters": over_clusters,
}


def seconds_of_round(clients: int, parameters: int, clusters: int = 1, turns: int = 3) -> float:
    """Median CPU seconds of `aggregate_train`, after a first round that does not count."""
    strategy = strategy_for(clients, ((parameters,),))
    strategy.state = CFLState(grown(strategy.tree, clusters))
    rng = np.random.default_rng(0)
    model = ArrayRecord({"layer0": Array(rng.standard_normal(parameters, dtype=np.float32))})
    times = []
    for server_round in range(1, turns + 2):
        began = time.process_time()
        strategy.aggregate_train(server_round, replies(clients, model))
        times.append(time.process_time() - began)
    return median(times[1:])


def replies(clients: int, model: ArrayRecord) -> Iterator[Message]:
    """The same model from everyone: what a round costs does not depend on the numbers in it."""
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
    for client in range(clients):
        request = Message(RecordDict(), client + 2, "train")
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


def slope(points: list[tuple[int, float]]) -> float:
    """Of the larger half of the points, in logarithms.

    >>> round(slope([(1, 5.0), (10, 7.0), (100, 20.0), (1000, 200.0)]), 6)
    1.0
    """
    half = points[len(points) // 2 :]
    return float(np.polyfit(*np.log([list(p) for p in half]).T, 1)[0])


def draw(points: list[Point], path: Path) -> None:
    """Three curves side by side."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, len(CURVES), figsize=(11, 3.2), layout="constrained")
    for axis, (name, measure) in zip(axes, CURVES.items(), strict=True):
        mine = [(size, seconds) for curve, size, seconds in points if curve == name]
        if mine:
            axis.loglog(*zip(*mine, strict=True), "o-")
            axis.set_title(f"{name}: slope {slope(mine):.2f}", loc="left")
        axis.set_xlabel((measure.__doc__ or "").rstrip("."), fontsize=7)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("CPU seconds per round, server")
    figure.savefig(path, dpi=130)
    plt.close(figure)


def main(names: list[str]) -> None:
    """Measure the named curves, all if none is named."""
    table = DOCS / "results" / "growth.csv"
    points: list[Point] = []
    if table.exists():
        with table.open() as file:
            points = [
                (r["curve"], int(r["size"]), float(r["seconds"])) for r in csv.DictReader(file)
            ]
    for name in names or CURVES:
        points = [point for point in points if point[0] != name]
        for size, seconds in CURVES[name]():
            print(f"{name} {size:,}: {seconds:.4f} s", flush=True)
            points.append((name, size, float(f"{seconds:.4g}")))
    with table.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([("curve", "size", "seconds"), *points])
    draw(points, DOCS / "growth.png")


if __name__ == "__main__":
    main(sys.argv[1:])
