"""What the page shows of a run, as one compact JSON value."""

from collections.abc import Mapping
from math import isfinite
from typing import Any

from cflower.algorithm.tree import in_order
from cflower.runs.record import RunRecord, finding
from cflower.runs.report.matrices import matrices
from cflower.runs.report.samples import client_data
from cflower.runs.tables import headline

Columns = dict[str, list[Any]]


def page_content(run: RunRecord) -> dict[str, Any]:
    """Everything the page needs; clients, clusters and sentences are named once, then by number.

    Returns
    -------
    dict
        JSON without NaN. ``clients`` and ``clusters`` are in natural order and referred to by
        position; ``lines`` are columns, one entry a line of ``rounds.jsonl``.
    """
    names = client_names(run)
    position = {name: i for i, name in enumerate(names)}
    return {
        "run": {
            "id": run.name,
            "finding": finding(run.summary),
            "headline": headline(run.summary),
            "finished": run.finished,
            "rounds": run.rounds,
            "planned": max(run.planned, run.rounds),
            "method": run.settings["method"],
            "criterion": run.criterion["name"],
            "metrics": rounded(run.summary["metrics"]),
            "adjustedRandIndex": run.summary["adjusted_rand_index"],
        },
        "config": dict(run.config),
        "versions": dict(run.versions),
        "clients": [client(run, name) for name in names],
        "clusters": clusters(run, position),
        "lines": lines(run),
        "accuracies": accuracies(run, position),
        "matrices": matrices(run, position),
        "problems": problems(run, position),
        "heard": heard(run, position),
        "data": client_data(run, names),
    }


def client_names(run: RunRecord) -> list[str]:
    """All clients there ever were, in natural order."""
    names = set(run.summary["clients"]) | set(run.data.get("clients", {}))
    for cluster in run.clusters.values():
        names.update(cluster["members"])
    for line in run.lines:
        names.update(line["members"])
    return list(in_order(names))


def client(run: RunRecord, name: str) -> dict[str, Any]:
    """One client's row of the table."""
    told = run.summary["clients"].get(name, {})
    several = told if len(told.get("levels") or ()) > 1 else {}
    return {
        "name": name,
        "cluster": told.get("cluster"),
        "examples": told.get("num_examples"),
        "own": rounded(told.get("leaf_accuracy", told.get("accuracy"))),
        "federated": rounded(told.get("fl_accuracy")),
        "best": rounded(several.get("best_accuracy")),
        "ensemble": rounded(several.get("ensemble_accuracy")),
        "group": (run.summary["groups"] or {}).get(name),
    }


def clusters(run: RunRecord, position: Mapping[str, int]) -> list[dict[str, Any]]:
    """The parameter tree."""
    return [
        {
            "name": name,
            "members": [position[member] for member in cluster["members"]],
            "children": cluster["children"],
            "born": cluster["born"],
            "split": cluster["split_round"],
        }
        for name, cluster in run.clusters.items()
    ]


def lines(run: RunRecord) -> dict[str, Any]:
    """``rounds.jsonl`` as columns, its sentences named once."""
    sentences: dict[str, int] = {}
    columns: Columns = {key: [] for key in ("round", "cluster", "outcome", "reason", "figures")}
    columns |= {key: [] for key in ("mean", "max", "alpha", "accuracy", "heard", "members")}
    for line in run.lines:
        columns["round"].append(line["round"])
        columns["cluster"].append(line["cluster"])
        columns["outcome"].append(line["decision"])
        columns["reason"].append(sentences.setdefault(line["reason"], len(sentences)))
        columns["figures"].append(rounded(line.get("figures") or 0))
        columns["mean"].append(rounded(line["mean_norm"]))
        columns["max"].append(rounded(line["max_norm"]))
        columns["alpha"].append(rounded(line["alpha_cross"]))
        columns["accuracy"].append(rounded(line["metrics"].get("accuracy")))
        columns["heard"].append(len(line["heard"]))
        columns["members"].append(len(line["members"]))
    return {**columns, "sentences": list(sentences)}


def accuracies(run: RunRecord, position: Mapping[str, int]) -> list[list[int | None]]:
    """Each client's accuracy by round in units of 1/10,000; None where it was not heard from."""
    table: list[list[int | None]] = [[None] * run.rounds for _ in position]
    for line in run.lines:
        for name, metrics in line["clients"].items():
            value = metrics.get("accuracy")
            if isinstance(value, int | float) and isfinite(value):
                table[position[name]][line["round"] - 1] = round(value * 10_000)
    return table


def problems(run: RunRecord, position: Mapping[str, int]) -> list[dict[str, Any]]:
    """Replies that were set aside or did not come: each client's, by what was wrong."""
    found: dict[tuple[int, str], list[int]] = {}
    for line in run.lines:
        for name, problem in line["problems"].items():
            if name in position:
                found.setdefault((position[name], problem), []).append(line["round"])
    return [
        {"client": number, "problem": problem, "rounds": rounds}
        for (number, problem), rounds in sorted(found.items())
    ]


def heard(run: RunRecord, position: Mapping[str, int]) -> list[list[int]]:
    """Of each client: the rounds it was heard from, and the rounds it was a member."""
    counts = [[0, 0] for _ in position]
    for line in run.lines:
        for name in line["heard"]:
            counts[position[name]][0] += 1
        for name in line["members"]:
            counts[position[name]][1] += 1
    return counts


def rounded(value: Any) -> Any:
    """Numbers with five figures, and None for those that are none: JSON knows no NaN.

    >>> rounded({"a": 0.123456789, "b": float("nan"), "c": True, "d": 3})
    {'a': 0.12346, 'b': None, 'c': True, 'd': 3}
    """
    if isinstance(value, Mapping):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.5g}") if isfinite(value) else None
    return value
