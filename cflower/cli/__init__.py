"""The command `cflower`, the companion of `flwr run`.

The modules of commands import at their beginning only what a help text needs: what else a command
needs, it imports itself. So `cflower --help` loads neither NumPy nor Flower.
"""

import atexit
import gc
import sys
from io import TextIOWrapper
from typing import Annotated

import typer

import cflower
from cflower.cli import models, runs, simulate, trials
from cflower.errors import CFlowerError
from cflower.ordering import line as one_line

app = typer.Typer(
    help="Clustered federated learning: simulate a run here, look at runs, take models from them.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",  # joins the lines of a paragraph
    suggest_commands=False,  # click does
)
app.command()(simulate.simulate)
app.command("try")(trials.try_methods)
app.command()(simulate.keys)
app.command("list")(runs.list_runs)
for command in (runs.show, runs.report, runs.explain, models.assign, models.export):
    app.command(epilog=runs.RUN_HELP)(command)
app.command()(runs.compare)


def print_version(wanted: bool) -> None:
    if wanted:
        print(f"cflower {cflower.__version__}")
        raise typer.Exit


@app.callback()
def before_any_command(
    version: Annotated[
        bool,
        typer.Option("--version", callback=print_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Options of `cflower` itself."""


APP_MODULES = "torch", "torchvision", "flwr_datasets", "datasets"
"""What only cflower's own app needs: the extra ``app`` of the published package."""


def main() -> None:
    """Entry point: a `CFlowerError` is printed as one sentence, with exit status 1."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a file on Windows takes few characters
            stream.reconfigure(errors="replace")
    # Before it ends, Python searches all objects for garbage: half a second with PyTorch's.
    # It skips those that are frozen.
    atexit.register(gc.freeze)
    try:
        app()
    except ModuleNotFoundError as error:
        if error.name not in APP_MODULES:
            raise
        needs = f"Error: cflower's own app, its models and its data need {error.name}"
        print(f"{needs}: pip install 'cflower[app]'", file=sys.stderr)
        raise SystemExit(1) from None
    except CFlowerError as error:
        # It may quote a file of somebody else.
        text = "\n".join(one_line(part, sys.maxsize) for part in str(error).splitlines())
        print(f"Error: {text}", file=sys.stderr)
        raise SystemExit(1) from None
    except PermissionError as error:
        where = one_line(error.filename)
        print(f"Error: {where} is of another user, who has not given you access.", file=sys.stderr)
        raise SystemExit(1) from None
