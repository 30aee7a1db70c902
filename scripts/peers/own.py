"""cflower, the oracle and conventional FL through cflower's own apps."""

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
from cflower.algorithm.state import DECIDE
from cflower.client_app import app as client_app
from cflower.messages.arrays import values_of
from cflower.messages.client_names import PART
from cflower.runs.records import Summary, Tree, bodies
from cflower.server_app import run as run_server
from peers.federation import Cost

METHODS: dict[str, dict[str, Any]] = {
    "cflower": {"method": "clustered", "split-criterion": "auto"},
    "federated": BASELINES["federated"],
    "oracle": BASELINES["oracle"],
    # They decide nothing, so that their clients train on the deciding examples too.
    **{
        name: {**BASELINES["federated"], "method": name, "trial-rounds": 0, "personal": False}
        for name in ("fedprox", "scaffold", "ditto", "fedper", "fedrep", "fedbn", "ifca")
    },
}
"""The run config of each."""


def run(
    method: str, config: Mapping[str, Any], more: Mapping[str, Any] | None = None
) -> tuple[dict[str, Any], Cost]:
    """The summary of one run, with ``more`` keys, and what its training cost.

    The summary also has ``split_in``, the round of the last split that was not undone, and
    ``bodies``, the number of different layers below the leaves' output layers.
    """
    cost, folder, began_run = Cost(), Path(mkdtemp(prefix="peers-")), time.process_time()
    apart = 0.0  # seconds of the clients in other exchanges: roll call, final evaluation

    def client(message: Message, context: Context) -> Message:
        nonlocal apart
        began = time.process_time()
        reply = client_app(message, context)
        seconds = time.process_time() - began
        if belongs_to_training(message):
            cost.down += arrays_in(message)
            cost.up += arrays_in(reply)
            cost.client_seconds += seconds
        else:
            apart += seconds
        return reply

    keys = {**config, **METHODS[method], **(more or {}), "output-dir": str(folder)}
    rule = Oracle(truth_of(config)) if method == "oracle" else None
    server = partial(run_server, say=lambda text: None, criterion=rule)
    try:
        clients = config["min-available-nodes"]
        summary = simulate(client, clients, server_app=server, run_config=keys)
        tree = Tree.model_validate_json(next(folder.glob("*/tree.json")).read_bytes())
    finally:
        shutil.rmtree(folder)
    lasting = Summary.model_validate(summary).lasting
    summary["split_in"] = max((split.round for split in lasting), default=None)
    summary["bodies"] = len(bodies(tree.clusters))
    cost.trainings = sum(client["trainings"] for client in summary["clients"].values())
    cost.trainings *= 2 if method in ("ditto", "fedrep") else 1  # two in a round
    cost.server_seconds = time.process_time() - began_run - cost.client_seconds - apart
    return summary, cost


def belongs_to_training(message: Message) -> bool:
    """Whether a message trains, or evaluates to decide something: all but roll call and end."""
    if message.metadata.message_type != MessageType.EVALUATE:
        return message.metadata.message_type.startswith(MessageType.TRAIN)
    configs = message.content.config_records.values()
    return any(config.get(PART) == DECIDE for config in configs)


def arrays_in(message: Message) -> int:
    """Bytes of the arrays in a message."""
    records = message.content.array_records.values()
    return sum(values_of(array).nbytes for record in records for array in record.values())
