"""A run that was written to its folder, with its models as PyTorch modules."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from cflower.algorithm.difference import Vector
from cflower.algorithm.tree import Weights
from cflower.config import RunConfig
from cflower.errors import ConfigError, RunFolderError
from cflower.learning.models import arrays_of, build_model
from cflower.messages.arrays import record_of
from cflower.messages.data_spec import DataSpec
from cflower.messages.layout import Layout
from cflower.privacy.permutation import commitment, permuted, read_seed, turn_back
from cflower.runs.saved_tree import read_data_spec
from cflower.runs.stored_run import StoredRun


@dataclass(frozen=True)
class SavedRun(StoredRun):
    """What it takes to use the models of a run of cflower's own app as PyTorch modules."""

    own: RunConfig
    kind: DataSpec
    """Input shape and class names of the run's examples."""
    secret: bytes | None = None
    """What undoes the permutation of its models; None if they lie there as they are."""

    @classmethod
    def read(cls, path: Path, seed_file: str = "") -> "SavedRun":
        """Read a run folder; models and edges only when they are asked for.

        Parameters
        ----------
        path : Path
        seed_file : str
            The clients' secret, for a run with ``privacy = "permutation"`` only.

        Raises
        ------
        RunFolderError, ConfigError
            If it lacks ``config.json`` or ``examples.json``, one of them is damaged, or the seed
            is not the run's.
        """
        stored = StoredRun.read(path)
        secret = secret_of(path.name, stored.permutation, seed_file)
        own = RunConfig.read(stored.config)
        run = cls(**vars(stored), own=own, kind=read_data_spec(path), secret=secret)
        expected = Layout.of(record_of(arrays_of(run._empty_model())))
        if [entry.key for entry in expected.entries] != [e.key for e in stored.layout.entries]:
            raise RunFolderError(
                f"{path / 'config.json'} is damaged: its model {own.model!r} has other arrays than "
                "the models of the run."
            )
        return run

    def module(self, weights: Weights) -> nn.Module:
        """A model as PyTorch has it, on the CPU, in evaluation mode."""
        model = self._empty_model()
        arrays = self.layout.arrays(weights)
        if self.secret is not None:
            arrays = turn_back(arrays, self.secret)
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
        sent = arrays_of(model)
        if self.secret is not None:
            sent = permuted(sent, self.secret)
        trained = self.layout.weights(record_of(sent)).trained
        return self.projection.seen(self.projection.keep(trained - start.trained))

    def _empty_model(self) -> nn.Module:
        shape, num_classes = self.kind.input_shape, len(self.kind.class_names)
        return build_model(self.own.model, shape, num_classes, self.own.seed)


def secret_of(run: str, told: str, seed_file: str) -> bytes | None:
    """The secret of a run, checked against the commitment that its clients told.

    Raises
    ------
    ConfigError
        If it is missing, not the run's, or not needed.
    """
    if told and not seed_file:
        raise ConfigError(
            f"The models of the run {run} are permuted: give --seed-file, its clients' secret."
        )
    if not told and seed_file:
        raise ConfigError(
            f"Got --seed-file {seed_file}, but the models of the run {run} are not permuted: "
            "leave it out."
        )
    if not seed_file:
        return None
    secret = read_seed(str(Path(seed_file).expanduser().absolute()))
    if commitment(secret) != told:
        raise ConfigError(f"{seed_file} is not the seed file of the run {run}: give its clients'.")
    return secret
