"""A run's saved models on examples that none of its clients had."""

import numpy as np
from safetensors.torch import load_file
from torch import nn

from cflower.data.examples import Examples
from cflower.data.sources import load_source
from cflower.learning import build_model
from cflower.runs.record import RunRecord


def unseen(source: str, seed: int, size: int) -> Examples:
    """The last examples in the order in which runs of this seed take theirs from the source.

    A run with a ``dataset-size`` of at most the others has none of them.
    """
    ordered = load_source(source, seed=seed)
    return ordered.take(np.arange(len(ordered) - size, len(ordered))).examples()


def saved_model(run: RunRecord, cluster: str, examples: Examples) -> nn.Module:
    """The model of a cluster as the run left it, for examples like these."""
    model = build_model(run.config["model"], examples.input_shape, examples.num_classes, seed=0)
    model.load_state_dict(load_file(run.path / "models" / f"{cluster}.safetensors"))
    return model
