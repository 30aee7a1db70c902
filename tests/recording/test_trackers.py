"""Trackers: the figures of ``rounds.jsonl``, under the same names, in each of them."""

import warnings
from importlib.util import find_spec
from pathlib import Path

import pytest

from cflower.config import RunConfig
from cflower.errors import ConfigError
from cflower.recording.serialization import measures_in
from cflower.recording.trackers import check_tracker, start_tracker
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


def needs(package: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(find_spec(package) is None, reason=f"{package} is not installed")


def test_a_figure_is_called_as_its_way_into_the_line() -> None:
    assert measures_in(LINE) == {
        "0.1/mean_norm": 0.5,
        "0.1/figures/eps1": 0.4,
        "0.1/metrics/accuracy": 0.9,
        "clients/client-0/accuracy": 0.8,
    }


def test_no_tracker_and_a_missing_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert start_tracker("", tmp_path, {}) is None
    monkeypatch.setattr("cflower.recording.trackers.find_spec", lambda name: None)
    for name in ("tensorboard", "wandb", "mlflow"):
        with pytest.raises(ConfigError, match=rf"{name}.*pip install 'cflower\[tracking\]'"):
            check_tracker(name)
    with pytest.raises(ConfigError, match="tensorboard"):
        RunConfig(tracker="tensorbord")


def track(name: str, made_up: Path, folder: Path) -> RunRecord:
    """All rounds of a run through a tracker."""
    run = RunRecord.read(made_up)
    tracker = start_tracker(name, folder, run.config)
    assert tracker is not None
    for server_round in range(1, run.rounds + 1):
        figures = {}
        for line in run.lines:
            if line["round"] == server_round:
                figures |= measures_in(line)
        tracker.log(figures, server_round)
    tracker.close()
    return run


def told(run: RunRecord, name: str) -> list[tuple[int, float]]:
    return [(ln["round"], measures_in(ln)[name]) for ln in run.lines if name in measures_in(ln)]


NAMES = ("0/mean_norm", "0.1/metrics/accuracy", "clients/client-3/loss")


@needs("tensorboard")
def test_tensorboard(made_up: Path, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        run = track("tensorboard", made_up, tmp_path)
        found = EventAccumulator(str(tmp_path / "tensorboard"), {"tensors": 0}).Reload()
        for name in NAMES:
            values = [(e.step, float(e.tensor_proto.float_val[0])) for e in found.Tensors(name)]
            assert values == [(r, pytest.approx(v)) for r, v in told(run, name)]


@needs("wandb")
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_weights_and_biases_offline(made_up: Path, tmp_path: Path) -> None:
    track("wandb", made_up, tmp_path)
    (folder,) = (tmp_path / "wandb").glob("offline-run-*")
    content = next(folder.glob("*.wandb")).read_bytes()
    for name in NAMES:
        assert name.encode() in content


@needs("mlflow")
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_mlflow(made_up: Path, tmp_path: Path) -> None:
    run = track("mlflow", made_up, tmp_path)
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("cflower")
    (stored,) = client.search_runs([experiment.experiment_id])
    assert stored.data.params["eps1"] == "0.9"
    for name in NAMES:
        values = [(m.step, m.value) for m in client.get_metric_history(stored.info.run_id, name)]
        assert sorted(values) == [(r, pytest.approx(v)) for r, v in told(run, name)]
