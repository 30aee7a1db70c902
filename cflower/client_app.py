"""The ClientApp: evaluates the model it receives, trains it, and answers the roll call."""

import copy
import json
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache, partial
from logging import WARNING
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore import log
from numpy.typing import NDArray
from torch import nn

from cflower.algorithm.state import DECIDE
from cflower.changes.personal import DECIDING, LEAF, MIX
from cflower.clients import attempts, methods, node
from cflower.clients.node import Instructions
from cflower.clients.stacks import Trained, train_ahead, trained_ahead
from cflower.config import RunConfig
from cflower.data.client_data import client_data, mixes_files, natural_id_of
from cflower.data.decoding import PICTURES
from cflower.data.examples import ClientData, Examples
from cflower.data.preview import preview
from cflower.data.settings import DataSettings
from cflower.errors import CFlowerError
from cflower.learning.device import chosen_device
from cflower.learning.models import arrays_of, build_model, empty_model
from cflower.learning.selection import choose, judge_path, losses_of
from cflower.learning.settings import TrainingSettings
from cflower.learning.training import (
    brier_score,
    counts_on,
    evaluate,
    perplexity_of,
    predict,
    train,
)
from cflower.messages.arrays import record_of, records_in
from cflower.messages.client_names import (
    BEST,
    BEST_CLUSTER,
    CLASSES_HERE,
    CONTROL,
    ENSEMBLE,
    FACTS,
    PARTS_APART,
    TABLE,
    answer,
    client_name,
    is_name,
    only_evaluates,
)
from cflower.metric import BRIER
from cflower.ordering import in_order, without
from cflower.privacy.permutation import derived_number, refuse_chosen_model, shuffled
from cflower.privacy.permutation_mod import PermutationMod, seed_of
from cflower.seeding import generator, torch_seed

MIXED_FILES = (
    "dataset = %r: the rows of all its files are mixed and dealt out to the clients. If each file "
    "is a client's: partitioner='natural-id' natural-id-column='file'."
)
PREVIEWED = 100
"""Clients of a simulation that show pictures of theirs; those of the others need no decoding."""
DIVERGED = (
    "the training diverged, its loss is no finite number: set a smaller learning-rate, or scale "
    "what is far from 1, the inputs (standardise='common') or, with task='regression', the label"
)


class StackingApp(ClientApp):
    """In a simulation it trains small dense models of many clients at once."""

    def share(self, folder: Path) -> None:
        PICTURES.folder = folder

    def look_ahead(self, coming: Sequence[tuple[Message, Context]]) -> None:
        """Compute for messages that come next what `train_round` then finds; see `train_ahead`."""
        if coming[0][0].metadata.message_type == "train":
            with suppress(Exception):  # `trained_alone` raises it again, for each client by itself
                train_ahead(coming)


app = StackingApp(mods=[PermutationMod()])


@app.query("roll_call")
def roll_call(message: Message, context: Context) -> Message:
    """The client's name and facts about its data, or why it cannot take part."""
    facts: dict[str, Any] = {"client_id": client_name(context)}
    try:
        if not node.has_own_data(context):
            partition, facts["num_partitions"] = node.partition_of(context)
            settings = node.config_of(context).part(DataSettings)
            if partition == 0 and mixes_files(settings):
                log(WARNING, MIXED_FILES, settings.dataset)
            if is_name(natural := natural_id_of(settings, partition, facts["num_partitions"])):
                facts["client_id"] = natural
        facts["evaluate_only"] = only_evaluates(context, facts["client_id"])
        facts |= facts_about_data(context)
    except CFlowerError as problem:
        facts["problem"] = str(problem)
    except Exception as error:
        # Of NumPy, Arrow, Pillow ...: without an answer the client would have no name.
        facts["problem"] = node.unreadable(error)
    return answer(message, **facts)


