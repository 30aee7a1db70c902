"""The commands that run a Flower app in this process, and list the config of cflower's own app."""

import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from logging import WARNING, getLogger
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Annotated, Any

import typer

import cflower
from cflower.cli.log_lines import plain_log
from cflower.settings import key_of, require

if TYPE_CHECKING:
    from flwr.app import Context
    from flwr.serverapp import Grid

    from cflower.simulation.app_folder import AppFolder
    from cflower.simulation.inline_grid import ClientFunction, InlineGrid

MANY_CLIENTS = 50
OWN = "cflower.server_app:app"
"""An app folder with this ServerApp is cflower's own: its config is checked key by key."""
CLIENTS = 10
"""Default number of clients of any other app."""


def simulate(
    app: Annotated[
        Path | None, typer.Argument(metavar="[APP]", help="A Flower app's folder.")
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option("-c", "--run-config", help='TOML file or "key=value ...".'),
    ] = None,
    clients: Annotated[
        int | None, typer.Option(min=1, help=f"Default: min-available-nodes, or {CLIENTS}.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for run folders; default: output-dir.")
    ] = None,
    baselines: Annotated[
        bool, typer.Option("--baselines", help="Also train conventional FL and each client alone.")
    ] = False,
    workers: Annotated[
        int | None, typer.Option(min=0, help="Processes for the clients; 0: this one.")
    ] = None,
) -> None:
    """Run a Flower app on this machine: no Ray, no SuperLink.

    APP is the folder of any Flower app, as for `flwr run`; cflower's own app if not given. The
    same config and seed give the same result as `flwr run`, with any number of workers; the
    default is one for each core from 50 clients on. `cflower keys` lists the config of cflower's
    own app; `-c "resume='RUN'"` resumes an interrupted run of it.
    """
    from cflower.config import read_overrides

    given = read_overrides(config or [])
    plain_log()
    defaults: Mapping[str, Any] = {}
    if app is not None:
        from cflower.simulation.app_folder import AppFolder  # loads Flower

        folder = AppFolder.read(app)
        if folder.components["serverapp"] != OWN:
            for option, value in (("--out", out), ("--baselines", baselines)):
                require(
                    not value,
                    f"Got {option}, but {folder.path.name} itself decides what it trains and where "
                    "it writes: see docs/guide/own-app.md.",
                )
            return simulate_foreign(folder, folder.configured(given), clients or CLIENTS, workers)
        defaults = folder.config
    if baselines:
        given["baselines"] = True
    if out is not None:
        given["output-dir"] = str(out.expanduser().absolute())
    simulate_own(given, defaults, clients, workers)


def simulate_own(
    given: dict[str, Any],
    defaults: Mapping[str, Any],
    clients: int | None,
    workers: int | None,
) -> None:
    """Run cflower's own app, with its progress on standard output."""
    from cflower.config import RunConfig

    wanted = config_to_resume(given) | given
    if clients is not None:
        wanted.setdefault("min-available-nodes", clients)
    values = {**defaults, **wanted}
    config = RunConfig.read(values)
    values["output-dir"] = str(config.output_path.absolute())
    num_clients = clients or config.min_available_nodes
    require(
        num_clients >= config.min_available_nodes,
        f"Got --clients {num_clients}, but min-available-nodes={config.min_available_nodes}: "
        "the run would wait for more than there are; leave one of them out.",
    )
    load = partial(resolve_name, "cflower.client_app:app")
    grid = grid_for(num_clients, workers, load, ["cflower.client_app"])
    # These load PyTorch, which is not needed to refuse a config.
    from cflower import simulate
    from cflower.client_app import app as client_app
    from cflower.server_app import app as server_app

    def server(grid: "Grid", context: "Context") -> None:
        try:
            server_app(grid, context)
        except KeyboardInterrupt:
            print(f"\n{how_to_resume(context, clients)}", file=sys.stderr)
            raise typer.Exit(130) from None
        if folder := folder_of(context):
            print(f"Next: cflower report {name_of(folder)} --open (or explain, export, assign)")

    getLogger("flwr").addFilter(
        lambda record: record.levelno >= WARNING or hasattr(record, "progress")
    )
    simulate(
        client_app,
        num_clients,
        server_app=server,
        run_config=RunConfig.read(values).as_keys(),
        grid_type=grid,
    )


