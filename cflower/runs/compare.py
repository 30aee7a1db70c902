"""`cflower compare`: several runs side by side."""

import json
import re
from collections import ChainMap
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from cflower.errors import ConfigError
from cflower.messages.metrics import Metric
from cflower.ordering import only
from cflower.runs.baselines import BASELINES, Paired, against, difference_in_words
from cflower.runs.findings import of_all, ways_to_serve
from cflower.runs.record import RunRecord
from cflower.runs.tables import shown, starred

MEAN = "mean"
GIVE_METRIC = "choose one that the clients of all of them sent, with --metric NAME."


def differing(runs: Sequence[RunRecord]) -> dict[str, list[Any]]:
    """The config keys in which the runs differ, each with its value in every run."""
    configs = [{"method": run.settings["method"], **run.config} for run in runs]
    values = {key: [config.get(key) for config in configs] for key in ChainMap(*configs)}
    return {key: every for key, every in values.items() if every.count(every[0]) < len(every)}


def comparison_table(runs: Sequence[RunRecord]) -> Table:
    """One column for each run: the keys in which they differ, then their measures.

    Raises a ConfigError if another metric leads in one of the runs.
    """
    metric, measures = runs[0].metric, list(map(measures_of, runs))
    if len({run.metric.name for run in runs}) > 1:
        named = "; ".join(f"{run.metric.name} in {run.name}" for run in runs)
        raise ConfigError(f"The runs have different leading metrics ({named}): {GIVE_METRIC}")
    metric = metric._replace(above_one=any(run.metric.above_one for run in runs))
    title = f"{metric.in_full} of the clients on held-out examples, run by run (* = best)"
    table = Table(title=title, box=SIMPLE_HEAD, padding=0, min_width=len(title))
    table.add_column("", overflow="fold")
    for run in runs:
        heading = re.sub(r"^\d{8}-", r"\g<0>\n", run.name)  # the date in a line of its own
        state = "" if run.finished else "\n(not finished)"
        table.add_column(Text(heading + state), justify="right", overflow="fold")
    columns = [in_words(one, metric) for one in measures]
    for key, values in differing(runs).items():
        heading = f"{key} (config)" if key in columns[0] else key
        table.add_row(heading, *map(Text, map(str, values)))
    rows = {heading: [column[heading] for column in columns] for heading in columns[0]}
    rows[MEAN] = starred([one["mean"] for one in measures], metric)
    for heading, cells in rows.items():
        if set(cells) != {"-"}:
            table.add_row(heading, *map(Text, cells))
    return table


def in_words(measures: Mapping[str, Any], metric: Metric) -> dict[str, str]:
    """The measures of one run by their headings; a dash where it has no such value."""
    return {
        **{key: shown(measures[key]) for key in ("rounds", "clients", "clusters")},
        MEAN: metric.in_words(measures["mean"]),
        "mean of": of_all(measures["evaluated"], measures["clients"]).removeprefix("of ") or "-",
        "worst tenth": metric.in_words(measures["worst_tenth"]),
        "spread": difference_in_words(measures["spread"], metric),
        "common model": metric.in_words(measures["common_model"]),
        **{words: metric.in_words(measures[key]) for key, words in BASELINES.items()},
        "adjusted Rand index": shown(measures["adjusted_rand_index"], ".3f"),
        "seconds in rounds": shown(measures["seconds"], ".0f"),
    }


def measures_of(run: RunRecord) -> dict[str, Any]:
    """The measures of one run; None where it has no such value."""
    summary, means = run.summary, {way.key: way.mean for way in ways_to_serve(run.summary)}
    even = summary.fairness.get("own")
    return {
        "run": run.name,
        "finished": run.finished,
        "rounds": run.rounds,
        "clients": len(summary.clients),
        "clusters": len(summary.clusters),
        "metric": run.metric.name,
        "worst_tenth": even and even.worst_tenth,
        "spread": even and even.spread,
        "mean": means.get("own"),
        "evaluated": sum(value is not None for value in run.scores.values()),
        "common_model": means.get("fl"),
        **{key: means.get(key) for key in BASELINES},
        "adjusted_rand_index": summary.adjusted_rand_index,
        "seconds": run.seconds,
    }


def pairs(
    runs: Sequence[RunRecord], data_keys: Collection[str] = ()
) -> list[tuple[RunRecord, RunRecord, Paired]]:
    """Each finished run after the first one with the same held-out examples, which comes first.

    ``data_keys`` are the keys of the run config that choose the clients' data. Runs that differ in
    one of them are not compared.
    """
    compared, first = [], dict[str, RunRecord]()
    for run in filter(lambda run: run.finished, runs):
        other = first.setdefault(examples_of(run, data_keys), run)
        pair = against(other.summary.clients, run.scores, run.metric)
        if pair and other is not run:
            compared.append((other, run, pair))
    return compared


def examples_of(run: RunRecord, data_keys: Collection[str]) -> str:
    """A text that two runs share if their clients were evaluated on the same examples.

    It has the leading metric, the number of held-out examples of each client, previews of the
    data, and the seed, as far as the run has them.
    """
    held_out = {name: client.held_out for name, client in run.summary.clients.items()}
    config, data = only(run.config, data_keys), run.data.model_dump()
    content = [run.metric, held_out, data, run.settings["seed"], config]
    return json.dumps(content, sort_keys=True)