def facts_about_data(context: Context) -> dict[str, Any]:
    """Sizes, shapes and class names; in simulation also a preview for the report."""
    config, own = node.config_of(context), node.has_own_data(context)
    chosen_device(config.device)  # refused now, not in the first round
    pictures = own or is_previewed(*node.partition_of(context))
    if pictures:
        data = node.data_of(config, context, Instructions())
    else:
        data = client_data(config.part(DataSettings), *node.partition_of(context), outline=True)
    facts = {
        "num_examples": len(data.train),
        "input_shape": list(data.train.input_shape),
        "class_names": list(data.train.class_names),
        "evaluates_way": not config.is_regression,  # which compares probabilities
        "adapts": True,
    }
    if data.table is not None:
        facts |= {"input_shape": [], TABLE: json.dumps(data.table)}
        facts[CLASSES_HERE] = data.classes_here
    # A real client's examples never leave it.
    return facts if own else facts | preview(data.train, pictures=pictures)


@app.query("first_model")
def first_model(message: Message, context: Context) -> Message:
    """The model that a run with permuted weights begins with: a secret from the server too."""
    config, secret = node.config_of(context), seed_of(context)
    if secret is None:
        raise CFlowerError("A first model is asked of clients with a seed-file only.")
    data = node.data_of(config, context, Instructions.of(message))
    agreed = agreed_model(config, *data.train.sizes, secret)
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
    done = trained_ahead(message) or trained_alone(message, context)
    if not math.isfinite(done.losses["train-loss"]):
        raise CFlowerError(DIVERGED)
    metrics = MetricRecord({**done.held_out, **done.losses})
    content = RecordDict({"arrays": record_of(done.arrays), "metrics": metrics})
    if done.change is not None:
        content[CONTROL] = record_of(done.change)
    return Message(content, reply_to=message)


def trained_alone(message: Message, context: Context) -> Trained:
    config, data, model, asked = prepare(message, context)
    method, server_round, examples = asked.method, asked.server_round, asked.trained(data)
    received = copy.deepcopy(model) if method else model
    methods.serve(method, model, context)
    held_out = evaluate(model, asked.measured(data))
    seed = torch_seed(config.seed, "train", server_round, client_name(context))
    run = partial(train, examples=examples, settings=config, server_round=server_round, seed=seed)
    if method == "ditto":
        with methods.pulled(model, received, config.proximal_mu):
            run(model)
        methods.keep_own(model, model.state_dict().keys(), context)
        model = received
    local, change = methods.local_keys(method, model), None
    if method == "scaffold":
        common = records_in(message.content, ArrayRecord)[CONTROL]
        length = methods.length_of(config, len(examples), server_round)
        losses, change = methods.controlled(model, common, context, run, length)
    elif method == "fedrep":
        with methods.only_training(model, local):
            run(model)
        with methods.only_training(model, model.state_dict().keys() - local):
            losses = run(model)
    else:
        with methods.pulled(model, received, config.proximal_mu if method == "fedprox" else 0.0):
            losses = run(model)
    arrays = arrays_of(model)
    if local:
        methods.keep_own(model, local, context)
        arrays = without(arrays, local)
    return Trained(held_out, {**losses, "num-examples": len(examples)}, arrays, change)


@app.train("adapt")
def adapt(message: Message, context: Context) -> Message:
    """The whole personal step: trainings from the leaf's model, and the measures of both models.

    A second attempt goes on where the first ended. If its model is lost, it begins again, with the
    same result.
    """
    config, data, model, asked = prepare(message, context)
    leaf, last = {key: w.copy() for key, w in arrays_of(model).items()}, asked.server_round
    done = attempts.resumed(model, leaf, asked, context)
    for server_round in range(last + 1 + done, last + 1 + asked.trainings):
        seed = torch_seed(config.seed, "train", server_round, client_name(context))
        train(model, data.train, config, server_round=server_round, seed=seed)
    own = {key: v.copy() for key, v in arrays_of(model).items()}
    attempts.keep(own, leaf, asked, context)
    metrics = MetricRecord({"num-examples": len(data.train), DECIDING: len(data.decide)})
    for number, share in ((LEAF, 0.0), (MIX, asked.share)):
        model.load_state_dict(mixed(leaf, own, share))
        for key, value in evaluate_to_decide(model, data.decide).items():
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
    config, data, model, asked = prepare(message, context)
    method, server_round = asked.method, asked.server_round
    methods.serve(method, model, context)
    if method == "fedrep":
        settings = replace(config.part(TrainingSettings), local_epochs=methods.LAST_EPOCHS)
        seed = torch_seed(config.seed, "train", server_round, client_name(context))
        with methods.only_training(model, methods.local_keys(method, model)):
            train(model, data.train, settings, server_round=server_round, seed=seed)
    examples = asked.measured(data)
    if asked.part == DECIDE:
        metrics = MetricRecord(dict(evaluate_to_decide(model, examples)))
    else:
        metrics = MetricRecord({**evaluate(model, examples), **counts_on(model, examples)})
    metrics["num-examples"] = len(examples)
    content = RecordDict({"metrics": metrics})
    content[FACTS] = ConfigRecord(facts_at_end(data))
    return Message(content, reply_to=message)


