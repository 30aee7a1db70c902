"""The similarity matrices for the page: in the order of their split, one byte an entry."""

from base64 import b64encode
from collections.abc import Mapping
from typing import Any

import numpy as np

from cflower.algorithm.auto.clustering import best_clustering
from cflower.algorithm.bipartition import bipartition
from cflower.algorithm.criteria import Outcome
from cflower.algorithm.similarity import Gram
from cflower.ordering import natural_order
from cflower.runs.record import Line, RecordedMatrix, RunRecord

ROOM = 1_200_000
"""Bytes for all matrices of a page; those of splits come first."""


def matrices(run: RunRecord, position: Mapping[str, int]) -> dict[str, Any]:
    """Every split's matrix, and of the refused ones as many as there is room for.

    Returns
    -------
    dict
        ``shown``, by round, and ``left_out``, how many were recorded but are not shown.
    """
    recorded = [
        line for line in run.lines if line["cluster"] in run.clusters and run.has_matrix(line)
    ]
    chosen = fitting(recorded)
    return {
        "shown": [entry for line in chosen if (entry := matrix_entry(run, line, position))],
        "left_out": len(recorded) - len(chosen),
    }


def fitting(recorded: list[Line]) -> list[Line]:
    """The splits, and refused splits spread evenly over the rounds, within `ROOM`."""
    splits = [line for line in recorded if line["decision"] == Outcome.SPLIT]
    refused = [line for line in recorded if line["decision"] != Outcome.SPLIT]
    room = ROOM - sum(size_of(line) for line in splits)
    needed = sum(size_of(line) for line in refused)
    if needed > room:
        step = int(np.ceil(needed / max(room, 1)))
        refused = refused[::-1][::step] if room > 0 else []
    return sorted([*splits, *refused], key=lambda line: int(line["round"]))


def size_of(line: Line) -> int:
    """Bytes that a line's matrix takes in the page, at most."""
    return int(len(line["members"]) ** 2 * 2 / 3)


def matrix_entry(run: RunRecord, line: Line, position: Mapping[str, int]) -> dict[str, Any] | None:
    """One matrix, its sides after each other; None if it is not there any more."""
    matrix = run.matrix(line)
    if matrix is None or len(matrix.clients) < 2:
        return None
    sides = sides_of(run, line, matrix)
    order = [i for side in sides for i in side]
    values = matrix.values[np.ix_(order, order)][np.triu_indices(len(order), 1)]
    return {
        "round": line["round"],
        "cluster": line["cluster"],
        "outcome": line["decision"],
        "clients": [position[matrix.clients[i]] for i in order],
        "sides": [len(side) for side in sides],
        "values": b64encode(
            np.rint(np.nan_to_num(values) * 127).astype(np.int8).tobytes()
        ).decode(),
    }


def sides_of(run: RunRecord, line: Line, matrix: RecordedMatrix) -> list[list[int]]:
    """Positions in the matrix by side; within one, clients that ended together stand together."""
    homes = {name: str(told.get("cluster")) for name, told in run.summary["clients"].items()}

    def rank(i: int) -> tuple[Any, ...]:
        name = matrix.clients[i]
        return natural_order(homes.get(name, "")), natural_order(name)

    children = line["children"]
    if line["decision"] == Outcome.SPLIT and all(child in run.clusters for child in children):
        # Those who were placed later, without an update at the time, are in no edge.
        edges = [set(run.clusters[child]["edge_clients"]) for child in children]
        sides = [[i for i, name in enumerate(matrix.clients) if name in edge] for edge in edges]
        if all(sides) and sum(map(len, sides)) == len(matrix.clients):
            return [sorted(side, key=rank) for side in sides]
    if run.criterion["name"] == "norms":
        two = bipartition(matrix.values, run.criterion["linkage"])
        found = [list(two.first), list(two.second)]
    else:
        labels = best_clustering(Gram(matrix.values)).labels
        found = [np.flatnonzero(labels == part).tolist() for part in range(labels.max() + 1)]
    return [sorted(side, key=rank) for side in found]
