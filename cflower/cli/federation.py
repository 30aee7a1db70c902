"""`cflower federation`: a real federation on this one machine, for trying out."""

from pathlib import Path
from typing import Annotated

import typer

from cflower.deployment.federation import Federation
from cflower.errors import ConfigError

app = typer.Typer(
    help="A SuperLink and SuperNodes on this one machine, for trying out: up, status, down.",
    no_args_is_help=True,
    suggest_commands=False,
)
Folder = Annotated[Path, typer.Option("--dir", help="Where it lives.")]
DEFAULT_DIR = Path("~/.cache/cflower/federation")


@app.command()
def up(
    nodes: Annotated[int | None, typer.Option(min=1, help="SuperNodes; 4, if not given.")] = None,
    data: Annotated[
        list[Path] | None, typer.Option(help="A SuperNode's data folder; once for each of them.")
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="No TLS, no keys.")] = False,
    folder: Folder = DEFAULT_DIR,
) -> None:
    """Start what does not run yet, and print the commands to run next.

    A second `up` brings back a SuperNode that was killed, and `up --nodes 5` adds a fifth. Without
    data folders every SuperNode gets handwritten digits, upside down for every second one.
    """
    for place in data or []:
        if not place.is_dir():
            raise ConfigError(f"Got --data {place}, but there is no such folder.")
    number = nodes or (0 if data else 4)
    federation_in(folder).up(number, data or [], insecure)


@app.command()
def status(folder: Folder = DEFAULT_DIR) -> None:
    """Say which of its processes live."""
    federation_in(folder).status()


@app.command()
def down(folder: Folder = DEFAULT_DIR) -> None:
    """End exactly the processes that `up` started."""
    federation_in(folder).down()


def federation_in(folder: Path) -> Federation:
    """The federation that lives in a folder."""
    return Federation(folder.expanduser().absolute())


def add_to(parent: typer.Typer) -> None:
    """Make these commands of `cflower`."""
    parent.add_typer(app, name="federation")
