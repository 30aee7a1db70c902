"""The commands that run an app several times: try and sweep."""

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cflower.cli.apps import CLIENTS, runnable, silent
from cflower.cli.log_lines import plain_log
from cflower.cli.runs import DEFAULT_RUNS, AsJson, LeadingMetric, compare
from cflower.settings import require

if TYPE_CHECKING:
    from flwr.app import Context

    from cflower.simulation.inline_grid import InlineGrid

App = Annotated[Path | None, typer.Argument(metavar="[APP]", help="A Flower app's folder.")]
Clients = Annotated[
    int | None, typer.Option(min=1, help=f"Default: min-available-nodes, or {CLIENTS}.")
]
Workers = Annotated[int | None, typer.Option(min=0, help="Processes for the clients; 0: this one.")]
Out = Annotated[Path | None, typer.Option(help=f"Folder for run folders; default: {DEFAULT_RUNS}.")]
FOR_ONE_RUN = "baselines", "resume", "tracker"
"""Keys of cflower's own app that these commands cannot take."""


def try_methods(
    app: App = None,
    config: Annotated[
        list[str] | None,
        typer.Option("-c", "--run-config", help='TOML file or "key=value ...".'),
    ] = None,
    clients: Clients = None,
    out: Out = None,
    resume: Annotated[str, typer.Option(help="The run of a try that was interrupted.")] = "",
    workers: Workers = None,
    as_json: AsJson = False,
) -> None:
    """Find the method that serves your clients best: train each one, compare them, give advice.

    The methods: each client alone; conventional FL; conventional FL, then further training at each
    client; clusters; clusters, then personal models. Each has the same clients and, for each
    client, the same number of trainings. APP is the folder of any Flower app, as for `flwr run`;
    cflower's own app if not given. The result is a run folder with a report.

    Example: `cflower try -c "shift='label-swap' num-groups=2" --clients 10`
    """
    from cflower.config import read_overrides
    from cflower.runs.record import RunRecord
    from cflower.runs.run_files import find_run

    given, done = read_overrides(config or []), None
    require_possible(given, "try")
    runs = folder_of(out)
    if resume:
        before = RunRecord(find_run(runs, resume))
        resume, given = str(before.path), {**before.config, **given}
        done = before.summary if before.finished else None
    plain_log(progress_only=True)
    run = runnable(app, given, clients, workers)
    say = silent if as_json else partial(print, flush=True)
    server_app, recorder = run.load("serverapp"), run.recorder(runs, resume)

    def train(grid: "InlineGrid", context: "Context") -> None:
        from cflower.cli.methods import Methods
        from cflower.cli.started import start_of

        methods = Methods(start_of(server_app, grid, context.run_config), grid, recorder, say)
        say(methods.effort.in_words)
        methods.run(done, resumed=bool(resume))

    say(f"Run folder: {recorder.path}")
    with interruptible(f"add --resume {recorder.path.name}"):
        run.simulate(train)
    show_methods(recorder.path, as_json=as_json)


@contextmanager
def interruptible(cure: str) -> Iterator[None]:
    """Turn Ctrl-C into a sentence that says how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        print(f"\nInterrupted. What is finished is kept; to go on, {cure}.", file=sys.stderr)
        raise typer.Exit(130) from None


def folder_of(out: Path | None) -> Path:
    """The folder of run folders, as an absolute path."""
    return (out or DEFAULT_RUNS).expanduser().absolute()


def require_possible(given: Iterable[str], command: str) -> None:
    """Refuse keys of cflower's own app that a command sets itself."""
    for key in FOR_ONE_RUN:
        require(key not in given, f"Got the key {key}, but `cflower {command}` has no use for it.")


def show_methods(folder: Path, *, as_json: bool) -> None:
    """Print the table of a run's methods and the advice."""
    from rich.console import Console

    from cflower.runs.methods import advice, method_table, methods_of
    from cflower.runs.record import RunRecord

    summary = RunRecord(folder).summary
    if as_json:
        methods = [method._asdict() for method in methods_of(summary)]
        content = {"run": str(folder), "methods": methods, "advice": advice(summary)}
        return print(json.dumps(content, indent=1))
    console = Console(highlight=False)
    console.print()
    console.print(method_table(summary))
    console.print(advice(summary), markup=False, soft_wrap=not console.is_terminal)
    report = folder / "report.html"
    missing = f"No report was written: `cflower report {folder}` says why."
    print(f"Report: {report}" if report.is_file() else missing)


def sweep(
    app: App = None,
    config: Annotated[
        list[str] | None,
        typer.Option("-c", "--run-config", help='"key=value,value ..."; or a TOML file as well.'),
    ] = None,
    clients: Clients = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the runs; by default one for this very sweep.")
    ] = None,
    workers: Workers = None,
    metric: LeadingMetric = "",
) -> None:
    """Run an app with each combination of some values, and compare the runs.

    A key may have several values, separated by commas; texts are in quotes. The same command goes
    on where it was interrupted. In the end there is the table of `cflower compare`, over seeds the
    mean and the standard deviation, and a page with the curves.

    Example: `cflower sweep -c "seed=0,1,2 num-groups=2,4 shift='label-swap'"`
    """
    from cflower.cli.sweeps import combinations_of, name_of, run_once

    combinations = combinations_of(config or [])
    require_possible(combinations[0], "sweep")
    varied = [key for key in combinations[0] if len({one[key] for one in combinations}) > 1]
    runs = folder_of(out) if out else folder_of(None) / name_of(app, config or [], clients)
    apps = [runnable(app, given, clients, workers) for given in combinations]  # checks all first
    print(f"{len(combinations)} runs, in {runs}")
    plain_log(progress_only=True)
    with interruptible("give the same command again"):
        for number, (given, run) in enumerate(zip(combinations, apps, strict=True), start=1):
            words = ", ".join(f"{key}={given[key]!r}" for key in varied)
            print(f"Run {number} of {len(combinations)}: {words}", flush=True)
            run_once(run, runs)
    compare([str(runs)], metric=metric, curves=runs / "curves.html")
