"""`cflower compare`: several runs side by side."""

import json
import re
from collections import ChainMap
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import chain
from statistics import fmean, stdev
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from cflower.errors import ConfigError
from cflower.metric import Metric
from cflower.ordering import only, without
from cflower.runs.record import RunRecord
from cflower.runs.tables import shown, starred
from cflower.runs.ways import BASELINES, KINDS, Paired, difference_in_words, fairness, of_all

MEAN, MEAN_OF = "mean", "mean of"
SEED = "seed"
Show = Callable[[Any], str]
GIVE_METRIC = "choose one that the clients of all of them sent, with --metric NAME."
Group = Sequence[RunRecord]
"""Runs that differ in the seed only."""


def grouped(runs: Sequence[RunRecord], *, each: bool = False) -> list[Group]:
    """The runs in their order, those that differ in the seed alone together unless ``each``."""
    groups: dict[str, list[RunRecord]] = {}
    for number, run in enumerate(runs):
        parts = [without(part, [SEED]) for part in (run.config, run.settings)]
        alike = json.dumps(parts, sort_keys=True)
        seeds = [other.settings[SEED] for other in groups.get(alike, ())]
        alone = each or run.settings[SEED] in seeds
        groups.setdefault(f"{number} {alike}" if alone else alike, []).append(run)
    return [sorted(group, key=lambda run: run.settings[SEED]) for group in groups.values()]


def differing(groups: Sequence[Group]) -> dict[str, list[Any]]:
    """The config keys in which groups of runs differ, each with its value in every group."""
    configs = [{"method": one[0].settings["method"], **one[0].config} for one in groups]
    for config, group in zip(configs, groups, strict=True):
        if len(group) > 1:
            config[SEED] = ", ".join(str(run.settings[SEED]) for run in group)
    values = {key: [config.get(key) for config in configs] for key in ChainMap(*configs)}
    return {
        key: every
        for key, every in values.items()
        if every.count(every[0]) < len(every) or (key == SEED and len(groups[0]) > 1)
    }


def comparison_table(groups: Sequence[Group]) -> Table:
    """One column for each group of runs: the keys in which they differ, then their measures."""
    metric = common_metric(list(chain.from_iterable(groups)))
    spreads = [spread_of(group) for group in groups]
    title = f"{metric.in_full} of the clients on held-out examples, run by run (* = best)"
    table = Table(title=title, box=SIMPLE_HEAD, padding=0, min_width=len(title))
    table.add_column("", overflow="fold")
    for group in groups:
        table.add_column(Text(heading_of(group)), justify="right", overflow="fold")
    rows = {
        heading: [cell(one.get(key), *show) for one in spreads]
        for heading, (key, *show) in rows_of(metric).items()
    }
    marked = starred((one.get("mean", {}).get("mean") for one in spreads), metric)
    rows[MEAN] = [text + mark[-1] for text, mark in zip(rows[MEAN], marked, strict=True)]
    for place, group in enumerate(groups):
        known = sum(len(run.ways["own"].values) for run in group)
        members = sum(len(run.summary.clients) for run in group)
        rows[MEAN_OF][place] = of_all(known, members).removeprefix("of ") or "-"
    for key, values in differing(groups).items():
        heading = f"{key} (config)" if key in rows else key
        table.add_row(heading, *map(Text, map(str, values)))
    for heading, cells in rows.items():
        if {one.strip() for one in cells} != {"-"}:
            table.add_row(heading, *map(Text, cells))
    return table


def common_metric(runs: Group) -> Metric:
    if len({run.metric.name for run in runs}) > 1:
        named = "; ".join(f"{run.metric.name} in {run.name}" for run in runs)
        raise ConfigError(f"The runs have different leading metrics ({named}): {GIVE_METRIC}")
    return runs[0].metric._replace(above_one=any(run.metric.above_one for run in runs))


def heading_of(group: Group) -> str:
    """The id of a run, its date in a line of its own; of several runs their number."""
    open_ones = sum(not run.finished for run in group)
    if len(group) > 1:
        return f"{len(group)} runs" + (f"\n({open_ones} not finished)" if open_ones else "")
    heading = re.sub(r"^\d{8}-", r"\g<0>\n", group[0].name)
    return heading + ("\n(not finished)" if open_ones else "")


