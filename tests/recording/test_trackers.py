"""Each tracker receives the figures of ``rounds.jsonl`` under the same names."""

import warnings
from importlib.util import find_spec
from itertools import groupby

import pytest

from cflower.errors import ConfigError
from cflower.recording.recorder import Recorder
from cflower.recording.serialization import measures_in
from cflower.recording.trackers import BACKENDS, Tracker
from cflower.runs.record import RunRecord

LINE = {
    "cluster": "0.1",
    "mean_norm": 0.5,
    "alpha_cross": None,
    "figures": {"eps1": 0.4},
    "metrics": {"accuracy": 0.9},
    "clients": {"client-0": {"accuracy": 0.8}},
    "decision": "split",
}


def needs(package):
    return pytest.mark.skipif(find_spec(package) is None, reason=f"{package} is not installed")


def test_a_figure_is_named_by_its_path_in_the_line():
    assert measures_in(LINE) == {
        "0.1/mean_norm": 0.5,
        "0.1/figures/eps1": 0.4,
        "0.1/metrics/accuracy": 0.9,
        "clients/client-0/accuracy": 0.8,
    }


def test_a_missing_or_unknown_tracker_is_refused(monkeypatch, tmp_path):
    recorder = Recorder(tmp_path)
    monkeypatch.setattr("cflower.recording.trackers.find_spec", lambda name: None)
    Tracker("", recorder)
    for name in BACKENDS:
        with pytest.raises(ConfigError, match=rf"{name}.*pip install {name}"):
            Tracker(name, recorder)
    with pytest.raises(ConfigError, match="tensorboard"):
        Tracker("tensorbord", recorder)


def track(name, made_up, folder):
    """Send all rounds of a run to a tracker."""
    run = RunRecord.read(made_up)
    backend = BACKENDS[name](folder, run.config)
    for server_round, lines in groupby(run.lines, key=lambda line: line["round"]):
        backend.log({k: v for line in lines for k, v in measures_in(line).items()}, server_round)
    backend.close()
    return run


def sent(run, name):
    """The rounds and values of one figure."""
    figures = [(line["round"], measures_in(line).get(name)) for line in run.lines]
    return [(number, pytest.approx(value)) for number, value in figures if value is not None]


NAMES = ("0/mean_norm", "0.1/metrics/accuracy", "clients/client-3/loss")


@needs("tensorboard")
def test_tensorboard(made_up, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        run = track("tensorboard", made_up, tmp_path)
        events = EventAccumulator(str(tmp_path / "tensorboard"), {"tensors": 0}).Reload()
        for name in NAMES:
            values = [(e.step, float(e.tensor_proto.float_val[0])) for e in events.Tensors(name)]
            assert values == sent(run, name)
