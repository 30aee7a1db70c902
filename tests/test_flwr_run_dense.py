"""`flwr run` trains each client alone; `simulate` trains small dense models of many at once."""

import subprocess

import pytest

from tests.command import BIN, PROJECT
from tests.test_flwr_run import nodes, run

KEYS = (
    "model='mlp' shift='rotation' num-groups=2 num-server-rounds=2 min-available-nodes=4 "
    "node-timeout=600.0 partitioner='dirichlet' dirichlet-alpha=5.0"
)


@pytest.mark.slow
def test_flwr_run_and_a_simulation_with_stacks_give_the_same_models(flwr, tmp_path):
    config = f"{KEYS} output-dir='{tmp_path / 'flwr'}'"
    printed, status = run(flwr, "-c", config, "--federation-config", nodes(4), app=PROJECT)
    assert status["status"] == "finished:completed", printed
    command = [BIN / "cflower", "simulate", "-c", KEYS, "--clients", "4", "--out", tmp_path / "in"]
    subprocess.run(command, capture_output=True, check=True)
    (distributed,), (inline,) = (tmp_path / "flwr").iterdir(), (tmp_path / "in").iterdir()
    for model in (distributed / "models").iterdir():
        assert model.read_bytes() == (inline / "models" / model.name).read_bytes()
