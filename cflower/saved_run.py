"""A run that was written to its folder, with its models as PyTorch modules."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from flwr.app import ArrayRecord
from torch import nn

from cflower.algorithm.projection import Projection
from cflower.algorithm.tree import ParameterTree, Vector, Weights
from cflower.config import RunConfig
from cflower.errors import RunFolderError
from cflower.federation.agreement import Kind
from cflower.federation.layout import Layout
from cflower.learning.models import build_model
from cflower.runs.models import read_kind, read_model, read_tree
from cflower.runs.reading import read_json


@dataclass(frozen=True)
class SavedRun:
    """What it takes to use a run's models again."""

    path: Path
    config: RunConfig
    kind: Kind
    """Input shape and class names of the run's examples."""

    @classmethod
    def read(cls, path: Path) -> "SavedRun":
        """Read a run folder; models and edges only when they are asked for.

        Raises
        ------
        RunFolderError, ConfigError
            If it lacks ``config.json`` or ``examples.json``, or one of them is damaged.
        """
        begun = read_json(path, "config.json")
        if not isinstance(begun.get("config"), dict):
            raise RunFolderError(f"{path / 'config.json'} is damaged: it has no run config.")
        return cls(path, RunConfig.read(begun["config"]), read_kind(path))

    @cached_property
    def layout(self) -> Layout:
        """How the model's arrays lie in vectors: as in the run."""
        return Layout.of(ArrayRecord(self._empty_model().state_dict()))

    @cached_property
    def projection(self) -> Projection:
        """What the run compared of an update."""
        config = self.config
        return self.layout.projection(config.projection_dim, config.seed, config.similarity_layers)

    @cached_property
    def tree(self) -> ParameterTree:
        """The parameter tree with all models and edges."""
        return read_tree(self.path, self.layout, self.projection.num_compared)

    def weights(self, cluster: str) -> Weights:
        """The model of one cluster, without reading the others."""
        return read_model(self.path, cluster, self.layout)

    def module(self, weights: Weights) -> nn.Module:
        """A model as PyTorch has it, on the CPU, in evaluation mode."""
        model = self._empty_model()
        arrays = self.layout.arrays(weights)
        model.load_state_dict({key: torch.from_numpy(array) for key, array in arrays.items()})
        return model.eval()

    def compared(self, model: nn.Module, start: Weights) -> Vector:
        """What the run would have compared of a client's update, shape (k,).

        Parameters
        ----------
        model : torch.nn.Module
            θ_i after its local training.
        start : Weights
            θ_c before.
        """
        trained = self.layout.weights(ArrayRecord(model.state_dict())).trained
        return self.projection.seen(self.projection.keep(trained - start.trained))

    def _empty_model(self) -> nn.Module:
        shape, num_classes = self.kind.input_shape, len(self.kind.class_names)
        return build_model(self.config.model, shape, num_classes, self.config.seed)
