"""A client's own model as its difference from the model of its leaf, in eight bits an entry.

The differences of each trained array are rounded to 255 levels, from its largest one to the
negative of it. Most levels are small, so that they compress well: a thousand models of MNIST's
`mlp`, 407 MB in single precision, take 38 MB. What is not trained stays as it is: a rounded
variance could become negative.
"""

import zlib
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cflower.algorithm.state import CFLState, Personal
from cflower.algorithm.weights import Weights
from cflower.messages.layout import Layout

MOST = 127
"""The largest level."""


Levels = dict[str, NDArray[Any]]
"""What is kept of a model: levels, each array's scale, and the entries that stay as they are."""


def difference_of(layout: Layout, model: Weights, leaf: Weights) -> bytes:
    """The difference of a model from that of its leaf: compressed, in the format safetensors."""
    from safetensors.numpy import save  # only here: it takes a part of the Strategy's start

    return zlib.compress(save(levels_of(layout, model, leaf)))


def model_of(layout: Layout, difference: bytes, leaf: Weights) -> Weights:
    """The model with this difference from that of its leaf."""
    from safetensors.numpy import load

    # No more than a file of these arrays has: a small file may be a huge one of zeros.
    most = 10**6 + layout.num_trained + 8 * (layout.num_carried + len(layout.entries))
    return at_levels(layout, load(zlib.decompressobj().decompress(difference, most)), leaf)


def rounded(state: CFLState, layout: Layout) -> CFLState:
    """The state with each client's own model as it is kept, so that its figures are of that."""
    steps = dict[str, Personal]()
    for name, step in state.personal.items():
        leaf = state.tree.clusters[name].model
        levels = {client: levels_of(layout, own, leaf) for client, own in step.models.items()}
        models = {client: at_levels(layout, kept, leaf) for client, kept in levels.items()}
        steps[name] = step._replace(models=models)
    return replace(state, personal=steps)


def levels_of(layout: Layout, model: Weights, leaf: Weights) -> Levels:
    """The difference of a model from that of its leaf, rounded."""
    levels, scales = np.zeros(layout.num_trained, np.int8), list[np.float32]()
    for entry in layout.entries:
        if entry.trained:
            difference = entry.of(model) - entry.of(leaf)
            scale = np.float32(np.abs(difference).max(initial=0) / MOST)
            levels[entry.place] = np.rint(difference / (scale or 1))
            scales.append(scale)
    return {"levels": levels, "scales": np.array(scales, np.float32), "carried": model.carried}


def at_levels(layout: Layout, kept: Levels, leaf: Weights) -> Weights:
    """The model that is its leaf's and this difference."""
    trained, scales = leaf.trained.copy(), iter(kept["scales"])
    for entry in layout.entries:
        if entry.trained:
            trained[entry.place] += next(scales) * kept["levels"][entry.place]
    return layout.as_sent(Weights(trained, kept["carried"]))
