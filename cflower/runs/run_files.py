"""Finding and reading the run folders that were written earlier."""

import json
from pathlib import Path
from typing import Any

from cflower.errors import RunFolderError


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
    """A JSON file of a run.

    Raises
    ------
    RunFolderError
        If it is missing or damaged.
    """
    try:
        content = json.loads((run / name).read_text())
    except FileNotFoundError:
        raise RunFolderError(f"The run {run.name} has no {name} yet.") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise RunFolderError(f"{run / name} is damaged: {error}.") from None
    if not isinstance(content, dict):
        raise RunFolderError(f"{run / name} is damaged: it holds no JSON object.")
    return content
