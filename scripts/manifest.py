"""Where every file in `scripts/results` comes from: its command, commit, processor and seconds.

    python scripts/run.py keep outputs/peers peers-digits

copies the tables of a measurement's folder to ``scripts/results`` under this name and writes their
lines in ``MANIFEST.csv`` anew. A test holds the manifest against the folder and against the pages:
what a page says of "this version" has to come from a commit with the algorithm of today.
"""

import csv
import json
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import typer

from cflower.errors import ConfigError

RESULTS = Path(__file__).parent / "results"
MANIFEST = RESULTS / "MANIFEST.csv"
COLUMNS = ("file", "command", "commit", "processor", "seconds")
ALGORITHM = [f"cflower/{package}" for package in ("algorithm", "auto", "changes", "robust")]
"""The packages that decide what a run finds."""
CHANGED = "+"
"""After a commit: these packages had changes that were in no commit."""
NOTES = "manifest.json"
"""In a measurement's folder: the commands that filled it."""


def git(*arguments: str) -> subprocess.CompletedProcess[str]:
    """What git says of this checkout."""
    root = Path(__file__).parents[1]
    return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True)


@cache
def commit() -> str:
    """This checkout's commit, with `CHANGED` if the algorithm differs from it; "" without git."""
    head = git("rev-parse", "--short=9", "HEAD").stdout.strip()
    changed = git("status", "--porcelain", "--", *ALGORITHM).stdout.strip()
    return head + CHANGED * bool(changed)


def is_of_this_version(known: str) -> bool:
    """Whether the algorithm of a manifest's commit is today's."""
    same = git("diff", "--quiet", known, "HEAD", "--", *ALGORITHM).returncode == 0
    return bool(known) and not known.endswith(CHANGED) and same


@cache
def processor() -> str:
    """The processor's name, as Linux has it."""
    lines = Path("/proc/cpuinfo")
    names = [line for line in lines.read_text().splitlines() if line.startswith("model name")]
    return names[0].partition(":")[2].strip() if names else platform.processor()


def note(out: Path) -> None:
    """Add this process's command to those that filled a folder."""
    path = out / NOTES
    commands = json.loads(path.read_text()) if path.exists() else []
    path.write_text(json.dumps(list(dict.fromkeys([*commands, this_command()])), indent=1) + "\n")


def this_command() -> str:
    """What was typed to start this process."""
    return shlex.join(["python", "scripts/run.py", *sys.argv[1:]])


def keep(
    out: Annotated[Path, typer.Argument(help="The folder of a measurement.")],
    name: Annotated[str, typer.Argument(help="What its tables are called in scripts/results.")],
) -> None:
    """Copy a measurement's tables to scripts/results, and note where they come from."""
    from records import read_all

    records, notes = read_all(out), out / NOTES
    if not notes.exists() or any("commit" not in record for record in records):
        raise ConfigError(f"{out} does not say which commit made its runs: measure again.")
    rows: list[dict[str, Any]] = []
    for table in sorted(out.glob("*.csv")) + sorted(out.glob("*.parquet")):
        kind = table.stem.partition("-")[1:]
        target = RESULTS / f"{name}{''.join(kind)}{table.suffix}"
        shutil.copyfile(table, target)
        rows.append(row_of(target.name, json.loads(notes.read_text()), records))
        print(f"Written: {target}")
    register(rows)


def register(new: Sequence[Mapping[str, Any]]) -> None:
    """Write these lines into the manifest, each in place of the one of the same file."""
    rows = {row["file"]: row for row in [*read(), *new]}
    with MANIFEST.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows[file] for file in sorted(rows))


def row_of(
    file: str, commands: Sequence[str], records: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """One line of the manifest; several commits or processors with spaces between."""
    return {
        "file": file,
        "command": " && ".join(commands),
        "commit": " ".join(sorted({record["commit"] for record in records})),
        "processor": ", ".join(sorted({record["processor"] for record in records})),
        "seconds": round(sum(record["seconds_taken"] for record in records)),
    }


def read() -> list[dict[str, str]]:
    """The manifest's lines."""
    if not MANIFEST.exists():
        return []
    with MANIFEST.open(newline="") as file:
        return list(csv.DictReader(file))
