"""`cflower explain`: the recorded verdicts, and those of other thresholds."""

import pytest

from cflower.errors import RunFolderError
from cflower.runs.explain import explanation
from cflower.runs.record import RunRecord
from tests.runs.folders import made_up_run


def test_what_was_recorded_is_explained_cluster_by_cluster(made_up):
    text = str(explanation(RunRecord.read(made_up)))
    assert "Cluster 0 (8 clients, rounds 1 to 6): split in round 6 into 0.0 and 0.1." in text
    assert "rounds 4 to 5, sides not apart enough" in text
    assert "Cluster 0.1 (4 clients, rounds 7 to 20): was not split." in text


def test_other_thresholds_are_answered_from_the_matrices(made_up):
    run = RunRecord.read(made_up)
    text = str(explanation(run, {"gamma-max": 0.5}))
    assert "Cluster 0 (in the run: round 6): would have split in round 4" in text
    text = str(explanation(run, {"eps1": 0.01}))
    assert "Cluster 0: would not have split (in the run: round 6)" in text
    assert "later rounds than 6 are not known" in text
    text = str(explanation(run, {"eps1": 9.0}))
    assert "might have split in round 1" in text
    assert "the similarities of this round were not recorded" in text


def test_damaged_files_are_named(tmp_path):
    path = made_up_run(tmp_path / "run")
    (path / "similarity" / "4-0.npz").write_bytes(b"PK nonsense")
    with pytest.raises(RunFolderError, match=r"4-0\.npz is damaged"):
        explanation(RunRecord.read(path), {"eps1": 1.0})
    (path / "rounds.jsonl").write_text("{broken\n")
    with pytest.raises(RunFolderError, match=r"Line 1 of .*rounds.jsonl is damaged"):
        RunRecord.read(path)
