"""The commands that look at runs: list, show, report, explain, compare."""

import csv
import json
import sys
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from cflower.errors import ConfigError, OtherVersionError, RunFolderError
from cflower.metric import Metric
from cflower.ordering import line, only, without
from cflower.runs.reading import outside
from cflower.settings import require

if TYPE_CHECKING:
    from cflower.runs.compare import Group
    from cflower.runs.record import RunRecord
    from cflower.runs.ways import Paired

DEFAULT_RUNS = Path("~/cflower-runs")


def run_ids(incomplete: str) -> list[str]:
    """The runs in the default folder that a shell can complete to."""
    from cflower.runs.run_files import run_folders

    names = (path.name for path in run_folders(DEFAULT_RUNS.expanduser()))
    return [name for name in names if name.startswith(incomplete)]


RunArgument = Annotated[str, typer.Argument(autocompletion=run_ids)]
RUN_HELP = "RUN is a run folder or the beginning of its id; the newest run if not given."
"""A command's closing line: click 8.5 drops the help of typer's arguments."""
RunsDir = Annotated[
    Path, typer.Option("--runs", help="Folder of the run folders.", show_default=True)
]
AsJson = Annotated[bool, typer.Option("--json", help="For programs: one JSON value, all of it.")]
UNPAIRED = "No runs have the same clients and held-out examples, so no clients are compared."
MetricOption = Annotated[
    str, typer.Option("--metric", help="Another metric that the clients sent; it leads.")
]
MOST_PAIRS = 12
LEFT = ("run", "state", "app", "name")
"""The columns of the list that are texts."""


def list_runs(runs: RunsDir = DEFAULT_RUNS, as_json: AsJson = False) -> None:
    """List all runs, the newest last."""
    from cflower.runs.run_files import run_folders
    from cflower.runs.tables import table_of

    rows = [row_of(folder) for folder in run_folders(runs.expanduser())]
    if as_json:
        return print(json.dumps(rows, indent=1))
    if not rows:
        return print(f"There is no run in {runs}.")
    for row in rows:
        row["mean"] = Metric(str(row["metric"])).in_words(row["mean"])
    empty = None, ""
    texts = [{k: "-" if v in empty else str(v) for k, v in row.items()} for row in rows]
    table = table_of("", texts, LEFT)
    for column in table.columns:
        width = max(len(str(text)) for text in (column.header, *column.cells))
        # The others are never cut: in a narrow terminal a line goes on below itself.
        column.min_width = min(12, width) if column.header in ("app", "name") else width
    console = Console(highlight=False)
    least = console.measure(table, options=console.options.update(width=1000)).minimum
    Console(highlight=False, width=max(console.width, least)).print(table)


def row_of(folder: Path) -> dict[str, Any]:
    """One run's row of the list, also of a run that was interrupted or is damaged."""
    from cflower.runs.records import Config, Summary
    from cflower.runs.run_files import read_record

    row: dict[str, Any] = dict.fromkeys((*LEFT, "rounds", "clients", "clusters", "metric", "mean"))
    row["run"] = line(folder.name)
    try:
        with outside(folder):
            begun = read_record(folder, Config)
            nothing = Summary(run_id="", rounds=0, clusters={}, clients={})
            summary = read_record(folder, Summary, nothing)
    except RunFolderError as error:
        state = "other version" if isinstance(error, OtherVersionError) else "damaged"
        return row | {"state": state}
    row |= {key: getattr(begun, key) for key in ("app", "name")}
    if not summary.rounds:
        return row | {"state": "not begun"}
    return row | {
        "state": "finished" if summary.finished else "not finished",
        "rounds": summary.rounds,
        "clients": len(summary.clients),
        "clusters": len(summary.clusters),
        "metric": summary.metric.name,
        "mean": summary.metrics.get(summary.metric.name),
    }


def show(
    run: RunArgument = "",
    runs: RunsDir = DEFAULT_RUNS,
    as_json: AsJson = False,
    every: Annotated[bool, typer.Option("--all", help="All clients, however many.")] = False,
    metric: MetricOption = "",
    by_round: Annotated[
        bool, typer.Option("--by-round", help="Each client's metrics in each round, as CSV.")
    ] = False,
) -> None:
    """Print the cluster tree and the client × model table of a run."""
    from cflower.runs.record import RunRecord
    from cflower.runs.run_files import find_run

    folder = find_run(runs.expanduser(), run)
    with outside(folder):
        record = RunRecord(folder, metric)
        if by_round:
            return print_by_round(record, as_json=as_json)
        if as_json:
            tree = {name: cluster.model_dump() for name, cluster in record.clusters.items()}
            content = {"best_rounds": record.best_rounds, "tree": tree}
            return print(json.dumps({**record.summary.model_dump(), **content}, indent=1))
        from cflower.runs.tables import best_rounds_in_words, run_view

        Console().print(run_view(record.summary, record.clusters, every=every))
        if words := best_rounds_in_words(record.best_rounds, record.metric):
            Console(highlight=False).print(words, markup=False)
    print(f"Run folder: {line(record.path)}")


