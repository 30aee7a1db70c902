"""Splits on trial in whole runs: messages, evaluations, the run folder, and resume."""

import json
import logging
from collections import Counter
from functools import partial

import pytest
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import DifferentialPrivacyClientSideFixedClipping

from cflower import Recorder
from cflower.algorithm.criteria import Outcome
from cflower.algorithm.tree import Status
from cflower.runs.findings import remarks
from cflower.runs.records import Summary
from tests.run_content import read_lines
from tests.strategy.quadratics import (
    Halves,
    Quadratics,
    clusters_of,
    fails_in,
    initial_arrays,
    run,
    strategy_of,
)

GROUPS, ALIKE = (0, 1, 0, 1, 0, 1), (0,) * 6
on_trial = partial(run, trial_rounds=3, metric="loss", fraction_evaluate=0.0)
"""A run with trials."""


@pytest.fixture(autouse=True)
def questions_without_limit(monkeypatch):
    """Short runs ask their clients too."""
    monkeypatch.setattr("cflower.strategy.conditions.FOR_QUESTIONS", 9.0)


@pytest.mark.parametrize(("rounds", "trial"), [(9, Status.OPEN), (10, Status.CONFIRMED)])
def test_a_short_run_says_that_its_split_is_open(rounds, trial, monkeypatch, caplog):
    monkeypatch.undo()
    caplog.set_level(logging.INFO, "flwr")
    clients = Quadratics(GROUPS)
    strategy, _, _ = on_trial(clients, rounds, trial_rounds=1)
    assert clusters_of(strategy) == clients.planted
    assert strategy.tree.root.trial.status is trial
    said = "cluster 0, on trial: the run is too short to ask the clients about it"
    assert (said in caplog.text) == (trial is Status.OPEN)
    # Of the 2 models a client and round, and the last one, at most 0.15: the root's and a question.
    evaluated = Counter(seen.client for seen in clients.seen if seen.kind == "evaluate")
    assert set(evaluated.values()) == {2 if trial is Status.OPEN else 4}


@pytest.mark.parametrize("settings", [{"fraction_evaluate": 1.0}, {"fraction_train": 0.5}])
def test_a_split_that_serves_the_clients_is_confirmed(settings):
    clients = Quadratics(GROUPS)
    strategy, _, reports = on_trial(clients, num_rounds=20, seed=1, **settings)
    assert clusters_of(strategy) == clients.planted
    end = reports[strategy.tree.root.split_round + 2].decisions[-1]
    assert (end.cluster, end.outcome) == ("0", Outcome.CONFIRMED)
    assert end.figures["better"] == end.figures["voters"] == 6
    # Nobody trains more than one model in a round.
    trained = Counter((s.client, s.server_round) for s in clients.seen if s.kind == "train")
    assert set(trained.values()) == {1}


def test_a_split_that_does_not_serve_the_clients_is_undone(caplog, tmp_path):
    caplog.set_level(logging.INFO, "flwr")
    recorder = Recorder(tmp_path)
    alike = Quadratics(ALIKE)
    strategy, _, _ = on_trial(
        alike, 7, criterion=Halves(), observers=[recorder], trial_rounds=1, weighting="uniform"
    )
    assert clusters_of(strategy) == {frozenset(strategy.tree.clients)}
    lines = read_lines(recorder.path / "rounds.jsonl")
    ends = [line for line in lines if line["round"] == 4]
    counts = [(line["cluster"], len(line["members"]), len(line["clients"])) for line in ends]
    assert counts == [("0.0", 3, 3), ("0.1", 3, 3), ("0", 6, 0)]
    assert ends[2]["decision"] == "split taken back"
    assert ends[2]["figures"]["voters"] == 6
    assert ends[2]["figures"]["gain_chance"] > 1 / 64
    assert f"cluster 0, split taken back: {ends[2]['reason']}" in caplog.text
    (split,) = recorder.summary["splits"]
    assert split["children"] == ["0.0", "0.1"]
    assert (split["trial"], split["verdict"]) == ("undone", ends[2]["reason"])
    clusters = json.loads((recorder.path / "tree.json").read_text())["clusters"]
    assert {name: len(cluster["undone"]) for name, cluster in clusters.items()} == {"0": 1}
    assert [path.name for path in (recorder.path / "models").iterdir()] == ["0.safetensors"]


