"""Clients whose data change in whole runs: who is sent what, and what is left behind."""

import json
import logging
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from cflower import Recorder
from cflower.algorithm.auto.criterion import AutoCriterion
from cflower.recording.serialization import ABOUT_TRIALS
from tests.strategy.quadratics import Quadratics, found, initial_arrays, strategy_of

CHANGE, FIRST, LATER, ALONE = 20, (0, 1) * 5, (1, 1) + (0, 1) * 4, (2, 1) + (0, 1) * 4
NAME = "partition-0"


@dataclass
class Changing(Quadratics):
    """From round `CHANGE` on the first client's data are those of another group."""

    later: tuple[int, ...] = LATER

    def _look(self, kind, message, context):
        seen = super()._look(kind, message, context)
        self.groups = self.later if seen[1] >= CHANGE else FIRST
        return seen


def run(folder: Path, num_rounds=30, resume="", later=LATER, **settings):
    """A strategy after a run, its clients and its recorder."""
    clients, recorder = Changing(FIRST, later=later), Recorder(folder, resume=resume)
    settings = {"criterion": AutoCriterion(), "metric": "loss"} | settings
    strategy = strategy_of(observers=[recorder], fraction_evaluate=0.0, **settings)
    strategy.start(clients.grid(), initial_arrays(), num_rounds=num_rounds)
    return strategy, clients, recorder


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The run that is not interrupted."""
    return run(tmp_path_factory.mktemp("whole"))


def test_a_client_that_changes_is_found_and_moved_and_all_of_it_is_told(tmp_path, caplog):
    caplog.set_level(logging.INFO, "flwr")
    strategy, clients, recorder = run(tmp_path)
    assert found(strategy) == clients.planted
    (move,) = strategy.state.moves
    assert move.server_round == CHANGE + 1
    told = [record.getMessage() for record in caplog.records]
    assert any(f"Client {NAME} moves from {move.origin} to {move.target}" in text for text in told)
    lines = [json.loads(line) for line in (recorder.path / "rounds.jsonl").open()]
    moved = [line for line in lines if line["moves"]]
    assert [(line["round"], line["cluster"]) for line in moved] == [(CHANGE + 1, move.origin)]
    assert moved[0]["moves"] == [move._asdict()]
    assert moved[0]["reason"].endswith(f"{NAME} moves to {move.target}")
    assert json.loads((recorder.path / "tree.json").read_text())["moves"] == [move._asdict()]
    assert recorder.summary["moves"] == [move._asdict()]


@pytest.mark.parametrize("later", [LATER, ALONE])
def test_everyone_is_in_the_line_of_the_leaf_that_it_trained_in(tmp_path, later):
    _, clients, recorder = run(tmp_path, num_rounds=CHANGE + 3, later=later)
    lines = [json.loads(line) for line in (recorder.path / "rounds.jsonl").open()]
    told = {what: Counter() for what in ("members", "heard", "clients")}
    for line in lines:
        if line["decision"] not in ABOUT_TRIALS:
            for what, count in told.items():
                count.update((line["round"], line["cluster"], name) for name in line[what])
    trained = {
        (seen.server_round, seen.cluster, clients.name(seen.client))
        for seen in clients.seen
        if seen.kind == "train"
    }
    for count in told.values():
        assert set(count) <= trained
        assert len(count) == count.total() == (CHANGE + 3) * len(FIRST)


def test_only_who_stands_out_trains_a_model_above_its_own_and_only_then(tmp_path):
    _, clients, _ = run(tmp_path, inner_interval=0)
    split = min(s.server_round for s in clients.seen if s.cluster not in {"0", "None"})
    later = range(split + 5, 40)
    above = [
        (seen.client, seen.server_round)
        for seen in clients.seen
        if seen.kind == "train" and seen.cluster == "0" and seen.server_round in later
    ]
    assert above == [(0, CHANGE + 1)]


def test_who_is_looked_at_while_inner_models_learn_is_sent_the_model_as_it_was_split(tmp_path):
    learning = (CHANGE + 1) // 3
    strategy, clients, _ = run(tmp_path, num_rounds=CHANGE + 1, inner_interval=learning)
    sent = {
        seen.client: seen.vector
        for seen in clients.seen
        if seen.cluster == "0" and seen.server_round == CHANGE + 1 and seen.kind == "train"
    }
    assert sorted(sent) == list(range(10))
    frozen = sent.pop(0)
    np.testing.assert_array_equal(frozen, strategy.tree.root.model.trained)
    for grown in sent.values():
        assert not np.array_equal(grown, frozen)
    assert [move.server_round for move in strategy.state.moves] == [CHANGE + 1]


def test_without_moving_everyone_stays(tmp_path):
    strategy, _, _ = run(tmp_path, num_rounds=CHANGE + 2, moving=False)
    assert strategy.state.moves == ()
    assert found(strategy) == Quadratics(FIRST).planted
    assert strategy.settings["moving"] is False


@pytest.mark.parametrize("interrupted", [CHANGE, CHANGE + 1])
def test_a_run_resumed_in_the_middle_of_a_move_is_the_uninterrupted_one(
    tmp_path, whole, interrupted
):
    strategy, _, recorder = whole
    _, _, first = run(tmp_path, num_rounds=interrupted)
    again, _, _ = run(tmp_path, resume=first.path.name)
    assert again.state.moves == strategy.state.moves
    assert again.state.habits == strategy.state.habits
    one, other = ((path / "tree.json").read_text() for path in (recorder.path, first.path))
    assert one == other
