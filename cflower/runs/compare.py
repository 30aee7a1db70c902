"""`cflower compare`: several runs side by side."""

from collections.abc import Mapping, Sequence

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


def column_of(run: RunRecord) -> dict[str, str]:
    """What the table says of one run."""
    summary, metrics, metric = run.summary, run.summary["metrics"], run.metric
    own, federated = metrics.get(metric.name), metrics.get(f"fl_{metric.name}")
    scores = [c[metric.name] for c in summary["clients"].values() if metric.name in c]
    seconds = {line["round"]: line["seconds"] for line in run.lines}
    return {
        "run": run.name,
        "finished": "yes" if run.finished else "not finished",
        "rounds": str(run.rounds),
        "clients": str(len(summary["clients"])),
        "clusters": str(len(summary["clusters"])),
        f"mean {metric.name}": shown(own, ".4f"),
        "± std of the clients": shown(float(np.std(scores)) if scores else None, ".4f"),
        "worst client": shown(metric.worst(scores), ".4f"),
        "common model, at the first split": shown(federated, ".4f"),
        "adjusted Rand index": shown(summary["adjusted_rand_index"], ".3f"),
        "seconds in rounds": f"{sum(seconds.values()):.0f}",
    }


def differences(runs: Mapping[str, RunRecord]) -> str:
    """Which config keys the runs differ in, so that one knows what is being compared."""
    keys = dict.fromkeys(key for run in runs.values() for key in run.config)
    lines = []
    for key in keys:
        values = [run.config.get(key) for run in runs.values()]
        if any(value != values[0] for value in values) and key not in ("output-dir", "resume"):
            lines.append(f"  {key}: " + ", ".join(repr(value) for value in values))
    return "The runs differ in:\n" + "\n".join(lines) if lines else "The runs have one config."
