"""The server's memory and time at sizes that no simulation here reaches, on synthetic replies."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "run.py"

pytestmark = pytest.mark.slow


def measure(*arguments):
    """The script's figures, from a process of its own: a peak counts for its whole life."""
    command = [sys.executable, str(SCRIPT), "bench", "--alone", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_a_thousand_large_replies_take_less_than_a_gigabyte():
    assert measure("round", "stream", "1000", "1100000")["mb"] < 1000


def test_ten_thousand_members_are_clustered_in_seconds_down_to_groups_of_a_hundredth():
    found = measure("decision", "auto", "10000", "1024")
    assert found["groups"] == 8
    assert found["gb"] < 0.5
    assert found["seconds"] < 10


def test_algorithm_1_splits_ten_thousand_members_without_their_matrix():
    found = measure("decision", "norms", "10000", "1024")
    assert found["parts"] == 2
    assert found["gb"] < 0.5
