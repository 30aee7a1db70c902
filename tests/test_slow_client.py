"""`flwr run` with one client of ten that takes as long as five rounds."""

import json
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

@client.train()
def train(message, context):
    me, config = int(context.node_config["partition-id"]), message.content["config"]
    w = message.content["arrays"]["w"].numpy()
    last = me == context.run_config["clients"] - 1
    time.sleep(context.run_config["pause"] * (config["slowness"] if last else 1))
    noise = np.random.default_rng([me, config["server-round"]]).normal(size=16)
    arrays = ArrayRecord({"w": Array(w + 0.5 * (CENTERS[me % 2] - w) + 0.01 * noise)})
    content = {"arrays": arrays, "metrics": MetricRecord({"num-examples": 10})}
    return Message(RecordDict(content), reply_to=message)

@client.evaluate()
def evaluate(message, context):
    me, w = int(context.node_config["partition-id"]), message.content["arrays"]["w"].numpy()
    loss = float(np.linalg.norm(w - CENTERS[me % 2]))
    metrics = MetricRecord({"loss": loss, "num-examples": 10})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)

@server.main()
def main(grid, context):
    config, results = context.run_config, []
    for slowness, share in ((1, 1.0), (config["slowness"], 1 - 1 / config["clients"])):
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
        results.append({"seconds": seconds, "clusters": clusters})
    (Path(config["out"]) / "results.json").write_text(json.dumps(results))
"""


@pytest.mark.slow
def test_a_slow_client_delays_no_round_and_joins_its_cluster(flwr, tmp_path):
    app = tmp_path / "app"
    app.mkdir()
    project = pyproject("slow-client", "slow:server", "slow:client", CONFIG)
    (app / "pyproject.toml").write_text(project)
    (app / "slow.py").write_text(dedent(APP))
    # Six at once: a round of ten takes two seconds, and the slow client ten.
    nodes = "num-supernodes=10 client-resources-num-cpus=1 init-args-num-cpus=6"
    options = "-c", f"out='{tmp_path}'", "--federation-config", nodes
    printed, status = run(flwr, *options, app=app)
    assert status["status"] == "finished:completed", printed
    waiting, with_quorum = json.loads((tmp_path / "results.json").read_text())
    assert with_quorum["clusters"] == waiting["clusters"]
    assert [len(members) for members in with_quorum["clusters"]] == [5, 5]
    assert with_quorum["seconds"] < 1.2 * waiting["seconds"]
    (rounds,) = (tmp_path / "10").glob("*/rounds.jsonl")
    lines = [json.loads(line) for line in rounds.read_text().splitlines()]
    slow = "partition-9"
    owed, used, problems = (
        [line[key][slow] for line in lines if slow in line[key]]
        for key in ("outstanding", "late", "problems")
    )
    assert len(set(used)) >= 3
    assert len(set(used)) + len(problems) >= len(set(owed)) - 1  # the last may come after the run
