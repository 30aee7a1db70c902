"""The server's memory and time at sizes that no simulation here reaches, on synthetic replies."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "measure_memory.py"

pytestmark = pytest.mark.slow


def measure(*arguments: str) -> dict[str, float]:
    """What the script measures, in a process of its own: a peak is of a process's whole life."""
    command = [sys.executable, str(SCRIPT), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_a_thousand_large_replies_take_less_than_a_gigabyte() -> None:
    found = measure("round", "1000", "1100000")
    assert found["collected_mb"] >= 4400
    assert found["peak_growth_mb"] < 1000


def test_both_criteria_decide_on_many_clients_in_seconds() -> None:
    found = measure("split", "1000")
    assert found["norms_parts"] == 2
    assert found["auto_parts"] == 4
    assert max(found["norms_seconds"], found["auto_seconds"]) < 30
