"""`flwr run` with one client of ten that takes as long as five rounds."""

import json

import pytest

from cflower.runs.run_files import read_lines
from tests.cli.apps import pyproject
from tests.test_flwr_run import run

CONFIG = {"out": "", "rounds": 16, "pause": 0.5, "slowness": 10}
APP = """
import json
import time
from pathlib import Path

from flwr.app import ConfigRecord, Message
from flwr.serverapp import ServerApp

from cflower import ClusteredFL, Recorder
from tests.strategy.quadratics import Quadratics, initial_arrays

GROUPS = (0, 1) * 5
server = ServerApp()

def waiting(seconds):
    def reply(message, content, server_round):
        time.sleep(message.content["config"][seconds])
        return Message(content, reply_to=message)
    return reply

usual = {number: waiting("pause") for number in range(9)}
client = Quadratics(GROUPS, spoil=usual | {9: waiting("slow")}).app()

@server.main()
def main(grid, context):
    config, results = context.run_config, []
    for slowness, share in ((1, 1.0), (config["slowness"], 0.9)):
        strategy = ClusteredFL(
            fraction_evaluate=0.0,
            min_available_nodes=10,
            metric="loss",
            round_share=share,
            observers=[Recorder(Path(config["out"]) / str(slowness))],
        )
        began, pause = time.monotonic(), config["pause"]
        start = ConfigRecord({"pause": pause, "slow": slowness * pause})
        result = strategy.start(grid, initial_arrays(), config["rounds"], train_config=start)
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
    (app / "slow.py").write_text(APP)
    # Six at once: a round of ten takes two pauses, and the slow client ten.
    nodes = "num-supernodes=10 client-resources-num-cpus=1 init-args-num-cpus=6"
    options = "-c", f"out='{tmp_path}'", "--federation-config", nodes
    printed, status = run(flwr, *options, app=app)
    assert status["status"] == "finished:completed", printed
    waiting, with_quorum = json.loads((tmp_path / "results.json").read_text())
    assert with_quorum["clusters"] == waiting["clusters"]
    assert [len(members) for members in with_quorum["clusters"]] == [5, 5]
    assert with_quorum["seconds"] < 2 * waiting["seconds"]  # five times as long without a quorum
    (rounds,) = (tmp_path / "10").glob("*/rounds.jsonl")
    lines, slow = read_lines(rounds), "partition-9"
    owed, used, problems = (
        [line[key][slow] for line in lines if slow in line[key]]
        for key in ("outstanding", "late", "problems")
    )
    assert len(set(used)) >= 2
    assert len(set(used)) + len(problems) >= len(set(owed)) - 1  # the last may come after the run
