"""The real `flwr run`: SuperLink, simulation engine and all."""

import json
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
