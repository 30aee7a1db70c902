"""The server's memory and time at sizes that no simulation here reaches, on synthetic replies."""

import json

import pytest

from tests.command import script

pytestmark = pytest.mark.slow


def measure(*arguments):
    """The script's figures, from a process of its own: a peak counts for its whole life."""
    return json.loads(script("run.py", "bench", "--alone", *arguments).splitlines()[-1])


def test_large_replies_are_added_up_without_keeping_them():
    assert measure("round", "stream", "300", "1100000")["mb"] < 300  # all of them: 1,320 MB


@pytest.mark.parametrize(("rule", "parts"), [("auto", 7), ("norms", 2)])
def test_ten_thousand_members_are_split_in_seconds_without_their_matrix(rule, parts):
    found = measure("decision", rule, "10000", "1024")
    assert found["parts"] == parts
    assert found["gb"] < 0.5
    assert found["seconds"] < 10  # of CPU
