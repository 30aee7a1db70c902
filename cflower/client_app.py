"""The ClientApp: evaluates the model it receives, trains it, and answers the roll call."""

import os
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from logging import WARNING
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore import log
from numpy.typing import NDArray
from torch import nn

from cflower.algorithm.state import DECIDE
from cflower.changes.personal import HELD_OUT
from cflower.config import RunConfig
from cflower.data.client_data import client_data, load_client_data, natural_id_of
from cflower.data.drift import group_at
from cflower.data.examples import Examples
from cflower.data.own_data import load_own_data
from cflower.data.prepared import ClientData
from cflower.data.preview import preview
from cflower.data.settings import DataSettings
from cflower.errors import CFlowerError, DataError, first_line
from cflower.learning.dense import evaluate_stacked, stack_size, train_stacked
from cflower.learning.models import arrays_of, build_model
from cflower.learning.selection import choose, judge_path, losses_of
from cflower.learning.training import device, evaluate, one_thread, predict, train, with_perplexity
from cflower.messages.arrays import record_of, values_of
from cflower.messages.client_names import (
    BEST,
    BEST_CLUSTER,
    ENSEMBLE,
    FACTS,
    PART,
    PARTS_APART,
    answer,
    client_name,
    is_name,
)
from cflower.ordering import in_order
from cflower.privacy.permutation import derived_number, refuse_chosen_model, shuffled
from cflower.privacy.permutation_mod import PermutationMod, seed_of
from cflower.seeding import generator, torch_seed

PREVIEWED = 100
"""Clients of a simulation that show pictures of theirs; those of the others need no decoding."""


class StackingApp(ClientApp):
    """In a simulation it trains small dense models of many clients at once."""

    def look_ahead(self, coming: Sequence[tuple[Message, Context]]) -> None:
        """Compute for messages that come next what `train_round` then finds; see `train_ahead`."""
        if coming[0][0].metadata.message_type == "train":
            with suppress(Exception):  # `trained_alone` raises it again, for each client by itself
                train_ahead(coming)


class Trained(NamedTuple):
    """What a client's training gives."""

    held_out: dict[str, float]
    losses: dict[str, float]
    arrays: dict[str, NDArray[Any]]


_ahead: dict[str, Trained] = {}
"""Trainings that were computed in advance, by message id."""
app = StackingApp(mods=[PermutationMod()])


@app.query("roll_call")
def roll_call(message: Message, context: Context) -> Message:
    """The client's name and facts about its data, or why it cannot take part."""
    facts: dict[str, Any] = {"client_id": client_name(context)}
    try:
        if not has_own_data(context):
            partition, facts["num_partitions"] = partition_of(context)
            settings = config_of(context).part(DataSettings)
            if is_name(natural := natural_id_of(settings, partition, facts["num_partitions"])):
                facts["client_id"] = natural
        facts |= facts_about_data(context)
    except CFlowerError as problem:
        facts["problem"] = str(problem)
    except Exception as error:
        # Of NumPy, Arrow, Pillow ...: without an answer the client would have no name.
        facts["problem"] = unreadable(error)
    return answer(message, **facts)


def facts_about_data(context: Context) -> dict[str, Any]:
    """Sizes, shapes and class names; in simulation also a preview for the report."""
    config, own = config_of(context), has_own_data(context)
    pictures = own or is_previewed(*partition_of(context))
    if pictures:
        data = data_of(config, context)
    else:
        data = client_data(config.part(DataSettings), *partition_of(context), outline=True)
    facts = {
        "num_examples": len(data.train),
        "input_shape": list(data.train.input_shape),
        "class_names": list(data.train.class_names),
        "evaluates_way": True,
        "adapts": True,
    }
    # A real client's examples never leave it.
    return facts if own else facts | preview(data.train, pictures=pictures)


@app.query("first_model")
def first_model(message: Message, context: Context) -> Message:
    """The model that a run with permuted weights begins with: a secret from the server too."""
    config, secret = config_of(context), seed_of(context)
    if secret is None:
        raise CFlowerError("A first model is asked of clients with a seed-file only.")
    agreed = agreed_model(config, *data_of(config, context).train.sizes, secret)
    return Message(RecordDict({"arrays": record_of(agreed)}), reply_to=message)


