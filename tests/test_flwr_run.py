"""The real `flwr run`: SuperLink, simulation engine and all."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

PROJECT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent
ROUNDS = 10


@pytest.fixture(scope="module")
def flwr(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of a SuperLink that is ours alone, as long as the module runs."""
    home = tmp_path_factory.mktemp("flwr-home")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "test"\n\n[superlink.test]\naddress = "127.0.0.1:{port}"\n'
        "insecure = true\n"
    )
    environment = os.environ | {
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "FLWR_HOME": str(home),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    log = (home / "superlink.log").open("w")
    command = [BIN / "flower-superlink", "--insecure", "--simulation"]
    command += ["--host", "127.0.0.1", "--port", port]
    superlink = subprocess.Popen(command, env=environment, cwd=home, stdout=log, stderr=log)
    try:
        wait_for_port(int(port), superlink)
        yield environment
    finally:
        superlink.terminate()
        superlink.wait(30)
        log.close()


def wait_for_port(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise AssertionError(f"the SuperLink did not open port {port}")


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
    config = f"num-server-rounds={ROUNDS}"
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
    for model in (distributed / "models").iterdir():
        assert model.read_bytes() == (inline / "models" / model.name).read_bytes()


@pytest.mark.slow
def test_too_few_supernodes_are_told_in_one_sentence(flwr: dict[str, str], tmp_path: Path) -> None:
    printed, status = run(flwr, "-c", f"output-dir='{tmp_path / 'runs'}'")
    assert status["status"] == "finished:failed"
    assert 'has 2: add --federation-config "num-supernodes=10" to `flwr run`' in printed
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
    shutil.copytree(PROJECT / "cflower", app / "cflower")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(PROJECT / name, app)
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
