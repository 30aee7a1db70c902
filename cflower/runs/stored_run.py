"""The models of any app's run, read back as plain arrays under the app's own names."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from cflower.algorithm.projection import Projection
from cflower.algorithm.tree import ParameterTree, Weights
from cflower.errors import RunFolderError
from cflower.messages.arrays import record_of
from cflower.messages.layout import Layout
from cflower.runs.record import lasting
from cflower.runs.run_files import read_json
from cflower.runs.saved_tree import read_model, read_tree


@dataclass(frozen=True)
class StoredRun:
    """What a run folder tells of its models, whatever framework they are of."""

    path: Path
    config: Mapping[str, Any]
    """The app's run config."""
    settings: Mapping[str, Any]
    """How strategy and criterion described themselves, see `ClusteredFL.settings`."""
    layout: Layout
    """The order of the arrays is that of the initial model."""
    permutation: str
    """The commitment to the clients' secret; empty if the models lie there as they are."""

    @classmethod
    def read(cls, path: Path) -> "StoredRun":
        """Read ``config.json``; models and edges only when they are asked for.

        Raises
        ------
        RunFolderError
            If it is missing or damaged, or of a version that did not note the arrays.
        """
        begun = read_json(path, "config.json")
        if not {"settings", "arrays"} <= begun.keys():
            raise RunFolderError(
                f"The run {path.name} does not say what arrays its models have: it was made by an "
                "earlier version of cflower. Run it again."
            )
        try:
            # Zeros take no memory until they are written to.
            arrays = {key: np.zeros(shape, dtype) for key, shape, dtype, _ in begun["arrays"]}
            layout = Layout.of(record_of(arrays), begun["settings"]["untrained"])
        except (KeyError, TypeError, ValueError) as error:
            raise RunFolderError(f"{path / 'config.json'} is damaged: {error!r}.") from None
        config, told = begun.get("config", {}), begun.get("permutation", "")
        return cls(path, config, begun["settings"], layout, told)

    @cached_property
    def projection(self) -> Projection:
        """What the run compared of an update."""
        asked = self.settings
        return self.layout.projection(
            asked["projection-dim"], asked["seed"], asked["similarity-layers"]
        )

    @cached_property
    def tree(self) -> ParameterTree:
        """The parameter tree with all models and edges."""
        return read_tree(self.path, self.layout, self.projection.num_compared)

    def weights(self, cluster: str) -> Weights:
        """The model of one cluster as far as it has learned, without reading the others."""
        learned = read_json(self.path, "tree.json")["clusters"][cluster].get("general")
        return read_model(self.path, cluster, self.layout, "general" if learned else "models")


def check_assignable(run: Path, method: str) -> None:
    """Refuse a run whose tree is not final, or has no fork, for Algorithm 4.

    Parameters
    ----------
    run : Path
        The run folder.
    method : str
        "clustered", "federated" or "isolated".

    Raises
    ------
    RunFolderError
    """
    summary = read_json(run, "summary.json")
    if not summary.get("finished"):
        raise RunFolderError(
            f"The run {run.name} is not finished (round {summary.get('rounds')}): its clusters may "
            "still split, so let it finish, or go on with it (resume) if it was interrupted."
        )
    if method == "isolated":
        raise RunFolderError(
            f"The run {run.name} trained every client alone (method = 'isolated'): it has no "
            "groups to assign a newcomer to."
        )
    if not lasting(summary.get("splits") or ()):
        raise RunFolderError(
            f"The run {run.name} was never split: all its clients share the model of cluster 0, "
            "which is a newcomer's too."
        )