def rows_of(metric: Metric) -> dict[str, tuple[str, Show, Show]]:
    """By heading: a measure, how it is shown, and how a standard deviation of it is."""
    points = partial(difference_in_words, metric=metric, unit="")
    as_metric, count = (
        (metric.in_words, points),
        (partial(shown, spec="g"), partial(shown, spec=".2g")),
    )
    return {
        **{key: (key, *count) for key in ("rounds", "clients", "clusters")},
        MEAN: ("mean", *as_metric),
        MEAN_OF: ("evaluated", *count),
        "worst 10%": ("worst_tenth", *as_metric),
        "standard deviation": ("spread", partial(difference_in_words, metric=metric), points),
        "common model": ("common_model", *as_metric),
        **{KINDS[key].words: (key, *as_metric) for key in BASELINES},
        "adjusted Rand index": ("adjusted_rand_index", *2 * (partial(shown, spec=".3f"),)),
        "seconds in rounds": ("seconds", *2 * (partial(shown, spec=".0f"),)),
    }


def cell(spread: Mapping[str, Any] | None, show: Show, deviation: Show) -> str:
    """A mean over runs and its standard deviation; a dash without a value.

    >>> cell({"mean": 2.0, "deviation": 1.41}, "{:.1f}".format, "{:.2f}".format)
    '2.0 ± 1.41'
    """
    if spread is None:
        return "-"
    text = show(spread["mean"])
    return f"{text} ± {deviation(spread['deviation'])}" if spread["deviation"] else text


def spread_of(group: Group) -> dict[str, Any]:
    """The mean and the standard deviation of each measure over a group, for programs."""
    measures = list(map(measures_of, group))
    content: dict[str, Any] = {"runs": [run.name for run in group]}
    for _, (key, *_) in rows_of(group[0].metric).items():
        if values := [one[key] for one in measures if one[key] is not None]:
            deviation = stdev(values) if len(values) > 1 else None
            content[key] = {"mean": fmean(values), "deviation": deviation, "runs": len(values)}
    return content


def measures_of(run: RunRecord) -> dict[str, Any]:
    """The measures of one run; None where it has no such value."""
    summary, ways = run.summary, run.ways
    even = fairness(ways["own"].values.values(), run.metric)
    measured = [key for key in BASELINES if key in ways]
    return {
        "run": run.name,
        "finished": run.finished,
        "rounds": run.rounds,
        "clients": len(summary.clients),
        "clusters": len(summary.clusters),
        "metric": run.metric.name,
        "worst_tenth": even and even.worst_tenth,
        "spread": even and even.spread,
        "mean": ways["own"].mean,
        "evaluated": len(ways["own"].values),
        "common_model": ways["fl"].mean if summary.lasting else None,
        **dict.fromkeys(BASELINES),
        **{key: ways[key].mean for key in measured},
        "adjusted_rand_index": summary.adjusted_rand_index,
        "seconds": run.seconds,
    }


def pairs(
    runs: Sequence[RunRecord], data_keys: Collection[str] = ()
) -> list[tuple[RunRecord, RunRecord, Paired]]:
    """Each finished run after the first one with the same held-out examples, which comes first.

    Runs that differ in one of the ``data_keys`` of the run config are not compared.
    """
    compared, first = [], dict[str, RunRecord]()
    for run in filter(lambda run: run.finished, runs):
        other = first.setdefault(examples_of(run, data_keys), run)
        pair = other.ways.compared(run.ways["own"].values)
        if pair and other is not run:
            compared.append((other, run, pair))
    return compared


def examples_of(run: RunRecord, data_keys: Collection[str]) -> str:
    """A text that two runs share if their clients were evaluated on the same examples."""
    held_out = {name: client.held_out for name, client in run.summary.clients.items()}
    config, data = only(run.config, data_keys), run.data.model_dump()
    content = [run.metric, held_out, data, run.settings["seed"], config]
    return json.dumps(content, sort_keys=True)
