"""Finding and reading the run folders that were written earlier."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cflower.algorithm.tree import ROOT
from cflower.errors import RunFolderError, first_line
from cflower.runs.shapes import LINE, SHAPES, misfit, tangle


def run_folders(output_dir: Path) -> list[Path]:
    """The runs in a folder, by their ids, so the oldest first."""
    return sorted(p.parent for p in output_dir.glob("*/config.json") if p.parent.name[:1] != ".")


def find_run(output_dir: Path, run: str = "") -> Path:
    """The run folder that ``run`` names: a path, any unique beginning of an id, "" the newest.

    Raises
    ------
    RunFolderError
        If there is none, or more than one.
    """
    if run and (Path(run).expanduser() / "config.json").is_file():
        return Path(run).expanduser()
    there = run_folders(output_dir)
    if not there:
        raise RunFolderError(
            f"There is no run in {output_dir}. Start one with `flwr run .` or `cflower simulate`, "
            "or say where the runs are with --runs DIR."
        )
    if not run:
        return max(there, key=lambda path: (path / "config.json").stat().st_mtime_ns)
    found = [path for path in there if path.name.startswith(run)]
    if len(found) == 1:
        return found[0]
    matching = ", ".join(path.name for path in found[:5]) or "none"
    newest = ", ".join(path.name for path in there[-3:])
    raise RunFolderError(
        f"Got run {run!r}, but expected the beginning of exactly one id in {output_dir} "
        f"(matching: {matching}; newest: {newest})."
    )


def read_json(run: Path, name: str) -> dict[str, Any]:
    """A JSON file of a run, of the shape that it must have.

    Raises
    ------
    RunFolderError
        If it is missing or damaged.
    """
    path = run / name
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        raise RunFolderError(f"The run {run.name} has no {name} yet.") from None
    except OSError as error:
        raise RunFolderError(f"{path} cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        raise RunFolderError(f"{path} is damaged: {first_line(error)}.") from None
    problem = misfit(content, SHAPES.get(name, {}))
    if name == "tree.json" and not problem:
        problem = tangle(content["clusters"], ROOT)
    if problem:
        raise RunFolderError(f"{path} is damaged: {problem}.")
    found: dict[str, Any] = content
    return found


def read_lines(path: Path) -> tuple[Mapping[str, Any], ...]:
    """The lines of ``rounds.jsonl`` so far; a last one that is still being written is left out.

    Raises
    ------
    RunFolderError
        If a line is damaged.
    """
    try:
        texts = path.read_text().splitlines(keepends=True)
    except FileNotFoundError:
        return ()
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{path} cannot be read: {first_line(error)}.") from None
    found = []
    for number, text in enumerate(texts, start=1):
        if not text.endswith("\n"):
            break
        try:
            line = json.loads(text)
            problem = misfit(line, LINE)
        except (ValueError, RecursionError) as error:
            problem = first_line(error)
        if problem:
            raise RunFolderError(f"{path} is damaged in line {number}: {problem}.")
        found.append(line)
    return tuple(found)
