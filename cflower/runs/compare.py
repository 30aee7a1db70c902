"""`cflower compare`: several runs side by side."""

from collections.abc import Mapping, Sequence

import numpy as np
from rich.table import Table
from rich.text import Text

from cflower.runs.record import RunRecord
from cflower.runs.tables import shown


def named(runs: Sequence[RunRecord]) -> dict[str, RunRecord]:
    """Short names that tell the runs apart: the method where that is enough, else the id too."""
    methods = [run.config["method"] for run in runs]
    if len(set(methods)) == len(runs):
        return dict(zip(methods, runs, strict=True))
    return {f"{method} {run.name}": run for method, run in zip(methods, runs, strict=True)}


def comparison_table(runs: Mapping[str, RunRecord]) -> Table:
    """One row a run; the best mean accuracy has a star."""
    table = Table(title="runs side by side (accuracy on held-out examples, * = best)")
    table.add_column("run", overflow="fold")
    for heading in ("rounds", "clusters", "clients"):
        table.add_column(heading, justify="right")
    for heading in ("mean", "std", "worst", "FL model", "gain", "Rand index", "seconds"):
        table.add_column(heading, justify="right")
    means = {name: run.summary["metrics"].get("accuracy") for name, run in runs.items()}
    best = max((mean for mean in means.values() if mean is not None), default=None)
    for name, run in runs.items():
        summary, metrics = run.summary, run.summary["metrics"]
        own, federated = means[name], metrics.get("fl_accuracy")
        scores = [c["accuracy"] for c in summary["clients"].values() if "accuracy" in c]
        seconds = {line["round"]: line["seconds"] for line in run.lines}
        cells = [
            name if run.finished else f"{name} (not finished)",
            str(run.rounds),
            str(len(summary["clusters"])),
            str(len(summary["clients"])),
            shown(own, ".4f") + ("*" if own is not None and own == best else " "),
            shown(float(np.std(scores)) if scores else None, ".4f"),
            shown(min(scores, default=None), ".4f"),
            shown(federated, ".4f"),
            shown(own - federated if own is not None and federated is not None else None, "+.4f"),
            shown(summary["adjusted_rand_index"], ".3f"),
            f"{sum(seconds.values()):.0f}",
        ]
        table.add_row(*(Text(cell) for cell in cells))
    return table


def differences(runs: Mapping[str, RunRecord]) -> str:
    """Which config keys the runs differ in, so that one knows what is being compared."""
    keys = dict.fromkeys(key for run in runs.values() for key in run.config)
    lines = []
    for key in keys:
        values = [run.config.get(key) for run in runs.values()]
        if any(value != values[0] for value in values) and key not in ("output-dir", "resume"):
            lines.append(f"  {key}: " + ", ".join(repr(value) for value in values))
    return "The runs differ in:\n" + "\n".join(lines) if lines else "The runs have one config."
