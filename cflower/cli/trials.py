"""The command that trains an app with each method: try."""

import json
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from cflower.cli.apps import App, Clients, RunConfigs, Workers, plain_log, runnable, silent
from cflower.cli.runs import DEFAULT_RUNS, AsJson
from cflower.settings import check_choice, require

if TYPE_CHECKING:
    from flwr.app import Context

    from cflower.simulation.inline_grid import InlineGrid

Out = Annotated[Path | None, typer.Option(help=f"Folder for run folders; default: {DEFAULT_RUNS}.")]
FOR_ONE_RUN = "baselines", "resume", "tracker"
"""Keys of cflower's own app that the command cannot take."""


def try_methods(
    app: App = None,
    config: RunConfigs = None,
    clients: Clients = None,
    out: Out = None,
    resume: Annotated[str, typer.Option(help="The run of a try that was interrupted.")] = "",
    workers: Workers = None,
    also: Annotated[
        str,
        typer.Option(
            help="With cflower's app: fedprox, scaffold, fedper, fedrep, fedbn, ifca, ditto."
        ),
    ] = "",
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
    from cflower.recording.recorder import Recorder
    from cflower.runs.record import RunRecord
    from cflower.runs.run_files import find_run
    from cflower.runs.ways import LITERATURE

    given, done = read_overrides(config or []), None
    for key in FOR_ONE_RUN:
        require(key not in given, f"Got the key {key}, but `cflower try` has no use for it.")
    runs = (out or DEFAULT_RUNS).expanduser().absolute()
    if resume:
        before = RunRecord(find_run(runs, resume))
        resume, given = str(before.path), {**before.config, **given}
        done = before.summary if before.finished else None
    plain_log(progress_only=True)
    run = runnable(app, given, clients, workers)
    say = silent if as_json else partial(print, flush=True)
    require(
        run.is_own or not also,
        f"Got --also {also}, but the clients of another app train as that app says: leave it out.",
    )
    more = [name.strip() for name in also.split(",") if name.strip()]
    for name in more:
        check_choice("--also", name, LITERATURE)
    server_app = run.load("serverapp")  # the app's name is known from then on
    label = "cflower" if run.is_own else ""
    recorder = Recorder(runs, run.config, app=label, resume=resume, say=silent)

    def train(grid: "InlineGrid", context: "Context") -> None:
        from cflower.cli.methods import Methods
        from cflower.cli.started import own_start, start_of

        keys = context.run_config
        start = start_of(server_app, grid, keys)
        others = {name: own_start(grid, {**keys, "method": name}) for name in more}
        methods = Methods(start, grid, recorder, say, others)
        say(f"Run folder: {recorder.path}")
        say(methods.effort.in_words)
        methods.run(done, resumed=bool(resume))

    try:
        run.simulate(train)
    except KeyboardInterrupt:
        cure = f"add --resume {recorder.path.name}"
        print(f"\nInterrupted. What is finished is kept; to go on, {cure}.", file=sys.stderr)
        raise typer.Exit(130) from None
    show_methods(recorder.path, as_json=as_json)


def show_methods(folder: Path, *, as_json: bool) -> None:
    from cflower.runs.answer import advice, answer
    from cflower.runs.record import RunRecord
    from cflower.runs.tables import method_table

    ways = RunRecord(folder).ways
    if as_json:
        methods = [method._asdict() for method in ways.methods]
        words = {"answer": answer(ways), "advice": advice(ways)}
        return print(json.dumps({"run": str(folder), "methods": methods, **words}, indent=1))
    console = Console(highlight=False)
    console.print()
    console.print(answer(ways), markup=False, soft_wrap=not console.is_terminal)
    console.print(method_table(ways))
    console.print(advice(ways), markup=False, soft_wrap=not console.is_terminal)
    report = folder / "report.html"
    missing = f"No report was written: `cflower report {folder}` says why."
    print(f"Report: {report}" if report.is_file() else missing)
