"""The similarity matrices for the page: in the order of their split, one byte an entry."""

from base64 import b64encode
from operator import attrgetter
from typing import Any

import numpy as np

from cflower.algorithm.bipartition import bipartition
from cflower.algorithm.criteria import Outcome
from cflower.auto.clustering import best_parts
from cflower.ordering import natural_order, only
from cflower.runs.record import RecordedMatrix, RunRecord
from cflower.runs.records import Line


def matrices(run: RunRecord) -> list[dict[str, Any]]:
    """The matrix of every split, and the last one of each cluster that was not split, by round."""
    shown = []
    for lines in only(run.by_cluster, run.clusters).values():
        recorded = list(filter(run.has_matrix, lines))
        splits = [line for line in recorded if line.decision == Outcome.SPLIT]
        shown += splits or recorded[-1:]
    return [matrix_entry(run, line) for line in sorted(shown, key=attrgetter("round"))]


def matrix_entry(run: RunRecord, line: Line) -> dict[str, Any]:
    """One matrix, with its sides one after the other."""
    matrix = run.matrix(line)
    assert matrix is not None  # of a recorded line
    sides = sides_of(run, line, matrix)
    order = np.concatenate(sides)
    values = matrix.values[np.ix_(order, order)][np.triu_indices(len(order), 1)]
    coded = np.rint(np.nan_to_num(values) * 127).astype(np.int8).tobytes()
    return {
        "round": line.round,
        "cluster": line.cluster,
        "outcome": line.decision,
        "clients": [run.position[matrix.clients[i]] for i in order],
        "sides": [len(side) for side in sides],
        "values": b64encode(coded).decode(),
    }


def sides_of(run: RunRecord, line: Line, matrix: RecordedMatrix) -> list[list[int]]:
    """Positions in the matrix by side, and within a side by the clusters at the end."""
    place = {name: i for i, name in enumerate(matrix.clients)}
    children = only(run.clusters, line.children).values()
    sides = [list(only(place, child.edge_clients).values()) for child in children]
    left_out = sorted(set(place.values()).difference(*sides))
    sides = [*sides, left_out] if sides and left_out else sides or proposed_sides(run, matrix)
    home = {name: client.cluster for name, client in run.summary.clients.items()}
    names = matrix.clients
    ranks = [(natural_order(home.get(name, "")), natural_order(name)) for name in names]
    return [sorted(side, key=ranks.__getitem__) for side in sides]


def proposed_sides(run: RunRecord, matrix: RecordedMatrix) -> list[list[int]]:
    """The sides that the run's criterion considers in a matrix."""
    if run.criterion["name"] == "norms":
        parts = bipartition(matrix.values, run.criterion["linkage"])
        return [list(parts.first), list(parts.second)]
    labels = best_parts(matrix.values).labels
    return [np.flatnonzero(labels == part).tolist() for part in range(labels.max() + 1)]