@lru_cache(maxsize=4)
def agreed_model(
    config: RunConfig, input_shape: tuple[int, ...], num_classes: int, secret: bytes
) -> dict[str, NDArray[Any]]:
    """The first model of a run with permuted weights, by the run's seed and the clients' secret."""
    seed = derived_number(secret, f"first model {config.seed}")
    # PyTorch's generator has only 2³² different beginnings, few enough to try them all.
    return shuffled(arrays_of(build_model(config.model, input_shape, num_classes, seed)), secret)


@app.train()
def train_round(message: Message, context: Context) -> Message:
    """One message a round: the received model is evaluated as it is, then trained."""
    done = _ahead.pop(message.metadata.message_id, None) or trained_alone(message, context)
    metrics = MetricRecord({**done.held_out, **done.losses})
    content = RecordDict({"arrays": record_of(done.arrays), "metrics": metrics})
    return Message(content, reply_to=message)


def trained_alone(message: Message, context: Context) -> Trained:
    """The training that a message asks for."""
    config, data, model = prepare_training(message, context)
    server_round, size = round_of(message), {"num-examples": len(data.train)}
    held_out = evaluate(model, asked_part(message, data))
    seed = torch_seed(config.seed, "train", server_round, client_name(context))
    losses = train(model, data.train, config, server_round=server_round, seed=seed)
    return Trained(held_out, {**losses, **size}, arrays_of(model))


class Job(NamedTuple):
    """A client that can be trained in a stack."""

    message_id: str
    sent: ArrayRecord
    train: Examples
    held_out: Examples
    seed: int


def train_ahead(coming: Sequence[tuple[Message, Context]]) -> None:
    """Train clients of one round in stacks, each with the same result as `trained_alone`.

    Those with large or other models, or with permuted weights, are left to that.
    """
    _ahead.clear()
    config, server_round = config_of(coming[0][1]), round_of(coming[0][0])
    jobs, model, most = [], None, 1
    for message, context in coming if config.clients_together else ():
        with suppress(Exception):  # of this client: it does not keep the others from their stack
            data = data_of(config, context, server_round)
            if model is None:
                model = empty_model(config.model, *data.train.sizes)
                most = stack_size(model)
            if most < 2:
                return
            sent = message.content.array_records["arrays"]
            shapes = {key: tuple(values_of(array).shape) for key, array in sent.items()}
            same = round_of(message) == server_round and shapes == shapes_of(model)
            if seed_of(context) or not same:
                continue
            seed = torch_seed(config.seed, "train", server_round, client_name(context))
            asked = asked_part(message, data)
            jobs.append(Job(message.metadata.message_id, sent, data.train, asked, seed))
    jobs.sort(key=lambda job: (len(job.train), len(job.held_out)), reverse=True)
    for start in range(0, len(jobs), most):
        assert model is not None
        train_jobs(model, jobs[start : start + most], config, server_round)


