"""The content of the page for a run, as one compact JSON value."""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from cflower.algorithm.criteria import Outcome
from cflower.algorithm.tree import ROOT
from cflower.errors import CFlowerError, first_line
from cflower.messages.client_names import PREPARATION
from cflower.ordering import counted, only
from cflower.pooled import POOLED
from cflower.runs.answer import advice, answer
from cflower.runs.events import events, newcomers
from cflower.runs.findings import (
    central_metric,
    details,
    personal_steps,
    way_lines,
    why,
)
from cflower.runs.record import RunRecord
from cflower.runs.records import TRIAL_STATUS, Summary, bodies
from cflower.runs.report.matrices import matrices
from cflower.runs.report.samples import client_data
from cflower.runs.tables import by_class, is_shown, method_rows, sentences
from cflower.runs.ways import KINDS, LEVEL

FOLDERS = re.compile(r"(?:~|/|[A-Za-z]:\\)[^:;,]*[/\\](?=[^/\\])")
"""The folders of a path, which may name the user of the machine."""
COLUMNS = {
    **{"round": "round", "cluster": "cluster", "outcome": "decision", "figures": "figures"},
    **{"mean": "mean_norm", "max": "max_norm", "alpha": "alpha_cross"},
}
"""The columns of `lines` that are fields of a line."""
GAIN = "gain_chance"
"""The figure of a vote: the probability that chance alone gives such a gain."""
SECOND = "loss"
"""The metric of the second picture, unless it leads."""


def page_content(run: RunRecord) -> dict[str, Any]:
    """Everything the page needs, as JSON without NaN.

    Clients and sentences are named once, then by number; ``clients`` and ``clusters`` are in
    natural order. A part that cannot be made is empty, and ``failed`` says why in a sentence.
    """
    content = {
        "config": list(entries(run.config)),
        "settings": list(entries(run.settings)),
        **rounded({name: make(run) for name, make in NEEDED.items()}),
    }
    failed = {}
    for name, (make, nothing) in PARTS.items():
        try:
            content[name] = rounded(make(run))
        except CFlowerError:  # a damaged folder
            raise
        except Exception as error:  # what clients sent may be odd in any way
            content[name] = nothing
            why = f"{type(error).__name__}: {first_line(error)}"
            failed[name] = f"This part of the report could not be made ({why})."
    return {**content, "failed": failed}


def entries(values: Mapping[str, Any], prefix: str = "") -> Iterator[dict[str, Any]]:
    """Key and value of every entry that is not empty.

    >>> list(entries({"criterion": {"name": "auto"}, "dataset": "text:/home/ann/books"}))
    [{'key': 'criterion.name', 'value': 'auto'}, {'key': 'dataset', 'value': 'text:…/books'}]
    """
    for key, value in values.items():
        if key == PREPARATION:  # JSON, in examples.json too
            continue
        if isinstance(value, Mapping):
            yield from entries(value, f"{prefix}{key}.")
        elif value != "":
            text = FOLDERS.sub("…/", value) if isinstance(value, str) else value
            yield {"key": f"{prefix}{key}", "value": text}


def about(run: RunRecord) -> dict[str, Any]:
    """The run as a whole, and each way to serve the clients in words."""
    summary = run.summary
    splits = [split.round for split in summary.lasting]
    return {
        "id": run.name,
        "labels": [run.begun.app, run.begun.name],
        "sentence": answer(run.ways),
        "remarks": " ".join(filter(None, [*why(summary), newcomers(run), advice(run.ways)])),
        "words": {**{key: kind.words for key, kind in KINDS.items()}, "own": "this run"},
        "details": [f"{counted(run.rounds, 'round')}.", *details(summary)],
        "kind": run.settings["method"],
        "finished": run.finished,
        "rounds": run.rounds,
        "planned": max(run.begun.num_rounds, run.rounds),
        "methods": [
            {head.replace("\n", " "): cell for head, cell in row.items()}
            for row in method_rows(run.ways)
        ],
        "together": together(summary),
        "pooled": summary.metric.name in POOLED and bool(summary.pooled),
        "metric": {
            **run.metric.as_json(),
            "title": run.metric.in_full,
            "percent": run.metric.share,
        },
        "ways": [
            line | {"value": run.metric.in_words(line["mean"])} for line in way_lines(run.ways)
        ],
        "firstSplit": min(splits, default=None),
        "fractionTrain": run.settings.get("fraction-train", 1.0),
        "evaluated": run.settings.get("fraction-evaluate", 0.0) > 0,
    }


def together(summary: Summary) -> dict[str, list[Any]]:
    """The figures of all held-out examples together: sentences, and a row for each class."""
    own = summary.pooled.get("own")
    if own is None or not is_shown(summary):
        return {"sentences": [], "rows": []}
    return {"sentences": sentences(summary), "rows": by_class(summary, own)}


def curves(run: RunRecord) -> dict[str, list[Any]]:
    measured = run.summary.measured.items()
    shown: dict[str, list[Any]] = {key: line.by_round for key, line in measured}
    if name := central_metric(run.summary):
        values = {line.round: line.central.get(name) for line in run.lines}
        shown["central"] = by_round(run, values)
    return shown


