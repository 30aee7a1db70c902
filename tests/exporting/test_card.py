"""The model card's figures, of a made-up run."""

import pytest

from cflower.errors import ConfigError
from cflower.exporting.card import quality
from cflower.exporting.export import chosen_model
from cflower.runs.record import RunRecord
from tests.runs.folders import edited, made_up_run


def test_a_mean_over_some_members_says_over_how_many(tmp_path):
    run = made_up_run(tmp_path / "run", baselines={"federated": 0.7})
    assert quality(RunRecord.read(run), "0.0")[0].startswith("Means over its clients: accuracy 90.")
    with edited(run / "summary.json") as summary:
        summary["clients"]["client-1"]["leaf_accuracy"] = None
    lines = quality(RunRecord.read(run), "0.0")
    assert lines[0].startswith("Means over 3 of its 4 clients: accuracy 90.")
    assert "| client-0 | 20 | 90.0% | 70.0% |" in lines
    assert not [line for line in lines if "client-1" in line]


def test_a_client_gets_the_model_that_serves_it(tmp_path):
    run = made_up_run(tmp_path / "run")
    with edited(run / "summary.json") as summary:
        clients = summary["clients"]
        clients["client-1"]["served_by"] |= {"model": "personal", "file": "personal/0.safetensors"}
        clients["client-2"]["served_by"] |= {"model": "above", "cluster": "0"}
        del clients["client-3"]["served_by"]  # as of a run that goes on
    record = RunRecord.read(run)
    chosen = [chosen_model(record, f"client-{i}", "") for i in range(4)]
    assert chosen == [("0.0", ""), ("0.0", "personal/0.safetensors"), ("0", ""), ("0.0", "")]


def test_a_client_without_a_usable_update_is_given_no_model_as_its_own(tmp_path):
    run = made_up_run(tmp_path / "run")
    with edited(run / "summary.json") as summary:
        summary["clients"]["silent"] = {"cluster": ""}
        summary["not_placed"] = ["silent"]
    with pytest.raises(ConfigError, match=r"silent sent no usable update .* give --cluster 0"):
        chosen_model(RunRecord(run), "silent", "")
