"""`kill -9` at random moments of a run, resume, compare: identical each time.

``CFLOWER_KILLS=20 pytest tests/test_kill.py`` kills that often.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cflower.seeding import generator
from tests.command import cflower

KILLS = int(os.environ.get("CFLOWER_KILLS", "3"))
CONFIG = (
    "num-server-rounds=10 min-available-nodes=4 dataset-size=400 local-epochs=1 "
    "split-criterion='norms' eps1=2.0 eps2=0.1 gamma-max=0.1 min-cluster-size=1 "
    "trial-rounds=2 inner-interval=3"
)

pytestmark = pytest.mark.slow


def files(run: Path) -> dict[str, object]:
    """What a run leaves behind, its id apart."""
    paths = sorted([*run.glob("*/0*.safetensors"), run / "tree.json"])
    content: dict[str, object] = {str(p.relative_to(run)): p.read_bytes() for p in paths}
    summary = json.loads((run / "summary.json").read_text())
    del summary["run_id"]
    return content | {"summary": summary}


def rounds(run: Path) -> int:
    """Rounds that are written down."""
    lines = (run / "rounds.jsonl").read_text().splitlines(keepends=True)
    told = [json.loads(line)["round"] for line in lines if line.endswith("\n")]
    last = max(told, default=0)
    assert sorted(set(told)) == list(range(1, last + 1))
    return last


def simulate(out: Path, config: str = CONFIG) -> str:
    done = cflower("simulate", "-c", config, "--out", str(out))
    assert done.returncode == 0, done.stderr
    return done.stdout


def kill_while_running(out: Path, moment: float) -> Path | None:
    """Start a run of its own process, kill it at this share of its rounds; its folder."""
    command = [sys.executable, "-c", "from cflower.cli import main; main()"]
    process = subprocess.Popen(
        [*command, "simulate", "-c", CONFIG, "--out", str(out)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    whole, share = divmod(moment * 10, 1)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        if len(list(out.glob("*/rounds.jsonl"))) or not whole:
            (run,) = list(out.glob("*")) or [None]
            begun = run is not None and (run / "config.json").exists()
            if run and begun and (not whole or rounds(run) >= whole):
                break
        time.sleep(0.001)
    time.sleep(0.15 * share)  # somewhere in the round, or in the writing of its files
    process.kill()
    process.wait()
    found = list(out.glob("*"))
    return found[0] if found else None


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """A run that nothing interrupted."""
    out = tmp_path_factory.mktemp("whole")
    simulate(out)
    (run,) = out.iterdir()
    assert len(files(run)["summary"]["splits"]) >= 1  # type: ignore[index]
    return files(run)


@pytest.mark.parametrize("kill", range(KILLS))
def test_a_killed_run_is_resumed_as_if_never_interrupted(
    kill: int, whole: dict[str, object], tmp_path: Path
) -> None:
    moment = generator(0, "kill", kill).uniform()
    run = kill_while_running(tmp_path, moment)
    assert run is not None
    written = rounds(run) if (run / "rounds.jsonl").exists() else 0
    started = bool(list(run.glob("checkpoints/*.sha256")))
    print(f"kill {kill} at {moment:.3f} of the run, {written} round(s) written")
    told = simulate(tmp_path, f"{CONFIG} resume='{run}'")
    assert ("Going on after round" if started else "before its first checkpoint") in told
    assert files(run) == whole
    assert rounds(run) == 10
    assert [path.name for path in tmp_path.iterdir()] == [run.name]


def test_a_run_killed_before_its_first_checkpoint_begins_anew_in_its_folder(
    whole: dict[str, object], tmp_path: Path
) -> None:
    run = kill_while_running(tmp_path, moment=0.0)
    assert run is not None
    told = simulate(tmp_path, f"{CONFIG} resume='{run}'")
    assert "before its first checkpoint" in told
    assert files(run) == whole
    assert [path.name for path in tmp_path.iterdir()] == [run.name]


@pytest.fixture
def interrupted(tmp_path: Path) -> Path:
    """A run that ended after its fifth round of ten."""
    simulate(tmp_path, CONFIG.replace("rounds=10", "rounds=5"))
    (run,) = tmp_path.iterdir()
    return run


@pytest.mark.parametrize("damage", ["torn", "flipped", "gone"])
def test_a_damaged_checkpoint_is_told_and_the_one_before_it_used(
    damage: str, interrupted: Path, whole: dict[str, object]
) -> None:
    older, newest = (
        path.with_suffix(".safetensors")
        for path in sorted(interrupted.glob("checkpoints/*.sha256"))
    )
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    if damage == "gone":
        newest.unlink()
    else:
        newest.write_bytes(content if damage == "flipped" else content[:-9])
    told = simulate(interrupted.parent, f"{CONFIG} resume='{interrupted}'")
    assert newest.name in told
    assert "using the one before it" in told
    assert older.name == "000004.safetensors"
    assert "Going on after round 4." in told
    assert files(interrupted) == whole


def test_with_no_whole_checkpoint_the_run_must_start_anew(interrupted: Path) -> None:
    for path in interrupted.glob("checkpoints/*.safetensors"):
        path.write_bytes(b"x")
    done = cflower("simulate", "-c", f"{CONFIG} resume='{interrupted}'")
    assert done.returncode == 1
    assert "There is no whole checkpoint" in done.stderr


def test_another_config_is_refused_with_the_difference(interrupted: Path) -> None:
    before = files(interrupted)
    other = CONFIG.replace("local-epochs=1", "local-epochs=2 seed=7")
    out = str(interrupted.parent)
    done = cflower("simulate", "-c", f"{other} resume='{interrupted}'", "--out", out)
    assert done.returncode == 1
    assert "local-epochs was 1 and is 2" in done.stderr
    assert "seed was 0 and is 7" in done.stderr
    assert "eps1" not in done.stderr
    assert files(interrupted) == before
