"""The real `flwr run`: SuperLink, simulation engine and all."""

import json
import os
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


def run(environment: dict[str, str], *arguments: str) -> tuple[str, dict[str, str]]:
    """What `flwr run` printed, and how Flower says that the run ended."""
    command = ["flwr", "run", str(PROJECT), "test", "--stream", *arguments]
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
