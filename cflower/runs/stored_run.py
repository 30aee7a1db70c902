"""The models of any app's run, read back as plain arrays under the app's own names."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from cflower.algorithm.projection import Projection
from cflower.algorithm.tree import ROOT, Cluster, ParameterTree
from cflower.algorithm.weights import Vector, Weights
from cflower.errors import RunFolderError
from cflower.messages.arrays import record_of
from cflower.messages.data_spec import DataSpec
from cflower.messages.failures import BadReplyError
from cflower.messages.layout import Layout
from cflower.ordering import only
from cflower.runs.format import CONFIG, EXAMPLES, SUMMARY, TREE
from cflower.runs.record import lasting
from cflower.runs.run_files import read_json


@dataclass(frozen=True)
class StoredRun:
    """A run folder with its models, of any framework."""

    path: Path
    config: Mapping[str, Any]
    """The app's run config."""
    settings: Mapping[str, Any]
    """The settings of strategy and criterion, see `ClusteredFL.settings`."""
    layout: Layout
    """The order of the arrays is that of the initial model."""
    permutation: str
    """The commitment to the clients' secret; empty if the models are not permuted."""

    @classmethod
    def read(cls, path: Path) -> "StoredRun":
        """Read ``config.json``; models and edges only when they are asked for."""
        begun = read_json(path, CONFIG)
        try:
            # Zeros take no memory until they are written to.
            arrays = {key: np.zeros(shape, dtype) for key, shape, dtype, _ in begun["arrays"]}
            layout = Layout.of(record_of(arrays), begun["settings"]["untrained"])
        except (KeyError, TypeError, ValueError) as error:
            raise RunFolderError(f"{path / CONFIG} is damaged: {error!r}.") from None
        permutation = begun.get("permutation", "")
        return cls(path, begun["config"], begun["settings"], layout, permutation)

    @cached_property
    def projection(self) -> Projection:
        """The part of an update that the run compared."""
        dim, seed = self.settings["projection-dim"], self.settings["seed"]
        return self.layout.projection(dim, seed, self.settings["similarity-layers"])

    @cached_property
    def tree(self) -> ParameterTree:
        """The parameter tree with all models and edges, or a `RunFolderError`."""
        clusters = read_json(self.path, TREE)["clusters"]
        return ParameterTree({name: self._cluster(name, line) for name, line in clusters.items()})

    def weights(self, cluster: str) -> Weights:
        """The newest model of one cluster, without reading the others."""
        line = read_json(self.path, TREE)["clusters"][cluster]
        return self._model("general" if line["general"] else "models", cluster)

    def _cluster(self, name: str, line: Mapping[str, Any]) -> Cluster:
        return Cluster(
            name,
            tuple(line["members"]),
            self._model("models", name),
            line["born"],
            tuple(line["children"]),
            line["split_round"],
            self._edge(name, line["edge_clients"]) if line["edge_clients"] else {},
            general=self._model("general", name) if line["general"] else None,
        )

    def _model(self, folder: str, cluster: str) -> Weights:
        return self.read_model(f"{folder}/{cluster}.safetensors")

    def read_model(self, file: str) -> Weights:
        """The model in one file of the run folder."""
        path = self.path / file
        try:
            return self.layout.weights(record_of(read_arrays(path)))
        except BadReplyError as problem:
            raise RunFolderError(
                f"{path} {problem}: it is damaged, or {CONFIG} is that of another run."
            ) from None

    def _edge(self, cluster: str, clients: list[str]) -> dict[str, Vector]:
        """Δ_e of the edge to a cluster: the update of each of these clients, shape (k,)."""
        path = self.path / "edges" / f"{cluster}.safetensors"
        edge, length = read_arrays(path), self.projection.num_compared
        shapes = {client: update.shape for client, update in edge.items()}
        if shapes != dict.fromkeys(clients, (length,)):
            raise RunFolderError(
                f"{path} does not hold one update of length {length} for each of "
                f"{len(clients)} clients: it is damaged, or {TREE} is that of another run."
            )
        if not np.isfinite(list(edge.values())).all():
            raise RunFolderError(f"{path} is damaged: it has NaN or infinity in it.")
        return only(edge, clients)


def read_data_spec(run: Path) -> DataSpec:
    """Input shape and class names of a run, from its ``examples.json``."""
    if not (run / EXAMPLES).is_file():
        raise RunFolderError(
            f"The run {run.name} has no {EXAMPLES}: it is of another app than cflower's own (then "
            "give --app instead of --data), or its folder was not copied whole."
        )
    content = read_json(run, EXAMPLES)
    return DataSpec(tuple(content["input_shape"]), tuple(content["class_names"]))


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of one safetensors file of a run folder, or a `RunFolderError`."""
    try:
        return dict(load_file(path))
    except FileNotFoundError:
        raise RunFolderError(
            f"{path} is missing: copy the whole run folder, with models/ and edges/."
        ) from None
    except (OSError, SafetensorError) as error:
        raise RunFolderError(f"{path} is damaged: {error}.") from None


def check_assignable(run: Path, method: str) -> None:
    """Refuse a run that is not finished or has no split: Algorithm 4 has nothing to choose from."""
    summary = read_json(run, SUMMARY)
    if not summary["finished"]:
        raise RunFolderError(
            f"The run {run.name} is not finished (round {summary['rounds']}): its clusters may "
            "still split, so let it finish, or resume it if it was interrupted."
        )
    if method == "isolated":
        raise RunFolderError(
            f"The run {run.name} trained every client alone (method = 'isolated'): it has no "
            "groups to assign a newcomer to."
        )
    if not lasting(summary["splits"]):
        text = (
            f"The run {run.name} was never split: all its clients share the model of cluster 0, "
            "which is a newcomer's too."
        )
        step = summary.get("personal", {}).get(ROOT, {})
        if step.get("accepted"):
            text += (
                " Its clients moved it towards models of their own: with n training examples "
                f"n / (n + {step['kappa']:g}) of the way to one trained by itself for "
                f"{step['length']} rounds from the {step['start']} model serves a newcomer."
            )
        raise RunFolderError(text)
