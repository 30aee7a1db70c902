"""A run of cflower's own app, read from its folder with its models as PyTorch modules."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

from cflower.algorithm.weights import Weights
from cflower.config import RunConfig
from cflower.errors import ConfigError, RunFolderError
from cflower.learning.models import build_model
from cflower.own_code import names_own_code
from cflower.privacy.permutation import commitment, permuted, read_seed
from cflower.runs.reading import outside
from cflower.runs.record import RunRecord
from cflower.runs.records import File


class SavedRun(RunRecord):
    """A run of cflower's own app.

    ``seed_file`` is only for a run with ``privacy = "permutation"``; ``own_code`` permits running
    the Python function that the run's config may name as its model. Raises `RunFolderError` if
    the folder is damaged, `ConfigError` if the seed is not the run's, or if there is code and no
    permission.
    """

    def __init__(self, path: Path, seed_file: str = "", own_code: bool = False) -> None:
        super().__init__(path)
        self.kind = self.data_spec  # another app's run has none
        self.secret = secret_of(path.name, self.begun.permutation, seed_file)
        self.own = RunConfig.read(self.config)
        if names_own_code(self.own.model) and not own_code:
            raise ConfigError(
                f"The model of the run {path.name} is made by Python code of its owner, "
                f"{self.own.model}: give --own-code to run this code here, if you trust the folder."
            )
        # Shapes only: a folder of somebody else may describe a model that fits in no memory.
        sizes: Any = nullcontext() if names_own_code(self.own.model) else torch.device("meta")
        with outside(path / File.CONFIG), sizes:
            arrays = self._empty_model().state_dict().items()
        shapes = [(key, tuple(array.shape)) for key, array in arrays]
        if shapes != [(entry.key, entry.shape) for entry in self.layout.entries]:
            raise RunFolderError(
                f"{path / File.CONFIG} is damaged: its model {self.own.model!r} has other arrays "
                "than the models of the run."
            )

    def module(self, weights: Weights) -> nn.Module:
        model = self._empty_model()
        arrays = self.layout.arrays(weights)
        if self.secret is not None:
            arrays = permuted(arrays, self.secret, back=True)
        model.load_state_dict({key: torch.from_numpy(array) for key, array in arrays.items()})
        return model.eval()

    def _empty_model(self) -> nn.Module:
        kind = self.kind
        return build_model(self.own.model, kind.input_shape, kind.num_outputs, self.own.seed)


def secret_of(run: str, committed: str, seed_file: str) -> bytes | None:
    """The secret of a run, checked against the clients' commitment; None without permutation."""
    if not committed and not seed_file:
        return None
    if not seed_file:
        raise ConfigError(
            f"The models of the run {run} are permuted: give --seed-file, its clients' secret."
        )
    if not committed:
        raise ConfigError(
            f"Got --seed-file {seed_file}, but the models of the run {run} are not permuted: "
            "leave it out."
        )
    secret = read_seed(str(Path(seed_file).expanduser().absolute()))
    if commitment(secret) != committed:
        raise ConfigError(f"{seed_file} is not the seed file of the run {run}: give its clients'.")
    return secret
