"""Clients with changing data in whole runs: members that move, and leaves that are joined."""

import logging
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from cflower import Recorder
from cflower.auto.criterion import AutoCriterion
from cflower.runs.records import TRIAL_STATUS
from cflower.strategy.observers import Observer
from tests.run_content import read_json, read_lines
from tests.strategy.quadratics import CENTERS, Quadratics, clusters_of, run

GROUPS, CHANGE, PERIOD = (0, 1) * 5, 20, 20
"""The groups at first, the round of the change, and the rounds until two groups have converged."""
OTHER, NEW = (1, *GROUPS[1:]), (2, *GROUPS[1:])
"""The first client changes to the other group, or to a new one."""


@dataclass
class Changing(Quadratics):
    """From round `CHANGE` on the clients are in other groups."""

    later: tuple[int, ...] = OTHER

    def _read(self, kind, message, context):
        server_round = int(message.content["config"]["server-round"])
        self.groups = self.later if server_round >= CHANGE else GROUPS
        return super()._read(kind, message, context)


class Converging(Quadratics):
    """From round `CHANGE` on the data of all groups become the same, step by step."""

    def center(self, client, server_round):
        part = np.clip((server_round - CHANGE) / PERIOD, 0, 1)
        return (1 - part) * CENTERS[self.groups[client]] + part * CENTERS[3]


AUTO = {"criterion": AutoCriterion(), "metric": "loss", "fraction_evaluate": 0.0}


class Stop(Observer):
    """Ends a run early."""

    def __init__(self, after):
        self.after = after

    def on_round(self, report):
        return report.server_round == self.after


def recorded(clients, folder: Path, num_rounds, resume="", stop=0, **settings):
    """The strategy and the recorder of a run; ``stop`` is a round that is not known to be last."""
    recorder = Recorder(folder, resume=resume)
    observers = [recorder, Stop(stop)]
    strategy, _, _ = run(clients, num_rounds, observers=observers, **AUTO, **settings)
    return strategy, recorder


def lines_of(recorder):
    return read_lines(recorder.path / "rounds.jsonl")


def test_a_client_with_changed_data_moves_and_log_and_run_folder_show_it(tmp_path, caplog):
    caplog.set_level(logging.INFO, "flwr")
    clients = Changing(GROUPS)
    strategy, recorder = recorded(clients, tmp_path, CHANGE + 5)
    assert clusters_of(strategy) == clients.planted
    (move,) = strategy.state.moves
    assert (move.client, move.server_round) == ("partition-0", CHANGE + 1)
    assert f"Client partition-0 moves from {move.origin} to {move.target}" in caplog.text
    moved = [line for line in lines_of(recorder) if line["moves"]]
    assert [(line["round"], line["cluster"]) for line in moved] == [(CHANGE + 1, move.origin)]
    assert moved[0]["moves"] == recorder.summary["moves"] == [move._asdict()]
    # Only the suspected client trains the root's model after the split, and only once.
    trained = [seen for seen in clients.seen if seen.kind == "train"]
    above = [(s.client, s.server_round) for s in trained if s.cluster == "0"]
    split = strategy.tree.root.split_round
    late = [(c, r) for c, r in above if split < r < CHANGE + 5]
    assert late == [(0, CHANGE + 1)]


@pytest.mark.slow
@pytest.mark.parametrize("later", [OTHER, NEW])
def test_each_client_is_in_the_line_of_the_leaf_that_it_trained(tmp_path, later):
    clients = Changing(GROUPS, later=later)
    _, recorder = recorded(clients, tmp_path, CHANGE + 3)
    training = (seen for seen in clients.seen if seen.kind == "train")
    trained = {(s.server_round, s.cluster, clients.name(s.client)) for s in training}
    own = [line for line in lines_of(recorder) if line["decision"] not in TRIAL_STATUS]
    for key in ("members", "heard", "clients"):
        count = Counter((line["round"], line["cluster"], n) for line in own for n in line[key])
        members = (CHANGE + 3) * len(GROUPS)
        if key != "members":  # once the suspected client trained the root's model only
            members -= 1
            assert set(count) <= trained
        assert len(count) == count.total() == members


@pytest.mark.slow
def test_converging_groups_become_one_cluster_and_log_and_run_folder_show_it(tmp_path, caplog):
    caplog.set_level(logging.INFO, "flwr")
    strategy, recorder = recorded(Converging(GROUPS), tmp_path, 45)
    root = strategy.tree.root
    assert clusters_of(strategy) == {frozenset(strategy.tree.clients)}
    joined = [line for line in lines_of(recorder) if "are one again" in line["reason"]][-1]
    assert joined["round"] >= CHANGE + PERIOD
    assert joined["round"] % 10 == 0
    assert (joined["cluster"], joined["decision"]) == ("0", "split taken back")
    assert joined["reason"] in caplog.text
    (split,) = recorder.summary["splits"]
    assert (split["trial"], split["verdict"]) == ("undone", joined["reason"])
    (cluster,) = read_json(recorder.path, "tree.json")["clusters"].values()
    (join,) = cluster["undone"]
    assert (join["reason"], join["until"]) == (joined["reason"], joined["round"])
    assert (join["status"], join["began"]) == ("joined", split["round"])
    assert sorted(name for part in join["parts"] for name in part) == sorted(root.members)
    assert root.rounds > CHANGE + PERIOD  # the joined model goes on learning
    assert root.next_child not in {"0.0", "0.1"}


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"moving": False}, {"trial_rounds": 0}])
def test_no_leaves_are_joined_if_they_differ_or_joins_are_switched_off(settings):
    clients = Converging(GROUPS) if settings else Quadratics(GROUPS)
    strategy, _, _ = run(clients, 41, **(AUTO | settings))
    assert not strategy.tree.root.is_leaf


@pytest.mark.slow
def test_an_isolated_client_with_changed_data_goes_on_alone():
    strategy, _, _ = run(Changing(GROUPS), CHANGE + 5, isolated=True, **AUTO)
    assert (len(strategy.tree.leaves), strategy.state.moves) == (len(GROUPS), ())


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "rounds", "change"), [(Changing, 23, 21), (Converging, 42, 40)])
def test_a_run_resumed_in_the_middle_of_a_move_or_join_is_identical(tmp_path, kind, rounds, change):
    strategy, whole = recorded(kind(GROUPS), tmp_path, rounds)
    changes = [move.server_round for move in strategy.state.moves]
    assert [*changes, *(join.judged for join in strategy.tree.root.undone)][0] == change
    for stop in (change - 1, change):
        _, first = recorded(kind(GROUPS), tmp_path, rounds, stop=stop)
        again, resumed = recorded(kind(GROUPS), tmp_path, rounds, resume=first.path.name)
        assert again.state.moves == strategy.state.moves
        assert again.state.memory == strategy.state.memory
        for path in ("tree.json", *(f"models/{n}.safetensors" for n in strategy.tree.clusters)):
            assert (whole.path / path).read_bytes() == (resumed.path / path).read_bytes()
        assert whole.summary["splits"] == resumed.summary["splits"]
