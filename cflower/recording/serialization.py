"""The content of a run folder: a round's lines, the tree, a client's data, and models."""

from base64 import b64encode
from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from cflower.algorithm.criteria import Decision
from cflower.algorithm.state import CFLState, Move
from cflower.algorithm.tree import Cluster
from cflower.algorithm.weights import Weights
from cflower.messages.claims import PREVIEW
from cflower.messages.layout import Layout
from cflower.messages.metrics import ClientMetrics
from cflower.messages.own_models import difference_of
from cflower.ordering import in_order, only, without
from cflower.runs.records import (
    TRIAL_STATUS,
    ClientLine,
    ClusterLine,
    Line,
    Tree,
    TrialLine,
)
from cflower.runs.writing import replace_file
from cflower.strategy.reports import RoundReport

Figures = dict[str, float]
RESERVED = frozenset(ClientLine.model_fields)
MODEL_FOLDERS = ("models", "general", "personal")
"""The folders of models: of clusters, of the leaves' means above judged splits, and of clients."""
FIGURES = ("mean_norm", "max_norm", "alpha_cross", "seconds")


def round_line(report: RoundReport, decision: Decision) -> Line:
    """One cluster's line of ``rounds.jsonl``; single members are in those of leaves only."""
    cluster, tree = decision.cluster, report.trained
    trained = [client for client, on in report.trained_on.items() if on == cluster]
    is_leaf = decision.outcome not in TRIAL_STATUS
    return Line.of(
        decision,
        round=report.server_round,
        members=tree.clusters[cluster].members,
        heard=tree.among(trained, cluster) if is_leaf else (),
        decision=decision.outcome.value,
        metrics=scalars(report.metrics(cluster)),
        central=scalars(report.central),
        seconds=round(report.seconds, 3),
        **(member_fields(report, cluster) if is_leaf else {"clients": {}, "problems": {}}),
    )


def member_fields(report: RoundReport, cluster: str) -> dict[str, Any]:
    """The fields of a leaf's line that are about single members."""
    outstanding = {sent.ask.client: sent.ask.server_round for sent in report.outstanding}
    present = set().union(report.measured, report.problems, report.late, outstanding)
    own = report.trained.among(present, cluster)
    state, training_cluster = report.state, report.state.tree.training_cluster
    placed = only(state.placed, report.trained.among(state.placed, cluster))
    now = [move for move in state.moves if move.server_round == report.server_round]
    return {
        "moves": [move for move in now if move.origin == cluster],
        "placed": [
            Move(report.server_round, c, step.cluster, training_cluster(c).name, str(step))
            for c, step in placed.items()
        ],
        "clients": {name: client_values(one) for name, one in only(report.measured, own).items()},
        "problems": only(report.problems, own),
        "late": only(report.late, own),
        "unplaced": len(
            set(report.trained.clusters[cluster].members) & {*report.trained.unassigned}
        ),
        "outstanding": only(outstanding, own),
    }


def tracked_figures(line: Line) -> Figures:
    """The numbers of one line of ``rounds.jsonl``, each under its path in the line."""
    name = line.cluster
    groups: dict[str, Mapping[str, Any]] = {
        name: {key: getattr(line, key) for key in FIGURES},
        f"{name}/figures": line.figures,
        f"{name}/metrics": line.metrics,
        "central": line.central,
        **{f"clients/{client}": metrics for client, metrics in line.clients.items()},
    }
    return {
        f"{group}/{key}": float(value)
        for group, values in groups.items()
        for key, value in values.items()
        if value is not None
    }


def data_line(facts: Mapping[str, Any]) -> dict[str, Any]:
    """A client's entry in ``clients.json``, from the facts that it reported in the roll call."""
    line = {}
    for key, value in only(facts, PREVIEW).items():
        is_bytes = isinstance(value, bytes)
        line[key.replace("-", "_")] = b64encode(value).decode() if is_bytes else list(value)
    return line


def tree_record(state: CFLState) -> Tree:
    clusters = {}
    for name in in_order(state.tree.clusters):
        cluster = state.tree.clusters[name]
        clusters[name] = ClusterLine.of(
            cluster,
            members=list(state.members_of(cluster)),
            edge_clients=list(cluster.edge),
            general=cluster.trial is not None,
            trial=cluster.trial and TrialLine.of(cluster.trial, until=cluster.trial.judged),
            undone=[TrialLine.of(trial, until=trial.judged) for trial in cluster.undone],
        )
    return Tree(clusters=clusters, unassigned=dict(state.tree.unassigned))


def client_values(measured: ClientMetrics) -> dict[str, float]:
    """The metrics that are one number each, without those named like the folder's own fields.

    >>> client_values(ClientMetrics({"loss": 0.5, "recall": [0.1, 0.2], "cluster": 7}, 1))
    {'loss': 0.5}
    """
    return without(measured.scalars, RESERVED)


def scalars(metrics: Mapping[str, Any]) -> Figures:
    """The metrics that are one finite number each: JSON has no others."""
    numbers = ClientMetrics(dict(metrics), 0).scalars
    return {key: value for key, value in numbers.items() if isfinite(value)}


def write_models(run: Path, state: CFLState, layout: Layout) -> None:
    """Write every model to its file, and remove those of an earlier end of the run."""
    tree, own, models = state.tree, personal_files(state), dict[str, Weights]()
    for name, cluster in tree.clusters.items():
        models[f"models/{name}.safetensors"] = cluster.model
        models[file_of(cluster)] = tree.model_of(name)
    for file, model in models.items():
        arrays = {key: np.ascontiguousarray(a) for key, a in layout.arrays(model).items()}
        replace_file(run / file, save(arrays), lasting=False)
    for client, file in own.items():
        arrays = difference_of(layout, state.personal_models[client], tree.leaf_of(client).model)
        replace_file(run / file, save(arrays), lasting=False)
    kept = {run / file for file in (*models, *own.values())}
    for path in run.glob("*/*.safetensors"):
        if path.parent.name in MODEL_FOLDERS and path not in kept:
            path.unlink()


def file_of(cluster: Cluster) -> str:
    return f"{'models' if cluster.trial is None else 'general'}/{cluster.name}.safetensors"


def personal_files(state: CFLState) -> dict[str, str]:
    """The file of each client with a model of its own, numbered: a name may be no file's name."""
    names = in_order(state.personal_models)
    return {client: f"personal/{i}.difference.safetensors" for i, client in enumerate(names)}
