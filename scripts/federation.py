"""A real federation on this one machine, for trying out: ``python scripts/federation.py up``.

``status`` shows its processes, ``down`` ends them. docs/guide/deployment.md explains what they are.
"""

from pathlib import Path
from typing import Annotated

import typer
from command import start
from deployment.federation import Federation

app = typer.Typer(
    help="A SuperLink and SuperNodes on this one machine, for trying out: up, status, down.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
Folder = Annotated[Path, typer.Option("--dir", help="Folder of the federation.")]
DEFAULT_DIR = Path("~/.cache/cflower/federation")


@app.command()
def up(
    nodes: Annotated[int | None, typer.Option(min=1, help="SuperNodes; default: 4.")] = None,
    data: Annotated[
        list[Path] | None,
        typer.Option(
            exists=True, file_okay=False, help="A SuperNode's data folder; once for each of them."
        ),
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="No TLS, no keys.")] = False,
    folder: Folder = DEFAULT_DIR,
) -> None:
    """Start the processes that are not running, and print the commands to run next.

    A second `up` restarts a SuperNode that was killed, and `up --nodes 5` adds a fifth. Without
    data folders every SuperNode gets handwritten digits, upside down for every second one.
    """
    folders = data or []
    Federation(folder).up(nodes or (0 if folders else 4), folders, insecure)


@app.command()
def status(folder: Folder = DEFAULT_DIR) -> None:
    """Show which of its processes are running."""
    Federation(folder).print_status()


@app.command()
def down(folder: Folder = DEFAULT_DIR) -> None:
    """End exactly the processes that `up` started."""
    Federation(folder).down()


if __name__ == "__main__":
    start(app)
