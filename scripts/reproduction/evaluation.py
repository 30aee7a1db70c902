"""A run's saved models on examples that none of its clients had."""

import numpy as np
from numpy.typing import ArrayLike
from safetensors.torch import load_file
from torch import nn

from cflower.algorithm.bipartition import bipartition
from cflower.data.examples import Examples
from cflower.data.settings import DataSettings
from cflower.data.sources import load_source
from cflower.learning.models import build_model
from cflower.runs.record import RunRecord


def unseen(source: str, seed: int, size: int) -> Examples:
    """The last examples in the order in which runs of this seed take theirs from the source.

    A run with a ``dataset-size`` of at most the others has none of them.
    """
    ordered = load_source(DataSettings(source, seed=seed))
    return ordered.take(np.arange(len(ordered) - size, len(ordered))).examples()


def saved_model(run: RunRecord, cluster: str, examples: Examples) -> nn.Module:
    """The model of a cluster as the run left it, for examples like these."""
    model = build_model(run.config["model"], examples.input_shape, examples.num_classes, seed=0)
    model.load_state_dict(load_file(run.path / "models" / f"{cluster}.safetensors"))
    return model


def separation_gap(similarity: ArrayLike, groups: ArrayLike) -> float:
    """Separation gap g(alpha) of eqs. 28, 48; above 0 the bipartition is correct (Remark 2).

    Parameters
    ----------
    similarity : array_like, shape (m, m)
    groups : array_like, shape (m,)
        The true group of each client. Used for evaluation, never for decisions.

    Examples
    --------
    >>> round(separation_gap([[1.0, 0.9, -0.8], [0.9, 1.0, -0.7], [-0.8, -0.7, 1.0]], [0, 0, 1]), 2)
    1.6
    """
    matrix, labels = np.asarray(similarity), np.asarray(groups)
    intra = matrix[labels[:, None] == labels[None, :]].min()
    return float(intra - bipartition(matrix).alpha_cross)
