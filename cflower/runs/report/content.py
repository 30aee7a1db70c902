"""The content of the page for a run, as one compact JSON value."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from cflower.algorithm.criteria import Outcome
from cflower.algorithm.tree import ROOT
from cflower.messages.metrics import accuracy_among
from cflower.ordering import only
from cflower.runs.baselines import BASELINES, LEVEL, against, fairness_in_words
from cflower.runs.findings import (
    all_clients,
    baselines_of,
    common_in_words,
    common_score,
    headline,
    lasting,
    remarks,
    ways_of,
)
from cflower.runs.format import TRIAL_STATUS
from cflower.runs.record import RunRecord
from cflower.runs.report.matrices import matrices
from cflower.runs.report.samples import client_data

FOLDERS = re.compile(r"(?:~|/|[A-Za-z]:\\)[^:;,]*[/\\](?=[^/\\])")
"""The folders of a path, which may name the user of the machine."""
COLUMNS = {
    **{"round": "round", "cluster": "cluster", "outcome": "decision", "figures": "figures"},
    **{"mean": "mean_norm", "max": "max_norm", "alpha": "alpha_cross"},
}
"""The columns of `lines` that are fields of a line."""
SECOND = "loss"
"""The metric of the second picture."""


def page_content(run: RunRecord) -> dict[str, Any]:
    """Everything the page needs, as JSON without NaN.

    Clients and sentences are named once, then by number; ``clients`` and ``clusters`` are in
    natural order.
    """
    computed = {
        "run": about(run),
        "versions": run.versions,
        "clients": clients(run),
        "clusters": clusters(run),
        "lines": lines(run),
        "trials": trials(run),
        "moves": [
            {**move, "client": run.position[move["client"]]} for move in run.summary["moves"]
        ],
        "scores": rounded(run.scores_by_round.tolist(), 4),
        "second": second(run),
        "common": common_curves(run),
        "thresholds": only(run.criterion, ["eps1", "eps2"]) or None,
        "cost": cost(run),
        "matrices": matrices(run),
        "problems": problems(run),
        "heard": heard(run),
        "data": client_data(run),
    }
    given = {"config": list(entries(run.config)), "settings": list(entries(run.settings))}
    return {**given, **rounded(computed)}


def entries(values: Mapping[str, Any], prefix: str = "") -> Iterator[dict[str, Any]]:
    """Key and value of every entry that is not empty.

    >>> list(entries({"criterion": {"name": "auto"}, "dataset": "text:/home/ann/books"}))
    [{'key': 'criterion.name', 'value': 'auto'}, {'key': 'dataset', 'value': 'text:…/books'}]
    """
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from entries(value, f"{prefix}{key}.")
        elif value != "":
            text = FOLDERS.sub("…/", value) if isinstance(value, str) else value
            yield {"key": f"{prefix}{key}", "value": text}


def about(run: RunRecord) -> dict[str, Any]:
    """The run as a whole; ``common`` is the model of all clients before the first split."""
    summary, metric, clustered = run.summary, run.metric, run.settings["method"] == "clustered"
    splits = [split["round"] for split in lasting(summary["splits"])]
    own = metric.name if summary["selection"] == "leaf" else f"leaf_{metric.name}"
    sentence = headline(summary) if clustered else headline(summary, "model", "for")
    return {
        "id": run.name,
        "labels": [run.labels["app"], run.labels["name"], *run.labels["tags"]],
        "sentence": sentence,
        "remarks": " ".join(remarks(summary)),
        "kind": run.settings["method"],
        "finished": run.finished,
        "rounds": run.rounds,
        "planned": max(run.planned, run.rounds),
        "metric": {**metric._asdict(), "percent": metric.share},
        "own": summary["metrics"].get(own),
        "ownFairness": fairness_in_words(summary["fairness"].get("own", {}), metric),
        "common": common_score(summary),
        "baselines": baselines(run),
        "firstSplit": min(splits, default=None),
        "commonModel": common_in_words(summary),
        "commonRounds": summary["common_rounds"],
        "selection": summary["selection"],
        "fractionTrain": run.settings.get("fraction-train", 1.0),
        "evaluated": run.settings.get("fraction-evaluate", 0.0) > 0,
        "adjustedRandIndex": summary["adjusted_rand_index"] if clustered else None,
    }


def baselines(run: RunRecord) -> list[dict[str, Any]]:
    """Each baseline in words, its mean (None: not measured), and the run against it.

    The last one is the central evaluation, if there is one.
    """
    measured, planned, shown = baselines_of(run.summary), run.summary["baselines"] or {}, []
    for key, words in BASELINES.items():
        entry: dict[str, Any] = {"key": key, "words": words, "toCome": key in planned}
        if line := measured.get(key):
            entry |= {"toCome": False, "value": line[run.metric.name], "curve": line["by_round"]}
            entry["fairness"] = fairness_in_words(line, run.metric)
            if compared := against(run.summary, line["clients"], run.metric):
                entry["against"] = {"verdict": compared.verdict, "figures": compared.figures}
        shown.append(entry)
    return [*shown, *central(run)]


def central(run: RunRecord) -> list[dict[str, Any]]:
    """The central evaluation by the leading metric, or by the accuracy if that leads."""
    sent, name = run.summary.get("central", {}), run.metric.name
    if name not in sent:
        name = accuracy_among(sent) if accuracy_among([name]) else ""
    if name not in sent:
        return []
    values = {line["round"]: line.get("central", {}).get(name) for line in run.lines}
    words = f"central evaluation (evaluate_fn), mean {name} over the clusters"
    entry = {"key": "central", "words": words, "toCome": False, "value": sent[name]}
    return [entry | {"curve": by_round(run, values)}]


def by_round(run: RunRecord, values: Mapping[int, Any]) -> list[Any]:
    """The values of all rounds so far; None where there is none."""
    return [values.get(number) for number in range(1, run.rounds + 1)]


def clients(run: RunRecord) -> list[dict[str, Any]]:
    """The rows of the table of clients; ``level`` is the model that the client chose."""
    summary, known, rows = run.summary, all_clients(run.summary), []
    for name in run.client_names:
        client = known.get(name, {})
        level = client.get("best_cluster") if summary["selection"] == "best" else None
        ways = {way: client.get(f"{way}_{run.metric.name}") for way in ways_of(summary)}
        rows.append(
            {
                **{"common" if way == "fl" else way: value for way, value in ways.items()},
                **{key: client.get(key) for key in ("share", "cluster", "group")},
                "name": name,
                "examples": client.get("held_out"),
                "level": level,
                "levelScore": client.get("levels", {}).get(level),
            }
        )
    return rows


def clusters(run: RunRecord) -> list[dict[str, Any]]:
    shown = []
    for name, cluster in run.clusters.items():
        members = list(only(run.position, cluster["members"]).values())
        entry = {"name": name, "members": members, "children": cluster["children"]}
        shown.append(entry | {"born": run.born(name), "split": cluster["split_round"]})
    return shown


def lines(run: RunRecord) -> dict[str, Any]:
    """The decisions as columns; each sentence is stored once and referred to by number."""
    decided, name = run.decided, run.metric.name
    sentences = list(dict.fromkeys(line["reason"] for line in decided))
    number = {sentence: i for i, sentence in enumerate(sentences)}
    return {
        **{column: [line[field] for line in decided] for column, field in COLUMNS.items()},
        "reason": [number[line["reason"]] for line in decided],
        "score": [line["metrics"].get(name) for line in decided],
        "second": [line["metrics"].get(SECOND) for line in decided],
        "members": [len(line["members"]) for line in decided],
        "sentences": sentences,
    }


def second(run: RunRecord) -> dict[str, Any] | None:
    """The metric of the second picture: the loss, unless it leads or nobody sent it."""
    sent = any(SECOND in line["metrics"] for line in run.decided)
    return {"name": SECOND, "percent": False} if sent and run.metric.name != SECOND else None


def common_curves(run: RunRecord) -> dict[str, list[float | None]]:
    """Both metrics of the root's model by round; None in rounds in which it did not learn.

    If every round ends with an evaluation, this is of the leaves' models from the split on.
    """
    split = (Outcome.SPLIT, *TRIAL_STATUS) if run.settings.get("fraction-evaluate") else ()
    lines = [row for row in run.lines if row["cluster"] == ROOT and row["decision"] not in split]
    root = {line["round"]: line["metrics"] for line in lines}
    names = {"score": run.metric.name, "second": SECOND}
    return {
        key: by_round(run, {number: metrics.get(name) for number, metrics in root.items()})
        for key, name in names.items()
    }


def cost(run: RunRecord) -> dict[str, Any]:
    """Seconds of all rounds, trainings of clients (also for personal steps), bytes of a model."""
    steps, members = run.summary["personal"], run.summary["clusters"]
    own = sum(step["trainings"] * len(members[leaf]) for leaf, step in steps.items())
    trainings = sum(len(line["heard"]) for line in run.lines) + own
    return {"seconds": run.seconds, "trainings": trainings, "bytes": run.model_bytes}


def trials(run: RunRecord) -> list[dict[str, Any]]:
    """The clients' judgements of each split on trial, and the last line of one that is open.

    ``sure``: whether the gain is significant.
    """
    judged = []
    for line, began in run.judgements:
        names = {run.metric.name, *run.summary["metrics"], *line["metrics"]}
        chances = only(line["figures"], [f"{name}_chance" for name in names]).values()
        more = {"outcome": line["decision"], "standing": TRIAL_STATUS[line["decision"]]}
        more |= {"began": began, "sure": min(chances, default=1.0) < LEVEL}
        judged.append(only(line, ("cluster", "round", "reason", "figures")) | more)
    return judged


def problems(run: RunRecord) -> list[dict[str, Any]]:
    """Replies that were not used or did not come: the rounds of each client and problem."""
    found: dict[tuple[int, str], list[int]] = {}
    for line in run.lines:
        for name, problem in line["problems"].items():
            found.setdefault((run.position[name], problem), []).append(line["round"])
    return [{"client": i, "problem": text, "rounds": found[i, text]} for i, text in sorted(found)]


def heard(run: RunRecord) -> list[tuple[int, int]]:
    """For each client, the number of rounds with its reply and of those as a member."""
    replied = Counter(name for line in run.verdicts for name in line["heard"])
    member = Counter(name for line in run.verdicts for name in line["members"])
    return [(replied[name], member[name]) for name in run.client_names]


def rounded(value: Any, figures: int = 5) -> Any:
    """A JSON value with so many figures of each number, and None for NaN and infinity.

    >>> rounded({"a": 0.123456789, "b": float("nan"), "c": True, "d": 3})
    {'a': 0.12346, 'b': None, 'c': True, 'd': 3}
    """
    return json.loads(
        json.dumps(value),
        parse_float=lambda number: float(f"{float(number):.{figures}g}"),
        parse_constant=lambda _: None,
    )
