"""Full disks, links, locks and damage: one sentence each, and nothing is lost."""

import errno
import hashlib
import json
import os
import subprocess
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from cflower import ClusteredFL, Recorder
from cflower.errors import ConfigError, RunFolderError
from cflower.metric import Metric
from cflower.recording import recorder as recorder_module
from cflower.runs import writing
from cflower.runs.checkpoint import Checkpoints
from cflower.runs.record import RunRecord
from cflower.runs.report import write_report
from cflower.runs.writing import append_lines, locked, make_last, replace_file
from cflower.strategy.observers import RunStart
from tests.run_content import content_of, read_json
from tests.runs.folders import LAYOUT, made_up_run
from tests.strategy.quadratics import CRITERION, Quadratics, initial_arrays

GROUPS = (0, 0, 1, 1)


@pytest.fixture
def disk(monkeypatch):
    """A disk that can be made full: then nothing gets onto it."""

    class Disk:
        error = 0

    def fsync(handle, real=os.fsync):
        if Disk.error:
            raise OSError(Disk.error, os.strerror(Disk.error))
        real(handle)

    monkeypatch.setattr(writing.os, "fsync", fsync)
    return Disk


class FullIn(Quadratics):
    """Clients that fill the disk in some rounds; what they do is the same."""

    disk = None
    rounds = ()
    error = errno.ENOSPC

    def _train(self, message, context):
        now = message.content["config"]["server-round"]
        self.disk.error = self.error if now in self.rounds else 0
        return super()._train(message, context)


def run(folder, disk, rounds=(), num_rounds=6, error=errno.ENOSPC, **settings):
    clients = FullIn(GROUPS)
    clients.disk, clients.rounds, clients.error = disk, rounds, error
    recorder = Recorder(folder, checkpoint_interval=1, **settings)
    strategy = ClusteredFL(CRITERION, observers=[recorder], metric="loss", fraction_evaluate=0.0)
    strategy.start(clients.grid(), initial_arrays(), num_rounds=num_rounds)
    return recorder


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EROFS])
def test_a_full_disk_is_one_sentence_and_the_run_can_be_resumed(error, tmp_path, disk, caplog):
    whole = run(tmp_path / "whole", disk)
    cut = run(tmp_path / "cut", disk, range(3, 99), error=error)
    assert cut.problem.startswith(f"Cannot write the run folder {cut.path}: {os.strerror(error)}.")
    assert "is of round 2:" in cut.problem and f"resume='{cut.path.name}'" in cut.problem
    logged = [r.getMessage() for r in caplog.records if "Cannot write" in r.getMessage()]
    assert len(logged) == 1 and "\n" not in logged[0]
    assert not list(cut.path.rglob("*.tmp"))
    disk.error = 0
    resumed = run(tmp_path / "cut", disk, resume=cut.path.name)
    assert resumed.problem == ""
    assert content_of(resumed.path) == content_of(whole.path)


def test_nothing_is_lost_while_the_disk_is_full_for_some_rounds(tmp_path, disk):
    whole, gap = run(tmp_path / "whole", disk), run(tmp_path / "gap", disk, (2, 3))
    assert gap.problem == ""
    assert content_of(gap.path) == content_of(whole.path)


def test_a_config_is_kept_as_json_has_it_and_can_be_resumed(tmp_path, disk):
    config = {"layers": (64, 32), "place": Path("data"), "rate": np.float32(0.5), "clip": np.inf}
    first = run(tmp_path, disk, num_rounds=3, config=config)
    assert first.problem == "" and (first.path / "report.html").exists()
    run(tmp_path, disk, num_rounds=4, config=config, resume=first.path.name)


def test_a_recorder_writes_one_run(tmp_path, disk):
    recorder = Recorder(tmp_path)
    for refused in (False, True):
        strategy = ClusteredFL(CRITERION, observers=[recorder], metric="loss")
        with pytest.raises(RunFolderError, match="new Recorder") if refused else nullcontext():
            strategy.start(Quadratics(GROUPS).grid(), initial_arrays(), num_rounds=2)
    locked(recorder.path).close()  # it is not held
    with pytest.raises(ConfigError, match="fedopt"):
        recorder.add_baseline("fedopt", None)


def test_two_processes_cannot_write_one_run(tmp_path, disk):
    before = run(tmp_path, disk)
    held = locked(before.path)
    with pytest.raises(RunFolderError, match="is being written by another process"):
        run(tmp_path, disk, resume=before.path.name)
    held.close()
    assert run(tmp_path, disk, resume=before.path.name).summary["finished"]
    locked(before.path).close()  # the lock is free when the run is over


def test_a_run_that_cannot_be_resumed_is_unlocked(tmp_path, disk):
    before = run(tmp_path, disk)
    record = read_json(before.path, "config.json")

    def refused(match):
        start = RunStart(6, Metric("loss", False), {**record["settings"], "seed": 7}, LAYOUT, {})
        with pytest.raises(RunFolderError, match=match):
            Recorder(tmp_path, resume=before.path.name).on_start(start)
        locked(before.path).close()

    refused("seed was 0 and is 7")
    (before.path / "config.json").write_text(json.dumps({**record, "format": 1}))
    refused("is in format 1 of run folders, of cflower .*; this version reads format 2")


