"""Finding the run folders and reading their JSON files."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cflower.errors import OtherVersionError, RunFolderError, first_line
from cflower.ordering import line
from cflower.runs.format import FORMAT, SCHEMAS, File, Line, misfit, tree_misfit


def run_folders(output_dir: Path) -> list[Path]:
    """The runs in a folder by their ids, the oldest first."""
    return sorted(p.parent for p in output_dir.glob(f"[!.]*/{File.CONFIG}"))


def find_run(output_dir: Path, run: str = "") -> Path:
    """The run folder for a path, a unique beginning of an id, or "" for the newest.

    Raises a `RunFolderError` if there is no such run, or more than one.
    """
    given = Path(run or output_dir).expanduser()
    if (given / File.CONFIG).is_file():
        return given
    there = run_folders(output_dir)
    if not there:
        raise RunFolderError(
            f"There is no run in {output_dir}. Start one with `flwr run .` or `cflower simulate`, "
            "or give the folder of the runs with --runs DIR."
        )
    if not run:
        return max(there, key=lambda path: (path / File.CONFIG).stat().st_mtime_ns)
    matching = [path for path in there if path.name.startswith(run)]
    if len(matching) == 1:
        return matching[0]
    if not matching and given.is_dir():
        raise RunFolderError(f"The folder {given} has no {File.CONFIG}: it is not a run folder.")
    newest = ", ".join(path.name for path in (matching or there)[-3:])
    raise RunFolderError(
        f"Got run {run!r}, but expected the beginning of exactly one id in {output_dir}; "
        f"{len(matching)} begin with it. The newest{' of these' if matching else ''}: {newest}."
    )


def read_json(run: Path, name: str, default: dict[str, Any] | None = None) -> dict[str, Any]:
    """A JSON file of a run, or a `RunFolderError` if it is damaged, or missing without default."""
    path = run / name
    if not path.is_file() and default is not None:
        return default
    if not path.is_file():
        raise RunFolderError(
            f"The run {run.name} has no {name}: it has not come so far, or its folder was not "
            "copied whole."
        )
    text = read_text(path)
    if name == File.CONFIG:  # a folder of another version may have other fields
        check_format(run.name, parse(text, dict, str(path)))
    content: dict[str, Any] = parse(text, SCHEMAS[name], str(path))
    if name == File.TREE and (problem := tree_misfit(content["clusters"])):
        raise RunFolderError(f"{path} is damaged: {problem}.")
    return content


def check_format(run: str, begun: Mapping[str, Any]) -> None:
    """Refuse a run of another version of cflower, by its ``config.json``."""
    found, versions = begun.get("format", 1), begun.get("versions")
    if found != FORMAT and isinstance(versions, dict):
        raise OtherVersionError(
            f"The run {run} is in format {found} of run folders, of cflower "
            f"{versions.get('cflower', '?')}; this version reads format {FORMAT}. Open it with the "
            "version that wrote it, or run it again."
        )


def read_lines(path: Path) -> tuple[Mapping[str, Any], ...]:
    """The lines of ``rounds.jsonl`` so far, without a last one that is still being written.

    A line without members has those of the line before it about its cluster.
    """
    if not path.is_file():
        return ()
    lines = read_text(path).rpartition("\n")[0].splitlines()
    read, members = list[Mapping[str, Any]](), dict[str, list[str]]()
    for number, text in enumerate(lines, start=1):
        entry = parse(text, Line, f"Line {number} of {path}")
        before = members.get(entry["cluster"])
        if before is None and "members" not in entry:
            raise RunFolderError(f"Line {number} of {path} is damaged: it has no members.")
        members[entry["cluster"]] = entry.setdefault("members", before)
        read.append(entry)
    return tuple(read)


def read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{path} cannot be read: {first_line(error)}.") from None


def parse(text: str, schema: Any, what: str) -> Any:
    """The value of a JSON text with the fields of a schema, or a `RunFolderError`.

    Its texts are made printable: a folder may be of somebody else, and a terminal obeys them.
    """
    try:
        content = json.loads(text)
        if "\\" in text or not text.replace("\n", "").isprintable():
            content = printable(content)
        problem = misfit(content, schema)
    except (ValueError, RecursionError) as error:
        problem = first_line(error)
    if problem:
        raise RunFolderError(f"{what} is damaged: {problem}.")
    return content


def printable(content: Any) -> Any:
    r"""A JSON value with every text in one printable line.

    >>> printable({"a\x1b[2J": ["\x07b", 1.5]})
    {'a [2J': [' b', 1.5]}
    """
    if isinstance(content, str):
        return line(content, sys.maxsize)
    if isinstance(content, dict):
        return {printable(key): printable(value) for key, value in content.items()}
    return [printable(item) for item in content] if isinstance(content, list) else content
