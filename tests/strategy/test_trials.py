"""Splits on trial in whole runs: who is sent what, who judges, and what is left behind."""

import json
import logging
from pathlib import Path

import pytest
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import DifferentialPrivacyClientSideFixedClipping

from cflower import Recorder
from cflower.algorithm.criteria import Outcome, verdict
from cflower.algorithm.trial import Standing
from tests.strategy.quadratics import (
    CRITERION,
    Quadratics,
    Reports,
    found,
    initial_arrays,
    strategy_of,
)

GROUPS = (0, 1, 0, 1, 0, 1)


class Halves:
    """Splits the root in the middle in round 3, whoever is there."""

    def decide(self, evidence, memory):
        if evidence.cluster != "0" or evidence.server_round < 3:
            return verdict(evidence, Outcome.MOVING, "not yet"), memory
        half = len(evidence.clients) // 2
        sides = evidence.clients[:half], evidence.clients[half:]
        return verdict(evidence, Outcome.SPLIT, "in the middle", sides=sides), memory

    def inherit(self, memory):
        return {}


def run(clients, num_rounds=12, start=None, **settings):
    """A strategy after a run with trials, and its reports."""
    reports = Reports()
    settings = {"trial_rounds": 3, "metric": "loss", "fraction_evaluate": 0.0} | settings
    observers = [reports, *settings.pop("observers", ())]
    strategy = strategy_of(observers=observers, **settings)
    strategy.start(clients.grid(), initial_arrays(), num_rounds=num_rounds, **(start or {}))
    return strategy, reports


def outcomes(reports, cluster="0"):
    return {
        report.server_round: decision.outcome
        for report in reports
        for decision in report.decisions
        if decision.cluster == cluster
    }


@pytest.mark.parametrize("settings", [{}, {"fraction_evaluate": 1.0}, {"fraction_train": 0.5}])
@pytest.mark.parametrize("roll_call", [True, False])
def test_a_split_that_serves_the_clients_is_confirmed(settings, roll_call):
    clients = Quadratics(GROUPS, roll_call=roll_call)
    strategy, reports = run(clients, num_rounds=30, seed=1, **settings)
    assert found(strategy) == clients.planted
    root = strategy.tree.root
    assert root.trial.standing is Standing.CONFIRMED
    assert "6 of 6 clients better" in root.trial.reason
    seen = outcomes(reports)
    assert [seen[root.split_round + i] for i in range(4)] == [
        Outcome.SPLIT,
        Outcome.ON_TRIAL,
        Outcome.ON_TRIAL,
        Outcome.CONFIRMED,
    ]


def test_in_a_trial_every_client_trains_both_models_and_then_judges_both():
    clients = Quadratics(GROUPS)
    strategy, _ = run(clients, num_rounds=12)
    split = strategy.tree.root.split_round
    sent = {}
    for seen in clients.seen:
        sent.setdefault((seen.server_round, seen.kind), []).append((seen.client, seen.cluster))
    own = {i: strategy.cluster_of(clients.name(i)) for i in range(6)}
    both = sorted([*own.items(), *((i, "0") for i in own)])
    for server_round in range(split + 1, split + 4):
        assert sorted(sent[server_round, "train"]) == both
    assert sorted(sent[split + 4, "train"]) == sorted(own.items())
    assert sorted(sent[split + 3, "evaluate"]) == both
    assert {r for r, kind in sent if kind == "evaluate"} == {split + 3, 12}


def test_a_split_that_serves_nobody_is_taken_back(caplog, tmp_path):
    clients = Quadratics((0,) * 6)
    caplog.set_level(logging.INFO, "flwr")
    recorder = Recorder(tmp_path)
    strategy, reports = run(clients, num_rounds=9, criterion=Halves(), observers=[recorder])
    assert found(strategy) == {frozenset(strategy.tree.clients)}
    assert "cluster 0, split taken back: 12 held-out examples" in caplog.text
    assert outcomes(reports)[6] is Outcome.UNDONE
    assert outcomes(reports)[7] is Outcome.PUT_OFF
    lines = [json.loads(x) for x in (recorder.path / "rounds.jsonl").read_text().splitlines()]
    last = [line for line in lines if line["round"] == 6]
    assert [line["cluster"] for line in last] == ["0.0", "0.1", "0"]
    assert [len(line["members"]) for line in last] == [3, 3, 6]
    assert [len(line["clients"]) for line in last] == [3, 3, 0]
    assert last[2]["decision"] == "split taken back"
    assert last[2]["figures"]["loss_gain"] < 0
    (split,) = recorder.summary["splits"]
    assert split["children"] == ["0.0", "0.1"]
    assert split["trial"] == "undone"
    assert split["verdict"] == last[2]["reason"]
    tree = json.loads((recorder.path / "tree.json").read_text())["clusters"]
    assert list(tree) == ["0"]
    assert tree["0"]["undone"][0]["standing"] == "undone"
    assert [path.name for path in (recorder.path / "models").iterdir()] == ["0.safetensors"]
    assert not list((recorder.path / "edges").iterdir())


def test_a_trial_that_the_run_ends_before_is_open(tmp_path):
    clients = Quadratics((0,) * 6)
    recorder = Recorder(tmp_path)
    strategy, _ = run(clients, num_rounds=5, criterion=Halves(), observers=[recorder])
    assert strategy.tree.root.on_trial
    assert recorder.summary["splits"][0]["trial"] == "open"