def test_nothing_is_written_through_a_link(tmp_path):
    victim, folder = tmp_path / "victim", tmp_path / "run"
    victim.write_text("mine")
    folder.mkdir()
    for name in ("a.json", "a.json.tmp"):
        (folder / name).symlink_to(victim)
    replace_file(folder / "a.json", b"ours")
    assert (folder / "a.json").read_text() == "ours"
    (folder / "rounds.jsonl").symlink_to(victim)
    with pytest.raises(OSError, match="symbolic"):
        append_lines(folder / "rounds.jsonl", b"ours\n")
    (folder / ".lock").symlink_to(victim)
    with pytest.raises(OSError, match="symbolic"):
        locked(folder)
    assert victim.read_text() == "mine"


def test_a_file_that_was_removed_need_not_last(tmp_path):
    (tmp_path / "there").write_text("a")
    make_last([tmp_path / "there", tmp_path / "gone"])
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


@pytest.fixture
def tmpfs(tmp_path):
    """Mounts a small file system, or makes the one that is there larger; its folder."""
    small = tmp_path / "small"
    small.mkdir()

    def sized(size, option="size"):
        mount = ["mount", "-t", "tmpfs", "-o", f"{option}={size}", "tmpfs", str(small)]
        if subprocess.run(mount, check=False, capture_output=True).returncode:
            pytest.skip("needs the right to mount a tmpfs")
        return small

    yield sized
    subprocess.run(["umount", str(small)], check=False, capture_output=True)


@pytest.mark.parametrize("room", [0, 1, 4095])
def test_half_a_line_on_a_full_disk_is_cut_off_and_no_rest_follows_later(tmpfs, room):
    path = tmpfs("8k") / "rounds.jsonl"
    append_lines(path, b"a" * (4095 - room) + b"\n")
    with pytest.raises(OSError, match="No space"):
        append_lines(path, b"b" * 9000 + b"\n")
    assert path.stat().st_size == 4096 - room
    tmpfs("16k", "remount,size")
    append_lines(path, b"c\n")
    assert path.read_text().splitlines() == ["a" * (4095 - room), "c"]


@pytest.mark.slow
@pytest.mark.parametrize("size", range(8, 64, 12))
def test_a_run_on_a_disk_that_became_full_can_be_resumed(size, tmpfs, tmp_path, disk):
    whole = run(tmp_path / "whole", disk)
    cut = run(tmpfs(f"{size}k"), disk)
    assert cut.problem.startswith(f"Cannot write the run folder {cut.path}: No space left")
    assert not list(cut.path.rglob("*.tmp"))
    resumed = run(tmpfs("1m", "remount,size"), disk, resume=cut.path.name)
    assert content_of(resumed.path) == content_of(whole.path)


def test_checkpoints_are_on_the_disk_before_their_checksums_are(tmp_path, monkeypatch, disk):
    order = []

    def fsync(handle):
        order.append(os.readlink(f"/proc/self/fd/{handle}"))

    monkeypatch.setattr(writing.os, "fsync", fsync)
    run(tmp_path, disk, num_rounds=1)
    names = [Path(name).name.removesuffix(".tmp") for name in order]
    needed = ["rounds.jsonl", "000001.safetensors", "checkpoints", "000001.sha256"]
    places = [names.index(name) for name in needed]
    assert places == sorted(places)
    assert "config.json" in names and "summary.json" in names


DAMAGE = {
    "config.json": ["{}", "[]", "", "{", '{"config": 5}', "\xff", "[" * 100_000],
    "tree.json": [
        "{}",
        '{"clusters": 5}',
        '{"clusters": {"0": {"members": ["a"], "children": ["0"], "born": 0, "split_round": 1}}}',
        '{"clusters": {"0": {"members": ["a"], "children": ["x"], "born": 0, "split_round": 1}}}',
        '{"clusters": {"7": {"members": [], "children": [], "born": 0, "split_round": null}}}',
    ],
    "summary.json": ["{}", "null", '{"finished": "x"}', '{"clusters": []}'],
    "rounds.jsonl": ['{"round": "x"}\n', "5\n", "{}\n", '{"round": 1\n', "\x00\n"],
}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "text"), [(n, t) for n, texts in DAMAGE.items() for t in texts])
def test_a_damaged_file_is_named_in_one_sentence(name, text, tmp_path):
    folder = made_up_run(tmp_path / "run")
    (folder / name).write_bytes(text.encode("latin-1"))
    with pytest.raises(RunFolderError, match=name):
        write_report(folder)
    with pytest.raises(RunFolderError, match=f"{name}.* (is damaged|cannot be read)") as caught:
        RunRecord.read(folder)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500


@pytest.mark.parametrize("name", ["tree.json", "summary.json"])
def test_a_file_that_was_not_copied_is_named(name, tmp_path, disk):
    folder = run(tmp_path, disk).path
    (folder / name).unlink()
    with pytest.raises(RunFolderError, match=f"has no {name}: .* not copied whole"):
        RunRecord.read(folder)