def grid_for(
    clients: int,
    workers: int | None,
    load: "Callable[[], ClientFunction]",
    preload: Sequence[str] = (),
) -> "Callable[..., InlineGrid]":
    """A grid with the clients in this process, or in worker processes if there are many.

    A worker takes seconds to start and reads the data set again, too long for few clients.
    """
    if workers is None:
        workers = os.cpu_count() or 1 if clients >= MANY_CLIENTS else 0
    if not workers:
        from cflower.simulation.inline_grid import InlineGrid

        return InlineGrid
    from cflower.simulation.worker_grid import WorkerGrid, started_server

    started_server(preload)  # while this process loads PyTorch too
    return partial(WorkerGrid, load=load, workers=workers, preload=preload)


def config_to_resume(given: Mapping[str, Any]) -> dict[str, Any]:
    """The config of the run that ``resume`` names; {} without it."""
    from cflower.config import RunConfig
    from cflower.runs.records import Config
    from cflower.runs.run_files import find_run, read_record

    config = RunConfig.read({k: v for k, v in given.items() if k in ("resume", "output-dir")})
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


def name_of(folder: Path) -> str:
    """A run's id, or its path if it is not in the default folder of runs."""
    from cflower.config import RunConfig

    default = RunConfig().output_path
    return folder.name if folder.absolute().parent == default else str(folder.absolute())


def how_to_resume(context: "Context", clients: int | None) -> str:
    """The message after Ctrl-C."""
    folder = folder_of(context)
    if folder is None:
        return "Interrupted before there was anything to resume."
    number = "" if clients is None else f"--clients {clients} "
    return (
        "Interrupted. Every finished round is kept; to go on: "
        f"cflower simulate {number}-c \"resume='{name_of(folder)}'\""
    )


def simulate_foreign(
    folder: "AppFolder", config: Mapping[str, Any], clients: int, workers: int | None
) -> None:
    """Run another app."""
    from cflower import simulate

    server_app, client_app = folder.load("serverapp"), folder.load("clientapp")
    grid = grid_for(clients, workers or 0, partial(folder.load, "clientapp"))
    simulate(client_app, clients, server_app=server_app, run_config=config, grid_type=grid)


def keys() -> None:
    """List the run-config keys of cflower's own app: defaults, meaning and possible values."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Column, Table
    from rich.text import Text

    from cflower.config import RunConfig

    columns = (Column(heading, overflow="fold") for heading in ("key", "default", "meaning"))
    table, meanings = Table(*columns, box=SIMPLE_HEAD, padding=0), meanings_in(app_toml())
    for spec in fields(RunConfig):
        key = key_of(spec)
        table.add_row(*(Text(cell) for cell in (key, repr(spec.default), meanings[key])))
    Console(highlight=False).print(table)


def app_toml() -> str:
    """The pyproject.toml of cflower's own app: of this clone, or as a wheel carries it."""
    package = Path(cflower.__file__).parent
    carried = package / "app.toml"
    return (carried if carried.is_file() else package.parent / "pyproject.toml").read_text()


def meanings_in(toml: str) -> dict[str, str]:
    r"""The comment to each key of ``[tool.flwr.app.config]``.

    >>> meanings_in("[tool.flwr.app.config]\nseed = 0  # one\n     # two\n[other]\n")
    {'seed': 'one two'}
    """
    section = toml.partition("[tool.flwr.app.config]\n")[2].partition("\n[")[0]
    comments = re.findall(r"^([\w-]+) = [^#\n]*# (.*(?:\n +# .*)*)", section, re.MULTILINE)
    return {key: re.sub(r"\s*\n +# ", " ", text) for key, text in comments}