def test_an_app_that_does_not_look_at_the_part_is_said_to_decide_by_what_it_reports(tmp_path):
    clients, recorder = Quadratics(GROUPS), Recorder(tmp_path)
    on_trial(clients, observers=[recorder])
    parts = [
        content["config"]["part"]
        for seen, content in zip(clients.seen, clients.received, strict=True)
        if seen.kind == "evaluate"
    ]
    assert parts == ["decide"] * 12 + ["report"] * 12  # a trial, then the final evaluation
    *_, sentence = remarks(Summary(**recorder.summary))
    assert "The reported examples also decided" in sentence
    assert sentence in (recorder.path / "report.html").read_text()
    for nothing_to_decide in ({"trial_rounds": 0}, {"num_rounds": 2}):
        recorder = Recorder(tmp_path)
        on_trial(clients, observers=[recorder], **nothing_to_decide)
        assert "reported examples" not in " ".join(remarks(Summary(**recorder.summary)))


def test_an_app_without_evaluation_is_trained_without_trials(caplog):
    clients = Quadratics(GROUPS, roll_call=False)
    app = ClientApp()
    app.train()(clients._train)
    clients.app = lambda: app
    caplog.set_level(logging.INFO, "flwr")
    strategy, _, _ = on_trial(clients)
    assert "no evaluate function: splits are final" in caplog.text
    assert strategy.tree.root.trial is None
    assert clusters_of(strategy) == clients.planted
    assert strategy.final_report.clients == {}


def test_a_split_that_no_client_evaluates_is_not_judged_and_final(tmp_path):
    clients = Quadratics(ALIKE, spoil_evaluate=dict.fromkeys(range(6), fails_in(*range(99))))
    recorder = Recorder(tmp_path)
    strategy, _, reports = on_trial(clients, num_rounds=8, criterion=Halves(), observers=[recorder])
    assert len(strategy.tree.leaves) == 2
    assert strategy.tree.root.trial is None
    (line,) = [d for report in reports for d in report.decisions if d.outcome is Outcome.UNJUDGED]
    assert (line.cluster, line.server_round) == ("0", 6)
    assert "no client evaluated both models" in line.reason
    assert reports[5].problems["partition-0"].startswith("is an error")
    assert not strategy.failures.excluded
    (split,) = recorder.summary["splits"]
    assert split["trial"] is None
    assert json.loads((recorder.path / "tree.json").read_text())["clusters"]["0"]["trial"] is None


def test_a_client_with_a_bad_reply_for_the_common_model_has_no_voice_and_trains_on():
    def spoil(message, content, server_round):
        if message.content["config"]["cluster"] == "0":
            raise ValueError("boom")
        return type(message)(content, reply_to=message)

    clients = Quadratics(GROUPS, spoil_evaluate={2: spoil})
    strategy, _, reports = on_trial(clients, 20)
    judged = reports[strategy.tree.root.split_round + 2]
    assert judged.decisions[-1].figures["voters"] == 5
    assert "partition-2" in judged.trained_on
    assert strategy.tree.root.trial.status is Status.CONFIRMED
    assert clusters_of(strategy) == clients.planted


def test_a_client_that_lies_about_both_models_does_not_undo_a_split():
    def lies(message, content, server_round):
        worse = message.content["config"]["cluster"] != "0"
        content["metrics"]["loss"] = 1e12 if worse else 0.0
        return type(message)(content, reply_to=message)

    clients = Quadratics(GROUPS * 3, spoil_evaluate={3: lies})
    strategy, _, _ = on_trial(clients, 20)
    assert clusters_of(strategy) == clients.planted
    assert strategy.tree.root.trial.status is Status.CONFIRMED


@pytest.mark.parametrize("rounds", [4, 5])
def test_a_run_that_ends_during_a_trial_asks_the_clients(rounds):
    clients = Quadratics(ALIKE)
    settings = {"criterion": Halves(), "weighting": "uniform", "trial_rounds": 9}
    strategy, _, reports = on_trial(clients, rounds, **settings)
    assert strategy.tree.root.is_leaf
    assert [trial.status for trial in strategy.tree.root.undone] == [Status.OPEN]
    assert reports[-1].decisions[-1].outcome is Outcome.UNDONE


def test_under_a_wrapper_splits_are_final_and_each_client_trains_one_model():
    clients = Quadratics(GROUPS)
    strategy = strategy_of(trial_rounds=3, moving=True, personal=True, metric="loss")
    private = DifferentialPrivacyClientSideFixedClipping(strategy, 1e-6, 10.0, 6)
    private.start(clients.grid(), initial_arrays(), num_rounds=12)
    assert len(strategy.tree.leaves) == 2
    assert strategy.tree.root.trial is None
    assert sum(seen.kind == "train" for seen in clients.seen) == 12 * 6
