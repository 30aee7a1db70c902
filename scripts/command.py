"""What the scripts that measure have in common: how they start, keep quiet and read options."""

import json
import logging
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from cflower.errors import CFlowerError, ConfigError

ALL = "all"
DATA = ("digits", "mnist", "fashion-mnist", "cifar10")
"""Data sets by name; all but the first are folders that `datasets.load_dataset` reads."""
EMBEDDED = ("digits", "table", "sea", "sine", "circle")
"""Those without a folder: two of scikit-learn, the second breast cancer, and what is generated."""


Seeds = Annotated[str, typer.Option(help='Such as "0-4" or "0,2,5-7".')]
Data = Annotated[str, typer.Option(help="digits, or NAME=FOLDER; commas.")]
More = Annotated[str, typer.Option("--set", help='Run config: "key=value ...".')]
Out = Annotated[Path, typer.Option(help="Where the records go.")]
Workers = Annotated[int | None, typer.Option(min=1, help="Processes; one per core.")]
TableOnly = Annotated[bool, typer.Option("--table", help="Run nothing.")]


def start(command: Callable[[], object]) -> None:
    """Run a script's command line; what is wrong with its input is one sentence, exit status 1."""
    try:
        command()
    except CFlowerError as error:
        print(f"Error: {error}", file=sys.stderr)
        raise SystemExit(1) from None


def quieten_flower(level: int = logging.WARNING) -> None:
    """Only Flower's warnings and errors from here on, in this process."""
    from flwr.supercore.logger import FLOWER_LOGGER  # loading it sets its level

    FLOWER_LOGGER.setLevel(level)


def out_folder(out: Path) -> Path:
    """The folder for the records, made if it is not there."""
    out = out.expanduser().absolute()
    out.mkdir(parents=True, exist_ok=True)
    return out


def chosen(what: str, names: str, known: Iterable[str], between: str = ",") -> list[str]:
    """The names between commas; all of them for "all"."""
    known = list(known)
    parts = known if names == ALL else [name.strip() for name in names.split(between)]
    for name in parts:
        if name not in known:
            raise ConfigError(f"Got {what} {name!r}, but expected some of {', '.join(known)}.")
    return parts


def folders(data: str, known: Iterable[str] = DATA) -> dict[str, str]:
    """``NAME=FOLDER`` between commas; the folder is empty for `EMBEDDED` data."""
    found = {}
    for part in data.split(","):
        name, _, folder = (piece.strip() for piece in part.partition("="))
        chosen("data", name, known)
        if bool(folder) == (name in EMBEDDED):
            raise ConfigError(
                f"Got data {part!r}, but expected NAME=FOLDER, or the name alone of {EMBEDDED}."
            )
        place = Path(folder).expanduser().absolute()
        if folder and not place.is_dir():
            raise ConfigError(f"Got data {part!r}, but there is no folder {folder}.")
        found[name] = str(place) if folder else ""
    return found


def numbers(seeds: str) -> list[int]:
    """The numbers of ``0,2,5-7``: 0, 2, 5, 6, 7."""
    try:
        ends = [[int(end) for end in part.split("-")] for part in seeds.split(",")]
        return [n for first, *last in ends for n in range(first, (*last, first)[0] + 1)]
    except ValueError:
        raise ConfigError(f"Got seeds {seeds!r}, but expected such as 0-4 or 0,2,5-7.") from None


def write_record(record: Mapping[str, Any], path: Path) -> None:
    """What was measured as JSON, whole or not at all: a script that goes on reads it again."""
    path.with_suffix(".tmp").write_text(json.dumps(record, indent=1) + "\n")
    path.with_suffix(".tmp").replace(path)
