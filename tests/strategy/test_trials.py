"""Questions about splits in whole runs: messages, evaluations, the run folder, and resume."""

import json
import logging
from collections import Counter
from functools import partial

import pytest
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import DifferentialPrivacyClientSideFixedClipping

from cflower import Observer, Recorder
from cflower.algorithm.criteria import Outcome
from cflower.algorithm.tree import Status
from cflower.runs.findings import details
from cflower.runs.record import RunRecord
from cflower.runs.records import Summary
from cflower.runs.report.content import page_content
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

GROUPS, HALVES, ALIKE = (0, 1, 0, 1, 0, 1), (0, 0, 0, 1, 1, 1), (0,) * 6
asking = partial(run, trial_rounds=1, metric="loss", fraction_evaluate=0.0)
"""A run that asks its clients about each split."""


def reported_lines(recorder):
    return read_lines(recorder.path / "rounds.jsonl")


@pytest.mark.parametrize("rounds", [3, 12])
def test_the_shortest_run_can_ask_all_clients_once(rounds, caplog):
    caplog.set_level(logging.INFO, "flwr")
    clients = Quadratics(HALVES)
    strategy, _, _ = asking(clients, rounds, criterion=Halves())
    assert clusters_of(strategy) == clients.planted
    assert strategy.tree.root.trial.status is Status.CONFIRMED
    assert "cluster 0, split confirmed: 6 of 6 clients better off" in caplog.text
    # The common model and that of the part, then at the end the root's and the leaf's.
    evaluated = Counter(seen.client for seen in clients.seen if seen.kind == "evaluate")
    assert evaluated == dict.fromkeys(range(6), 4)


def test_a_short_run_that_asked_its_clients_has_a_personal_step_too():
    clients = Quadratics((0, 0, 0, 1, 2, 3), adapts=True)
    strategy, _, _ = asking(clients, 5, criterion=Halves(), personal=True)
    asked = Counter(seen.client for seen in clients.seen if seen.kind == "evaluate")
    # Two for the question, which take all that questions may, and three for the final evaluation.
    assert asked == dict.fromkeys(range(6), 5)
    assert {step.trainings for step in strategy.state.personal.values()} == {1}


def test_a_training_is_counted_once_in_the_round_of_a_split(tmp_path):
    recorder = Recorder(tmp_path)
    asking(Quadratics(HALVES), 6, criterion=Halves(), observers=[recorder])
    lines = [line for line in reported_lines(recorder) if line["round"] == 3]
    assert [line["decision"] for line in lines] == ["split", "split confirmed"]
    assert [len(line["heard"]) for line in lines] == [6, 0]
    assert page_content(RunRecord.read(recorder.path))["cost"]["trainings"] == 6 * 6


@pytest.mark.parametrize("settings", [{"fraction_evaluate": 1.0}, {"fraction_train": 0.5}])
def test_a_split_that_serves_the_clients_is_confirmed(settings):
    clients = Quadratics(GROUPS)
    strategy, _, reports = asking(clients, num_rounds=20, seed=1, **settings)
    assert clusters_of(strategy) == clients.planted
    end = reports[strategy.tree.root.split_round - 1].decisions[-1]
    assert (end.cluster, end.outcome) == ("0", Outcome.CONFIRMED)
    assert end.figures["better"] == end.figures["voters"] == 6
    # Nobody trains more than one model in a round.
    trained = Counter((s.client, s.server_round) for s in clients.seen if s.kind == "train")
    assert set(trained.values()) == {1}


def test_a_split_that_does_not_serve_the_clients_is_refused(caplog, tmp_path, monkeypatch):
    monkeypatch.setattr("cflower.strategy.conditions.FOR_QUESTIONS", 9.0)
    caplog.set_level(logging.INFO, "flwr")
    recorder = Recorder(tmp_path)
    alike, settings = Quadratics(ALIKE, noise=0.0), {"weighting": "uniform"}
    strategy, _, _ = asking(alike, 7, criterion=Halves(), observers=[recorder], **settings)
    assert clusters_of(strategy) == {frozenset(strategy.tree.clients)}
    lines = reported_lines(recorder)
    assert [(line["round"], line["cluster"]) for line in lines] == [(r, "0") for r in range(1, 8)]
    decisions = [line["decision"] for line in lines]
    asked = ["split refused", "split put off", "split put off", "split refused", "split put off"]
    assert decisions[2:] == asked
    refused = lines[2]
    assert (len(refused["members"]), len(refused["clients"]), refused["children"]) == (6, 6, [])
    assert refused["figures"]["voters"] == 6
    assert refused["figures"]["gain_chance"] > 0.25
    assert f"cluster 0, split refused: {refused['reason']}" in caplog.text
    assert recorder.summary["splits"] == []
    (cluster,) = json.loads((recorder.path / "tree.json").read_text())["clusters"].values()
    assert (cluster["undone"], cluster["trial"]) == ([], None)
    assert [path.name for path in (recorder.path / "models").iterdir()] == ["0.safetensors"]


