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
HEADINGS: dict[str, str] = {
    "run": "run",
    "finished": "finished",
    "rounds": "rounds",
    "clients": "clients",
    "clusters": "clusters",
    "mean": "mean of the clients",
    "std": "± std of the clients",
    "worst": "worst client",
    "common_model": "common model at the end",
    **{str(key): words for key, words in BASELINES.items()},
    "adjusted_rand_index": "adjusted Rand index",
    "seconds": "seconds in rounds",
}
"""The rows of the table by the measure, see `measures_of`."""


def spread(values: Sequence[float | None], show: Callable[[float], str]) -> str:
    """Mean ± standard deviation of one measure over several runs; a dash if one has no value."""
    mean, deviation = mean_of(values), float(np.std(np.array(values, float)))
    if np.isnan(mean):
        return "-"
    return f"{show(mean)} ± {show(deviation)}" if deviation > 1e-9 else show(mean)


def mean_of(values: Sequence[float | None]) -> float:
    """The mean of one measure over several runs; NaN if one has no value."""
    return float(np.mean(np.array(values, float)))


FORMATS: dict[str, Callable[[Sequence[Any]], str]] = {
    "run": ", ".join,
    "finished": lambda values: "yes" if all(values) else "not finished",
    "rounds": partial(spread, show="{:g}".format),
    "clients": partial(spread, show="{:g}".format),
    "clusters": partial(spread, show="{:.3g}".format),
    "adjusted_rand_index": partial(spread, show="{:.3f}".format),
    "seconds": partial(spread, show="{:.0f}".format),
}
"""How to show a measure of several runs that is not a value of the leading metric."""


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


def labels(runs: Sequence[RunRecord], ignored: Collection[str] = ()) -> list[str]:
    """The keys in which runs differ with their values, as a name for each run."""
    names = [""] * len(runs)
    for key, values in without(differing(runs), ignored).items():
        names = [f"{name}, {key}={value}" for name, value in zip(names, values, strict=True)]
    return [name.removeprefix(", ").removeprefix("method=") for name in names]


def by_seeds(runs: Mapping[str, RunRecord]) -> dict[str, list[RunRecord]]:
    """Runs that differ in nothing but the seed together; each by its own name if there are none."""
    records = list(runs.values())
    seeds = differing(records).get("seed", [])
    groups: dict[str, list[RunRecord]] = {}
    for label, run in zip(labels(records, ignored=["seed"]), records, strict=True):
        groups.setdefault(label, []).append(run)
    if not seeds or len(groups) == len(runs):
        return {name: [run] for name, run in runs.items()}
    return {
        f"{label}, {counted(len(alike), 'seed')}".removeprefix(", "): alike
        for label, alike in groups.items()
    }


def comparison_table(runs: Mapping[str, RunRecord]) -> Table:
    """One column for each run, or for several that differ in the seed: mean ± their deviation."""
    groups = by_seeds(runs)
    metric = next(iter(runs.values())).metric
    title = f"{metric.name} of the runs side by side (on held-out examples, * = best)"
    table = Table(title=title, box=SIMPLE_HEAD)
    table.add_column("", overflow="fold")
    for name in groups:
        table.add_column(Text(name), justify="right", overflow="fold")
    measures = [list(map(measures_of, alike)) for alike in groups.values()]
    means = [mean_of([one["mean"] for one in several]) for several in measures]
    best = metric.best(filter(np.isfinite, means))
    for key, heading in HEADINGS.items():
        show = FORMATS.get(key, partial(spread, show=metric.in_words))
        cells = [show([one[key] for one in several]) for several in measures]
        if key == "mean":
            marks = {best: "*"}
            cells = [text + marks.get(mean, "") for text, mean in zip(cells, means, strict=True)]
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
    finished = {name: run for name, run in runs.items() if run.finished}
    for name, run in finished.items():
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
    """One line for each of `pairs`."""
    compared = pairs(runs, data_keys).items()
    return [f"{first} against {second}: {pair.sentence}" for (first, second), pair in compared]


def differing(runs: Sequence[RunRecord]) -> dict[str, list[Any]]:
    """The config keys in which the runs differ, each with its value in every run."""
    configs = [{"method": run.settings["method"], **run.config} for run in runs]
    differ = {}
    for key in ChainMap(*configs):
        values = [config.get(key) for config in configs]
        if values.count(values[0]) < len(values):
            differ[key] = values
    return differ


def differences(runs: Sequence[RunRecord]) -> str:
    """The config keys in which the runs differ, as text."""
    differ = differing(runs)
    if not differ:
        return "The runs have one config."
    lines = [f"\n  {key}: {', '.join(map(repr, values))}" for key, values in differ.items()]
    return "The runs differ in:" + "".join(lines)
