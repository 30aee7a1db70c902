"""What a run folder tells, read back: also of a run that is still going on."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from cflower.algorithm.tree import ROOT, in_order
from cflower.errors import RunFolderError
from cflower.runs.reading import read_json

Line = Mapping[str, Any]
"""One line of ``rounds.jsonl``: one cluster in one round."""


class RecordedMatrix(NamedTuple):
    """A similarity matrix that the run computed."""

    clients: tuple[str, ...]
    values: NDArray[np.floating]
    """Shape (m, m), in the order of ``clients``."""


@dataclass(frozen=True)
class RunRecord:
    """A run as its folder has it: whole, or as far as it has come."""

    path: Path
    config: Mapping[str, Any]
    versions: Mapping[str, str]
    summary: Mapping[str, Any]
    clusters: Mapping[str, Mapping[str, Any]]
    """Of ``tree.json``, in natural order."""
    lines: tuple[Line, ...]
    data: Mapping[str, Any]
    """``clients.json``: what the clients' data look like, where the run knows; else empty."""

    @classmethod
    def read(cls, path: Path) -> "RunRecord":
        """Read a run folder.

        Raises
        ------
        RunFolderError
            If ``config.json`` is missing, or a file is damaged.
        """
        begun = read_json(path, "config.json")
        start = {"run_id": path.name, "finished": False, "rounds": 0, "clusters": {}, "splits": []}
        start |= {"clients": {}, "metrics": {}, "groups": None, "adjusted_rand_index": None}
        tree = optional(path, "tree.json").get("clusters", {})
        return cls(
            path,
            begun["config"],
            begun.get("versions", {}),
            start | optional(path, "summary.json"),
            {name: tree[name] for name in in_order(tree)},
            read_lines(path / "rounds.jsonl"),
            optional(path, "clients.json"),
        )

    @property
    def name(self) -> str:
        """The run's id."""
        return self.path.name

    @property
    def finished(self) -> bool:
        """Whether the closing evaluation is in the summary."""
        return bool(self.summary["finished"])

    @cached_property
    def rounds(self) -> int:
        """The last round there is."""
        return max((line["round"] for line in self.lines), default=0)

    @cached_property
    def by_cluster(self) -> dict[str, list[Line]]:
        """The lines of each cluster, by round."""
        lines: dict[str, list[Line]] = {}
        for line in self.lines:
            lines.setdefault(line["cluster"], []).append(line)
        return {name: lines[name] for name in in_order(lines)}

    @property
    def leaves(self) -> list[str]:
        """Clusters that were not split."""
        return [name for name, cluster in self.clusters.items() if not cluster["children"]]

    def has_matrix(self, line: Line) -> bool:
        """Whether the similarity matrix of this cluster in this round was recorded."""
        return self._matrix_path(line).is_file()

    def matrix(self, line: Line) -> RecordedMatrix | None:
        """The similarity matrix of this cluster in this round, if it was recorded."""
        path = self._matrix_path(line)
        if not path.is_file():
            return None
        try:
            with np.load(path, allow_pickle=False) as content:
                return RecordedMatrix(tuple(content["clients"].tolist()), content["similarity"])
        except (OSError, ValueError, KeyError, BadZipFile) as error:
            raise RunFolderError(f"{path} is damaged: {error}.") from None

    def _matrix_path(self, line: Line) -> Path:
        return self.path / "similarity" / f"{line['round']}-{line['cluster']}.npz"


def read_lines(path: Path) -> tuple[Line, ...]:
    """The lines of ``rounds.jsonl`` so far; a last one that is still being written is left out.

    Raises
    ------
    RunFolderError
        If a line is damaged.
    """
    if not path.is_file():
        return ()
    texts = path.read_text().splitlines(keepends=True)
    whole = [text for text in texts if text.endswith("\n")]
    try:
        return tuple(json.loads(text) for text in whole)
    except json.JSONDecodeError as error:
        raise RunFolderError(f"{path} is damaged: {error}.") from None


def optional(path: Path, name: str) -> dict[str, Any]:
    """A JSON file of a run; empty if it is not there yet."""
    return read_json(path, name) if (path / name).is_file() else {}


def finding(summary: Mapping[str, Any]) -> str:
    """What was found and what it brought, in one sentence.

    >>> finding({"finished": False, "rounds": 1, "clusters": {"0": ["a", "b"]}, "clients": {}})
    'So far 1 cluster among 2 clients after 1 round.'
    """
    clusters, rounds = summary["clusters"], summary["rounds"]
    members = sum(len(names) for names in clusters.values())
    found = (
        f"{counted(len(clusters), 'cluster')} among {counted(members, 'client')} "
        f"after {counted(rounds, 'round')}"
    )
    metrics = summary.get("metrics") or {}
    if not summary["finished"]:
        return f"So far {found}."
    own, federated = metrics.get("accuracy"), metrics.get("fl_accuracy")
    if own is None:
        return f"The run found {found}."
    text = f"The run found {found}, with a mean accuracy of {own:.1%}"
    if federated is None:
        return f"{text}."
    if len(clusters) > 1 and not summary["splits"]:
        return f"{text}: every client trained alone, so there is no model for all to compare with."
    if len(clusters) == 1 and list(clusters) == [ROOT]:
        return f"{text}: no cluster was split, so this is conventional federated learning."
    gained, lost, _ = gains(summary)
    moved = own - federated
    points = f"{abs(moved) * 100:.1f} points {'above' if moved > 0 else 'below'}"
    brought = points if abs(moved) >= 0.0005 else "the same as"
    return (
        f"{text}, {brought} the {federated:.1%} of the FL model as it was before the first split"
        f"{first_split(summary)}; "
        f"{counted(gained, 'client')} gained and {lost} lost."
    )


def first_split(summary: Mapping[str, Any]) -> str:
    """When the FL model stopped learning: it is not what more rounds would have made of it."""
    rounds = [split["round"] for split in summary["splits"]]
    return f" (round {min(rounds)})" if rounds else ""


def gains(summary: Mapping[str, Any]) -> tuple[int, int, int]:
    """How many clients are served better, worse, and as well as by the FL model."""
    differences = [
        client["accuracy"] - client["fl_accuracy"]
        for client in summary["clients"].values()
        if client.get("accuracy") is not None and client.get("fl_accuracy") is not None
    ]
    gained, lost = sum(d > 0 for d in differences), sum(d < 0 for d in differences)
    return gained, lost, len(differences) - gained - lost


def counted(number: int, noun: str) -> str:
    """A number with its noun.

    >>> counted(1, "round"), counted(2, "round")
    ('1 round', '2 rounds')
    """
    return f"{number} {noun}{'s' * (number != 1)}"
