"""The commands that run a Flower app in this one process, or say what cflower's own app takes."""

import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from logging import WARNING, getLogger
from pathlib import Path
from pkgutil import resolve_name
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cflower.config import RunConfig, read_overrides
from cflower.errors import CFlowerError, ConfigError
from cflower.runs.run_files import find_run, read_json
from cflower.settings import key_of

if TYPE_CHECKING:
    from flwr.app import Context
    from flwr.serverapp import Grid

    from cflower.simulation.app_folder import AppFolder
    from cflower.simulation.inline_grid import ClientFunction, InlineGrid

MANY_CLIENTS = 50
OWN = "cflower.server_app:app"
"""An app folder with this ServerApp is cflower's own, whose config is checked key by key."""
CLIENTS = 10
"""Of a foreign app, if not given."""


def simulate(
    app: Annotated[
        Path | None, typer.Argument(metavar="[APP]", help="A Flower app's folder.")
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option(
            "-c", "--run-config", help='A TOML file, or "key=value ..." as for `flwr run`.'
        ),
    ] = None,
    clients: Annotated[
        int | None,
        typer.Option(min=1, help=f"How many; min-available-nodes, or {CLIENTS}, if not given."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for run folders; output-dir if not given.")
    ] = None,
    baselines: Annotated[
        bool,
        typer.Option(
            "--baselines",
            help="Also train conventional FL and each client alone; say what the run is worth.",
        ),
    ] = False,
    workers: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Processes for the clients; 0: this one. One for each core if not given, from "
            f"{MANY_CLIENTS} clients on. The result is the same.",
        ),
    ] = None,
) -> None:
    """Run a Flower app on this machine: no Ray, no SuperLink.

    APP is the folder of any Flower app, as for `flwr run`; cflower's own app if not given. The
    same config and seed give the same result as `flwr run`. `cflower keys` lists the config of
    cflower's own app; `-c "resume='RUN'"` goes on with a run of it that was interrupted.
    """
    given = read_overrides(config or [])
    given |= {"baselines": True} if baselines else {}
    if app is None:
        return simulate_own(given, clients, out, workers)
    from cflower.simulation.app_folder import AppFolder  # loads Flower

    folder = AppFolder.read(app)
    if folder.components["serverapp"] == OWN:
        return simulate_own(given, clients, out, workers, folder.config)
    if out is not None:
        raise ConfigError(f"Got --out, but where {folder.path.name} writes is for it to say.")
    if baselines:
        raise ConfigError(
            f"Got --baselines, but what {folder.path.name} trains is for its ServerApp to say: "
            "docs/own-app.md shows how it adds them."
        )
    simulate_foreign(folder, folder.configured(given), clients or CLIENTS, workers)


