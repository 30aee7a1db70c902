"""The content of a run folder without its name and times, to compare two runs."""

import json
from pathlib import Path
from typing import Any

from cflower.runs.record import RunRecord

ARRAYS = ("models/*", "general/*", "similarity/*")


def read_json(run: Path, name: str) -> dict[str, Any]:
    """A file of a run folder as another program reads it."""
    return dict(json.loads((run / name).read_text()))


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of ``rounds.jsonl`` as another program reads them; none before the first round.

    Without the last one if it is still being written.
    """
    if not path.exists():
        return []
    whole = path.read_text().rpartition("\n")[0]
    return [json.loads(line) for line in whole.splitlines()]


def summary_of(run: Path) -> dict[str, Any]:
    """The summary, with an empty name."""
    return {**read_json(run, "summary.json"), "run_id": ""}


def content_of(run: Path) -> dict[str, Any]:
    """Summary, rounds without their seconds, tree and the bytes of all arrays."""
    paths = [path for pattern in ARRAYS for path in sorted(run.glob(pattern))]
    return {
        "summary": summary_of(run),
        "rounds": [{**line, "seconds": 0} for line in read_lines(run / "rounds.jsonl")],
        "tree": read_json(run, "tree.json"),
        "edges": {
            (cluster.name, client): update.tobytes()
            for cluster in RunRecord(run).tree.clusters.values()
            for client, update in cluster.edge.items()
        },
        **{str(path.relative_to(run)): path.read_bytes() for path in paths},
    }