def shapes_of(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """The shapes of a model's parameters by name."""
    return {key: tuple(parameter.shape) for key, parameter in model.named_parameters()}


def train_jobs(model: nn.Module, jobs: Sequence[Job], config: RunConfig, server_round: int) -> None:
    """Train these clients in one stack and keep the results."""
    keys = list(shapes_of(model))
    stacks = [np.stack([values_of(job.sent[key]) for job in jobs]) for key in keys]
    held_out, parts, seeds = zip(*((j.held_out, j.train, j.seed) for j in jobs), strict=True)
    with one_thread():
        weights = [torch.from_numpy(stack).to(device()) for stack in stacks]
        measured = evaluate_stacked(model, weights, held_out)
        losses = train_stacked(model, weights, parts, seeds, config, server_round=server_round)
        arrays = [one.cpu().numpy() for one in weights]
    for place, job in enumerate(jobs):
        about = {"train-loss": losses[place], "num-examples": len(job.train)}
        own = {key: stack[place] for key, stack in zip(keys, arrays, strict=True)}
        _ahead[job.message_id] = Trained(measured[place], about, own)


@app.train("adapt")
def adapt(message: Message, context: Context) -> Message:
    """The whole personal step: trainings from the leaf's model, and the measures of each mix."""
    config, data, model = prepare_training(message, context)
    asked = message.content.config_records["config"]
    trainings, kappas = asked["trainings"], asked["kappas"]
    assert isinstance(trainings, int) and isinstance(kappas, list)
    leaf, last = {key: w.copy() for key, w in arrays_of(model).items()}, round_of(message)
    for server_round in range(last + 1, last + 1 + trainings):
        seed = torch_seed(config.seed, "train", server_round, client_name(context))
        train(model, data.train, config, server_round=server_round, seed=seed)
    own, size = {key: v.copy() for key, v in arrays_of(model).items()}, len(data.train)
    metrics = MetricRecord({"num-examples": size, HELD_OUT: len(data.decide)})
    for number, share in enumerate([0.0, *(size / (size + float(kappa)) for kappa in kappas)]):
        model.load_state_dict(mixed(leaf, own, share))
        for key, value in evaluate(model, data.decide).items():
            metrics[f"{key}.{number}"] = value
    content = RecordDict({"arrays": record_of(own), "metrics": metrics})
    return Message(content, reply_to=message)


def mixed(
    leaf: dict[str, NDArray[Any]], own: dict[str, NDArray[Any]], share: float
) -> dict[str, torch.Tensor]:
    """W + share (v − w), in the arrays' own dtypes."""
    mix = {key: w + share * (own[key] - w) for key, w in leaf.items()}
    return {key: torch.from_numpy(np.asarray(mix[key], w.dtype)) for key, w in leaf.items()}


@app.evaluate()
def evaluate_round(message: Message, context: Context) -> Message:
    """The received model on the part that is asked for, and the true group if it is known."""
    _, data, model = prepare(message, context)
    examples = asked_part(message, data)
    metrics = MetricRecord(dict(evaluate(model, examples)))
    metrics["num-examples"] = len(examples)
    content = RecordDict({"metrics": metrics})
    content[FACTS] = ConfigRecord(facts_at_end(data))
    return Message(content, reply_to=message)


@app.evaluate("way")
def evaluate_path(message: Message, context: Context) -> Message:
    """All models on this client's path, the best of them for it, and their ensemble."""
    config = config_of(context)
    data = data_of(config, context, round_of(message))
    models = message.content.array_records

    def logits_on(examples: Examples) -> dict[str, NDArray[np.float32]]:
        path = in_order(models)
        return {name: predict(loaded(config, data, models[name]), examples) for name in path}

    rng = generator(config.seed, "selection", client_name(context))
    level = None
    if data.apart:
        level = choose(losses_of(logits_on(data.decide), data.decide.labels.ravel()))
    judged = judge_path(logits_on(data.report), data.report.labels.ravel(), rng, level)
    facts = ConfigRecord({BEST_CLUSTER: judged.best_level, **facts_at_end(data)})
    records: dict[str, Any] = {FACTS: facts}
    evaluated = judged.levels | {BEST: judged.best, ENSEMBLE: judged.ensemble}
    for name, metrics in evaluated.items():
        metrics = with_perplexity(metrics, data.report)
        records[name] = MetricRecord({**metrics, "num-examples": len(data.report)})
    return Message(RecordDict(records), reply_to=message)


def asked_part(message: Message, data: ClientData) -> Examples:
    """The examples to measure a model on: those that decide, or those that are reported."""
    config = message.content.config_records["config"]
    return data.decide if config.get(PART) == DECIDE else data.report


def facts_at_end(data: ClientData) -> dict[str, Any]:
    """The true group, if it is known, and whether examples that decide are not reported."""
    return {PARTS_APART: data.apart} | ({} if data.group is None else {"group": data.group})


def prepare(message: Message, context: Context) -> tuple[RunConfig, ClientData, nn.Module]:
    """Config, this client's data, and the model with the received parameters."""
    config = config_of(context)
    data = data_of(config, context, round_of(message))
    return config, data, loaded(config, data, message.content.array_records["arrays"])


def prepare_training(message: Message, context: Context) -> tuple[RunConfig, ClientData, nn.Module]:
    """As `prepare`; with permuted weights, a model of the server's choosing is refused."""
    config, data, model = prepare(message, context)
    if secret := seed_of(context):
        agreed = agreed_model(config, *data.train.sizes, secret)
        refuse_chosen_model(arrays_of(model), agreed, round_of(message))
    return config, data, model


def loaded(config: RunConfig, data: ClientData, arrays: ArrayRecord) -> nn.Module:
    """The run's model with these parameters."""
    model = empty_model(config.model, *data.train.sizes)
    # A copy, because PyTorch warns of tensors on read-only bytes.
    values = {key: torch.from_numpy(values_of(array).copy()) for key, array in arrays.items()}
    model.load_state_dict(values)
    return model


def config_of(context: Context) -> RunConfig:
    """The run config, read once for all messages of a run."""
    return read_config(tuple(context.run_config.items()))


@lru_cache(maxsize=4)
def read_config(items: tuple[tuple[str, Any], ...]) -> RunConfig:
    """`RunConfig.read` of the items of a mapping."""
    return RunConfig.read(dict(items))


def round_of(message: Message) -> int:
    """The round a message belongs to."""
    server_round = message.content.config_records["config"]["server-round"]
    assert isinstance(server_round, int)
    return server_round


@lru_cache(maxsize=4)
def empty_model(name: str, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """A model to load parameters into; every message overwrites all of them."""
    return build_model(name, input_shape, num_classes, seed=0)


def has_own_data(context: Context) -> bool:
    """Whether this node brings its data, instead of being dealt a share."""
    return "data-path" in context.node_config


def data_of(config: RunConfig, context: Context, server_round: int = 0) -> ClientData:
    """This node's examples: those of its own folder, else its share of the data set."""
    settings = config.part(DataSettings)
    if not has_own_data(context):
        partition, num_partitions = partition_of(context)
        group = group_at(settings.drift, partition, server_round)
        return load_client_data(settings, partition, num_partitions, group)
    path = str(context.node_config["data-path"])
    try:
        return load_own_data(path, settings, config.classes)
    except Exception as error:  # ours, or of NumPy, Arrow, Pillow ...
        text = str(error) if isinstance(error, CFlowerError) else unreadable(error)
        log(WARNING, "%s", text)
        raise DataError(without_place(text, path)) from None


def unreadable(error: Exception) -> str:
    """The sentence about an error of a library that reads data."""
    return f"its data cannot be read ({type(error).__name__}: {first_line(error)})"


def without_place(text: str, path: str) -> str:
    """A text for the server, which has no use for the place of a node's folder.

    >>> without_place("data-path = '/srv/ward-7/scans' is no folder", "/srv/ward-7/scans")
    "data-path = 'scans' is no folder"
    """
    place = Path(path).expanduser().absolute().parent
    return text.replace(f"{place}{os.sep}", "") if place.name else text


def is_previewed(partition: int, num_partitions: int) -> bool:
    """Whether a simulated client shows pictures: `PREVIEWED` at most, spread over all of them.

    >>> [i for i in range(400) if is_previewed(i, 400)][:3]
    [0, 4, 8]
    """
    return partition % -(-num_partitions // PREVIEWED) == 0


def partition_of(context: Context) -> tuple[int, int]:
    """This node's share of the data set: which, of how many."""
    node = context.node_config
    try:
        return int(node["partition-id"]), int(node["num-partitions"])
    except KeyError as missing:
        raise CFlowerError(
            f"The node config has no {missing}: start the SuperNode with --node-config "
            '\'client-id="site-a" data-path="/its/folder"\' for data of its own, or with '
            '"partition-id=0 num-partitions=10" for a share of the data set.'
        ) from None
