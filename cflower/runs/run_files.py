"""Finding the run folders and reading their JSON files."""

import json
import sys
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from cflower.errors import OtherVersionError, RunFolderError, first_line
from cflower.ordering import line
from cflower.runs.reading import read_file
from cflower.runs.records import (
    FORMAT,
    Config,
    File,
    FileRecord,
    Line,
    Record,
    Tree,
    one_tree,
)

OneRecord = TypeVar("OneRecord", bound=Record)
FileContent = TypeVar("FileContent", bound=FileRecord)


def run_folders(output_dir: Path) -> list[Path]:
    """The runs in a folder by their ids, the oldest first."""
    return sorted(p.parent for p in output_dir.glob(f"[!.]*/{File.CONFIG}"))


def find_run(output_dir: Path, run: str = "") -> Path:
    """The run folder for a path, a unique beginning of an id, a name, or "" for the newest."""
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
    matching = matching or [path for path in there if label_of(path) == run]
    if len(matching) == 1:
        return matching[0]
    if not matching and given.is_dir():
        raise RunFolderError(f"The folder {given} has no {File.CONFIG}: it is not a run folder.")
    newest = ", ".join(path.name for path in (matching or there)[-3:])
    raise RunFolderError(
        f"{len(matching) or 'No'} runs in {output_dir} have the name {run!r} or an id that begins "
        f"so: give the whole id of one, such as the newest: {newest}."
    )


def label_of(run: Path) -> str:
    try:
        return str(json.loads((run / File.CONFIG).read_bytes()).get("name", ""))
    except (OSError, ValueError, AttributeError):
        return ""


def read_record(
    run: Path, kind: type[FileContent], default: FileContent | None = None
) -> FileContent:
    """A JSON file of a run, or a `RunFolderError` if it is damaged, or missing without default."""
    path = run / kind.FILE
    if not path.is_file() and default is not None:
        return default
    if not path.is_file():
        raise RunFolderError(
            f"The run {run.name} has no {kind.FILE}: it has not come so far, or its folder was not "
            "copied whole."
        )
    text = text_in(path)
    if kind is Config:  # a folder of another version may have other fields
        check_format(run.name, text)
    record = record_in(text, kind, str(path))
    if isinstance(record, Tree) and not one_tree(record.children):
        raise RunFolderError(f"{path} is damaged: its clusters are not one tree.")
    return record


def check_format(run: str, text: str) -> None:
    """Refuse a run of another version of cflower, by its ``config.json``."""
    try:
        begun = json.loads(text)
        other, writer = begun.get("format", 1), printable(begun["versions"]["cflower"])
    except (ValueError, AttributeError, LookupError, TypeError, RecursionError):
        return  # it is damaged, which `record_in` reports
    if other != FORMAT:
        raise OtherVersionError(
            f"The run {run} is in format {other} of run folders, of cflower {writer}; this version "
            f"reads format {FORMAT}. Open it with the version that wrote it, or run it again."
        )


def read_lines(path: Path) -> tuple[Line, ...]:
    """The lines of ``rounds.jsonl`` so far, without a last one that is still being written."""
    if not path.is_file():
        return ()
    lines, members = list[Line](), dict[str, list[str]]()
    for number, text in enumerate(text_in(path).rpartition("\n")[0].splitlines(), start=1):
        line = record_in(text, Line, f"Line {number} of {path}")
        if "members" not in line.model_fields_set:
            if line.cluster not in members:
                raise RunFolderError(f"Line {number} of {path} is damaged: it has no members.")
            line.members = members[line.cluster]
        members[line.cluster] = line.members
        lines.append(line)
    return tuple(lines)


def text_in(path: Path) -> str:
    try:
        return read_file(path).decode()
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{path} cannot be read: {first_line(error)}.") from None


def record_in(text: str, kind: type[OneRecord], what: str) -> OneRecord:
    """The record in a JSON text, or a `RunFolderError` that names the first wrong field.

    Its texts are made printable: a folder may be of somebody else, and a terminal obeys them.
    """
    try:
        if "\\" in text or not text.replace("\n", "").isprintable():
            text = json.dumps(printable(json.loads(text)))
        return kind.model_validate_json(text, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        problem = ": ".join([*filter(None, [".".join(map(str, first["loc"]))]), first["msg"]])
    except (ValueError, RecursionError) as error:
        problem = first_line(error)
    raise RunFolderError(f"{what} is damaged: {problem}.")


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
