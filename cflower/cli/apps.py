"""An app that a command runs in this process: its components, config and clients."""

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from logging import WARNING, LogRecord
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from cflower.settings import require

if TYPE_CHECKING:
    from cflower.config import RunConfig
    from cflower.simulation.inline_grid import ClientFunction, InlineGrid

MANY_CLIENTS, MANY_TRAININGS = 50, 500
"""From either on, a run has worker processes if the user does not say how many."""
OWN_APP = "cflower.server_app:app"
"""An app folder with this ServerApp is cflower's own: its config is checked key by key."""
CLIENTS = 10
"""Default number of clients of any other app."""
App = Annotated[Path | None, typer.Argument(metavar="[APP]", help="A Flower app's folder.")]
RunConfigs = Annotated[
    list[str] | None, typer.Option("-c", "--run-config", help='TOML file or "key=value ...".')
]
Clients = Annotated[
    int | None, typer.Option(min=1, help=f"Default: min-available-nodes, or {CLIENTS}.")
]
Workers = Annotated[int | None, typer.Option(min=0, help="Processes for the clients; 0: this one.")]


class Runnable(NamedTuple):
    """An app with the arguments of `cflower.simulate` that run it."""

    is_own: bool
    """Whether it is cflower's own app."""
    config: Mapping[str, Any]
    num_clients: int
    grid_type: "Callable[..., InlineGrid]"
    load: Callable[[str], Any]
    """Imports the component "serverapp" or "clientapp"."""

    def simulate(self, server_app: Callable[..., Any]) -> Any:
        """The result of a function of a grid, with the app's clients, and a context."""
        from cflower import simulate

        return simulate(
            self.load("clientapp"),
            self.num_clients,
            server_app=server_app,
            run_config=self.config,
            grid_type=self.grid_type,
        )


def silent(text: str) -> None:
    """Print nothing."""


def is_own(app: Path) -> bool:
    from cflower.simulation.app_folder import AppFolder  # loads Flower

    return AppFolder.read(app).components["serverapp"] == OWN_APP


def runnable(
    app: Path | None, given: Mapping[str, Any], clients: int | None, workers: int | None
) -> Runnable:
    """The app in a folder, or cflower's own without one, with other values for some keys."""
    from cflower.simulation.app_folder import AppFolder

    folder = AppFolder.read(app) if app else None
    if folder is None or folder.components["serverapp"] == OWN_APP:
        return own_app(folder.config if folder else {}, given, clients, workers)
    grid = grid_for(workers or 0, partial(folder.load, "clientapp"))
    return Runnable(False, folder.configured(given), clients or CLIENTS, grid, folder.load)


def own_app(
    defaults: Mapping[str, Any],
    given: Mapping[str, Any],
    clients: int | None,
    workers: int | None,
) -> Runnable:
    """Cflower's own app; its config is checked before PyTorch is loaded."""
    from cflower.config import RunConfig

    wanted = dict(given)
    if clients is not None:
        wanted.setdefault("min-available-nodes", clients)
    config = RunConfig.read({**defaults, **wanted})
    num_clients = clients or config.min_available_nodes
    require(
        num_clients >= config.min_available_nodes,
        f"Got --clients {num_clients}, but min-available-nodes={config.min_available_nodes}: "
        "the run would wait for more than there are; leave one of them out.",
    )
    workers = usual_workers(config, num_clients) if workers is None else workers
    load = partial(resolve_name, "cflower.client_app:app")
    grid = grid_for(workers, load, ["PIL.PngImagePlugin", "cflower.client_app"])
    values = config.as_keys() | {"output-dir": str(config.output_path.absolute())}
    components = {"serverapp": "cflower.server_app:app", "clientapp": "cflower.client_app:app"}
    return Runnable(True, values, num_clients, grid, lambda name: resolve_name(components[name]))


def usual_workers(config: "RunConfig", num_clients: int) -> int:
    """One worker for each core, and at most one for five clients.

    A short run has none, because workers take seconds to start; nor have few clients with models
    that train in stacks, and runs on Windows, which cannot fork.
    """
    from multiprocessing import get_all_start_methods

    trainings = num_clients * config.num_server_rounds * (3 if config.baselines else 1)
    long = trainings >= MANY_TRAININGS and config.model not in ("mlp", "linear")
    workers = min(os.cpu_count() or 1, num_clients // 5)
    wanted = workers > 1 and (long or num_clients >= MANY_CLIENTS)
    return workers if wanted and "forkserver" in get_all_start_methods() else 0


def grid_for(
    workers: int, load: "Callable[[], ClientFunction]", preload: Sequence[str] = ()
) -> "Callable[..., InlineGrid]":
    """A grid with the clients in this process, or in so many worker processes."""
    if not workers:
        from cflower.simulation.inline_grid import InlineGrid

        return InlineGrid
    from cflower.simulation.worker_grid import WorkerGrid, started_server

    started_server(preload)  # while this process loads PyTorch too
    return partial(WorkerGrid, load=load, workers=workers, preload=preload)


def plain_log(*, progress_only: bool = False) -> None:
    """Print Flower's log in plain lines from now on; or of it only warnings and the progress."""
    from cflower.messages.flower import console_handler

    console_handler.format = plain_line  # type: ignore[method-assign]
    console_handler.filters = []
    if progress_only:
        console_handler.addFilter(lambda r: r.levelno >= WARNING or hasattr(r, "progress"))


def plain_line(record: LogRecord) -> str:
    """The message of a log record; a warning begins with its level.

    >>> from logging import makeLogRecord
    >>> plain_line(makeLogRecord({"msg": "3 of %d", "args": (4,), "levelno": 30,
    ...     "levelname": "WARNING"}))
    'Warning: 3 of 4'
    """
    level = f"{record.levelname.capitalize()}: " if record.levelno >= WARNING else ""
    return level + record.getMessage()
