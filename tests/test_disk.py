"""A disk that is full from some round on, under the real server app: a sentence, and resume."""

import os
import re
import resource
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.test_flwr_run import run as flwr_run
from tests.test_kill import CONFIG, files, rounds, simulate

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="needs Linux"),
]


def fill_up(out: Path, after: int) -> None:
    """From this round on, who writes the run in this folder may make no file longer."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        for lines in out.glob("*/rounds.jsonl"):
            if rounds(lines.parent) >= after:
                resource.prlimit(writer_of(lines.parent), resource.RLIMIT_FSIZE, (0, 0))
                return
        time.sleep(0.01)
    raise AssertionError(f"no run in {out} came to round {after}")


def writer_of(run: Path) -> int:
    """The process that holds the lock of a run folder."""
    lock = str(run / ".lock")
    for handle in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if os.readlink(handle) == lock:
                return int(handle.parts[2])
        except OSError:
            continue  # it has gone meanwhile
    raise AssertionError(f"nobody writes {run}")


def check_and_resume(run: Path, told: str, whole: dict[str, object]) -> None:
    """What was said is true, and the resumed run is one that had room all the time."""
    assert "Traceback" not in told and "OSError" not in told
    assert f"go on from there with resume='{run.name}'" in told
    last = int(re.findall(r"It is whole as it was after round (\d+)", told)[-1])
    assert 2 <= last < 10
    assert not list(run.rglob("*.tmp"))
    resumed = simulate(run.parent, f"{CONFIG} resume='{run.name}'")
    assert f"Going on after round {last}." in resumed
    assert files(run) == whole


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """The same run with room for everything."""
    out = tmp_path_factory.mktemp("whole")
    simulate(out)
    return files(next(out.iterdir()))


def test_simulate_ends_in_a_sentence(whole: dict[str, object], tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from cflower.cli import main; main()"]
    process = subprocess.Popen(
        [*command, "simulate", "-c", CONFIG, "--out", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    fill_up(tmp_path, after=3)
    told, _ = process.communicate(timeout=300)
    assert process.returncode == 1
    last = told.strip().splitlines()[-1]
    assert last.startswith("Error: Cannot write the run folder"), told
    check_and_resume(next(tmp_path.iterdir()), told, whole)


def test_flwr_run_ends_in_a_sentence(
    flwr: dict[str, str], whole: dict[str, object], tmp_path: Path
) -> None:
    with ThreadPoolExecutor() as beside:
        filling = beside.submit(fill_up, tmp_path, after=3)
        config = f"{CONFIG} node-timeout=600.0 output-dir='{tmp_path}'"
        nodes = "num-supernodes=4 client-resources-num-cpus=1"
        told, status = flwr_run(flwr, "-c", config, "--federation-config", nodes)
        filling.result()
    assert status["status"] == "finished:failed", told
    check_and_resume(next(tmp_path.iterdir()), told, whole)
