"""The run config of a node, the instructions of a message, and the node's examples."""

import os
from functools import lru_cache
from logging import WARNING
from pathlib import Path
from typing import Any, NamedTuple

from flwr.app import ConfigRecord, Context, Message
from flwr.supercore import log

from cflower.algorithm.state import DECIDE, REPORT
from cflower.config import RunConfig
from cflower.data.client_data import load_client_data
from cflower.data.examples import ClientData, Examples
from cflower.data.own_data import load_own_data
from cflower.data.settings import DataSettings, group_at
from cflower.errors import CFlowerError, DataError, first_line
from cflower.messages.arrays import records_in
from cflower.messages.client_names import TRAINED_ON


def config_of(context: Context) -> RunConfig:
    """The run config, read once for all messages of a run."""
    return read_config(tuple(context.run_config.items()))


@lru_cache(maxsize=4)
def read_config(items: tuple[tuple[str, Any], ...]) -> RunConfig:
    return RunConfig.read(dict(items))


class Instructions(NamedTuple):
    """The server's instructions in the config of a message."""

    server_round: int = 0
    part: str = REPORT
    method: str = ""
    """One of `cflower.clients.methods`; empty for plain training."""
    preparation: str = ""
    """How to prepare the columns of a table, as JSON; empty if the data are no table."""
    all_examples: bool = False
    trainings: int = 0
    """Number of trainings in a personal step."""
    share: float = 0.0
    """The client's share in the mix of a personal step."""

    @classmethod
    def of(cls, message: Message) -> "Instructions":
        config = records_in(message.content, ConfigRecord).get("config", ConfigRecord())
        keys = {field: field.replace("_", "-") for field in cls._fields}
        given: dict[str, Any] = {field: config[key] for field, key in keys.items() if key in config}
        return cls(**given)

    def measured(self, data: ClientData) -> Examples:
        return {DECIDE: data.decide, TRAINED_ON: data.train}.get(self.part, data.report)

    def trained(self, data: ClientData) -> Examples:
        """The examples to train on, those that decide included if `all_examples`."""
        together = self.all_examples and data.apart
        return data.train.with_others(data.decide) if together else data.train


def has_own_data(context: Context) -> bool:
    return "data-path" in context.node_config


def data_of(config: RunConfig, context: Context, asked: Instructions) -> ClientData:
    """This node's examples: those of its own folder, else its share of the data set."""
    settings = config.part(DataSettings)
    if not has_own_data(context):
        partition, num_partitions = partition_of(context)
        group = group_at(settings.drift, partition, asked.server_round)
        return load_client_data(settings, partition, num_partitions, group, asked.preparation)
    path = str(context.node_config["data-path"])
    try:
        return load_own_data(path, settings, config.classes, asked.preparation)
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