def evaluate_to_decide(model: nn.Module, examples: Examples) -> dict[str, float]:
    """As `evaluate`; where classes are predicted, also `brier_score`."""
    metrics = evaluate(model, examples)
    if examples.class_names:
        metrics[BRIER.name] = brier_score(model, examples)
    return metrics


@app.evaluate("way")
def evaluate_path(message: Message, context: Context) -> Message:
    """All models on this client's path, the best of them for it, and their ensemble."""
    config = node.config_of(context)
    data = node.data_of(config, context, Instructions.of(message))
    models = records_in(message.content, ArrayRecord)

    def logits_on(examples: Examples) -> dict[str, NDArray[np.float32]]:
        path = in_order(models)
        return {name: predict(loaded(config, data, models[name]), examples) for name in path}

    rng = generator(config.seed, "selection", client_name(context))
    level = None
    if data.apart:
        level = choose(losses_of(logits_on(data.decide), data.decide.labels.ravel()))
    labels = data.report.labels
    judged = judge_path(logits_on(data.report), labels.ravel(), rng, level, counts=labels.ndim == 1)
    facts = ConfigRecord({BEST_CLUSTER: judged.best_level, **facts_at_end(data)})
    records: dict[str, Any] = {FACTS: facts}
    evaluated = judged.levels | {BEST: judged.best, ENSEMBLE: judged.ensemble}
    for name, metrics in evaluated.items():
        more = perplexity_of(metrics["loss"], data.report)
        records[name] = MetricRecord({**metrics, **more, "num-examples": len(data.report)})
    return Message(RecordDict(records), reply_to=message)


def facts_at_end(data: ClientData) -> dict[str, Any]:
    """The true group, if it is known, and whether examples that decide are not reported."""
    return {PARTS_APART: data.apart} | ({} if data.group is None else {"group": data.group})


Prepared = tuple[RunConfig, ClientData, nn.Module, Instructions]


def prepare(message: Message, context: Context) -> Prepared:
    """Config, data, model and instructions; with permuted weights, a model to train that the server
    has chosen is refused.
    """
    config, asked = node.config_of(context), Instructions.of(message)
    data = node.data_of(config, context, asked)
    model = loaded(config, data, records_in(message.content, ArrayRecord)["arrays"])
    trains = message.metadata.message_type.startswith("train")
    if trains and (secret := seed_of(context)):
        agreed = agreed_model(config, *data.train.sizes, secret)
        refuse_chosen_model(arrays_of(model), agreed, asked.server_round)
    return config, data, model, asked


def loaded(config: RunConfig, data: ClientData, arrays: ArrayRecord) -> nn.Module:
    model = empty_model(config.model, *data.train.sizes, config.device)
    model.load_state_dict(methods.tensors_of(arrays))
    return model


def is_previewed(partition: int, num_partitions: int) -> bool:
    """Whether a simulated client shows pictures: `PREVIEWED` at most, spread over all of them.

    >>> [i for i in range(400) if is_previewed(i, 400)][:3]
    [0, 4, 8]
    """
    return partition % -(-num_partitions // PREVIEWED) == 0
