"""Trainings of many clients at once, before each client's message is answered."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message
from numpy.typing import NDArray
from torch import nn

from cflower.clients import node
from cflower.clients.node import Instructions
from cflower.config import RunConfig
from cflower.data.examples import Examples
from cflower.learning.dense import evaluate_stacked, stack_size, train_stacked
from cflower.learning.device import device_of
from cflower.learning.models import empty_model
from cflower.learning.training import one_thread
from cflower.messages.arrays import records_in, values_of
from cflower.messages.client_names import client_name
from cflower.privacy.permutation_mod import seed_of
from cflower.seeding import torch_seed


class Trained(NamedTuple):
    held_out: dict[str, float]
    losses: dict[str, float]
    arrays: dict[str, NDArray[Any]]
    change: dict[str, NDArray[Any]] | None = None
    """Of the client's control variate in SCAFFOLD."""


_ahead: dict[str, Trained] = {}
"""Trainings that were computed in advance, by message id."""


def trained_ahead(message: Message) -> Trained | None:
    """The training that a message asks for, if it was computed in advance; it is given once."""
    return _ahead.pop(message.metadata.message_id, None)


class Job(NamedTuple):
    """A client that can be trained in a stack."""

    message_id: str
    sent: ArrayRecord
    train: Examples
    held_out: Examples
    seed: int


def train_ahead(coming: Sequence[tuple[Message, Context]]) -> None:
    """Train clients of one round in stacks, each with the same result as alone.

    Those with large or other models, or with permuted weights, are left out.
    """
    _ahead.clear()
    config, first = node.config_of(coming[0][1]), Instructions.of(coming[0][0])
    jobs, model, most = [], None, 1
    together = config.clients_together and not config.is_regression
    together = together and not first.method  # it pulls, or keeps arrays
    for message, context in coming if together else ():
        with suppress(Exception):  # of this client: it does not keep the others from their stack
            asked = Instructions.of(message)
            data = node.data_of(config, context, asked)
            if model is None:
                model = empty_model(config.model, *data.train.sizes, config.device)
                most = stack_size(model)
            if most < 2:
                return
            sent = records_in(message.content, ArrayRecord)["arrays"]
            shapes = {key: tuple(values_of(array).shape) for key, array in sent.items()}
            same = asked.server_round == first.server_round and shapes == shapes_of(model)
            if seed_of(context) or not same:
                continue
            seed = torch_seed(config.seed, "train", first.server_round, client_name(context))
            examples = sent, asked.trained(data), asked.measured(data)
            jobs.append(Job(message.metadata.message_id, *examples, seed))
    jobs.sort(key=lambda job: (len(job.train), len(job.held_out)), reverse=True)
    for start in range(0, len(jobs), most):
        assert model is not None
        train_jobs(model, jobs[start : start + most], config, first.server_round)


def shapes_of(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {key: tuple(parameter.shape) for key, parameter in model.named_parameters()}


def train_jobs(model: nn.Module, jobs: Sequence[Job], config: RunConfig, server_round: int) -> None:
    keys = list(shapes_of(model))
    stacks = [np.stack([values_of(job.sent[key]) for job in jobs]) for key in keys]
    held_out, parts, seeds = zip(*((j.held_out, j.train, j.seed) for j in jobs), strict=True)
    with one_thread():
        weights = [torch.from_numpy(stack).to(device_of(model)) for stack in stacks]
        measured = evaluate_stacked(model, weights, held_out)
        losses = train_stacked(model, weights, parts, seeds, config, server_round=server_round)
        arrays = [one.cpu().numpy() for one in weights]
    for place, job in enumerate(jobs):
        about = {"train-loss": losses[place], "num-examples": len(job.train)}
        own = {key: stack[place] for key, stack in zip(keys, arrays, strict=True)}
        _ahead[job.message_id] = Trained(measured[place], about, own)
