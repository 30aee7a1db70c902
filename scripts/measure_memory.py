"""Measure the server: memory of one round's replies, and the time of a split decision.

``python scripts/measure_memory.py round [CLIENTS] [PARAMETERS]`` streams synthetic replies into
`ClusteredFL.aggregate_train` and prints by how much the process grew at its peak.
``python scripts/measure_memory.py split [CLIENTS]`` times both criteria on kept updates.
"""

import json
import sys
import time
from collections.abc import Iterator

import numpy as np
from benchmarks.measure import now_mb, peak_mb
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.task_identity import TaskIdentity

from cflower import ClusteredFL
from cflower.algorithm.auto import AutoCriterion
from cflower.algorithm.criteria import Evidence, NormCriterion
from cflower.federation.inline_grid import FIRST_NODE_ID, InlineGrid

KEPT = 16384
GROUPS = 4


def record(vector: np.ndarray) -> ArrayRecord:
    """A model of one array, with a copy of its own."""
    return ArrayRecord({"w": Array(vector)})


def one_round(clients: int = 1000, parameters: int = 1_100_000) -> dict[str, float]:
    """Peak growth in MB, and seconds, of one round with so many replies of that size."""
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
    criterion = NormCriterion(eps1=1e9, eps2=1e-9, gamma_max=0.0, min_cluster_size=1)
    strategy = ClusteredFL(criterion, min_available_nodes=clients)
    model, grid = record(np.zeros(parameters, np.float32)), InlineGrid(ClientApp(), clients, {})
    strategy.configure_train(1, model, ConfigRecord(), grid)
    rng = np.random.default_rng(0)
    noise, groups = rng.normal(size=(2, GROUPS, parameters)).astype(np.float32)

    def replies() -> Iterator[Message]:
        for i in range(clients):
            request = Message(RecordDict(), FIRST_NODE_ID + i, "train")
            request.metadata.__dict__["_message_id"] = str(i)
            update = groups[i % GROUPS] + np.float32(rng.normal()) * noise[i % 3]
            metrics = MetricRecord({"num-examples": 100})
            content = RecordDict({"arrays": record(update), "metrics": metrics})
            yield Message(content, reply_to=request)

    before, began = now_mb(), time.monotonic()
    arrays, _ = strategy.aggregate_train(1, replies())
    assert arrays is not None
    return {
        "clients": clients,
        "parameters": parameters,
        "peak_growth_mb": round(peak_mb() - before),
        "collected_mb": round(clients * parameters * 4 / 1e6),
        "seconds": round(time.monotonic() - began, 1),
        "clusters": len(strategy.tree.leaves),
    }


def split_decision(clients: int = 10_000) -> dict[str, float]:
    """Seconds of the decision of each criterion on so many kept updates, and the peak in MB."""
    rng = np.random.default_rng(0)
    centers = rng.normal(size=(GROUPS, KEPT)).astype(np.float32)
    vectors = np.empty((clients, KEPT), np.float32)
    for i in range(clients):
        vectors[i] = centers[i % GROUPS] + rng.normal(size=KEPT).astype(np.float32)
    vectors -= vectors.mean(axis=0)
    names, norms = tuple(f"client-{i}" for i in range(clients)), np.linalg.norm(vectors, axis=1)
    weights = np.full(clients, 1 / clients)
    found: dict[str, float] = {"clients": clients}

    def evidence(server_round: int) -> Evidence:
        rounds = np.full(clients, server_round)
        kept = tuple(vectors)
        return Evidence("0", server_round, clients, names, kept, norms, weights, 0.1, rounds)

    began = time.monotonic()
    decision, _ = NormCriterion(1.0, 0.1, 0.0, min_cluster_size=1).decide(evidence(1), {})
    found["norms_seconds"] = round(time.monotonic() - began, 1)
    found["norms_parts"] = len(decision.sides)
    criterion, memory = AutoCriterion(), {}
    for server_round in range(1, 5):
        began = time.monotonic()
        decision, memory = criterion.decide(evidence(server_round), memory)
        seconds = round(time.monotonic() - began, 1)
        found["auto_seconds"] = max(seconds, found.get("auto_seconds", 0.0))
    found["auto_parts"] = len(decision.sides)
    found["peak_mb"] = round(peak_mb())
    return found


if __name__ == "__main__":
    what = {"round": one_round, "split": split_decision}[sys.argv[1]]
    print(json.dumps(what(*map(int, sys.argv[2:]))))
