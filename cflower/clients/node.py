"""What a node computes with: the run config and the round of a message, and the node's examples."""

import os
from functools import lru_cache
from logging import WARNING
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, Message
from flwr.supercore import log

from cflower.algorithm.state import ALL_EXAMPLES, DECIDE
from cflower.config import RunConfig
from cflower.data.client_data import load_client_data
from cflower.data.drift import group_at
from cflower.data.examples import Examples
from cflower.data.own_data import load_own_data
from cflower.data.prepared import ClientData
from cflower.data.settings import DataSettings
from cflower.errors import CFlowerError, DataError, first_line
from cflower.messages.arrays import records_in
from cflower.messages.client_names import METHOD, PART, PREPARATION, TRAINED_ON


def config_of(context: Context) -> RunConfig:
    """The run config, read once for all messages of a run."""
    return read_config(tuple(context.run_config.items()))


@lru_cache(maxsize=4)
def read_config(items: tuple[tuple[str, Any], ...]) -> RunConfig:
    return RunConfig.read(dict(items))


def said_in(message: Message) -> ConfigRecord:
    return records_in(message.content, ConfigRecord)["config"]


def round_of(message: Message) -> int:
    server_round = said_in(message)["server-round"]
    assert isinstance(server_round, int)
    return server_round


def preparation_in(message: Message) -> str:
    """How to prepare the columns of a table, as JSON; empty if the data are no table."""
    config = message.content.get("config")
    return str(config.get(PREPARATION, "")) if isinstance(config, ConfigRecord) else ""


def method_of(message: Message) -> str:
    return str(said_in(message).get(METHOD, ""))


def asked_part(message: Message, data: ClientData) -> Examples:
    """The examples to measure a model on: those that decide, or those that are reported."""
    asked = said_in(message).get(PART)
    return {DECIDE: data.decide, TRAINED_ON: data.train}.get(str(asked), data.report)


def training_examples(message: Message, data: ClientData) -> Examples:
    """The examples to train on: with those that decide if the message says so."""
    together = bool(said_in(message).get(ALL_EXAMPLES)) and data.apart
    return data.train.with_others(data.decide) if together else data.train


def decides(message: Message) -> bool:
    return said_in(message).get(PART) == DECIDE


def has_own_data(context: Context) -> bool:
    return "data-path" in context.node_config


def data_of(
    config: RunConfig, context: Context, message: Message | None = None, preparation: str = ""
) -> ClientData:
    """This node's examples: those of its own folder, else its share of the data set.

    A message has the round, and how to prepare the columns of a table.
    """
    settings = config.part(DataSettings)
    server_round = 0
    if message is not None:
        server_round, preparation = round_of(message), preparation_in(message)
    if not has_own_data(context):
        partition, num_partitions = partition_of(context)
        group = group_at(settings.drift, partition, server_round)
        return load_client_data(settings, partition, num_partitions, group, preparation)
    path = str(context.node_config["data-path"])
    try:
        return load_own_data(path, settings, config.classes, preparation)
    except Exception as error:  # ours, or of NumPy, Arrow, Pillow ...
        text = str(error) if isinstance(error, CFlowerError) else unreadable(error)
        log(WARNING, "%s", text)
        raise DataError(without_place(text, path)) from None


def unreadable(error: Exception) -> str:
    return f"its data cannot be read ({type(error).__name__}: {first_line(error)})"


def without_place(text: str, path: str) -> str:
    """A text for the server, which has no use for the place of a node's folder.

    >>> without_place("data-path = '/srv/ward-7/scans' is no folder", "/srv/ward-7/scans")
    "data-path = 'scans' is no folder"
    """
    place = Path(path).expanduser().absolute().parent
    return text.replace(f"{place}{os.sep}", "") if place.name else text


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
