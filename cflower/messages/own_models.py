"""A client's own model as its difference from the model of its leaf, in 16 bits an entry.

Half precision rounds each difference by at most 1/2048 of itself, and takes half the space of the
model. What is not trained stays as it is: a rounded variance could become negative.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cflower.algorithm.state import CFLState, Personal
from cflower.algorithm.weights import Weights
from cflower.messages.layout import Layout

LARGEST_HALF = float(np.finfo(np.float16).max)
"""The largest difference in half precision."""


def difference_of(layout: Layout, model: Weights, leaf: Weights) -> dict[str, NDArray[Any]]:
    """By key: the differences of the trained arrays from those of the leaf, the other arrays."""
    arrays = dict(layout.arrays(model))
    for entry in layout.entries:
        if entry.trained:
            difference = np.clip(entry.of(model) - entry.of(leaf), -LARGEST_HALF, LARGEST_HALF)
            arrays[entry.key] = difference.astype(np.float16).reshape(entry.shape)
    return arrays


def restored(layout: Layout, difference: Mapping[str, NDArray[Any]], leaf: Weights) -> Weights:
    model = Weights(leaf.trained.copy(), leaf.carried.copy())
    for entry in layout.entries:
        values = difference[entry.key].reshape(-1)
        entry.of(model)[:] = entry.of(leaf) + values if entry.trained else values
    return layout.as_sent(model)


def as_kept(state: CFLState, layout: Layout) -> CFLState:
    """The state with each client's own model as it is kept, so that its figures are of that."""
    steps = dict[str, Personal]()
    for name, step in state.personal.items():
        leaf = state.tree.clusters[name].model
        models = {
            client: restored(layout, difference_of(layout, own, leaf), leaf)
            for client, own in step.models.items()
        }
        steps[name] = step._replace(models=models)
    return replace(state, personal=steps)
