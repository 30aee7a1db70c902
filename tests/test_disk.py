"""A full disk under the real server app: one sentence, then a resumed run."""

import os
import re
import resource
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.command import simulated, started_simulation
from tests.test_flwr_run import run as flwr_run
from tests.test_kill import CONFIG, files, rounds, simulate

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="needs Linux"),
]


def fill_up(out, after):
    """From this round on, let the run's process write nothing."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        for lines in out.glob("*/rounds.jsonl"):
            if rounds(lines.parent) >= after:
                resource.prlimit(writer_of(lines.parent), resource.RLIMIT_FSIZE, (0, 0))
                return
        time.sleep(0.01)
    raise AssertionError(f"no run in {out} came to round {after}")


def writer_of(run):
    """The process that holds the lock of a run folder."""
    lock = str(run / ".lock")
    for handle in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if os.readlink(handle) == lock:
                return int(handle.parts[2])
        except OSError:
            continue  # the process has ended
    raise AssertionError(f"no process writes {run}")


def check_and_resume(run, printed, whole):
    """The message is true, and the resumed run equals one on a disk with room."""
    assert "Traceback" not in printed and "OSError" not in printed
    assert f"with resume='{run.name}'" in printed
    last = int(re.findall(r"as they were after round (\d+)", printed)[-1])
    assert 2 <= last < 10
    assert not list(run.rglob("*.tmp"))
    resumed = simulate(run.parent, f"{CONFIG} resume='{run.name}'")
    assert f"Going on after round {last}." in resumed
    assert files(run) == whole


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The same run with room for everything."""
    return files(simulated(tmp_path_factory.mktemp("whole"), CONFIG))


def test_simulate_ends_in_a_sentence(whole, tmp_path):
    process = started_simulation(tmp_path, CONFIG)
    fill_up(tmp_path, after=3)
    printed, _ = process.communicate(timeout=300)
    assert process.returncode == 1
    last = printed.strip().splitlines()[-1]
    assert last.startswith("Error: Cannot write the run folder"), printed
    check_and_resume(next(tmp_path.iterdir()), printed, whole)


def test_flwr_run_ends_in_a_sentence(flwr, whole, tmp_path):
    with ThreadPoolExecutor() as pool:
        filling = pool.submit(fill_up, tmp_path, after=3)
        config = f"{CONFIG} node-timeout=600.0 output-dir='{tmp_path}'"
        nodes = "num-supernodes=4 client-resources-num-cpus=1"
        printed, status = flwr_run(flwr, "-c", config, "--federation-config", nodes)
        filling.result()
    assert status["status"] == "finished:failed", printed
    check_and_resume(next(tmp_path.iterdir()), printed, whole)
