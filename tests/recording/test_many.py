"""A run folder of many clients."""

from cflower import AutoCriterion, Recorder
from tests.strategy.quadratics import Quadratics, initial_arrays, strategy_of


def test_of_many_clients_only_the_matrix_of_a_split_is_kept(tmp_path, monkeypatch):
    for many in (1000, 12):
        monkeypatch.setattr("cflower.recording.recorder.MANY", many)
        recorder = Recorder(tmp_path / str(many))
        strategy = strategy_of(criterion=AutoCriterion(), observers=[recorder], personal=False)
        strategy.start(Quadratics((0, 1) * 6).grid(), initial_arrays(), 6)
    few, one = (sorted(tmp_path.glob(f"{many}/*/similarity/*-0.npz")) for many in (1000, 12))
    (split,) = recorder.summary["splits"]
    assert len(few) > 1
    assert [path.name for path in one] == [f"{split['round']}-0.npz"]