def simulate_own(
    given: Mapping[str, Any],
    clients: int | None,
    out: Path | None,
    workers: int | None = None,
    defaults: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Cflower's own app, told on standard output."""
    wanted = dict(given)
    if out is not None:
        wanted["output-dir"] = str(out.expanduser().absolute())
    wanted = begun(wanted) | wanted
    if clients is not None and "min-available-nodes" not in wanted:
        wanted["min-available-nodes"] = clients
    values = {**defaults, **wanted}
    checked = RunConfig.read(values)
    values["output-dir"] = str(checked.output_path(relative_to=Path.cwd()))
    # These load PyTorch, which a refused config should not have to wait for.
    from cflower import simulate
    from cflower.client_app import app as client_app
    from cflower.server_app import app as server_app

    def server(grid: "Grid", context: "Context") -> None:
        try:
            server_app(grid, context)
        except KeyboardInterrupt:
            print(f"\n{how_to_go_on(context, clients)}", file=sys.stderr)
            raise typer.Exit(130) from None
        if folder := folder_of(context):
            print(next_steps(folder))

    getLogger("flwr").addFilter(
        lambda record: record.levelno >= WARNING or hasattr(record, "progress")
    )
    simulate(
        client_app,
        clients or checked.min_available_nodes,
        server_app=server,
        run_config=RunConfig.read(values).as_keys(),
        grid_type=grid_for(
            clients or checked.min_available_nodes,
            workers,
            partial(resolve_name, "cflower.client_app:app"),
            ["cflower.client_app"],
        ),
    )


def grid_for(
    clients: int,
    workers: int | None,
    load: "Callable[[], ClientFunction]",
    preload: Sequence[str] = (),
) -> "Callable[..., InlineGrid]":
    """Where the clients run: in this process, or in as many others as pay off.

    A worker takes seconds to start and reads the data set anew, so few clients do without.
    """
    from cflower.simulation.inline_grid import InlineGrid
    from cflower.simulation.worker_grid import WorkerGrid

    if workers is None:
        workers = os.cpu_count() or 1 if clients >= MANY_CLIENTS else 0
    if not workers:
        return InlineGrid
    return partial(WorkerGrid, load=load, workers=workers, preload=preload)


def begun(given: Mapping[str, Any]) -> dict[str, Any]:
    """The config that a run to be resumed was begun with; none of a new run."""
    where = {key: given[key] for key in ("resume", "output-dir") if key in given}
    config = RunConfig.read(where)
    if not config.resume:
        return {}
    folder = find_run(config.output_path(relative_to=Path.cwd()), config.resume)
    before: dict[str, Any] = read_json(folder, "config.json").get("config", {})
    return before | {"output-dir": str(folder.absolute().parent)}


def folder_of(context: "Context") -> Path | None:
    """The run folder, if the run came as far as to begin one."""
    config = RunConfig.read(context.run_config)
    if config.resume:
        return find_run(config.output_path(), config.resume)
    found = config.output_path().glob(f"*-{context.run_id % 10**6:06d}/config.json")
    return next((path.parent for path in found), None)


def name_of(folder: Path) -> str:
    """What the other commands find the run by: its id, or its path if it is not where they look."""
    usual = RunConfig().output_path()
    return folder.name if folder.absolute().parent == usual else str(folder.absolute())


def how_to_go_on(context: "Context", clients: int | None) -> str:
    """What to say after Ctrl-C."""
    folder = folder_of(context)
    if folder is None:
        return "Interrupted before there was anything to resume."
    number = "" if clients is None else f"--clients {clients} "
    return (
        "Interrupted. Every finished round is kept; to go on: "
        f"cflower simulate {number}-c \"resume='{name_of(folder)}'\""
    )


def next_steps(folder: Path) -> str:
    """What one does with a finished run."""
    return (
        f"Next: cflower report {name_of(folder)} --open (or, in its place: explain, export, "
        "assign, compare)"
    )


def simulate_foreign(
    folder: "AppFolder", config: Mapping[str, Any], clients: int, workers: int | None
) -> None:
    """Another app, as it is; its own bugs with their traceback, within its own code."""
    from cflower import simulate

    try:
        server_app, client_app = folder.load("serverapp"), folder.load("clientapp")
        simulate(
            client_app,
            clients,
            server_app=server_app,
            run_config=config,
            grid_type=grid_for(clients, workers, partial(folder.load, "clientapp"))
            if workers
            else telling_grid(folder.path),
        )
    except CFlowerError:
        raise
    except Exception as error:
        print(as_traceback(error, folder.path), file=sys.stderr, end="")
        raise typer.Exit(1) from None


def telling_grid(app: Path) -> "type[InlineGrid]":
    """A grid that prints where clients failed in their app's code, once for each place."""
    from cflower.simulation.inline_grid import InlineGrid

    class TellingGrid(InlineGrid):
        told: ClassVar[set[tuple[str, int | None]]] = set()

        def client_failed(self, client: int, error: Exception) -> None:
            last = traceback.extract_tb(error.__traceback__)[-1]
            place = last.filename, last.lineno
            if own_part(error, app) is not None and place not in self.told:
                self.told.add(place)
                print(f"Client {client} failed:", file=sys.stderr)
                print(as_traceback(error, app), file=sys.stderr, end="")

    return TellingGrid


def own_part(error: BaseException, app: Path) -> TracebackType | None:
    """The traceback from the first frame in the app's folder on."""
    frames = error.__traceback__
    while frames is not None and not Path(frames.tb_frame.f_code.co_filename).is_relative_to(app):
        frames = frames.tb_next
    return frames


def as_traceback(error: BaseException, app: Path) -> str:
    """As Python prints it, without the frames that led to the app's code."""
    frames = own_part(error, app) or error.__traceback__
    return "".join(traceback.format_exception(type(error), error, frames))


def keys() -> None:
    """List the run-config keys of cflower's own app: default, and what a value may be."""
    table = Table(box=SIMPLE_HEAD, padding=0)
    for heading in ("key", "default", "may be"):
        table.add_column(heading, overflow="fold")
    for spec in fields(RunConfig):
        options, bounds = spec.metadata.get("options"), spec.metadata.get("range")
        may_be = ", ".join(map(repr, options)) if options else str(bounds or "")
        table.add_row(*(Text(cell) for cell in (key_of(spec), repr(spec.default), may_be)))
    Console(highlight=False).print(table)


def add_to(app: typer.Typer) -> None:
    """Make these commands of `cflower`."""
    for command in (simulate, keys):
        app.command()(command)
