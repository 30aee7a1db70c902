"""The real `flwr run`: SuperLink, simulation engine and all."""

import json
import shutil
import subprocess

import pytest

from tests.command import BIN, PROJECT
from tests.run_content import summary_of


def run(environment, *arguments, app=PROJECT):
    """The output of `flwr run`, and the run's status according to Flower."""
    ways = {"env": environment, "capture_output": True, "text": True}
    command = ["flwr", "run", str(app), "test", "--stream", *arguments]
    done = subprocess.run(command, **ways, check=False)
    listed = subprocess.run(["flwr", "ls", "test", "--format", "json"], **ways, check=True)
    runs = json.loads(listed.stdout)["runs"]
    return done.stdout + done.stderr, max(runs, key=lambda run: run["pending-at"])


def nodes(count):
    return f"num-supernodes={count} client-resources-num-cpus=1"


@pytest.mark.slow
def test_too_few_supernodes_are_reported_in_one_sentence(flwr, tmp_path):
    printed, status = run(flwr, "-c", f"output-dir='{tmp_path / 'runs'}'")
    assert status["status"] == "finished:failed"
    assert 'Add --federation-config "num-supernodes=10" to `flwr run`' in printed
    assert "Traceback" not in printed
    assert not (tmp_path / "runs").exists()


OURS = """
import numpy as np
from sklearn.datasets import load_iris
from torch import nn

def iris():
    rows, kinds = load_iris(return_X_y=True)
    places = np.arange(150) % 4
    return {"rows": rows, "kind": kinds, "garden": places, "country": places % 2}

def net(input_shape, num_classes):
    return nn.Sequential(nn.Linear(*input_shape, 16), nn.Tanh(), nn.Linear(16, num_classes))
"""
OUR_KEYS = (
    "dataset='ours:iris' model='ours:net' label-column='kind' input-columns='rows' shift='none' "
    "partitioner='natural-id' natural-id-column='garden' group-column='country' "
    "standardise='client' num-server-rounds=3 min-available-nodes=4 node-timeout=600.0 "
    "split-criterion='norms' eps1=5.0 eps2=0.01 gamma-max=0.0 min-cluster-size=1 baselines=true"
)
"""Small enough for Ray, with a split and with a module of one's own that lies beside the app."""


@pytest.mark.slow
def test_flwr_run_and_simulate_give_the_same_summary_and_models(flwr, tmp_path):
    app = tmp_path / "app"
    shutil.copytree(PROJECT, app, ignore=shutil.ignore_patterns(".git", "__pycache__", ".*_cache"))
    (app / "ours.py").write_text(OURS)
    config = f"{OUR_KEYS} output-dir='{tmp_path / 'flwr'}'"
    printed, status = run(flwr, "-c", config, "--federation-config", nodes(4), app=app)
    assert status["status"] == "finished:completed", printed
    assert "each client alone: " in printed
    inline = tmp_path / "inline"
    command = [BIN / "cflower", "simulate", "-c", OUR_KEYS, "--out", inline]
    subprocess.run(command, capture_output=True, check=True, cwd=app)
    (distributed,), (inline,) = (tmp_path / "flwr").iterdir(), inline.iterdir()
    summary = summary_of(distributed)
    assert summary == summary_of(inline)
    assert len(summary["clusters"]) > 1
    assert summary["groups"] == {f"garden-{n}": str(n % 2) for n in range(4)}
    assert set(summary["baselines"]) == {"federated", "isolated"}
    for model in (distributed / "models").iterdir():
        assert model.read_bytes() == (inline / "models" / model.name).read_bytes()
