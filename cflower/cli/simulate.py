"""The commands that run a Flower app in this process, and list the config of cflower's own app."""

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

import cflower
from cflower.cli.apps import App, Clients, RunConfigs, Workers, is_own, plain_log, runnable
from cflower.cli.runs import AsJson
from cflower.ordering import only
from cflower.settings import key_of, require

if TYPE_CHECKING:
    from flwr.app import Context
    from flwr.serverapp import Grid


def simulate(
    app: App = None,
    config: RunConfigs = None,
    clients: Clients = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for run folders; default: output-dir.")
    ] = None,
    baselines: Annotated[
        bool, typer.Option("--baselines", help="Also train conventional FL and each client alone.")
    ] = False,
    workers: Workers = None,
) -> None:
    """Run a Flower app on this machine: no Ray, no SuperLink.

    APP is the folder of any Flower app, as for `flwr run`; cflower's own app if not given. The
    same config and seed give the same result as `flwr run`, with any number of workers; cflower's
    own app has one for each core from 50 clients or 500 trainings on. `cflower keys` lists its
    config; `-c "resume='RUN'"` resumes an interrupted run of it.
    """
    from cflower.config import read_overrides

    given = read_overrides(config or [])
    if app is None or is_own(app):
        if baselines:
            given["baselines"] = True
        if out is not None:
            given["output-dir"] = str(out.expanduser().absolute())
        plain_log(progress_only=True)
        return simulate_own(app, given, clients, workers)
    plain_log()
    for option, value in (("--out", out), ("--baselines", baselines)):
        require(
            not value,
            f"Got {option}, but {app.absolute().name} itself decides what it trains and where it "
            f"writes. To compare methods of training: cflower try {app}",
        )
    run = runnable(app, given, clients, workers)
    run.simulate(run.load("serverapp"))


def simulate_own(
    app: Path | None, given: dict[str, Any], clients: int | None, workers: int | None
) -> None:
    """Run cflower's own app, with its progress on standard output."""
    from cflower.recording.progress import print_while_read

    run = runnable(app, config_to_resume(given) | given, clients, workers)

    def server(grid: "Grid", context: "Context") -> None:
        try:
            run.load("serverapp")(grid, context)
        except KeyboardInterrupt:
            print(f"\n{how_to_resume(context, clients)}", file=sys.stderr)
            raise typer.Exit(130) from None
        if folder := folder_of(context):
            name = shown_name(folder)
            print_while_read(f"Next: cflower report {name} --open (or explain, export, assign)")

    run.simulate(server)


def config_to_resume(given: Mapping[str, Any]) -> dict[str, Any]:
    """The config of the run that ``resume`` names; {} without it."""
    from cflower.config import RunConfig
    from cflower.runs.records import Config
    from cflower.runs.run_files import find_run, read_record

    config = RunConfig.read(only(given, ("resume", "output-dir")))
    if not config.resume:
        return {}
    folder = find_run(config.output_path.absolute(), config.resume)
    return read_record(folder, Config).config | {"output-dir": str(folder.absolute().parent)}


def folder_of(context: "Context") -> Path | None:
    """The run folder; None if the run ended before it had one."""
    from cflower.config import RunConfig
    from cflower.runs.run_files import find_run

    config = RunConfig.read(context.run_config)
    if config.resume:
        return find_run(config.output_path, config.resume)
    configs = config.output_path.glob(f"*-{context.run_id % 10**6:06d}/config.json")
    return next((path.parent for path in configs), None)


def shown_name(folder: Path) -> str:
    """A run's id, or its path if it is not in the default folder of runs."""
    from cflower.config import RunConfig

    default = RunConfig().output_path
    return folder.name if folder.absolute().parent == default else str(folder.absolute())


def how_to_resume(context: "Context", clients: int | None) -> str:
    folder = folder_of(context)
    if folder is None:
        return "Interrupted before there was anything to resume."
    number = "" if clients is None else f"--clients {clients} "
    return (
        "Interrupted. Every finished round is kept; to go on: "
        f"cflower simulate {number}-c \"resume='{shown_name(folder)}'\""
    )


def keys(as_json: AsJson = False) -> None:
    """List the run-config keys of cflower's own app: defaults, meaning and possible values."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Column, Table
    from rich.text import Text

    from cflower.config import RunConfig

    meanings = meanings_in(app_toml())
    rows = [
        {"key": key_of(spec), "default": spec.default, "meaning": meanings[key_of(spec)]}
        for spec in fields(RunConfig)
    ]
    if as_json:
        return print(json.dumps(rows, indent=1))
    columns = (Column(heading, overflow="fold") for heading in rows[0])
    table = Table(*columns, box=SIMPLE_HEAD, padding=0)
    for row in rows:
        cells = str(row["key"]), repr(row["default"]), str(row["meaning"])
        table.add_row(*map(Text, cells))
    Console(highlight=False).print(table)


def app_toml() -> str:
    """The pyproject.toml of cflower's own app: of this clone, or as a wheel carries it."""
    package = Path(cflower.__file__).parent
    carried = package / "app.toml"
    return (carried if carried.is_file() else package.parent / "pyproject.toml").read_text("utf-8")


def meanings_in(toml: str) -> dict[str, str]:
    r"""The comment to each key of ``[tool.flwr.app.config]``.

    >>> meanings_in("[tool.flwr.app.config]\nseed = 0  # one\n     # two\n[other]\n")
    {'seed': 'one two'}
    """
    section = toml.partition("[tool.flwr.app.config]\n")[2].partition("\n[")[0]
    comments = re.findall(r"^([\w-]+) = [^#\n]*# (.*(?:\n +# .*)*)", section, re.MULTILINE)
    return {key: re.sub(r"\s*\n +# ", " ", text) for key, text in comments}
