"""cflower, conventional FL, the oracle and isolated training, through cflower's own apps."""

import shutil
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from families.planted import BASELINES, Oracle, truth_of
from flwr.app import Context, Message, MessageType

from cflower import simulate
from cflower.client_app import app as client_app
from cflower.messages.arrays import values_of
from cflower.server_app import run as run_server
from peers.federation import Cost

METHODS: dict[str, dict[str, Any]] = {
    "cflower": {"method": "clustered", "split-criterion": "auto"},
    "federated": BASELINES["federated"],
    "isolated": {"method": "isolated"},
    "oracle": BASELINES["oracle"],
}
"""The run config of each."""


def run(method: str, config: Mapping[str, Any]) -> tuple[dict[str, Any], Cost]:
    """The summary of one run, and what its training cost."""
    cost, folder, began_run = Cost(), Path(mkdtemp(prefix="peers-")), time.process_time()
    asked = 0.0  # seconds of the clients in other exchanges: roll call, final evaluation

    def client(message: Message, context: Context) -> Message:
        nonlocal asked
        began = time.process_time()
        if message.metadata.message_type != MessageType.TRAIN:
            reply = client_app(message, context)
            asked += time.process_time() - began
            return reply
        cost.down += arrays_in(message)
        reply = client_app(message, context)
        cost.client_seconds += time.process_time() - began
        cost.up += arrays_in(reply)
        return reply

    keys = {**config, **METHODS[method], "output-dir": str(folder)}
    rule = Oracle(truth_of(config)) if method == "oracle" else None
    server = partial(run_server, say=lambda text: None, criterion=rule)
    try:
        clients = config["min-available-nodes"]
        summary = simulate(client, clients, server_app=server, run_config=keys)
    finally:
        shutil.rmtree(folder)
    cost.server_seconds = time.process_time() - began_run - cost.client_seconds - asked
    return summary, cost


def arrays_in(message: Message) -> int:
    """Bytes of the arrays in a message."""
    records = message.content.array_records.values()
    return sum(values_of(array).nbytes for record in records for array in record.values())
