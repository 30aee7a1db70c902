"""`cflower compare`: several runs side by side."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from cflower.errors import ConfigError
from cflower.runs.baselines import BASELINES, Paired, against
from cflower.runs.record import RunRecord, lasting
from cflower.runs.tables import shown

LONGEST = 60
"""Characters of a name made of keys; above it the runs' ids are shorter."""


def named(runs: Sequence[RunRecord]) -> dict[str, RunRecord]:
    """Short names that tell the runs apart: the keys that differ, else the runs' ids.

    Raises
    ------
    ConfigError
        If one run is given twice.
    """
    paths = [run.path.resolve() for run in runs]
    for run, path in zip(runs, paths, strict=True):
        if paths.count(path) > 1:
            raise ConfigError(f"Got the run {run.name} twice, but expected different ones.")
    differ = differing(runs)
    if "method" in differ and len(set(differ["method"])) == len(runs):
        differ = {"method": differ["method"]}
    names = [
        ", ".join(str(several[i]) if key == "method" else f"{key}={several[i]}"
                  for key, several in differ.items())
        for i in range(len(runs))
    ]  # fmt: skip
    if len(set(names)) < len(runs) or len(max(names, key=len)) > LONGEST:
        names = [run.name for run in runs]
    return dict(zip(names, runs, strict=True))


def comparison_table(runs: Mapping[str, RunRecord]) -> Table:
    """One column a run; the best mean has a star."""
    table = Table(title="runs side by side (on held-out examples, * = best)", box=SIMPLE_HEAD)
    table.add_column("", overflow="fold")
    for name in runs:
        table.add_column(Text(name), justify="right", overflow="fold")
    columns = [column_of(run) for run in runs.values()]
    metric = next(iter(runs.values())).metric
    means = [run.summary["metrics"].get(metric.name) for run in runs.values()]
    best = metric.best(mean for mean in means if mean is not None)
    for column, mean in zip(columns, means, strict=True):
        column[f"mean {metric.name}"] += "*" if mean is not None and mean == best else " "
    for row in columns[0]:
        if all(column[row] in ("-", name) for name, column in zip(runs, columns, strict=True)):
            continue  # not known of any, or what stands at the top
        table.add_row(row, *(Text(column[row]) for column in columns))
    return table


def measures_of(run: RunRecord) -> dict[str, Any]:
    """What is compared of one run; None where it has no such value."""
    summary, metrics, metric = run.summary, run.summary["metrics"], run.metric
    baselines = summary["baselines"] or {}
    scores = [c[metric.name] for c in summary["clients"].values() if metric.name in c]
    return {
        "run": run.name,
        "finished": run.finished,
        "rounds": run.rounds,
        "clients": len(summary["clients"]),
        "clusters": len(summary["clusters"]),
        "metric": metric.name,
        "mean": metrics.get(metric.name),
        "std": float(np.std(scores)) if scores else None,
        "worst": metric.worst(scores),
        "common_model": metrics.get(f"fl_{metric.name}") if lasting(summary["splits"]) else None,
        **{key: (baselines.get(key) or {}).get(metric.name) for key in BASELINES},
        "adjusted_rand_index": summary["adjusted_rand_index"],
        "seconds": sum({line["round"]: line["seconds"] for line in run.lines}.values()),
    }


def column_of(run: RunRecord) -> dict[str, str]:
    """What the table says of one run."""
    measures, metric = measures_of(run), run.metric
    return {
        "run": run.name,
        "finished": "yes" if run.finished else "not finished",
        "rounds": str(run.rounds),
        "clients": str(measures["clients"]),
        "clusters": str(measures["clusters"]),
        f"mean {measures['metric']}": metric.in_words(measures["mean"]),
        "± std of the clients": metric.in_words(measures["std"]),
        "worst client": metric.in_words(measures["worst"]),
        "common model at the end": metric.in_words(measures["common_model"]),
        **{words: metric.in_words(measures[key]) for key, words in BASELINES.items()},
        "adjusted Rand index": shown(measures["adjusted_rand_index"], ".3f"),
        "seconds in rounds": f"{measures['seconds']:.0f}",
    }


def pairs(runs: Mapping[str, RunRecord]) -> dict[tuple[str, str], Paired]:
    """The first run against each other one that has the same clients, on their held-out examples.

    Runs whose clients have other names, or hold out other examples, cannot be paired.
    """
    (first, run), *others = runs.items()
    found = {}
    for name, other in others:
        clients = other.summary["clients"]
        held_out = {key: client.get("held_out") for key, client in run.summary["clients"].items()}
        if run.metric != other.metric or not run.finished or not other.finished:
            continue
        if held_out != {key: client.get("held_out") for key, client in clients.items()}:
            continue
        metric = run.metric.name
        theirs = {key: c[metric] for key, c in clients.items() if c.get(metric) is not None}
        if pair := against(run.summary, theirs, run.metric):
            found[first, name] = pair
    return found


def pair_lines(runs: Mapping[str, RunRecord]) -> list[str]:
    """One line a pair."""
    return [
        f"{first} against {second}: {found.sentence}"
        for (first, second), found in pairs(runs).items()
    ]


def differing(runs: Sequence[RunRecord]) -> dict[str, list[Any]]:
    """The config keys in which the runs differ, each with its value in every run."""
    keys = dict.fromkeys(key for run in runs for key in run.config)
    values = {key: [run.config.get(key) for run in runs] for key in keys}
    values = {"method": [run.settings["method"] for run in runs], **values}
    return {
        key: several
        for key, several in values.items()
        if any(value != several[0] for value in several)
        and key not in ("output-dir", "resume", "baselines")
    }


def differences(runs: Sequence[RunRecord]) -> str:
    """Which config keys the runs differ in, so that one knows what is being compared."""
    lines = [f"  {k}: " + ", ".join(map(repr, values)) for k, values in differing(runs).items()]
    return "The runs differ in:\n" + "\n".join(lines) if lines else "The runs have one config."
