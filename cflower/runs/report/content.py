"""What the page shows of a run, as one compact JSON value."""

from collections.abc import Mapping
from itertools import groupby
from math import isfinite
from operator import itemgetter
from typing import Any

from cflower.algorithm.auto.criterion import MIN_JOINT_ROUNDS, AutoCriterion
from cflower.algorithm.trial import CHANCE
from cflower.ordering import in_order
from cflower.recording.serialization import ABOUT_TRIALS
from cflower.runs.baselines import BASELINES, against
from cflower.runs.record import Line, RunRecord, common_in_words, counted, is_judgement, lasting
from cflower.runs.report.matrices import matrices
from cflower.runs.report.samples import client_data
from cflower.runs.report.settings import settings

Columns = dict[str, list[Any]]
Condition = tuple[str, str, str, float | None]
CONDITIONS: dict[str, Condition] = {
    "norm_ratio": (
        "not done",
        "the longest average update, as a share of the longest that was seen so far",
        ">",
        AutoCriterion.min_norm_ratio,
    ),
    "grouped_share": (
        "company",
        "the share of members that are not alone in their part",
        "≥",
        AutoCriterion.min_grouped_share,
    ),
    "margin": (
        "apart",
        "how much more alike members are to their own part than to the next one, in mean cosine",
        ">",
        None,
    ),
    "margin_errors": ("sure", "the same gap, in standard errors of it", ">", None),
    "joint_rounds": (
        "same rounds",
        "how often members of different parts were heard in the same rounds, as a share of how "
        "often any two members were",
        "≥",
        MIN_JOINT_ROUNDS,
    ),
    "stable_rounds": (
        "steady",
        "for how many rounds in a row the same parts were found",
        "≥",
        None,
    ),
    "separation": (
        "groups",
        "how far the nearest parts are apart, in scatters of their members; more than in clouds "
        "without groups",
        ">",
        None,
    ),
    "separation_by_angle": ("or by angle", "the same, of the updates' directions alone", ">", None),
}
"""Of `AutoCriterion`: a name, its meaning, and the limit; None: it varies (``<key>_needed`` or
``<key>_by_chance``)."""


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
    metric = run.metric.name
    return {
        "run": about(run, len(names)),
        "config": settings(run.config),
        "versions": dict(run.versions),
        "clients": [client(run, metric, name) for name in names],
        "clusters": clusters(run, position),
        "lines": lines(run, metric),
        "trials": trials(run),
        "moves": moves(run, position),
        "conditions": conditions(run),
        "norms": norm_rule(run),
        "scores": scores(run, metric, position),
        "matrices": matrices(run, position),
        "problems": problems(run, position),
        "heard": heard(run, position),
        "stays": stays(run, position),
        "data": client_data(run, names),
    }


def about(run: RunRecord, num_clients: int) -> dict[str, Any]:
    """The run as a whole; ``common`` is the model that the first split put an end to."""
    kind = run.settings["method"]
    splits = [split["round"] for split in lasting(run.summary["splits"])]
    metrics, metric = run.summary["metrics"], run.metric
    return {
        "id": run.name,
        "sentence": sentence(run, kind, num_clients),
        "kind": kind,
        "finished": run.finished,
        "rounds": run.rounds,
        "planned": max(run.planned, run.rounds),
        "metric": {**metric._asdict(), "percent": metric.share},
        "own": rounded(metrics.get(f"leaf_{metric.name}", metrics.get(metric.name))),
        "common": rounded(metrics.get(f"fl_{metric.name}")) if splits else None,
        "baselines": baselines(run),
        "firstSplit": min(splits, default=None),
        "commonModel": common_in_words(run.summary),
        "selection": run.settings.get("selection", "leaf"),
        "fractionTrain": run.settings.get("fraction-train", 1.0),
        "adjustedRandIndex": run.summary["adjusted_rand_index"] if kind == "clustered" else None,
    }


