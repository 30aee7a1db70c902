"""A run folder of many clients."""

import pytest

from cflower import AutoCriterion, Recorder
from cflower.errors import RunFolderError
from cflower.runs.record import RunRecord
from tests.run_content import read_lines
from tests.strategy.quadratics import Quadratics, initial_arrays, strategy_of


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """Records a run of 12 clients of which so many are called many."""

    def run(many):
        monkeypatch.setattr("cflower.recording.recorder.MANY_MEMBERS", many)
        recorder = Recorder(tmp_path / str(many))
        strategy = strategy_of(criterion=AutoCriterion(), observers=[recorder], personal=False)
        strategy.start(Quadratics((0, 1) * 6).grid(), initial_arrays(), 6)
        return recorder

    return run


def test_of_many_clients_only_the_matrix_of_a_split_is_kept(recorded):
    few, many = recorded(13), recorded(12)
    (split,) = many.summary["splits"]
    paths = [path.name for path in (many.path / "similarity").iterdir()]
    assert paths == [f"{split['round']}-0.npz"]
    assert len([*(few.path / "similarity").iterdir()]) > 1


def test_of_many_clients_the_report_is_written_at_the_end_only(recorded, monkeypatch):
    for name in ("REPORT_FIRST", "REPORT_EVERY", "REPORT_TIMES"):
        monkeypatch.setattr(f"cflower.recording.recorder.{name}", 0)
    kinds = []

    def written(run, *, live):
        kinds.append(live)
        return run

    monkeypatch.setattr("cflower.recording.recorder.write_report", written)
    recorded(12)
    assert kinds == [False]
    recorded(13)
    assert kinds == [False, *[True] * 5, False]


def test_of_many_clients_members_are_written_where_they_changed(recorded):
    few, many = recorded(13), recorded(12)
    lines = read_lines(many.path / "rounds.jsonl")
    first = {line["cluster"]: line["round"] for line in reversed(lines)}
    assert {(n["cluster"], n["round"]) for n in lines if "members" in n} == {*first.items()}
    assert all(line["members"] for line in read_lines(few.path / "rounds.jsonl"))
    read = [[line.members for line in RunRecord(one.path).lines] for one in (few, many)]
    assert read[0] == read[1]


def test_a_first_line_without_members_is_damaged(recorded):
    path = recorded(12).path / "rounds.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[1:]))
    with pytest.raises(RunFolderError, match=r"Line 1 of .* is damaged: it has no members"):
        _ = RunRecord(path.parent).lines
