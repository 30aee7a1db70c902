"""`cflower compare`: several runs side by side."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from cflower.config import DATA_KEYS
from cflower.errors import ConfigError
from cflower.runs.baselines import BASELINES, Paired, against
from cflower.runs.record import RunRecord, lasting

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
    names = names_by(differ, len(runs))
    if len(set(names)) < len(runs) or len(max(names, key=len)) > LONGEST:
        names = [run.name for run in runs]
    return dict(zip(names, runs, strict=True))


def names_by(differ: Mapping[str, Sequence[Any]], count: int) -> list[str]:
    """A name for each run, of what it has under these keys."""
    shown = {k: [str(v) if k == "method" else f"{k}={v}" for v in vs] for k, vs in differ.items()}
    return [", ".join(values[i] for values in shown.values()) for i in range(count)]


def by_seeds(runs: Mapping[str, RunRecord]) -> dict[str, list[RunRecord]]:
    """Runs that differ in nothing but the seed together; each by its own name if there are none."""
    differ = differing(list(runs.values()))
    differ.pop("seed", None)
    groups: dict[str, list[RunRecord]] = {}
    for name, run in zip(names_by(differ, len(runs)), runs.values(), strict=True):
        groups.setdefault(name, []).append(run)
    if len(groups) == len(runs) or not differing(list(runs.values())):
        return {name: [run] for name, run in runs.items()}
    return {
        ", ".join(filter(None, (name, f"{len(alike)} seeds" if len(alike) > 1 else ""))): alike
        for name, alike in groups.items()
    }


def comparison_table(runs: Mapping[str, RunRecord]) -> Table:
    """One column a run; the best mean has a star. Seeds are one column: mean ± their std."""
    groups = by_seeds(runs)
    table = Table(title="runs side by side (on held-out examples, * = best)", box=SIMPLE_HEAD)
    table.add_column("", overflow="fold")
    for name in groups:
        table.add_column(Text(name), justify="right", overflow="fold")
    metric = next(iter(runs.values())).metric
    columns = [column_of(alike) for alike in groups.values()]
    means = [mean_of("mean", [measures_of(run) for run in alike]) for alike in groups.values()]
    best = metric.best(mean for mean in means if mean is not None)
    for column, mean in zip(columns, means, strict=True):
        column[f"mean {metric.name}"] += "*" if mean is not None and mean == best else " "
    for row in columns[0]:
        if all(column[row] in ("-", name) for name, column in zip(groups, columns, strict=True)):
            continue  # not known of any, or what stands at the top
        table.add_row(row, *(Text(column[row]) for column in columns))
    return table


def mean_of(key: str, measures: Sequence[Mapping[str, Any]]) -> float | None:
    """The mean of one measure over several runs; None if one has none."""
    values = [one[key] for one in measures]
    return None if None in values else float(np.mean(values))


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


def column_of(runs: Sequence[RunRecord]) -> dict[str, str]:
    """What the table says of one run, or of several that differ in the seed."""
    measures, metric = [measures_of(run) for run in runs], runs[0].metric

    def told(key: str, show: Callable[[float], str]) -> str:
        mean = mean_of(key, measures)
        if mean is None:
            return "-"
        spread = float(np.std([one[key] for one in measures]))
        return show(mean) + (f" ± {show(spread)}" if spread > 1e-9 else "")

    return {
        "run": ", ".join(run.name for run in runs),
        "finished": "yes" if all(run.finished for run in runs) else "not finished",
        "rounds": told("rounds", "{:g}".format),
        "clients": told("clients", "{:g}".format),
        "clusters": told("clusters", "{:.3g}".format),
        f"mean {metric.name}": told("mean", metric.in_words),
        "± std of the clients": told("std", metric.in_words),
        "worst client": told("worst", metric.in_words),
        "common model at the end": told("common_model", metric.in_words),
        **{words: told(key, metric.in_words) for key, words in BASELINES.items()},
        "adjusted Rand index": told("adjusted_rand_index", "{:.3f}".format),
        "seconds in rounds": told("seconds", "{:.0f}".format),
    }


def pairs(runs: Mapping[str, RunRecord]) -> dict[tuple[str, str], Paired]:
    """Each run against the first one with the same held-out examples of the same clients.

    With another value of one of `DATA_KEYS`, such as the seed, clients have other examples.
    """
    firsts: list[str] = []
    found = {}
    for name, run in runs.items():
        if not run.finished:
            continue
        first = next((other for other in firsts if same_examples(runs[other], run)), None)
        if first is None:
            firsts.append(name)
            continue
        metric = run.metric.name
        theirs = {c: v[metric] for c, v in run.summary["clients"].items() if metric in v}
        if pair := against(runs[first].summary, theirs, run.metric):
            found[first, name] = pair
    return found


def same_examples(run: RunRecord, other: RunRecord) -> bool:
    """Whether two runs judged the same clients by the same examples, as far as can be told."""
    held_out = [
        {name: client.get("held_out") for name, client in one.summary["clients"].items()}
        for one in (run, other)
    ]
    return (
        run.metric == other.metric
        and held_out[0] == held_out[1]
        and not DATA_KEYS & set(differing([run, other]))
    )


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