def print_by_round(record: "RunRecord", *, as_json: bool) -> None:
    """Print a row for each client in each round in which it replied: CSV, or JSON."""
    rows = [
        {"round": one.round, "cluster": one.cluster, "client": client, **metrics}
        for one in record.lines
        for client, metrics in one.clients.items()
    ]
    if as_json:
        return print(json.dumps(rows, indent=1))
    columns = dict.fromkeys(["round", "cluster", "client", *(key for row in rows for key in row)])
    table = csv.DictWriter(sys.stdout, [*columns], lineterminator="\n")
    table.writeheader()
    table.writerows(rows)


def report(
    run: RunArgument = "",
    runs: RunsDir = DEFAULT_RUNS,
    open_it: Annotated[bool, typer.Option("--open", help="Show it in the browser.")] = False,
    metric: MetricOption = "",
) -> None:
    """Write report.html, one page with everything about a run; it needs no network."""
    from cflower.runs.report import write_report
    from cflower.runs.run_files import find_run

    folder = find_run(runs.expanduser(), run)
    try:
        path = write_report(folder, metric)
    except OSError as error:
        raise ConfigError(f"Cannot write RUN {folder}: {error.strerror or error}.") from None
    print(f"Report: {line(path)}")
    if open_it:
        webbrowser.open(path.absolute().as_uri())


def explain(
    run: RunArgument = "",
    config: Annotated[
        list[str] | None, typer.Option("-c", help='Other thresholds, such as "eps1=0.5 eps2=1.2".')
    ] = None,
    runs: RunsDir = DEFAULT_RUNS,
    as_json: AsJson = False,
) -> None:
    """Say why each cluster was split or not, and when other thresholds would have split it.

    Takes the recorded norms and similarities; nothing is trained.
    """
    from cflower.config import RunConfig, read_overrides
    from cflower.runs.explain import explanation
    from cflower.runs.record import RunRecord
    from cflower.runs.run_files import find_run

    folder = find_run(runs.expanduser(), run)
    given = read_overrides(config or [])
    asked = only(RunConfig.read(given).as_keys(), given)  # checked, and of the right types
    console = Console(highlight=False)  # a file keeps whole lines
    with outside(folder):
        explained = explanation(RunRecord.read(folder), asked)
    if as_json:
        return print(json.dumps({"run": line(folder.name), **explained._asdict()}, indent=1))
    console.print(str(explained), markup=False, soft_wrap=not console.is_terminal)


@outside("One of the run folders")
def compare(
    names: Annotated[
        list[str],
        typer.Argument(metavar="RUN RUN ...", help="Two or more runs, or a folder of runs."),
    ],
    runs: RunsDir = DEFAULT_RUNS,
    as_json: AsJson = False,
    metric: MetricOption = "",
    each: Annotated[
        bool, typer.Option("--each", help="A column for each run, also where only seeds differ.")
    ] = False,
) -> None:
    """Put runs side by side: one table, and the keys in which they differ.

    Runs that differ in the seed only are one column: the mean and the standard deviation.

    Example: `cflower compare 20261126-09 20261126-10`
    """
    from cflower.config import DATA_KEYS
    from cflower.recording.resume import WITHOUT_EFFECT
    from cflower.runs.compare import differing, grouped, measures_of, pairs, spread_of
    from cflower.runs.record import RunRecord
    from cflower.runs.run_files import find_run, run_folders

    folders = list[Path]()
    for name in names:
        given = Path(name).expanduser()
        inside = run_folders(given) if given.is_dir() else []
        folders += inside or [find_run(runs.expanduser(), name)]
    require(len(folders) > 1, "Got one run, but expected two or more to compare.")
    records = [RunRecord.read(folder, metric) for folder in folders]
    for record in records:  # in a key without an effect runs do not differ
        record.config = without(record.config, WITHOUT_EFFECT)
    groups = grouped(records, each=each)
    if not as_json:
        return print_comparison(groups, pairs(records, DATA_KEYS))
    content = {
        "runs": [measures_of(record) for record in records],
        "differences": differing([[record] for record in records]),
        "groups": [spread_of(group) for group in groups],
        "pairs": [
            {"run": one.name, "against": other.name, **pair.as_json()}
            for one, other, pair in pairs(records, DATA_KEYS)
        ],
    }
    return print(json.dumps(content, indent=1))


def print_comparison(
    groups: "Sequence[Group]", compared: "Sequence[tuple[RunRecord, RunRecord, Paired]]"
) -> None:
    """Print the table, and a line for each two runs of the same clients."""
    from cflower.runs.compare import comparison_table

    console = Console(highlight=False)
    console.print(comparison_table(groups))
    lines = [f"{one.name} against {other.name}: {pair.sentence}" for one, other, pair in compared]
    if more := len(lines) - MOST_PAIRS:
        lines[MOST_PAIRS:] = [f"{more} more pairs of runs: add --json."] if more > 0 else []
    for text in lines or [UNPAIRED]:
        console.print(text, markup=False)
