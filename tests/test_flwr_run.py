"""The real `flwr run`: SuperLink, simulation engine and all."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import BIN

PROJECT = Path(__file__).parent.parent
ROUNDS = 10


def run(
    environment: dict[str, str], *arguments: str, app: Path = PROJECT
) -> tuple[str, dict[str, str]]:
    """What `flwr run` printed, and how Flower says that the run ended."""
    command = ["flwr", "run", str(app), "test", "--stream", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    listed = subprocess.run(
        ["flwr", "ls", "test", "--format", "json"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    runs = json.loads(listed.stdout)["runs"]
    return done.stdout + done.stderr, max(runs, key=lambda run: run["pending-at"])


@pytest.mark.slow
def test_flwr_run_and_simulate_give_the_same_summary(flwr: dict[str, str], tmp_path: Path) -> None:
    config = f"num-server-rounds={ROUNDS} baselines=true node-timeout=600.0"
    printed, status = run(
        flwr,
        "-c",
        f"{config} output-dir='{tmp_path / 'flwr'}'",
        "--federation-config",
        "num-supernodes=10 client-resources-num-cpus=1",
    )
    assert status["status"] == "finished:completed", printed
    assert "Adjusted Rand index against the true groups 1.000" in printed
    simulate = [BIN / "cflower", "simulate", "-c", config, "--out", str(tmp_path / "inline")]
    subprocess.run(simulate, capture_output=True, check=True)
    (distributed,) = (tmp_path / "flwr").iterdir()
    (inline,) = (tmp_path / "inline").iterdir()
    first, second = (
        json.loads((path / "summary.json").read_text()) for path in (distributed, inline)
    )
    del first["run_id"], second["run_id"]
    assert first == second
    assert first["metrics"]["accuracy"] > first["metrics"]["fl_accuracy"]
    assert set(first["baselines"]) == {"federated", "isolated"}
    assert "each client alone for all rounds: " in printed
    for model in (distributed / "models").iterdir():
        assert model.read_bytes() == (inline / "models" / model.name).read_bytes()


@pytest.mark.slow
def test_too_few_supernodes_are_told_in_one_sentence(flwr: dict[str, str], tmp_path: Path) -> None:
    printed, status = run(flwr, "-c", f"output-dir='{tmp_path / 'runs'}'")
    assert status["status"] == "finished:failed"
    assert (
        'has 2 (partition-0, partition-1): add --federation-config "num-supernodes=10"' in printed
    )
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
    "standardise='client' num-server-rounds=2 min-available-nodes=4 node-timeout=240.0"
)


@pytest.mark.slow
def test_a_module_of_ones_own_lies_beside_the_app(flwr: dict[str, str], tmp_path: Path) -> None:
    app = tmp_path / "app"
    shutil.copytree(PROJECT, app, ignore=shutil.ignore_patterns(".git", "__pycache__", ".*_cache"))
    (app / "ours.py").write_text(OURS)
    output = tmp_path / "flwr"
    nodes = "num-supernodes=4 client-resources-num-cpus=1"
    config = f"{OUR_KEYS} output-dir='{output}'"
    printed, status = run(flwr, "-c", config, "--federation-config", nodes, app=app)
    assert status["status"] == "finished:completed", printed
    (distributed,) = output.iterdir()
    simulate = [BIN / "cflower", "simulate", "-c", OUR_KEYS, "--out", str(tmp_path / "inline")]
    subprocess.run(simulate, capture_output=True, check=True, cwd=app)
    (inline,) = (tmp_path / "inline").iterdir()
    first, second = (json.loads((p / "summary.json").read_text()) for p in (distributed, inline))
    assert first["groups"] == second["groups"] == {f"partition-{n}": str(n % 2) for n in range(4)}
    assert first["clients"] == second["clients"]