def test_an_app_that_does_not_look_at_the_part_is_said_to_decide_by_what_it_reports(tmp_path):
    clients, recorder = Quadratics(GROUPS), Recorder(tmp_path)
    asking(clients, observers=[recorder])
    parts = [
        content["config"]["part"]
        for seen, content in zip(clients.seen, clients.received, strict=True)
        if seen.kind == "evaluate"
    ]
    assert parts == ["decide"] * 12 + ["report"] * 12  # a question, then the final evaluation
    *_, sentence = details(Summary(**recorder.summary))
    assert "the same examples decided about the clusters" in sentence
    assert sentence in (recorder.path / "report.html").read_text()
    for nothing_to_decide in ({"trial_rounds": 0}, {"num_rounds": 2}):
        recorder = Recorder(tmp_path)
        asking(clients, observers=[recorder], **nothing_to_decide)
        assert "same examples" not in " ".join(details(Summary(**recorder.summary)))


def test_an_app_without_evaluation_is_asked_nothing(caplog):
    clients = Quadratics(GROUPS, roll_call=False)
    app = ClientApp()
    app.train()(clients._train)
    clients.app = lambda: app
    caplog.set_level(logging.INFO, "flwr")
    strategy, _, _ = asking(clients)
    assert "no evaluate function: splits are final" in caplog.text
    assert strategy.tree.root.trial is None
    assert clusters_of(strategy) == clients.planted
    assert strategy.final_report.clients == {}


def test_a_split_that_no_client_evaluates_is_not_judged_and_final(tmp_path):
    clients = Quadratics(ALIKE, spoil_evaluate=dict.fromkeys(range(6), fails_in(*range(99))))
    recorder = Recorder(tmp_path)
    strategy, _, reports = asking(clients, num_rounds=8, criterion=Halves(), observers=[recorder])
    assert len(strategy.tree.leaves) == 2
    assert strategy.tree.root.trial is None
    (line,) = [d for report in reports for d in report.decisions if d.outcome is Outcome.UNJUDGED]
    assert (line.cluster, line.server_round) == ("0", 3)
    assert "no client evaluated both models" in line.reason
    assert reports[2].problems["partition-0"].startswith("is an error")
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
    strategy, _, reports = asking(clients, 20)
    judged = reports[strategy.tree.root.split_round - 1]
    assert judged.decisions[-1].figures["voters"] == 5
    assert "partition-2" in judged.trained_on
    assert strategy.tree.root.trial.status is Status.CONFIRMED
    assert clusters_of(strategy) == clients.planted


def test_a_client_that_lies_about_both_models_does_not_prevent_a_split():
    def lies(message, content, server_round):
        worse = message.content["config"]["cluster"] != "0"
        content["metrics"]["loss"] = 1e12 if worse else 0.0
        return type(message)(content, reply_to=message)

    clients = Quadratics(GROUPS * 3, spoil_evaluate={3: lies})
    strategy, _, _ = asking(clients, 20)
    assert clusters_of(strategy) == clients.planted
    assert strategy.tree.root.trial.status is Status.CONFIRMED


class EndsAfter(Observer):
    """Ends a run that was planned to be longer."""

    def __init__(self, last):
        self.last = last

    def on_round(self, report):
        return report.server_round == self.last


def without_time(lines):
    return [{**line, "seconds": 0} for line in lines]


@pytest.mark.slow
@pytest.mark.parametrize(("groups", "made"), [(HALVES, True), (ALIKE, False)])
def test_a_run_resumed_after_any_round_is_asked_the_same_and_ends_the_same(tmp_path, groups, made):
    rounds, settings = 7, {"criterion": Halves(), "weighting": "uniform"}
    whole = Recorder(tmp_path)
    strategy, _, _ = asking(Quadratics(groups), rounds, observers=[whole], **settings)
    assert bool(whole.summary["splits"]) == made
    for stop in range(1, rounds):
        first = Recorder(tmp_path)
        observers = [first, EndsAfter(stop)]
        asking(Quadratics(groups), rounds, observers=observers, **settings)
        second = Recorder(tmp_path, resume=first.path.name)
        again, _, _ = asking(Quadratics(groups), rounds, observers=[second], **settings)
        assert without_time(reported_lines(second)) == without_time(reported_lines(whole))
        assert again.state.memory == strategy.state.memory
        assert again.state.asked == strategy.state.asked
        assert again.failures.counts("connected") == strategy.failures.counts("connected")
        for path in (
            "tree.json",
            *(f"models/{leaf.name}.safetensors" for leaf in again.tree.leaves),
        ):
            assert (second.path / path).read_bytes() == (whole.path / path).read_bytes()


def test_under_a_wrapper_splits_are_final_and_each_client_trains_one_model():
    clients = Quadratics(GROUPS)
    strategy = strategy_of(trial_rounds=1, moving=True, personal=True, metric="loss")
    private = DifferentialPrivacyClientSideFixedClipping(strategy, 1e-6, 10.0, 6)
    private.start(clients.grid(), initial_arrays(), num_rounds=12)
    assert len(strategy.tree.leaves) == 2
    assert strategy.tree.root.trial is None
    assert sum(seen.kind == "train" for seen in clients.seen) == 12 * 6
