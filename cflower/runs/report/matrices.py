"""The similarity matrices for the page: in the order of their split, one byte an entry."""

from base64 import b64encode
from collections.abc import Mapping
from operator import itemgetter
from typing import Any

import numpy as np

from cflower.algorithm.auto.clustering import best_parts
from cflower.algorithm.bipartition import bipartition
from cflower.algorithm.criteria import Outcome
from cflower.ordering import natural_order, only
from cflower.runs.record import Line, RecordedMatrix, RunRecord

ROOM = 1_200_000
"""Bytes for all matrices of a page; those of splits come first."""


def matrices(run: RunRecord, position: Mapping[str, int]) -> dict[str, Any]:
    """The matrix of every split, and of as many refused ones as there is room for, by round.

    ``left_out`` is the number of others that were recorded.
    """
    recorded = [line for line in run.decided if run.has_matrix(line)]
    chosen = fitting(recorded)
    return {
        "shown": [matrix_entry(run, line, position) for line in chosen],
        "left_out": len(recorded) - len(chosen),
    }


def fitting(recorded: list[Line]) -> list[Line]:
    """The splits, and in the `ROOM` that they leave refused ones, spread evenly over the rounds."""
    splits = [line for line in recorded if line["decision"] == Outcome.SPLIT]
    refused = [line for line in recorded if line["decision"] != Outcome.SPLIT]
    room = max(1, ROOM - sum(map(size_of, splits)))
    step = 1 + sum(map(size_of, refused)) // room
    return sorted([*splits, *refused[::-step]], key=itemgetter("round"))


def size_of(line: Line) -> int:
    """Bytes that a line's matrix takes in the page, at most."""
    return int(len(line["members"]) ** 2 * 2 / 3)


def matrix_entry(run: RunRecord, line: Line, position: Mapping[str, int]) -> dict[str, Any]:
    """One matrix, with its sides one after the other."""
    matrix = run.matrix(line)
    assert matrix is not None  # of a recorded line
    sides = sides_of(run, line, matrix)
    order = np.concatenate(sides)
    values = matrix.values[np.ix_(order, order)][np.triu_indices(len(order), 1)]
    coded = np.rint(np.nan_to_num(values) * 127).astype(np.int8).tobytes()
    return {
        "round": line["round"],
        "cluster": line["cluster"],
        "outcome": line["decision"],
        "clients": [position[matrix.clients[i]] for i in order],
        "sides": [len(side) for side in sides],
        "values": b64encode(coded).decode(),
    }


def sides_of(run: RunRecord, line: Line, matrix: RecordedMatrix) -> list[list[int]]:
    """Positions in the matrix by side, and within a side by the clusters at the end."""
    place = {name: i for i, name in enumerate(matrix.clients)}
    children = only(run.clusters, line["children"]).values()
    sides = [list(only(place, child["edge_clients"]).values()) for child in children]
    left_out = sorted(set(place.values()).difference(*sides))
    sides = [*sides, left_out] if sides and left_out else sides or proposed_sides(run, matrix)
    clients = run.summary["clients"]

    def rank(i: int) -> tuple[Any, ...]:
        name = matrix.clients[i]
        home = clients[name]["cluster"] if name in clients else ""
        return natural_order(home), natural_order(name)

    return [sorted(side, key=rank) for side in sides]


def proposed_sides(run: RunRecord, matrix: RecordedMatrix) -> list[list[int]]:
    """The sides that the run's criterion considers in a matrix."""
    if run.criterion["name"] == "norms":
        parts = bipartition(matrix.values, run.criterion["linkage"])
        return [list(parts.first), list(parts.second)]
    labels = best_parts(matrix.values).labels
    return [np.flatnonzero(labels == part).tolist() for part in range(labels.max() + 1)]
