"""Splits on trial in report, explain and tables: of a real run of each kind."""

import pytest
from flwr.app import Message, MetricRecord

from cflower import Observer, Recorder
from cflower.runs.explain import explanation
from cflower.runs.findings import common_in_words
from cflower.runs.record import RunRecord
from cflower.runs.report.content import page_content
from cflower.runs.tables import as_text, cluster_tree
from tests.strategy.quadratics import Halves, Quadratics
from tests.strategy.test_trials import on_trial, questions_without_limit  # noqa: F401


class EndsAfter(Observer):
    """Ends a run before its last round."""

    def __init__(self, last):
        self.last = last

    def on_round(self, report):
        return report.server_round == self.last


def recorded(path, clients, rounds, *others):
    """A run that is split in the middle in round 3, on trial for three rounds."""
    recorder = Recorder(path)
    on_trial(clients, rounds, criterion=Halves(), observers=[recorder, *others])
    return RunRecord.read(recorder.path)


def test_a_split_that_was_taken_back(tmp_path):
    def worse_apart(message, content, _):
        apart = message.content["config"]["cluster"] != "0"
        content["metrics"] = MetricRecord({"loss": 1.0 + apart, "num-examples": 30})
        return Message(content, reply_to=message)

    clients = Quadratics((0,) * 6, spoil_evaluate=dict.fromkeys(range(6), worse_apart))
    undone = recorded(tmp_path, clients, 9)
    page = page_content(undone)
    assert [cluster["name"] for cluster in page["clusters"]] == ["0"]
    assert set(page["lines"]["cluster"]) == {"0"}
    assert page["lines"]["round"] == [1, 2, 3, 7, 8, 9]
    (trial,) = page["trials"]
    assert (trial["round"], trial["status"]) == (6, "undone")
    assert trial["reason"] == undone.summary.splits[0].verdict
    assert page["run"]["firstSplit"] is None
    assert page["heard"] == [[9, 9]] * 6
    assert undone.summary.lasting == []
    assert undone.summary.common_rounds == 9
    text = explanation(undone)
    assert "Cluster 0 (6 clients, rounds 1 to 9): was not split." in text
    assert f"round 6, {trial['outcome']}: {trial['reason']}" in text
    assert "Cluster 0.0 (3 clients, rounds 4 to 6): was joined with" in text


def test_every_judgement_of_the_clients_is_shown(tmp_path):
    def always_one(message, content, _):
        content["metrics"] = MetricRecord({"loss": 1.0, "num-examples": 30})
        return Message(content, reply_to=message)

    clients = Quadratics((0,) * 6, spoil_evaluate=dict.fromkeys(range(6), always_one))
    run = recorded(tmp_path, clients, 16)
    trials = page_content(run)["trials"]
    statuses = [(trial["round"], trial["status"]) for trial in trials]
    assert statuses == [(6, "undone"), (15, "undone")]
    assert all(trial["reason"] in explanation(run) for trial in trials)


@pytest.mark.parametrize(
    ("rounds", "status", "words"),
    [(9, "confirmed", "confirmed"), (5, "open", "not judged by its clients before the end")],
)
def test_a_lasting_split_is_shown_with_its_status(rounds, status, words, tmp_path):
    run = recorded(tmp_path, Quadratics((0, 0, 0, 1, 1, 1)), 9, EndsAfter(rounds))
    page = page_content(run)
    assert [cluster["name"] for cluster in page["clusters"]] == ["0", "0.0", "0.1"]
    assert run.summary.splits[0].trial == status
    judged = [trial["status"] for trial in page["trials"]]
    assert judged == (["confirmed"] if rounds == 9 else [])
    assert common_in_words(run.summary) == "common model (mean of the clusters' models)"
    assert f"split in round 3, {words}" in as_text(cluster_tree(run.summary, run.clusters))
    going_on = run.summary.model_copy(update={"finished": False})
    assert ("on trial until round 6" in as_text(cluster_tree(going_on, run.clusters))) == (
        status == "open"
    )


@pytest.mark.parametrize(
    ("groups", "status"), [((0, 0, 0, 1, 1, 1), "confirmed"), ((0,) * 6, "undone")]
)
def test_a_split_in_the_last_round_is_judged_in_the_same_round(groups, status, tmp_path):
    run = recorded(tmp_path, Quadratics(groups), 3)
    assert [(s.round, s.trial) for s in run.summary.splits] == [(3, status)]
    assert run.summary.rounds == 3
    page = page_content(run)
    assert [(trial["round"], trial["status"]) for trial in page["trials"]] == [(3, status)]
    assert "round 3" in explanation(run)


def test_what_was_not_measured_is_not_confirmed(tmp_path):
    def none_held_out(message, content, _):
        content["metrics"] = MetricRecord({"loss": 1.0, "num-examples": 0})
        return Message(content, reply_to=message)

    spoilt = dict.fromkeys(range(6), none_held_out)
    run = recorded(tmp_path, Quadratics((0, 0, 0, 1, 1, 1), spoil_evaluate=spoilt), 9)
    assert run.summary.splits[0].trial is None
    (shown,) = page_content(run)["trials"]
    assert not (shown["tested"] or shown["sure"])
    assert "confirmed" not in as_text(cluster_tree(run.summary, run.clusters))
    assert run.summary.decided_by == "none"
