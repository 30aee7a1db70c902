"""The commands that look at runs: report, watch, explain, compare."""

import webbrowser
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from cflower.errors import ConfigError
from cflower.overrides import read_overrides
from cflower.runs.compare import comparison_table, differences, named
from cflower.runs.explain import explanation
from cflower.runs.figures import write_comparison, write_figures
from cflower.runs.reading import find_run
from cflower.runs.record import RunRecord
from cflower.runs.report import write_report
from cflower.runs.watch import ReportServer

Run = Annotated[str, typer.Argument(help="Beginning of a run's id; the newest if not given.")]
RunsDir = Annotated[
    Path, typer.Option("--runs", help="Where the run folders are.", show_default=True)
]
DEFAULT_RUNS = Path("~/cflower-runs")


def report(
    run: Run = "",
    runs: RunsDir = DEFAULT_RUNS,
    open_it: Annotated[bool, typer.Option("--open", help="Show it in the browser.")] = False,
    figures: Annotated[
        Path | None,
        typer.Option(help="Also write pictures for papers (PNG and SVG) into this folder."),
    ] = None,
) -> None:
    """Write report.html, one page with everything about a run; it needs no network."""
    folder = find_run(runs.expanduser(), run)
    path = write_report(folder)
    print(f"Report: {path}")
    if figures is not None:
        for written in write_figures(RunRecord.read(folder), figures.expanduser()):
            print(f"Figure: {written}")
    if open_it:
        webbrowser.open(path.absolute().as_uri())


def watch(
    run: Run = "",
    runs: RunsDir = DEFAULT_RUNS,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port on this machine; 0 takes a free one.")
    ] = 0,
    open_it: Annotated[bool, typer.Option("--open", help="Show it in the browser.")] = False,
) -> None:
    """Show the report of a run while it goes on, on this machine only, until Ctrl-C."""
    with ReportServer(find_run(runs.expanduser(), run), port) as server:
        print(f"{server.run_folder.name}: {server.url} (Ctrl-C stops)", flush=True)
        if open_it:
            webbrowser.open(server.url)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()


def explain(
    run: Run = "",
    config: Annotated[
        list[str] | None,
        typer.Option("-c", help='Other thresholds to ask about, such as "eps1=0.5 eps2=1.2".'),
    ] = None,
    runs: RunsDir = DEFAULT_RUNS,
) -> None:
    """Say why each cluster was split or not, and when other thresholds would have split it.

    Takes the recorded norms and similarities; nothing is trained.
    """
    record = RunRecord.read(find_run(runs.expanduser(), run))
    asked = read_overrides(config) if config else None
    Console(highlight=False, soft_wrap=True).print(explanation(record, asked), markup=False)


def compare(
    names: Annotated[list[str], typer.Argument(metavar="RUN RUN ...", help="Two or more runs.")],
    runs: RunsDir = DEFAULT_RUNS,
    figure: Annotated[
        Path, typer.Option(help="Where the picture goes; .png, .svg or .pdf.")
    ] = Path("comparison.png"),
) -> None:
    """Put runs side by side: one table, one picture, and the keys in which they differ."""
    if len(names) < 2:
        raise ConfigError("Got one run, but expected two or more to compare.")
    records = named([RunRecord.read(find_run(runs.expanduser(), name)) for name in names])
    console = Console(highlight=False)
    console.print(comparison_table(records))
    console.print(differences(records), markup=False)
    for path in write_comparison(records, figure.expanduser()):
        print(f"Picture: {path}")


def add_to(app: typer.Typer) -> None:
    """Make these commands of `cflower`."""
    for command in (report, watch, explain, compare):
        app.command()(command)