def by_round(run: RunRecord, values: Mapping[int, Any]) -> list[Any]:
    return [values.get(number) for number in range(1, run.rounds + 1)]


def clusters(run: RunRecord) -> list[dict[str, Any]]:
    """The clusters with their members, and the means of these under each model."""
    return [
        {
            "name": name,
            "members": list(only(run.position, cluster.members).values()),
            "children": cluster.children,
            "born": run.born(name),
            "split": cluster.split_round,
            "means": {key: run.ways.mean(key, cluster.members) for key in run.ways.shown},
        }
        for name, cluster in run.clusters.items()
    ]


def lines(run: RunRecord) -> dict[str, Any]:
    """The decisions as columns; each sentence is stored once and referred to by number."""
    decided, metric = run.decided, run.metric.name
    sentences = list(dict.fromkeys(line.reason for line in decided))
    number = {sentence: i for i, sentence in enumerate(sentences)}
    return {
        **{name: [getattr(line, field) for line in decided] for name, field in COLUMNS.items()},
        "reason": [number[line.reason] for line in decided],
        "score": [line.metrics.get(metric) for line in decided],
        "second": [line.metrics.get(SECOND) for line in decided],
        "members": [len(line.members) for line in decided],
        "unplaced": [line.unplaced for line in decided],
        "sentences": sentences,
    }


def common_curves(run: RunRecord) -> dict[str, list[float | None]]:
    """Both metrics of the root's model by round; None in rounds in which it did not learn.

    If every round ends with an evaluation, this is of the leaves' models from the split on.
    """
    split = (Outcome.SPLIT, *TRIAL_STATUS) if run.settings.get("fraction-evaluate") else ()
    lines = [line for line in run.lines if line.cluster == ROOT and line.decision not in split]
    root = {line.round: line.metrics for line in lines}
    names = {"score": run.metric.name, "second": SECOND}
    return {
        key: by_round(run, {number: metrics.get(name) for number, metrics in root.items()})
        for key, name in names.items()
    }


def cost(run: RunRecord) -> dict[str, Any]:
    """Seconds of all rounds, trainings of clients (also for personal steps), bytes of a model."""
    steps, members = run.summary.personal, run.summary.clusters
    own = sum(step.trainings * len(members[leaf]) for leaf, step in steps.items())
    trainings = sum(len(line.heard) for line in run.lines) + own
    return {"seconds": run.seconds, "trainings": trainings, "bytes": run.model_bytes}


def trials(run: RunRecord) -> list[dict[str, Any]]:
    """The clients' judgement of each split.

    ``tested``: whether clients have voted; ``sure``: whether the gain is significant.
    """
    return [
        {
            **{key: getattr(line, key) for key in ("cluster", "round", "reason", "figures")},
            "outcome": line.decision,
            "status": TRIAL_STATUS.get(Outcome(line.decision), "refused"),
            "began": began,
            "tested": GAIN in line.figures,
            "sure": (line.figures.get(GAIN, 1.0) or 0.0) < LEVEL,
        }
        for line, began in run.judgements
    ]


def problems(run: RunRecord) -> list[dict[str, Any]]:
    rounds: dict[tuple[int, str], list[int]] = {}
    for line in run.lines:
        for name, problem in line.problems.items():
            rounds.setdefault((run.position[name], problem), []).append(line.round)
    return [{"client": i, "problem": text, "rounds": rounds[i, text]} for i, text in sorted(rounds)]


def heard(run: RunRecord) -> list[tuple[int, int]]:
    replied = Counter(name for line in run.verdicts for name in line.heard)
    member = Counter(name for line in run.verdicts for name in line.members)
    return [(replied[name], member[name]) for name in run.client_names]


def moves(run: RunRecord) -> list[dict[str, Any]]:
    return [{**move._asdict(), "client": run.position[move.client]} for move in run.summary.moves]


def events_of(run: RunRecord) -> list[dict[str, Any]]:
    """Newcomers, clusters opened for clients that resemble no other, and moves, by round."""
    return [
        {**event._asdict(), "clients": [run.position[name] for name in event.clients]}
        for event in events(run)
    ]


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


Make = Callable[[RunRecord], Any]
NEEDED: Mapping[str, Make] = {
    "run": about,
    "versions": lambda run: run.begun.versions,
    "clients": lambda run: list(map(run.ways.row, run.client_names)),
    "clusters": clusters,
    "lines": lines,
    "thresholds": lambda run: only(run.criterion, ["eps1", "eps2"]) or None,
}
"""The content that every section of the page needs."""
PARTS: Mapping[str, tuple[Make, Any]] = {
    "trials": (trials, []),
    "personal": (lambda run: personal_steps(run.summary), {}),
    "bodies": (lambda run: list(bodies(run.clusters).values()), []),
    "moves": (moves, []),
    "events": (events_of, []),
    "scores": (lambda run: run.scores_by_round.tolist(), None),
    "common": (common_curves, None),
    "curves": (curves, None),
    "cost": (cost, None),
    "matrices": (matrices, []),
    "problems": (problems, []),
    "heard": (heard, []),
    "data": (client_data, None),
}
"""The content that may fail, and its value then."""