def baselines(run: RunRecord) -> list[dict[str, Any]]:
    """Each baseline in words, its mean (None: not measured), what the comparison with it says."""
    measured = run.summary["baselines"] or {}
    found = []
    for name, words in BASELINES.items():
        line, said = measured.get(name), None
        if line and (pair := against(run.summary, line["clients"], run.metric)):
            said = {"verdict": pair.verdict, "figures": pair.figures}
        value = rounded(line[run.metric.name]) if line else None
        curve = rounded(line.get("by_round", [])) if line else []
        entry = {"key": name, "words": words, "value": value, "against": said, "curve": curve}
        found.append(entry | {"toCome": run.summary["baselines"] is not None and line is None})
    return found


def sentence(run: RunRecord, kind: str, num_clients: int) -> str:
    """What came out, without figures: those stand below it."""
    rounds, clients = counted(run.rounds, "round"), counted(num_clients, "client")
    so_far = "" if run.finished else "So far: "
    if kind == "isolated":
        return f"{so_far}{clients}, each trained alone for {rounds}."
    leaves = max(1, len(run.summary["clusters"]))
    if kind == "federated":
        return f"{so_far}One model for all {clients} after {rounds} of federated learning."
    if leaves == 1:
        return f"{so_far}No cluster was split: all {clients} share one model after {rounds}."
    return f"{so_far}{counted(leaves, 'cluster')} found among {clients} in {rounds}."


def client_names(run: RunRecord) -> list[str]:
    """All clients there ever were, in natural order."""
    names = set(run.summary["clients"]) | set(run.data.get("clients", {}))
    for cluster in run.clusters.values():
        names.update(cluster["members"])
    for line in run.lines:
        names.update(line["members"])
    return list(in_order(names))


def client(run: RunRecord, metric: str, name: str) -> dict[str, Any]:
    """One client's row of the table."""
    told = run.summary["clients"].get(name, {})
    selection = run.settings.get("selection", "leaf")
    level = told.get("best_cluster") if selection == "best" else None
    return {
        "name": name,
        "cluster": told.get("cluster"),
        "examples": told.get("held_out"),
        **{
            key: rounded(line["clients"].get(name))
            for key, line in (run.summary["baselines"] or {}).items()
        },
        "own": rounded(told.get(f"leaf_{metric}", told.get(metric))),
        # Without a split, that model is the own one.
        "common": rounded(told.get(f"fl_{metric}")) if lasting(run.summary["splits"]) else None,
        "level": level,
        "levelScore": rounded((told.get("levels") or {}).get(level)),
        "ensemble": rounded(told.get(f"ensemble_{metric}")) if selection == "ensemble" else None,
        "group": (run.summary["groups"] or {}).get(name),
    }


def clusters(run: RunRecord, position: Mapping[str, int]) -> list[dict[str, Any]]:
    """The parameter tree."""
    return [
        {
            "name": name,
            "members": [position[member] for member in cluster["members"]],
            "children": cluster["children"],
            "born": run.born(name),
            "split": cluster["split_round"],
        }
        for name, cluster in run.clusters.items()
    ]


def lines(run: RunRecord, metric: str) -> dict[str, Any]:
    """``rounds.jsonl`` as columns; each sentence is stored once and referred to by number.

    Of the clusters that there are, while they were not split.
    """
    sentences: dict[str, int] = {}
    columns: Columns = {key: [] for key in ("round", "cluster", "outcome", "reason", "figures")}
    columns |= {key: [] for key in ("mean", "max", "alpha", "score", "heard", "members")}
    for line in decided(run):
        columns["round"].append(line["round"])
        columns["cluster"].append(line["cluster"])
        columns["outcome"].append(line["decision"])
        columns["reason"].append(sentences.setdefault(line["reason"], len(sentences)))
        columns["figures"].append(rounded(line.get("figures") or 0))
        columns["mean"].append(rounded(line["mean_norm"]))
        columns["max"].append(rounded(line["max_norm"]))
        columns["alpha"].append(rounded(line["alpha_cross"]))
        columns["score"].append(rounded(line["metrics"].get(metric)))
        columns["heard"].append(len(line["heard"]))
        columns["members"].append(len(line["members"]))
    return {**columns, "sentences": list(sentences)}