@pytest.mark.parametrize("name", ["config.json", "rounds.jsonl"])
@pytest.mark.parametrize("damage", ["", "{}\n", None])
def test_a_damaged_folder_is_not_resumed(name, damage, tmp_path, disk):
    before = run(tmp_path, disk)
    path = before.path / name
    path.unlink() if damage is None else path.write_text(damage)
    with pytest.raises(RunFolderError) as caught:
        run(tmp_path, disk, resume=str(before.path))
    assert name in str(caught.value) or "There is no run" in str(caught.value)


@pytest.mark.parametrize("damage", ["torn", "flipped", "gone"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(damage, tmp_path, disk):
    whole, cut, said = run(tmp_path / "whole", disk), run(tmp_path / "cut", disk, num_rounds=4), []
    newest = cut.path / "checkpoints" / "000004.safetensors"
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    if damage == "gone":
        newest.unlink()
    else:
        newest.write_bytes(content if damage == "flipped" else content[:-9])
    resumed = run(tmp_path / "cut", disk, resume=cut.path.name, say=said.append)
    (warning,) = [text for text in said if "Using the one before it" in text]
    assert newest.name in warning
    assert "Going on after round 3." in said
    assert content_of(resumed.path) == content_of(whole.path)


def test_a_checkpoint_of_the_wrong_structure_is_passed_over(tmp_path, disk):
    before = run(tmp_path, disk)
    folder = before.path / "checkpoints"
    last = folder / "000006.safetensors"
    content = last.read_bytes()
    for wrong, right in (
        ('{"Checkpoint": [6', '{"Checkpoint": ["6"'),
        ('{"Cluster": ["0"', '{"Cluster": [5, "0"'),
        ('{"ParameterTree": ', '{"Circus": '),
    ):
        spoilt = content.replace(*(json.dumps(text)[1:-1].encode() for text in (wrong, right)), 1)
        assert spoilt != content
        length = int.from_bytes(content[:8], "little") + len(spoilt) - len(content)
        spoilt = length.to_bytes(8, "little") + spoilt[8:]
        last.write_bytes(spoilt)
        last.with_suffix(".sha256").write_text(hashlib.sha256(spoilt[: 8 + length]).hexdigest())
        warnings = []
        assert Checkpoints(folder).newest(warnings.append).server_round == 5
        assert len(warnings) == 1 and "cannot be read" in warnings[0]


def flip(path, place):
    content = bytearray(path.read_bytes())
    content[place % len(content)] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("place", [0.1, 0.4, 0.6])
@pytest.mark.parametrize("name", ["rounds.jsonl", "config.json", "similarity/*.npz"])
def test_a_flipped_bit_of_what_a_run_goes_on_with_is_noticed(name, place, tmp_path, disk):
    before = run(tmp_path, disk)
    path = next(before.path.glob(name))
    flip(path, round(place * path.stat().st_size))
    with pytest.raises(RunFolderError) as refused:
        run(tmp_path, disk, num_rounds=9, resume=before.path.name)
    assert "\n" not in str(refused.value)


def test_a_file_that_became_longer_is_noticed(tmp_path, disk):
    before = run(tmp_path, disk)
    path = next(before.path.glob("similarity/*.npz"))
    path.write_bytes(path.read_bytes() + bytes(9))
    with pytest.raises(RunFolderError, match=path.name):
        run(tmp_path, disk, num_rounds=9, resume=before.path.name)


def test_damage_after_a_checkpoint_does_not_matter_to_it(tmp_path, disk):
    whole, cut = run(tmp_path / "whole", disk), run(tmp_path / "cut", disk, num_rounds=4)
    flip(cut.path / "rounds.jsonl", -2)
    said: list[str] = []
    resumed = run(tmp_path / "cut", disk, resume=cut.path.name, say=said.append)
    assert any("000004" in text and "rounds.jsonl, which it refers to" in text for text in said)
    assert content_of(resumed.path) == content_of(whole.path)


def test_similarities_that_could_not_be_written_follow_later(tmp_path, disk, monkeypatch):
    whole, real, full = run(tmp_path / "whole", disk), recorder_module.replace_file, [1]

    def replace(path, content, **options):
        if path.suffix == ".npz" and full:
            full.pop()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(path, content, **options)

    monkeypatch.setattr(recorder_module, "replace_file", replace)
    gap = run(tmp_path / "gap", disk)
    assert not full
    assert content_of(gap.path) == content_of(whole.path)


@pytest.mark.skipif(os.name != "posix", reason="Windows has no such modes")
def test_a_run_folder_is_closed_to_other_users(tmp_path):
    recorder = Recorder(tmp_path / "runs")
    strategy = ClusteredFL(CRITERION, observers=[recorder])
    before = os.umask(0o022)
    try:
        strategy.start(Quadratics(GROUPS).grid(), initial_arrays(), num_rounds=2)
        write_report(recorder.path)
    finally:
        os.umask(before)
    assert recorder.path.stat().st_mode & 0o777 == 0o700
    files = [path for path in recorder.path.rglob("*") if path.is_file()]
    assert files and {path.stat().st_mode & 0o777 for path in files} == {0o600}
