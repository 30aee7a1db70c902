"""What the scripts that measure have in common: how they start, keep quiet and write tables."""

import csv
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cflower.errors import CFlowerError


def start(command: Callable[[], object]) -> None:
    """Run a script's command line; what is wrong with its input is one sentence, exit status 1."""
    try:
        command()
    except CFlowerError as error:
        print(f"Error: {error}", file=sys.stderr)
        raise SystemExit(1) from None


def quieten_flower() -> None:
    """Only Flower's warnings and errors from here on, in this process."""
    from logging import WARNING

    from flwr.supercore.logger import FLOWER_LOGGER  # loading it sets its level

    FLOWER_LOGGER.setLevel(WARNING)


def write_table(lines: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Lines of the same figures as CSV."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(lines[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)


def write_record(record: Mapping[str, Any], path: Path) -> None:
    """What was measured as JSON, whole or not at all: a script that goes on reads it again."""
    path.with_suffix(".tmp").write_text(json.dumps(record, indent=1) + "\n")
    path.with_suffix(".tmp").replace(path)