def decided(run: RunRecord) -> list[Line]:
    """The lines of those clusters that are in the tree, without the trials of their splits."""
    return [
        line
        for line in run.lines
        if line["cluster"] in run.clusters and line["decision"] not in ABOUT_TRIALS
    ]


def trials(run: RunRecord) -> list[dict[str, Any]]:
    """What the clients judged of each split on trial; of an open one the last that is known.

    ``began``: the round of the split. ``sure``: whether chance hardly makes such a gain.
    """
    found = []
    for name, lines in run.trials.items():
        splits = [split["round"] for split in run.summary["splits"] if split["cluster"] == name]
        cluster = run.clusters.get(name, {})
        known = [trial for trial in (cluster.get("trial"), *cluster.get("undone", ())) if trial]
        began = {trial["until"]: trial["began"] for trial in known}
        for line, after in zip(lines, [*lines[1:], None], strict=True):
            if not is_judgement(line) and after is not None:
                continue
            at = line["round"]
            chances = [
                v for key, v in (line.get("figures") or {}).items() if key.endswith("_chance")
            ]
            found.append(
                {"cluster": name, "round": line["round"], "outcome": line["decision"]}
                | {"standing": ABOUT_TRIALS[line["decision"]], "reason": line["reason"]}
                # While the run goes on the other files may be older than the line.
                | {"began": began.get(at, max((r for r in splits if r <= at), default=at))}
                | {"sure": min(chances, default=1.0) < CHANCE}
            )
    return found


def moves(run: RunRecord, position: Mapping[str, int]) -> list[dict[str, Any]]:
    """Clients that changed their cluster because their data changed."""
    return [
        {"round": move["server_round"], "client": position[move["client"]]}
        | {"from": move["origin"], "to": move["target"], "reason": move["reason"]}
        for move in run.summary.get("moves", [])
        if move["client"] in position
    ]


def stays(run: RunRecord, position: Mapping[str, int]) -> list[list[list[Any]]] | None:
    """Of each client: the clusters it was in, each with the first round; None if nobody moved."""
    if not run.summary.get("moves"):
        return None
    found: list[list[list[Any]]] = [[] for _ in position]
    for server_round, together in groupby(decided(run), key=itemgetter("round")):
        at_once = list(together)
        place = {name: line["cluster"] for line in at_once for name in line["members"]}
        for name, cluster in place.items():
            stay = found[position[name]]
            if not stay or stay[-1][1] != cluster:
                stay.append([server_round, cluster])
    return found


def conditions(run: RunRecord) -> list[dict[str, Any]]:
    """What a split needed, for the figures that this run's criterion went by, in its order."""
    found = {key for line in run.lines for key in line.get("figures") or {}}
    return [
        {"key": key, "label": label, "meaning": meaning, "sign": sign, "limit": limit}
        for key, (label, meaning, sign, limit) in CONDITIONS.items()
        if key in found
    ]


def norm_rule(run: RunRecord) -> dict[str, Any] | None:
    """The thresholds of a run that was split by the paper's criterion; else None."""
    keys = {"eps1": "eps1", "eps2": "eps2", "gamma": "gamma-max", "least": "min-cluster-size"}
    if run.criterion["name"] != "norms":
        return None
    return {name: run.criterion[key] for name, key in keys.items()}


def scores(run: RunRecord, metric: str, position: Mapping[str, int]) -> list[list[float | None]]:
    """Each client's metric by round with four figures; None where it was not heard from."""
    table: list[list[float | None]] = [[None] * run.rounds for _ in position]
    for line in run.lines:
        for name, metrics in line["clients"].items():
            value = metrics.get(metric)
            if isinstance(value, int | float) and isfinite(value):
                table[position[name]][line["round"] - 1] = float(f"{value:.4g}")
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
        if line["decision"] in ABOUT_TRIALS:
            continue
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
