"""`cflower`: the companion of `flwr run`, in the same words."""

import sys
from logging import WARNING, getLogger
from pathlib import Path
from secrets import randbelow
from typing import Annotated

import typer
from flwr.app import Context, RecordDict
from rich.console import Console

from cflower import looking, owner
from cflower.config import RunConfig
from cflower.errors import CFlowerError
from cflower.looking import DEFAULT_RUNS, Run, RunsDir
from cflower.overrides import read_overrides
from cflower.runs.reading import find_run, read_json
from cflower.runs.tables import run_view

app = typer.Typer(
    help="Clustered federated learning: simulate a run here, look at runs, take models from them.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.command()
def simulate(
    config: Annotated[
        list[str] | None,
        typer.Option(
            "-c", "--run-config", help='A TOML file, or "key=value ..." as for `flwr run`.'
        ),
    ] = None,
    clients: Annotated[
        int | None, typer.Option(min=1, help="Number of clients; min-available-nodes if not given.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for run folders; output-dir if not given.")
    ] = None,
) -> None:
    """Run the ServerApp and the ClientApp in this one process: no Ray, no SuperLink.

    The same config and seed give the same result as `flwr run`.
    """
    values = read_overrides(config or [])
    if out is not None:
        values["output-dir"] = str(out.expanduser().absolute())
    checked = RunConfig.read(values)
    if clients is not None and "min-available-nodes" not in values:
        values["min-available-nodes"] = clients
    values["output-dir"] = str(checked.output_path(relative_to=Path.cwd()))
    # These load PyTorch, which a refused config should not have to wait for.
    from cflower.client_app import app as client_app
    from cflower.federation.inline_grid import InlineGrid
    from cflower.server_app import app as server_app

    getLogger("flwr").setLevel(WARNING)
    run_config = RunConfig.read(values).as_keys()
    run_id = randbelow(10**6)
    grid = InlineGrid(client_app, clients or checked.min_available_nodes, run_config, run_id)
    server_app(grid, Context(run_id, 0, {}, RecordDict(), run_config))


@app.command()
def show(
    run: Run = "",
    runs: RunsDir = DEFAULT_RUNS,
) -> None:
    """Print the cluster tree and the client × model table of a run."""
    folder = find_run(runs.expanduser(), run)
    Console().print(run_view(read_json(folder, "summary.json"), read_json(folder, "tree.json")))
    print(f"Run folder: {folder}")


looking.add_to(app)
owner.add_to(app)


def main() -> None:
    """Entry point: an error that we raise on purpose is one sentence and exit status 1."""
    try:
        app()
    except CFlowerError as error:
        print(f"Error: {error}", file=sys.stderr)
        raise SystemExit(1) from None
