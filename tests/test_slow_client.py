"""The real `flwr run` with one client of ten that takes five rounds' time, by the clock."""

import json
from pathlib import Path
from textwrap import dedent

import pytest
from flower_app import pyproject

from tests.test_flwr_run import run

CONFIG = {"out": "", "rounds": 25, "clients": 10, "pause": 1.0, "slowness": 10}
APP = """
import json
import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from cflower import ClusteredFL, Recorder, name_clients

CENTERS = np.random.default_rng(0).normal(size=(2, 16))
client = name_clients(ClientApp())
server = ServerApp()

def opened(message, context):
    me = int(context.node_config["partition-id"])
    config = message.content["config"]
    return me, config, message.content["arrays"]["w"].numpy()

@client.train()
def train(message, context):
    me, config, w = opened(message, context)
    last = me == context.run_config["clients"] - 1
    time.sleep(context.run_config["pause"] * (config["slowness"] if last else 1))
    noise = np.random.default_rng([me, config["server-round"]]).normal(size=16)
    arrays = ArrayRecord({"w": Array(w + 0.5 * (CENTERS[me % 2] - w) + 0.01 * noise)})
    content = {"arrays": arrays, "metrics": MetricRecord({"num-examples": 10})}
    return Message(RecordDict(content), reply_to=message)

@client.evaluate()
def evaluate(message, context):
    me, _, w = opened(message, context)
    loss = float(np.linalg.norm(w - CENTERS[me % 2]))
    metrics = MetricRecord({"loss": loss, "num-examples": 10})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)

@server.main()
def main(grid, context):
    config, told = context.run_config, []
    share = 1 - 1 / config["clients"]
    for slowness, share in ((1, 1.0), (config["slowness"], share)):
        strategy = ClusteredFL(
            fraction_evaluate=0.0,
            min_available_nodes=config["clients"],
            metric="loss",
            round_share=share,
            observers=[Recorder(Path(config["out"]) / str(slowness))],
        )
        arrays = ArrayRecord({"w": Array(np.zeros(16))})
        began = time.monotonic()
        start = ConfigRecord({"slowness": slowness})
        result = strategy.start(grid, arrays, config["rounds"], train_config=start)
        seconds = time.monotonic() - began
        clusters = sorted(sorted(members) for members in result.clusters.values())
        told.append({"seconds": seconds, "clusters": clusters})
    (Path(config["out"]) / "told.json").write_text(json.dumps(told))
"""


def app_in(folder: Path) -> Path:
    """The app's folder."""
    folder.mkdir()
    (folder / "pyproject.toml").write_text(
        pyproject("slow-client", "slow:server", "slow:client", CONFIG)
    )
    (folder / "slow.py").write_text(dedent(APP))
    return folder


@pytest.mark.slow
def test_a_slow_client_holds_nobody_up_and_finds_its_cluster(
    flwr: dict[str, str], tmp_path: Path
) -> None:
    # Six at once: a round of ten takes two seconds, and the slow one ten.
    nodes = "num-supernodes=10 client-resources-num-cpus=1 init-args-num-cpus=6"
    printed, status = run(
        flwr,
        *("-c", f"out='{tmp_path}'", "--federation-config", nodes),
        app=app_in(tmp_path / "app"),
    )
    assert status["status"] == "finished:completed", printed
    together, apart = json.loads((tmp_path / "told.json").read_text())
    assert apart["clusters"] == together["clusters"]
    assert [len(members) for members in apart["clusters"]] == [5, 5]
    assert apart["seconds"] < 1.2 * together["seconds"]
    (rounds,) = (tmp_path / "10").glob("*/rounds.jsonl")
    lines = [json.loads(line) for line in rounds.read_text().splitlines()]
    slow = "partition-9"
    asked = {line["outstanding"][slow] for line in lines if slow in line["outstanding"]}
    used = {line["late"][slow] for line in lines if slow in line["late"]}
    told = [line["problems"][slow] for line in lines if slow in line["problems"]]
    assert len(used) >= 3
    assert len(used) + len(told) >= len(asked) - 1  # the last one may come after the run
