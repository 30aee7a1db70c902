"""`cflower`: the companion of `flwr run`, in the same words."""

import sys
from typing import Annotated

import typer

import cflower
from cflower.cli import federation, models, runs, simulate
from cflower.errors import CFlowerError

app = typer.Typer(
    help="Clustered federated learning: simulate a run here, look at runs, take models from them.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",  # joins the lines of a paragraph
    suggest_commands=False,  # click does
)
for module in (simulate, runs, models, federation):
    module.add_to(app)


def tell_version(asked: bool) -> None:
    """Print it and end."""
    if asked:
        print(f"cflower {cflower.__version__}")
        raise typer.Exit


@app.callback()
def before_any_command(
    version: Annotated[
        bool,
        typer.Option("--version", callback=tell_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Options of `cflower` itself."""


def main() -> None:
    """Entry point: an error that we raise on purpose is one sentence and exit status 1."""
    try:
        app()
    except CFlowerError as error:
        print(f"Error: {error}", file=sys.stderr)
        raise SystemExit(1) from None
