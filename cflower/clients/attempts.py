"""A client's first attempt at a personal step, kept in its context for a second, which goes on."""

from collections.abc import Mapping
from typing import Any
from zlib import crc32

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context
from numpy.typing import NDArray
from torch import nn

from cflower.clients import methods
from cflower.clients.node import Instructions
from cflower.messages.arrays import record_of

MODEL, STEP = "attempt-model", "attempt-step"
"""The keys of the model and of its step in the state of a context."""
FIRST = 1
"""Trainings of an attempt that is kept; one with more is the last."""
Arrays = Mapping[str, NDArray[Any]]


def resumed(model: nn.Module, leaf: Arrays, asked: Instructions, context: Context) -> int:
    """Put the first attempt at this step into the model; its trainings, 0 if there is none."""
    kept = context.state.get(MODEL)
    if not isinstance(kept, ArrayRecord) or context.state.get(STEP) != step_of(leaf, asked):
        return 0
    model.load_state_dict(methods.tensors_of(kept))
    return FIRST


def keep(own: Arrays, leaf: Arrays, asked: Instructions, context: Context) -> None:
    """Keep a first attempt, and forget it after another."""
    if asked.trainings == FIRST:
        context.state[MODEL], context.state[STEP] = record_of(own), step_of(leaf, asked)
    else:
        context.state.pop(MODEL, None)
        context.state.pop(STEP, None)


def step_of(leaf: Arrays, asked: Instructions) -> ConfigRecord:
    """What identifies a step: its round, and a checksum of the leaf's model."""
    checksum = 0
    for values in leaf.values():
        checksum = crc32(np.ascontiguousarray(values).data, checksum)
    return ConfigRecord({"round": asked.server_round, "leaf": checksum})
