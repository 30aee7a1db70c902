"""Run folders of somebody else: no text reaches a terminal as it is, changed names are named."""

import json
import shutil

import pytest

from tests.command import cflower, error_of
from tests.runs.folders import MOVES, made_up_run

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
