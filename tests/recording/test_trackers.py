"""Trackers receive the figures of ``rounds.jsonl`` under the same names."""

from itertools import groupby

import pytest

from cflower.errors import ConfigError
from cflower.recording.recorder import Recorder
from cflower.recording.serialization import tracked_figures
from cflower.recording.trackers import BACKENDS, Tracker
from cflower.runs.record import RunRecord
from cflower.runs.records import Line

LINE = Line(
    round=1,
    cluster="0.1",
    members=["client-0"],
    heard=["client-0"],
    mean_norm=0.5,
    max_norm=0.75,
    alpha_cross=None,
    decision="split",
    reason="for a reason",
    children=[],
    figures={"eps1": 0.4},
    metrics={"accuracy": 0.9},
    seconds=2.0,
    clients={"client-0": {"accuracy": 0.8}},
    problems={},
)


def test_a_figure_is_named_by_its_path_in_the_line():
    assert tracked_figures(LINE) == {
        "0.1/mean_norm": 0.5,
        "0.1/max_norm": 0.75,
        "0.1/seconds": 2.0,
        "0.1/figures/eps1": 0.4,
        "0.1/metrics/accuracy": 0.9,
        "clients/client-0/accuracy": 0.8,
    }


def test_a_missing_or_unknown_tracker_is_refused(monkeypatch, tmp_path):
    recorder = Recorder(tmp_path)
    monkeypatch.setattr("cflower.recording.trackers.find_spec", lambda name: None)
    for name in BACKENDS:
        with pytest.raises(ConfigError, match=rf"{name}.*pip install {name}"):
            Tracker(name, recorder)
    with pytest.raises(ConfigError, match="tensorboard"):
        Tracker("tensorbord", recorder)


@pytest.mark.filterwarnings("ignore")
def test_tensorboard_gets_the_figures_of_every_round(made_up, tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = RunRecord.read(made_up)
    log, close = BACKENDS["tensorboard"](tmp_path, run.config)
    for server_round, lines in groupby(run.lines, key=lambda line: line.round):
        log({k: v for line in lines for k, v in tracked_figures(line).items()}, server_round)
    close()
    events = EventAccumulator(str(tmp_path / "tensorboard"), {"tensors": 0}).Reload()
    for name in ("0/mean_norm", "0.1/metrics/accuracy", "clients/client-3/loss"):
        figures = [(line.round, tracked_figures(line).get(name)) for line in run.lines]
        values = [(e.step, float(e.tensor_proto.float_val[0])) for e in events.Tensors(name)]
        assert values == [(n, pytest.approx(figure)) for n, figure in figures if figure is not None]
