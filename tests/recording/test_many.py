"""A run folder of many clients."""

from cflower import AutoCriterion, Recorder
from tests.strategy.quadratics import Quadratics, initial_arrays, strategy_of


def test_of_many_clients_only_a_clusters_last_matrix_is_kept(tmp_path, monkeypatch):
    for many in (1000, 10):
        monkeypatch.setattr("cflower.recording.recorder.MANY", many)
        recorder = Recorder(tmp_path / str(many))
        strategy = strategy_of(criterion=AutoCriterion(), observers=[recorder], personal=False)
        strategy.start(Quadratics((0,) * 12).grid(), initial_arrays(), 5)
    few, one = (sorted(tmp_path.glob(f"{many}/*/similarity/*.npz")) for many in (1000, 10))
    assert len(few) > 1
    assert [path.name for path in one] == [few[-1].name]
