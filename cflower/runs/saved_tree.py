"""The parameter tree of a run folder read back: its models and the updates on its edges."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from cflower.algorithm.difference import Vector
from cflower.algorithm.tree import Cluster, ParameterTree, Weights
from cflower.errors import RunFolderError
from cflower.messages.arrays import record_of
from cflower.messages.data_spec import DataSpec
from cflower.messages.layout import BadArraysError, Layout
from cflower.runs.run_files import read_json


def read_data_spec(run: Path) -> DataSpec:
    """What the examples of a run look like, from its ``examples.json``.

    Raises
    ------
    RunFolderError
        If it is missing, as in runs of earlier versions, or damaged.
    """
    if not (run / "examples.json").is_file():
        raise RunFolderError(
            f"The run {run.name} has no examples.json, which says what its models take: it was "
            "made by an earlier version of cflower, or its folder was not copied whole."
        )
    told = read_json(run, "examples.json")
    try:
        kind = DataSpec(tuple(map(int, told["input_shape"])), tuple(map(str, told["class_names"])))
    except (KeyError, TypeError, ValueError) as error:
        raise RunFolderError(f"{run / 'examples.json'} is damaged: {error!r}.") from None
    return kind


def read_model(run: Path, cluster: str, layout: Layout, folder: str = "models") -> Weights:
    """A cluster's model as the run folder has it: every use of a stored model starts here.

    Those in ``general`` are of split clusters, as far as they have learned since.

    Raises
    ------
    RunFolderError
        If the file is missing, damaged, or does not fit the layout.
    """
    path = run / folder / f"{cluster}.safetensors"
    try:
        return layout.weights(record_of(read_arrays(path)))
    except BadArraysError as problem:
        raise RunFolderError(
            f"{path} {problem}: it is damaged, or config.json and examples.json are another run's."
        ) from None


def read_tree(run: Path, layout: Layout, num_compared: int) -> ParameterTree:
    """The whole tree, with models and edges.

    Parameters
    ----------
    run : Path
        The run folder.
    layout : Layout
        Of the run's model.
    num_compared : int
        Length of the updates on the edges, see `Projection.num_compared`.

    Raises
    ------
    RunFolderError
        If a file is missing, damaged, or does not fit the others.
    """
    try:
        return ParameterTree(
            {
                name: Cluster(
                    name,
                    tuple(line["members"]),
                    read_model(run, name, layout),
                    line["born"],
                    tuple(line["children"]),
                    line["split_round"],
                    read_edge(run, name, line["edge_clients"], num_compared),
                    general=read_model(run, name, layout, "general")
                    if line.get("general")
                    else None,
                )
                for name, line in read_json(run, "tree.json")["clusters"].items()
            }
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise RunFolderError(f"{run / 'tree.json'} is damaged: {error!r}.") from None


def read_edge(run: Path, cluster: str, clients: list[str], length: int) -> dict[str, Vector]:
    """Δ_e of the edge to a cluster: the update of each of these clients, shape (length,)."""
    if not clients:
        return {}
    path = run / "edges" / f"{cluster}.safetensors"
    edge = read_arrays(path)
    if set(edge) != set(clients) or any(vector.shape != (length,) for vector in edge.values()):
        raise RunFolderError(
            f"{path} does not hold one update of length {length} for each of "
            f"{len(clients)} clients: it is damaged, or tree.json is another run's."
        )
    if not all(np.isfinite(vector).all() for vector in edge.values()):
        raise RunFolderError(f"{path} is damaged: it has NaN or infinity in it.")
    return {client: edge[client] for client in clients}


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of one safetensors file of a run folder.

    Raises
    ------
    RunFolderError
        If it is missing or damaged.
    """
    try:
        return dict(load_file(path))
    except FileNotFoundError:
        raise RunFolderError(
            f"{path} is missing: copy the whole run folder, with models/ and edges/."
        ) from None
    except (OSError, SafetensorError) as error:
        raise RunFolderError(f"{path} is damaged: {error}.") from None
