"""What is written into a run folder, as plain values: a line, a split, a tree, a data look."""

from base64 import b64encode
from collections.abc import Mapping
from typing import Any

from cflower.algorithm.criteria import Decision, Outcome
from cflower.algorithm.state import CFLState
from cflower.algorithm.tree import Cluster, ParameterTree
from cflower.algorithm.trial import Standing, Trial
from cflower.messages.claims import PREVIEW
from cflower.ordering import in_order
from cflower.strategy.reports import ClientResult, FinalReport, RoundReport

Figures = dict[str, float]
OWN_FIELDS = frozenset(
    {"cluster", "num_examples", "best_cluster", "levels", "held_out", "entropies"}
)
"""What the summary says of a client itself; a metric may not be called so."""
ABOUT_TRIALS = {
    Outcome.ON_TRIAL: Standing.OPEN,
    Outcome.CONFIRMED: Standing.CONFIRMED,
    Outcome.UNDONE: Standing.UNDONE,
}
"""What decisions on a split cluster say of its trial."""
FIGURES = ("mean_norm", "max_norm", "alpha_cross", "seconds")


def round_line(report: RoundReport, decision: Decision) -> dict[str, Any]:
    """One cluster's line of ``rounds.jsonl``."""
    members = report.trained.clusters[decision.cluster].members
    general = report.general.get(decision.cluster, {})
    # What a client measured and what went wrong is told once, with its own cluster.
    own = decision.outcome not in ABOUT_TRIALS
    measured, problems = (report.measured, report.problems) if own else ({}, {})
    return {
        "round": report.server_round,
        "cluster": decision.cluster,
        "members": list(members),
        "heard": [
            name
            for name in members
            if name in general or report.trained_on.get(name) == decision.cluster
        ],
        "mean_norm": decision.mean_norm,
        "max_norm": decision.max_norm,
        "alpha_cross": decision.alpha_cross,
        "decision": decision.outcome.value,
        "reason": decision.reason,
        "children": list(decision.children),
        "moves": [
            move._asdict()
            for move in report.state.moves
            if move.server_round == report.server_round and move.origin == decision.cluster and own
        ],
        "figures": dict(decision.figures),
        "metrics": report.metrics(decision.cluster),
        "clients": {name: numbers(measured[name].metrics) for name in members if name in measured},
        "problems": {name: problems[name] for name in members if name in problems},
        "late": {name: report.late[name] for name in members if own and name in report.late},
        "outstanding": {
            asked.client: asked.server_round
            for asked in report.outstanding
            if own and asked.client in members
        },
        "seconds": round(report.seconds, 3),
    }


def round_measures(report: RoundReport) -> dict[str, float]:
    """All numbers that one round adds to ``rounds.jsonl``, for a tracker."""
    found: dict[str, float] = {}
    for decision in report.decisions:
        found |= measures_in(round_line(report, decision))
    return found


def measures_in(line: Mapping[str, Any]) -> Figures:
    """The numbers of one line of ``rounds.jsonl``, each under its way into the line.

    >>> measures_in({"cluster": "0", "mean_norm": 0.5, "metrics": {"loss": 2}, "clients": {}})
    {'0/mean_norm': 0.5, '0/metrics/loss': 2.0}
    """
    cluster = line["cluster"]
    found = {f"{cluster}/{key}": line.get(key) for key in FIGURES}
    for group in ("figures", "metrics"):
        found |= {f"{cluster}/{group}/{k}": v for k, v in (line.get(group) or {}).items()}
    for client, metrics in line["clients"].items():
        found |= {f"clients/{client}/{key}": value for key, value in metrics.items()}
    return {
        key: float(value)
        for key, value in found.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def data_line(facts: Mapping[str, Any]) -> dict[str, Any]:
    """What ``clients.json`` has of one client, of the facts it told in the roll call."""
    return {
        key.replace("-", "_"): b64encode(facts[key]).decode()
        if isinstance(facts[key], bytes)
        else list(facts[key])
        for key in PREVIEW
        if key in facts
    }


def note_split(splits: list[dict[str, Any]], line: Mapping[str, Any]) -> None:
    """Add to ``splits`` of the summary what a line of ``rounds.jsonl`` tells of a split."""
    outcome = line["decision"]
    if outcome == Outcome.SPLIT:
        keys = ("round", "cluster", "children", "alpha_cross", "mean_norm", "max_norm")
        splits.append({**{key: line[key] for key in keys}, "trial": None, "verdict": ""})
    elif outcome in ABOUT_TRIALS:
        split = next(split for split in reversed(splits) if split["cluster"] == line["cluster"])
        split["trial"], split["verdict"] = ABOUT_TRIALS[outcome], line["reason"]


def tree_lines(state: CFLState) -> dict[str, Any]:
    """``tree.json``: every cluster of the parameter tree, without its arrays."""

    def line(cluster: Cluster) -> dict[str, Any]:
        return {
            "members": list(cluster.members),
            "children": list(cluster.children),
            "born": cluster.born,
            "split_round": cluster.split_round,
            "edge_clients": list(cluster.edge),
            "rounds": cluster.rounds,
            "general": cluster.general is not None,
            "trial": trial_line(cluster.trial) if cluster.trial else None,
            "undone": [trial_line(trial) for trial in cluster.undone],
        }

    tree = state.tree
    names = in_order(tree.clusters)
    return {
        "clusters": {name: line(tree.clusters[name]) for name in names},
        "walking": dict(tree.unassigned),
        "moves": [move._asdict() for move in state.moves],
    }


def trial_line(trial: Trial) -> dict[str, Any]:
    """What ``tree.json`` has of the trial of a split."""
    return {**trial._asdict(), "standing": trial.standing.value}


def served_line(result: ClientResult, report: FinalReport, metric: str) -> dict[str, Any]:
    """What the summary has of a client's final evaluation: `ClientResult` in plain values."""
    columns = {
        f"{column}_{metric}": numbers(measured.metrics).get(metric) if measured else None
        for column, measured in result.columns.items()
    }
    return {
        **numbers(result.served(report.selection).metrics),
        "num_examples": result.num_examples,
        "held_out": result.leaf.num_examples,
        **columns,
        "best_cluster": result.best_cluster,
        "levels": {n: numbers(level.metrics).get(metric) for n, level in result.levels.items()},
        "entropies": dict(result.entropies),
    }


def numbers(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """The metrics that are one number each, but for those called as the folder's own fields.

    >>> numbers({"loss": 0.5, "recall": [0.1, 0.2], "cluster": 7})
    {'loss': 0.5}
    """
    return {k: v for k, v in metrics.items() if not isinstance(v, list) and k not in OWN_FIELDS}


def true_groups(results: Mapping[str, ClientResult]) -> dict[str, int | str]:
    """The group that each client tells, if most of them tell one.

    One client alone must not make up an index that is about all.
    """
    groups = {name: r.facts["group"] for name, r in results.items() if "group" in r.facts}
    return groups if 2 * len(groups) > len(results) else {}


def rand_index(groups: Mapping[str, int | str], tree: ParameterTree) -> float:
    """Adjusted Rand index of the clusters found against the true groups; 1 is exact."""
    from sklearn.metrics import adjusted_rand_score  # loads for a second, and is needed once

    names = list(groups)
    found = [tree.leaf_of(name).name for name in names]
    return float(adjusted_rand_score([str(groups[name]) for name in names], found))
