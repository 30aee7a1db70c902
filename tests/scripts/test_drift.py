import json

import pytest

from tests.command import script


@pytest.mark.slow
def test_the_oracle_serves_changing_clients_better_than_one_model(tmp_path):
    options = ("--schemes", "joint", "--ways", "moving,federated,oracle,feddrift-0.1")
    options += ("--rounds", 4, "--set", "dataset-size=600", "--workers", 1, "--out", tmp_path)
    assert "4 runs, 0 there already, 4 to do." in script("run.py", "drift", *options)
    records = [json.loads(path.read_text()) for path in tmp_path.glob("*--*.json")]
    after = {record["way"]: sum(record["accuracy"][4:8]) for record in records}
    assert after["oracle"] > after["federated"]
    assert len(after) == 4 and len((tmp_path / "drift.csv").read_text().splitlines()) == 1 + 4 * 24


@pytest.mark.slow
def test_in_a_stream_the_oracle_serves_both_concepts_and_one_model_neither(tmp_path):
    options = ("--shift", "stream", "--data", "sine", "--ways", "federated,oracle,feddrift-0.2")
    options += ("--rounds", 4, "--workers", 1, "--out", tmp_path)
    assert "3 runs, 0 there already, 3 to do." in script("run.py", "drift", *options)
    records = [json.loads(path.read_text()) for path in tmp_path.glob("*--*.json")]
    last = {record["way"]: sum(record["accuracy"][-4:]) / 4 for record in records}
    assert last["oracle"] > 0.9 > last["federated"] + 0.1
