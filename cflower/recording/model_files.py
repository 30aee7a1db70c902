"""The models of a run in its folder: of every cluster, and of the clients with one of their own."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from safetensors.numpy import save

from cflower.algorithm.state import CFLState
from cflower.algorithm.tree import Cluster
from cflower.algorithm.weights import Weights
from cflower.messages.layout import Layout
from cflower.messages.own_models import difference_of
from cflower.ordering import in_order
from cflower.runs.writing import replace_file

MODEL_FOLDERS = ("models", "general", "personal")
"""The folders of models: of clusters, of the leaves' means above judged splits, and of clients."""


def write_models(run: Path, state: CFLState, layout: Layout) -> None:
    """Write every model to its file, and remove those of an earlier end of the run."""
    files = set[Path]()
    for file, content in contents(state, layout):
        files.add(run / file)
        replace_file(run / file, content, lasting=False)
    for path in run.glob("*/*.safetensors"):
        if path.parent.name in MODEL_FOLDERS and path not in files:
            path.unlink()


def contents(state: CFLState, layout: Layout) -> Iterator[tuple[str, bytes]]:
    for file, model in model_files(state).items():
        arrays = layout.arrays(model).items()
        yield file, save({key: np.ascontiguousarray(array) for key, array in arrays})
    own = state.personal_models
    for client, file in personal_files(state).items():
        yield file, save(difference_of(layout, own[client], state.tree.leaf_of(client).model))


def model_files(state: CFLState) -> dict[str, Weights]:
    """Every cluster's models of the end of a run by their files in the run folder."""
    files = {}
    for name, cluster in state.tree.clusters.items():
        files[f"models/{name}.safetensors"] = cluster.model
        files[file_of(cluster)] = state.tree.model_of(name)
    return files


def file_of(cluster: Cluster) -> str:
    return f"{'models' if cluster.trial is None else 'general'}/{cluster.name}.safetensors"


def personal_files(state: CFLState) -> dict[str, str]:
    """The file of each client with a model of its own, numbered: a name may be no file's name."""
    names = in_order(state.personal_models)
    return {client: f"personal/{i}.difference.safetensors" for i, client in enumerate(names)}
