"""Groups that become one in whole runs: their leaves are joined, and all of it is told."""

import json
import logging
from dataclasses import dataclass
from pathlib import Path

import pytest

from cflower import Recorder
from cflower.algorithm.auto.criterion import AutoCriterion
from tests.strategy.quadratics import CENTERS, Quadratics, found, initial_arrays, strategy_of

BEGIN, ROUNDS = 21, 20
"""When the groups begin to go towards each other, and how long they take."""
GROUPS = (0, 1) * 8
SENTENCE = "no longer tell"


@dataclass
class Converging(Quadratics):
    """Two groups whose data become the same step by step."""

    def center(self, client, server_round):
        way = min(max(server_round - BEGIN, 0) / ROUNDS, 1)
        return (1 - way) * CENTERS[self.groups[client]] + way * CENTERS[3]


def run(folder: Path, num_rounds=60, resume="", clients=None, **settings):
    """A strategy after a run, and its recorder."""
    clients, recorder = clients or Converging(GROUPS), Recorder(folder, resume=resume)
    settings = {"criterion": AutoCriterion(), "metric": "loss"} | settings
    strategy = strategy_of(observers=[recorder], fraction_evaluate=0.0, **settings)
    strategy.start(clients.grid(), initial_arrays(), num_rounds=num_rounds)
    return strategy, recorder


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The run that is not interrupted."""
    return run(tmp_path_factory.mktemp("whole"))


def told(recorder: Recorder) -> list[dict]:
    """The lines of ``rounds.jsonl`` about leaves that may be one."""
    lines = [json.loads(line) for line in (recorder.path / "rounds.jsonl").open()]
    return [line for line in lines if SENTENCE in line["reason"]]


def test_groups_that_become_one_are_one_cluster_and_all_of_it_is_told(tmp_path, caplog):
    caplog.set_level(logging.INFO, "flwr")
    strategy, recorder = run(tmp_path)
    assert found(strategy) == {frozenset(strategy.tree.clients)}
    joined = told(recorder)[-1]
    assert joined["round"] >= BEGIN + ROUNDS
    assert joined["round"] % strategy.inner_interval == 0
    assert (joined["cluster"], joined["decision"]) == ("0", "split taken back")
    assert joined["reason"] in caplog.text
    (split,) = recorder.summary["splits"]
    assert (split["trial"], split["verdict"]) == ("undone", joined["reason"])
    tree = json.loads((recorder.path / "tree.json").read_text())["clusters"]
    assert list(tree) == ["0"]
    (trial,) = tree["0"]["undone"]
    assert trial["reason"] == joined["reason"]
    assert trial["began"] == trial["until"] == joined["round"]
    assert sorted(name for part in trial["parts"] for name in part) == sorted(strategy.tree.clients)


def test_the_joined_model_learns_on_and_may_be_split_again(whole):
    strategy, _ = whole
    assert strategy.tree.root.rounds > BEGIN + ROUNDS
    assert strategy.tree.next_child("0") not in {"0.0", "0.1"}


@pytest.mark.parametrize("settings", [{}, {"moving": False}, {"trial_rounds": 0}])
def test_nothing_is_joined_where_groups_stay_apart_or_all_stay(tmp_path, settings):
    clients = Converging(GROUPS) if settings else Quadratics(GROUPS)
    strategy, recorder = run(tmp_path, clients=clients, **settings)
    assert told(recorder) == []
    assert not strategy.tree.root.is_leaf


@pytest.mark.parametrize("before", [0, 1])
def test_a_run_resumed_around_a_joining_is_the_uninterrupted_one(tmp_path, whole, before):
    last = told(whole[1])[-1]["round"] - before
    _, first = run(tmp_path, num_rounds=last)
    _, again = run(tmp_path, resume=first.path.name)
    for name in ("tree.json", "models/0.safetensors"):
        assert (whole[1].path / name).read_bytes() == (again.path / name).read_bytes()
    splits = [recorder.summary["splits"] for recorder in (whole[1], again)]
    assert splits[0] == splits[1]
