"""Run folders of somebody else: whatever is in them, a command ends in a sentence, and soon."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from cflower import Recorder
from cflower.errors import RunFolderError
from cflower.runs.reading import SUBFOLDERS
from tests.command import cflower, error_of, output_of
from tests.recording.test_going_on import started
from tests.runs.folders import MOVES, edited, made_up_run

ATTACK = "\x1b]0;owned\x07\x1b[2J\u202e"


@pytest.fixture
def run(tmp_path):
    return made_up_run(tmp_path / "run", moves=MOVES)


def rewritten(content, old, new):
    """A JSON value in which a text is another one, as key and as value."""
    if isinstance(content, str):
        return content.replace(old, new)
    if isinstance(content, dict):
        return {rewritten(k, old, new): rewritten(v, old, new) for k, v in content.items()}
    return [rewritten(item, old, new) for item in content] if isinstance(content, list) else content


def rewrite(path, old, new):
    text = path.read_text()
    whole = text.splitlines() if path.suffix == ".jsonl" else [text]
    path.write_text("".join(json.dumps(rewritten(json.loads(t), old, new)) + "\n" for t in whole))


@pytest.mark.parametrize("command", ["show", "explain", "report", "list", "compare"])
def test_texts_of_a_folder_are_printed_without_control_characters(run, command, tmp_path):
    for path in [*run.glob("*.json"), run / "rounds.jsonl"]:
        for old in ("client-3", "most like those", "sides"):
            rewrite(path, old, ATTACK + old)
    shutil.rmtree(run / "similarity")  # its files have the old names
    folder = run.rename(tmp_path / f"run{ATTACK}")
    names = {"list": ["--runs", tmp_path], "compare": [folder, folder]}.get(command, [folder])
    done = cflower(command, *names)
    for text in (done.stdout, done.stderr):
        assert not set(text) & {"\x1b", "\x07", "\u202e"}


@pytest.mark.parametrize(
    ("file", "field"), [("rounds.jsonl", '"clients":{'), ("summary.json", '"moves": [')]
)
def test_a_name_that_only_one_file_has_is_named(run, file, field):
    before, _, after = (run / file).read_text().partition(field)
    (run / file).write_text(before + field + after.replace('"client-1"', '"stranger"', 1))
    assert f"{file} is damaged: it has figures of stranger, but no" in error_of("report", run)


def in_json(file, change):
    """A damage: the JSON of a file is changed in place."""

    def damage(run):
        with edited(run / file) as content:
            change(content)

    return damage


def in_place_of(name, make):
    """A damage: something else stands where a file or folder was."""

    def damage(run):
        for path in sorted(run.glob(name)):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
            make(path)

    return damage


def to_zeros(path):
    path.symlink_to("/dev/zero")


def everywhere(old, new):
    def damage(run):
        for path in [*run.glob("*.json"), run / "rounds.jsonl"]:
            rewrite(path, old, new)

    return damage


def deep(content):
    name, clusters = "0.0", content["clusters"]
    for _ in range(300):
        child = f"{name}.0"
        clusters[child] = {**clusters[name], "children": []}
        clusters[name]["children"] = [child]
        name = child


DAMAGES = {
    "a round of 10^9": in_json("rounds.jsonl", lambda lines: lines[-1].update(round=10**9)),
    "a round below 0": in_json("rounds.jsonl", lambda lines: lines[0].update(round=-5)),
    "no image": in_json("clients.json", lambda c: each(c, sample_shape=[3, 0, 7])),
    "a text for a shape": in_json("clients.json", lambda c: each(c, sample_shape="x")),
    "no counts": in_json("clients.json", lambda c: each(c, label_counts=[])),
    "a long name": in_json("config.json", lambda c: c.update(name="ab" * 10**6)),
    "a long number": everywhere("client-3", "client-" + 5000 * "3"),
    "a deep tree": in_json("tree.json", deep),
    "no settings": in_json("config.json", lambda c: c.update(settings={})),
    "no criterion": in_json("config.json", lambda c: c["settings"].update(criterion="x")),
    "no arrays": in_json("config.json", lambda c: c.update(arrays=[[1]])),
    "huge arrays": in_json("config.json", lambda c: c.update(arrays=[["w", [2**40] * 2, "f4", 1]])),
    "an unknown cluster": in_json("summary.json", lambda c: c["splits"][0].update(cluster="9")),
    "a path as a cluster": everywhere("0.1", "0.1/../../x"),
    "pipes": in_place_of("*.jsonl", os.mkfifo),
    "pipes of similarities": in_place_of("similarity/*", os.mkfifo),
    "links": in_place_of("*.json", to_zeros),
    "links of similarities": in_place_of("similarity/*", to_zeros),
    "a linked folder": in_place_of("similarity", lambda path: path.symlink_to("/proc/self")),
}


def each(content, **fields):
    for client in content["clients"].values():
        client.update(fields)


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES)
def test_no_command_ends_in_a_traceback_or_goes_on_without_end(damage, run, tmp_path):
    whole = made_up_run(tmp_path / "whole")
    DAMAGES[damage](run)
    for command in ("show", "report", "explain"):
        done = cflower(command, run)
        assert done.returncode == 0 or done.stderr.startswith("Error: ")
    assert cflower("compare", run, whole).returncode in (0, 1)
    assert "finished" in output_of("list", "--runs", tmp_path)  # the other run


@pytest.mark.parametrize("pattern", ["checkpoints/*.sha256", "checkpoints/*.safetensors"])
@pytest.mark.parametrize("make", [os.mkfifo, to_zeros])
def test_a_model_is_read_from_regular_files_only(pattern, make, tmp_path):
    run = started(tmp_path / "runs")[0].path
    for path in run.glob(pattern):
        path.unlink()
        make(path)
    assert "is not a regular file" in error_of("export", run, "--cluster", "0", "--output", "x")


@pytest.mark.parametrize(
    "file", ["/dev/zero", "../../secret", "personal/0.safetensors", "config.json"]
)
def test_a_client_s_own_model_is_read_from_its_file_only(file, tmp_path):
    run = started(tmp_path / "runs")[0].path
    served = {"model": "personal", "cluster": "0", "share": 0.5, "start": "leaf", "file": file}
    with edited(run / "summary.json") as summary:
        summary["clients"]["partition-0"]["served_by"] = served
    (run / "personal").mkdir()
    (run / "personal/0.safetensors").symlink_to("/dev/zero")
    assert str(run) in error_of("export", run, "--client", "partition-0", "--output", "x")


@pytest.mark.parametrize("folder", SUBFOLDERS)
def test_a_run_with_a_linked_folder_is_not_resumed_and_nothing_there_is_touched(folder, tmp_path):
    run, others = started(tmp_path / "runs")[0].path, tmp_path / "others"
    shutil.copytree(run / "checkpoints", others)
    (others / "000001.safetensors").write_bytes(b"of somebody else")
    before = {path.name: path.read_bytes() for path in others.iterdir()}
    shutil.rmtree(run / folder, ignore_errors=True)
    (run / folder).symlink_to(others)
    with pytest.raises(RunFolderError, match=f"{folder} is a link or a file, but expected"):
        started(tmp_path / "runs", resume=run.name, rounds=7)
    assert {path.name: path.read_bytes() for path in others.iterdir()} == before


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs another user")
@pytest.mark.parametrize("command", ["show", "report", "explain"])
def test_a_folder_of_another_user_is_one_sentence(command, tmp_path, run):
    run.chmod(0o700)
    code = "import os, sys; from cflower.cli import main; import cflower.runs.tables; "
    code += "import cflower.runs.explain, cflower.runs.report; os.setuid(65534); main()"
    for folder in (*run.parents[:3], run.parent):
        folder.chmod(0o755)
    arguments = [sys.executable, "-c", code, command, str(run)]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=100, check=False)
    assert (
        done.stderr
        == f"Error: {run}/config.json is of another user, who has not given you access.\n"
    )


def test_names_of_a_run_are_cut_where_they_are_written(tmp_path):
    recorder = Recorder(tmp_path, name="n" * 10**6)
    started(tmp_path, name="n" * 10**6)
    assert recorder.path.parent == tmp_path
    assert "finished" in output_of("list", "--runs", tmp_path)


def test_an_exported_model_and_its_card_are_closed_to_other_users(tmp_path):
    run = started(tmp_path / "runs")[0].path
    model = tmp_path / "model.safetensors"
    output_of("export", run, "--cluster", "0", "--output", model)
    for path in (model, tmp_path / "model.safetensors.md"):
        assert path.stat().st_mode & 0o777 == 0o600
