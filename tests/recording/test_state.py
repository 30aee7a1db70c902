"""When a run writes its whole state, and that nothing of it is lost in between."""

import os
from contextlib import nullcontext
from itertools import pairwise

import pytest

from cflower import ClusteredFL, Observer, Recorder
from cflower.recording import recorder as recorder_module
from cflower.runs.checkpoint import Checkpoints
from tests.run_content import content_of, read_json, read_lines
from tests.strategy.quadratics import CRITERION, Quadratics, initial_arrays

GROUPS = (0, 0, 1, 1)


class Watch(Observer):
    """Notes the rounds of the checkpoint and of the summary after every round, and may end it."""

    def __init__(self, recorder, stop_after=99):
        self.recorder, self.stop_after, self.saved = recorder, stop_after, []

    def on_round(self, report):
        path = self.recorder.path
        newest = Checkpoints(path / "checkpoints").newest(pytest.fail).server_round
        assert read_json(path, "summary.json")["rounds"] == report.server_round
        assert read_lines(path / "rounds.jsonl")[-1]["round"] == report.server_round
        self.saved.append(newest)
        if report.server_round == self.stop_after:
            raise KeyboardInterrupt


def run(folder, *, stop_after=99, **settings):
    recorder = Recorder(folder, **settings)
    watch = Watch(recorder, stop_after)
    strategy = ClusteredFL(CRITERION, observers=[recorder, watch], metric="loss", personal=False)
    strategy.start(Quadratics(GROUPS).grid(), initial_arrays(), num_rounds=12)
    return recorder, watch.saved


def test_the_state_is_written_first_at_a_change_of_the_clusters_at_the_end_and_in_between(tmp_path):
    recorder, saved = run(tmp_path, checkpoint_interval=5)
    (split,) = recorder.summary["splits"]
    after = split["round"]
    assert 1 < after < 6
    expected = [after if n >= after else 1 for n in range(1, 13)]
    expected = [after + 5 if after + 5 <= n < 12 else e for n, e in enumerate(expected, start=1)]
    assert saved == [*expected[:-1], 12]


def test_by_itself_the_state_takes_at_most_a_small_share_of_the_time(tmp_path, monkeypatch):
    class Clock:
        now = 0.0

        @classmethod
        def monotonic(cls):
            cls.now += 1.0  # writing takes a second, and a round too
            return cls.now

    monkeypatch.setattr(recorder_module, "time", Clock)
    recorder, saved = run(tmp_path)
    assert set(saved) == {1, recorder.summary["splits"][0]["round"], 12}


def test_only_a_checkpoint_waits_for_the_disk(tmp_path, monkeypatch):
    waited = []
    monkeypatch.setattr(os, "fsync", waited.append)

    class Count(Watch):
        def on_round(self, report):
            super().on_round(report)
            counts.append(len(waited))

    counts: list[int] = []
    monkeypatch.setattr(f"{__name__}.Watch", Count)
    _, saved = run(tmp_path, checkpoint_interval=100)
    grown = [after > before for before, after in pairwise([0, *counts])]
    assert grown == [after > before for before, after in pairwise([0, *saved])]


def test_a_run_that_is_broken_off_goes_on_after_its_last_round(tmp_path):
    whole, _ = run(tmp_path / "whole", checkpoint_interval=100)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "cut", checkpoint_interval=100, stop_after=9)
    (cut,) = (tmp_path / "cut").iterdir()
    said = []
    resumed, _ = run(tmp_path / "cut", resume=cut.name, say=said.append)
    assert "Going on after round 9." in said
    assert content_of(resumed.path) == content_of(whole.path)


def test_a_run_goes_on_exactly_after_any_checkpoint(tmp_path, monkeypatch):
    whole, _ = run(tmp_path / "whole", checkpoint_interval=1)
    monkeypatch.setattr(Recorder, "on_end", lambda self, report: self._lock.close())  # as if killed
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "cut", checkpoint_interval=100, stop_after=9)
    monkeypatch.undo()
    (cut,) = (tmp_path / "cut").iterdir()
    said = []
    resumed, _ = run(tmp_path / "cut", resume=cut.name, say=said.append)
    assert f"Going on after round {whole.summary['splits'][0]['round']}." in said
    assert content_of(resumed.path) == content_of(whole.path)


@pytest.mark.parametrize("stop_after", [99, 9])
def test_the_report_reloads_itself_until_the_run_ends_or_is_interrupted(
    stop_after, tmp_path, monkeypatch
):
    class Read(Watch):
        def on_round(self, report):
            live.append(reloads(self.recorder.path))
            super().on_round(report)

    def reloads(path):
        return "location.reload()" in (path / "report.html").read_text()

    live: list[bool] = []
    monkeypatch.setattr(f"{__name__}.Watch", Read)
    for name in ("REPORT_FIRST", "REPORT_EVERY", "REPORT_TIMES"):
        monkeypatch.setattr(recorder_module, name, 0)
    with pytest.raises(KeyboardInterrupt) if stop_after == 9 else nullcontext():
        run(tmp_path, stop_after=stop_after)
    assert live == [True] * min(stop_after, 12)
    (folder,) = tmp_path.iterdir()
    assert not reloads(folder)
