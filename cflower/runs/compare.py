"""`cflower compare`: several runs side by side."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text

from cflower.runs.record import RunRecord
from cflower.runs.tables import shown


def named(runs: Sequence[RunRecord]) -> dict[str, RunRecord]:
    """Short names that tell the runs apart: the method where that is enough, else the id too."""
    methods = [run.settings["method"] for run in runs]
    if len(set(methods)) == len(runs):
        return dict(zip(methods, runs, strict=True))
    return {f"{method} {run.name}": run for method, run in zip(methods, runs, strict=True)}


def comparison_table(runs: Mapping[str, RunRecord]) -> Table:
    """One column a run; the best mean accuracy has a star."""
    table = Table(title="runs side by side (on held-out examples, * = best)")
    table.add_column("")
    for name in runs:
        table.add_column(Text(name), justify="right", overflow="fold")
    columns = [column_of(run) for run in runs.values()]
    metric = next(iter(runs.values())).metric
    means = [run.summary["metrics"].get(metric.name) for run in runs.values()]
    best = metric.best(mean for mean in means if mean is not None)
    for column, mean in zip(columns, means, strict=True):
        column[f"mean {metric.name}"] += "*" if mean is not None and mean == best else " "
    for row in columns[0]:
        table.add_row(row, *(Text(column[row]) for column in columns))
    return table


def measures_of(run: RunRecord) -> dict[str, Any]:
    """What is compared of one run; None where it has no such value."""
    summary, metrics, metric = run.summary, run.summary["metrics"], run.metric
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
        "common_model": metrics.get(f"fl_{metric.name}"),
        "adjusted_rand_index": summary["adjusted_rand_index"],
        "seconds": sum({line["round"]: line["seconds"] for line in run.lines}.values()),
    }


def column_of(run: RunRecord) -> dict[str, str]:
    """What the table says of one run."""
    measures = measures_of(run)
    return {
        "run": run.name,
        "finished": "yes" if run.finished else "not finished",
        "rounds": str(run.rounds),
        "clients": str(measures["clients"]),
        "clusters": str(measures["clusters"]),
        f"mean {measures['metric']}": shown(measures["mean"], ".4f"),
        "± std of the clients": shown(measures["std"], ".4f"),
        "worst client": shown(measures["worst"], ".4f"),
        "common model, at the first split": shown(measures["common_model"], ".4f"),
        "adjusted Rand index": shown(measures["adjusted_rand_index"], ".3f"),
        "seconds in rounds": f"{measures['seconds']:.0f}",
    }


def differing(runs: Mapping[str, RunRecord]) -> dict[str, list[Any]]:
    """The config keys in which the runs differ, each with its value in every run."""
    keys = dict.fromkeys(key for run in runs.values() for key in run.config)
    values = {key: [run.config.get(key) for run in runs.values()] for key in keys}
    return {
        key: several
        for key, several in values.items()
        if any(value != several[0] for value in several) and key not in ("output-dir", "resume")
    }


def differences(runs: Mapping[str, RunRecord]) -> str:
    """Which config keys the runs differ in, so that one knows what is being compared."""
    lines = [f"  {k}: " + ", ".join(map(repr, values)) for k, values in differing(runs).items()]
    return "The runs differ in:\n" + "\n".join(lines) if lines else "The runs have one config."
