"""`cflower compare`: several runs side by side."""

import json
from collections import ChainMap, Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from cflower.errors import ConfigError
from cflower.ordering import counted, only, without
from cflower.runs.baselines import BASELINES, Paired, against
from cflower.runs.findings import baselines_of, common_score
from cflower.runs.record import RunRecord

LONGEST = 60
"""Characters of a name made of keys; for longer ones the ids of the runs are taken."""


def mean_of(values: Sequence[float | None]) -> float:
    """The mean of one measure over several runs; NaN if one has no value."""
    return float(np.mean(np.array(values, float)))


def spread(values: Sequence[float | None], show: Callable[[float], str]) -> str:
    """Mean ± standard deviation of one measure over several runs; a dash if one has no value."""
    mean, deviation = mean_of(values), float(np.std(np.array(values, float)))
    if np.isnan(mean):
        return "-"
    return f"{show(mean)} ± {show(deviation)}" if deviation > 1e-9 else show(mean)


Show = Callable[[Sequence[Any]], str]
ROWS: dict[str, tuple[str, Show | None]] = {
    "run": ("run", ", ".join),
    "finished": ("finished", lambda values: "yes" if all(values) else "not finished"),
    "rounds": ("rounds", partial(spread, show="{:g}".format)),
    "clients": ("clients", partial(spread, show="{:g}".format)),
    "clusters": ("clusters", partial(spread, show="{:.3g}".format)),
    "mean": ("mean of the clients", None),
    "std": ("± std of the clients", None),
    "worst": ("worst client", None),
    "common_model": ("common model at the end", None),
    **{str(key): (words, None) for key, words in BASELINES.items()},
    "adjusted_rand_index": ("adjusted Rand index", partial(spread, show="{:.3f}".format)),
    "seconds": ("seconds in rounds", partial(spread, show="{:.0f}".format)),
}
"""The rows of the table by their measure in `measures_of`: the heading, and how to show the values
of several runs; None for values of the leading metric."""


def differing(runs: Sequence[RunRecord]) -> dict[str, list[Any]]:
    """The config keys in which the runs differ, each with its value in every run."""
    configs = [{"method": run.settings["method"], **run.config} for run in runs]
    values = {key: [config.get(key) for config in configs] for key in ChainMap(*configs)}
    return {key: every for key, every in values.items() if every.count(every[0]) < len(every)}


def differences(runs: Sequence[RunRecord]) -> str:
    """The config keys in which the runs differ, as text."""
    lines = [f"\n  {key}: {', '.join(map(repr, v))}" for key, v in differing(runs).items()]
    return "".join(["The runs differ in:", *lines]) if lines else "The runs have one config."


def labels(runs: Sequence[RunRecord], ignored: Collection[str] = ()) -> list[str]:
    """The keys in which runs differ with their values, as a name for each run."""
    names = [""] * len(runs)
    for key, values in without(differing(runs), ignored).items():
        names = [f"{name}, {key}={value}" for name, value in zip(names, values, strict=True)]
    return [name.removeprefix(", ").removeprefix("method=") for name in names]


def named(runs: Sequence[RunRecord]) -> dict[str, RunRecord]:
    """Short names for runs: the keys in which they differ, else their ids.

    Raises
    ------
    ConfigError
        If one run is given twice.
    """
    ((path, times),) = Counter(run.path.resolve() for run in runs).most_common(1)
    if times > 1:
        raise ConfigError(f"Got the run {path.name} twice, but expected different ones.")
    names = labels(runs)
    if len(set(names)) < len(runs) or max(map(len, names)) > LONGEST:
        names = [run.name for run in runs]
    return dict(zip(names, runs, strict=True))


def by_seeds(runs: Mapping[str, RunRecord]) -> dict[str, list[RunRecord]]:
    """Runs that differ in nothing but the seed together; each by its own name if there are none."""
    records, groups = list(runs.values()), dict[str, list[RunRecord]]()
    for label, run in zip(labels(records, ignored=["seed"]), records, strict=True):
        groups.setdefault(label, []).append(run)
    if "seed" not in differing(records) or len(groups) == len(runs):
        return {name: [run] for name, run in runs.items()}
    return {
        f"{label}, {counted(len(alike), 'seed')}".removeprefix(", "): alike
        for label, alike in groups.items()
    }


def comparison_table(runs: Mapping[str, RunRecord]) -> Table:
    """One column for each run, or for several that differ in the seed: mean ± their deviation."""
    groups, metric = by_seeds(runs), next(iter(runs.values())).metric
    title = f"{metric.name} of the runs side by side (on held-out examples, * = best)"
    table = Table(title=title, box=SIMPLE_HEAD)
    table.add_column("", overflow="fold")
    for name in groups:
        table.add_column(Text(name), justify="right", overflow="fold")
    measures = [list(map(measures_of, alike)) for alike in groups.values()]
    means = [mean_of([one["mean"] for one in several]) for several in measures]
    best = metric.best(filter(np.isfinite, means))
    for key, (heading, show) in ROWS.items():
        show = show or partial(spread, show=metric.in_words)
        cells = [show([one[key] for one in several]) for several in measures]
        if key == "mean":
            cells = [
                f"{text}*" if mean == best else text
                for text, mean in zip(cells, means, strict=True)
            ]
        if set(cells) != {"-"}:
            table.add_row(heading, *map(Text, cells))
    return table


def measures_of(run: RunRecord) -> dict[str, Any]:
    """The measures of one run; None where it has no such value."""
    summary, metric = run.summary, run.metric
    scores, measured = list(run.scores.values()), baselines_of(summary)
    return {
        "run": run.name,
        "finished": run.finished,
        "rounds": run.rounds,
        "clients": len(summary["clients"]),
        "clusters": len(summary["clusters"]),
        "metric": metric.name,
        "mean": summary["metrics"].get(metric.name),
        "std": float(np.std(scores)) if scores else None,
        "worst": metric.worst(scores),
        "common_model": common_score(summary),
        **{key: measured.get(key, {}).get(metric.name) for key in BASELINES},
        "adjusted_rand_index": summary["adjusted_rand_index"],
        "seconds": run.seconds,
    }


def pairs(
    runs: Mapping[str, RunRecord], data_keys: Collection[str] = ()
) -> dict[tuple[str, str], Paired]:
    """Each finished run, by its name, against the first one with the same held-out examples.

    ``data_keys`` are the keys of the run config that choose the clients' data. Runs that differ in
    one of them are not compared.
    """
    compared: dict[tuple[str, str], Paired] = {}
    first: dict[str, str] = {}
    for name, run in runs.items():
        if not run.finished:
            continue
        other = first.setdefault(examples_of(run, data_keys), name)
        pair = against(runs[other].summary, run.scores, run.metric)
        if pair and other != name:
            compared[other, name] = pair
    return compared


def examples_of(run: RunRecord, data_keys: Collection[str]) -> str:
    """A text that two runs share if their clients were evaluated on the same examples.

    It has the leading metric, the number of held-out examples of each client, previews of the
    data, and the seed, as far as the run has them.
    """
    held_out = {name: client.get("held_out") for name, client in run.summary["clients"].items()}
    config = only(run.config, data_keys)
    content = [run.metric, held_out, run.data, run.settings["seed"], config]
    return json.dumps(content, sort_keys=True)


def pair_lines(runs: Mapping[str, RunRecord], data_keys: Collection[str] = ()) -> list[str]:
    compared = pairs(runs, data_keys).items()
    return [f"{first} against {second}: {pair.sentence}" for (first, second), pair in compared]
