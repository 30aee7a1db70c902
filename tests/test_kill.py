"""`kill -9` at random moments of a run, or a full disk; resume, compare: identical each time.

``CFLOWER_KILLS=20 pytest tests/test_kill.py`` kills that often.
"""

import json
import os
import re
import resource
import time

import pytest

from cflower.seeding import generator
from tests.command import output_of, simulated, started_simulation
from tests.run_content import content_of, read_lines

KILLS = int(os.environ.get("CFLOWER_KILLS", "2"))
CONFIG = (
    "num-server-rounds=10 min-available-nodes=4 dataset-size=400 model='linear' "
    "shift='label-permutation' local-epochs=3 "
    "split-criterion='norms' eps1=2.0 eps2=0.1 gamma-max=0.1 min-cluster-size=1 "
    "trial-rounds=1"
)

pytestmark = pytest.mark.slow


def rounds(run):
    """Rounds that are written down."""
    path = run / "rounds.jsonl"
    numbers = [line["round"] for line in read_lines(path)] if path.is_file() else []
    last = max(numbers, default=0)
    assert sorted(set(numbers)) == list(range(1, last + 1))
    return last


def simulate(out, config=CONFIG):
    return output_of("simulate", "-c", config, "--out", out)


def wait_for(number, out, process):
    """Until the run of a process has written so many rounds; 0: until it has its folder."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and process.poll() is None:
        if any(rounds(begun.parent) >= number for begun in out.glob("*/config.json")):
            return
        time.sleep(0.001)


def kill_while_running(out, moment):
    """Start a run of its own process, kill it at this share of its rounds; its folder."""
    process = started_simulation(out, CONFIG)
    whole, share = divmod(moment * 10, 1)
    wait_for(whole, out, process)
    time.sleep(0.15 * share)  # somewhere in the round, or in the writing of its files
    process.kill()
    process.communicate()
    return next(out.glob("*"), None)


def how_it_goes_on(run):
    """What the log of a resumed run begins with; a late kill may find a run that has finished."""
    if not list(run.glob("checkpoints/*.sha256")):
        return "before its first checkpoint"
    if json.loads((run / "summary.json").read_text())["finished"]:
        return "The run has finished all 10 rounds"
    return "Going on after round"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nothing interrupted."""
    out = tmp_path_factory.mktemp("whole")
    content = content_of(simulated(out, CONFIG))
    assert len(content["summary"]["splits"]) >= 1
    return content


@pytest.mark.parametrize("kill", range(KILLS))
def test_a_killed_run_is_resumed_as_if_never_interrupted(kill, whole, tmp_path):
    moment = generator(0, "kill", kill).uniform()
    run = kill_while_running(tmp_path, moment)
    assert run is not None
    print(f"kill {kill} at {moment:.3f} of the run, {rounds(run)} round(s) written")
    beginning = how_it_goes_on(run)
    assert beginning in simulate(tmp_path, f"{CONFIG} resume='{run}'")
    assert content_of(run) == whole
    assert rounds(run) == 10
    assert [path.name for path in tmp_path.iterdir()] == [run.name]


def test_a_run_killed_before_its_first_checkpoint_starts_anew_in_its_folder(whole, tmp_path):
    run = kill_while_running(tmp_path, moment=0.0)
    assert run is not None
    assert "before its first checkpoint" in simulate(tmp_path, f"{CONFIG} resume='{run}'")
    assert [path.name for path in tmp_path.iterdir()] == [run.name]
    assert content_of(run) == whole


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="needs Linux")
def test_a_full_disk_is_one_sentence_and_a_run_that_can_be_resumed(whole, tmp_path):
    process = started_simulation(tmp_path, CONFIG)
    wait_for(3, tmp_path, process)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (0, 0))
    printed, _ = process.communicate(timeout=300)
    assert process.returncode == 1
    message = printed.strip().splitlines()[-1]
    assert message.startswith("Error: Cannot write the run folder"), printed
    assert "Traceback" not in printed and "OSError" not in printed
    (run,) = tmp_path.iterdir()
    assert f"with resume='{run.name}'" in printed
    last = int(re.findall(r"last checkpoint is of round (\d+)", printed)[-1])
    assert 1 <= last < 10
    assert not list(run.rglob("*.tmp"))
    assert f"Going on after round {last}." in simulate(tmp_path, f"{CONFIG} resume='{run.name}'")
    assert content_of(run) == whole