def test_criteria_choose_whether_their_splits_are_on_trial():
    for criterion, expected in ((CRITERION, (0, 0)), (None, (4, 10)), (Halves(), (0, 0))):
        strategy = strategy_of(criterion=criterion)
        assert (strategy.trial_rounds, strategy.inner_interval) == expected
    assert strategy_of(criterion=CRITERION, trial_rounds=2).settings["trial-rounds"] == 2


def test_without_a_trial_nothing_more_is_sent():
    clients = Quadratics(GROUPS)
    strategy, _ = run(clients, num_rounds=12, trial_rounds=0)
    assert strategy.tree.root.general is strategy.tree.root.trial is None
    trained = [seen for seen in clients.seen if seen.kind == "train"]
    assert len(trained) == 12 * 6
    assert found(strategy) == clients.planted


def test_inner_models_go_on_learning_where_it_is_asked_for():
    clients = Quadratics(GROUPS)
    strategy, _ = run(clients, num_rounds=20, trial_rounds=0, inner_interval=5)
    split = strategy.tree.root.split_round
    rounds = {s.server_round for s in clients.seen if s.kind == "train" and s.cluster == "0"}
    assert rounds == {*range(1, split + 1), 5, 10, 15, 20}
    assert strategy.tree.root.general is not None
    levels = strategy.final_report.clients["partition-0"].levels
    assert set(levels) == {"0", strategy.cluster_of("partition-0")}


def test_an_app_that_evaluates_nothing_has_no_trials(caplog):
    clients = Quadratics(GROUPS)
    app = ClientApp()
    app.train()(clients._train)
    clients.app = lambda: app
    clients.roll_call = False
    caplog.set_level(logging.INFO, "flwr")
    strategy, _ = run(clients, num_rounds=12)
    assert "evaluates nothing: no split is on trial" in caplog.text
    assert strategy.tree.root.trial is None
    assert found(strategy) == clients.planted


def test_clients_that_do_not_tell_the_metric_leave_the_split_unjudged():
    def without_loss(message, content, server_round):
        raise ValueError("boom")

    clients = Quadratics((0,) * 6, spoil_evaluate=dict.fromkeys(range(6), without_loss))
    strategy, reports = run(clients, num_rounds=8, criterion=Halves())
    assert len(strategy.tree.leaves) == 2
    assert "unjudged" in strategy.tree.root.trial.reason
    assert reports[5].problems["partition-0"].startswith("is an error")
    assert not strategy.failures.excluded


def test_a_client_whose_common_models_reply_is_bad_counts_with_its_own():
    def spoil(message, content, server_round):
        if message.content["config"]["cluster"] == "0" and server_round > 3:
            raise ValueError("boom")
        return type(message)(content, reply_to=message)

    clients = Quadratics((0,) * 6, spoil={2: spoil})
    strategy, reports = run(clients, num_rounds=6, criterion=Halves())
    assert "partition-2" in reports[4].trained_on
    assert "partition-2" not in reports[4].general["0"]
    assert len(reports[4].general["0"]) == 5
    assert strategy.tree.root.undone


@pytest.mark.parametrize("groups", [(0,) * 6, (0, 0, 0, 1, 1, 1)], ids=["undone", "confirmed"])
def test_a_run_goes_on_exactly_in_the_middle_of_a_trial(groups, tmp_path):
    whole, parts = Quadratics(groups), Quadratics(groups)
    settings = {"criterion": Halves(), "inner_interval": 4}
    first, _ = run(whole, num_rounds=14, observers=[Recorder(tmp_path / "whole")], **settings)
    for last in (4, 5, 6, 10):
        again = {"resume": next((tmp_path / "parts").iterdir()).name} if last > 4 else {}
        recorder = Recorder(tmp_path / "parts", **again)
        run(parts, num_rounds=last, observers=[recorder], **settings)
    recorder = Recorder(tmp_path / "parts", resume=recorder.path.name)
    run(parts, num_rounds=14, observers=[recorder], **settings)
    (one,), (other,) = (list((tmp_path / name).iterdir()) for name in ("whole", "parts"))
    assert bool(first.tree.root.undone) is (len(set(groups)) == 1)
    files = [path.relative_to(one) for path in one.glob("*/0.*safetensors")]
    assert Path("models/0.safetensors") in files
    for path in [*files, "tree.json"]:
        assert (one / path).read_bytes() == (other / path).read_bytes(), path
    told = [json.loads((run / "summary.json").read_text())["splits"] for run in (one, other)]
    assert told[0] == told[1]


def test_under_a_wrapper_that_accounts_for_one_model_a_round_there_are_no_trials():
    clients = Quadratics(GROUPS)
    strategy = strategy_of(trial_rounds=3, inner_interval=2, metric="loss")
    private = DifferentialPrivacyClientSideFixedClipping(strategy, 1e-6, 10.0, 6)
    private.start(clients.grid(), initial_arrays(), num_rounds=12)
    assert len(strategy.tree.leaves) == 2
    assert strategy.tree.root.trial is strategy.tree.root.general is None
    assert sum(seen.kind == "train" for seen in clients.seen) == 12 * 6
