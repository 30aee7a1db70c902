"""The run folder: what a run leaves behind, and the only place that writes it."""

import json
import platform
from collections.abc import Callable, Mapping
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from cflower.algorithm.criteria import Decision, Outcome
from cflower.algorithm.tree import ParameterTree, Weights, in_order
from cflower.errors import RunFolderError
from cflower.federation.agreement import Kind
from cflower.federation.layout import Layout
from cflower.federation.reports import FinalReport, RoundReport
from cflower.runs.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from cflower.runs.lines import (
    data_line,
    rand_index,
    round_line,
    served_line,
    split_line,
    tree_lines,
)
from cflower.runs.reading import read_json

CHECKPOINTS = "checkpoints"
MAY_CHANGE = (
    "resume",
    "output-dir",
    "num-server-rounds",
    "node-timeout",
    "round-timeout",
    "tracker",
    "seed-file",
    "selection",
)
"""Keys that a resumed run may have other values of."""
PACKAGES = ("cflower", "flwr", "torch", "numpy", "scipy", "scikit-learn")


class RunFolder:
    """Writes a run's files while it goes on; each is replaced whole or not at all.

    Parameters
    ----------
    path : Path
        ``<output-dir>/<run-id>``; made when the first file is written.
    config : mapping
        The resolved run config under its kebab-case keys.
    """

    def __init__(self, path: Path, config: Mapping[str, Any]) -> None:
        self.path, self._config = path, dict(config)
        self._lines: list[str] = []
        self._splits: list[dict[str, Any]] = []
        self._clients: dict[str, dict[str, Any]] = {}
        self._written: dict[str, Weights] = {}

    def begin(self, commitment: str = "") -> None:
        """Write ``config.json``.

        Parameters
        ----------
        commitment : str
            To the seed that the models are permuted with, see `require_seed`; empty: to none.

        Raises
        ------
        RunFolderError
            If the folder cannot be made or written.
        """
        versions = {"python": platform.python_version()}
        versions |= {name: version(name) for name in PACKAGES}
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            content = {"config": self._config, "versions": versions, "seed": self._config["seed"]}
            permutation = {"permutation": commitment} if commitment else {}
            self._write_json("config.json", content | permutation)
        except OSError as error:
            raise RunFolderError(
                f"Cannot write the run folder {self.path}: {error.strerror}. Set output-dir to a "
                "folder that can be written."
            ) from None

    def write_round(self, report: RoundReport, layout: Layout) -> None:
        """Everything one round adds."""
        for decision in report.decisions:
            self._lines.append(json.dumps(round_line(report, decision)))
            if decision.similarity is not None:
                self._write_similarity(decision)
            if decision.outcome is Outcome.SPLIT:
                self._splits.append(split_line(json.loads(self._lines[-1]), report.state.tree))
        for client, measured in report.measured.items():
            self._clients.setdefault(client, {}).update(measured.metrics)
        self._write("rounds.jsonl", "\n".join([*self._lines, ""]).encode())
        self.write_tree(report.state.tree, layout)
        self._write_json("summary.json", self._summary(report.server_round, report))
        write_checkpoint(
            self.path / CHECKPOINTS,
            Checkpoint(report.server_round, report.state, report.conduct),
            lambda name, content: self._write(f"{CHECKPOINTS}/{name}", content),
        )

    def take_up(self, warn: Callable[[str], None]) -> Checkpoint | None:
        """Go on with a run that was interrupted: its last checkpoint, and what was told before.

        Returns
        -------
        Checkpoint or None
            None if it was interrupted before it had one: then it begins anew, in its folder.

        Raises
        ------
        RunFolderError
            If none of its checkpoints is whole, or it was started with another config.
        """
        before = read_json(self.path, "config.json")["config"]
        changed = [
            f"{key} was {before.get(key)!r} and is {value!r}"
            for key, value in self._config.items()
            if key not in MAY_CHANGE and before.get(key) != value
        ]
        if changed:
            raise RunFolderError(
                f"Cannot resume {self.path.name} with another config: {'; '.join(changed)}. "
                "Give the same run config as the first time."
            )
        if not any((self.path / CHECKPOINTS).glob("*.sha256")):
            warn("The run was interrupted before its first checkpoint: from the beginning.")
            return None
        checkpoint = read_checkpoint(self.path / CHECKPOINTS, warn)
        for text in (self.path / "rounds.jsonl").read_text().splitlines():
            line = json.loads(text)
            if line["round"] > checkpoint.server_round:
                break
            self._lines.append(text)
            for client, metrics in line["clients"].items():
                self._clients.setdefault(client, {}).update(metrics)
            if line["decision"] == Outcome.SPLIT:
                self._splits.append(split_line(line, checkpoint.state.tree))
        return checkpoint

    def require_seed(self, commitment: str) -> None:
        """Refuse to go on with clients that would take the models here for other ones.

        Raises
        ------
        RunFolderError
            If the run was begun with another seed.
        """
        if read_json(self.path, "config.json").get("permutation", "") != commitment:
            raise RunFolderError(
                f"Cannot resume {self.path.name}: its models are permuted with another seed than "
                "the clients have now. Give them the seed file of the first time."
            )

    def write_examples(self, kind: Kind) -> None:
        """``examples.json``: what an example looks like, so that a model can be built again."""
        self._write_json("examples.json", kind._asdict())

    def write_clients(self, facts: Mapping[str, Mapping[str, Any]]) -> None:
        """``clients.json``: what the clients told of their data, in simulation; else nothing."""
        told = {name: data_line(fact) for name, fact in facts.items() if data_line(fact)}
        if told:
            classes = next(iter(facts.values())).get("class-names", [])
            content = {"class_names": list(classes), "clients": told}
            self._write("clients.json", json.dumps(content).encode())

    def write_end(self, report: FinalReport, num_rounds: int) -> dict[str, Any]:
        """The closing ``summary.json``, also returned."""
        summary = self._summary(num_rounds, report)
        self._write_json("summary.json", summary)
        return summary

    def write_tree(self, tree: ParameterTree, layout: Layout) -> None:
        """``tree.json`` and the models and edges that changed since they were last written."""
        for cluster in tree.clusters.values():
            if self._written.get(cluster.name) is cluster.model:
                continue
            self._write_arrays(f"models/{cluster.name}.safetensors", layout.arrays(cluster.model))
            if cluster.edge and cluster.name not in self._written:
                self._write_arrays(f"edges/{cluster.name}.safetensors", cluster.edge)
            self._written[cluster.name] = cluster.model
        self._write_json("tree.json", tree_lines(tree))

    def _summary(self, num_rounds: int, report: RoundReport | FinalReport) -> dict[str, Any]:
        tree, conduct = report.state.tree, report.conduct
        final = report if isinstance(report, FinalReport) else None
        results = final.clients if final else {}
        clients = {name: dict(measured) for name, measured in self._clients.items()}
        if final:
            clients |= {n: served_line(r, final.selection) for n, r in results.items()}
        placed = {
            name: {"cluster": tree.leaf_of(name).name, **clients.get(name, {})}
            for name in tree.clients
        }
        groups = {n: r.facts["group"] for n, r in results.items() if "group" in r.facts}
        return {
            "run_id": self.path.name,
            "finished": final is not None,
            "rounds": num_rounds,
            "seed": self._config["seed"],
            "clusters": {leaf.name: list(leaf.members) for leaf in tree.leaves},
            "splits": self._splits,
            "clients": placed,
            "metrics": final.metrics if final else {},
            "groups": groups or None,
            "adjusted_rand_index": rand_index(groups, tree) if groups else None,
            "problems": {name: conduct.problems[name] for name in in_order(conduct.problems)},
            "excluded": {name: conduct.excluded[name] for name in in_order(conduct.excluded)},
        }

    def _write_similarity(self, decision: Decision) -> None:
        name = f"similarity/{decision.server_round}-{decision.cluster}.npz"
        path = self._path(name)
        assert decision.similarity is not None
        with path.with_suffix(".tmp").open("wb") as file:
            np.savez(
                file,
                similarity=decision.similarity.astype(np.float32),
                clients=np.array(decision.clients),
            )
        path.with_suffix(".tmp").replace(path)

    def _write_arrays(self, name: str, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._write(name, save({key: np.ascontiguousarray(a) for key, a in arrays.items()}))

    def _write_json(self, name: str, content: Any) -> None:
        self._write(name, (json.dumps(content, indent=1) + "\n").encode())

    def _write(self, name: str, content: bytes) -> None:
        path = self._path(name)
        temporary = path.with_name(path.name + ".tmp")
        temporary.write_bytes(content)
        temporary.replace(path)

    def _path(self, name: str) -> Path:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path


def new_run_id(run: int, now: datetime | None = None) -> str:
    """A name that sorts by time and ends in digits of Flower's run id.

    >>> new_run_id(1234567890123, datetime(2026, 1, 31, 9, 5, 7))
    '20260131-090507-890123'
    """
    return f"{now or datetime.now():%Y%m%d-%H%M%S}-{run % 10**6:06d}"
