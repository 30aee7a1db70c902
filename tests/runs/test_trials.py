"""What clients judged of splits, in report, explain and tables: of a real run of each kind."""

import pytest
from flwr.app import Message, MetricRecord

from cflower import Recorder
from cflower.runs.explain import explanation
from cflower.runs.record import RunRecord
from cflower.runs.report.content import page_content
from cflower.runs.tables import as_text, cluster_tree
from tests.strategy.quadratics import Halves, Quadratics
from tests.strategy.test_trials import asking


def recorded(path, clients, rounds):
    """A run in which the split in the middle is put to the clients in round 3."""
    recorder = Recorder(path)
    asking(clients, rounds, criterion=Halves(), observers=[recorder])
    return RunRecord.read(recorder.path)


def always(loss_apart, num_examples=30):
    """Every client measures a loss of 1 with the common model, and this one with its part's."""

    def spoil(message, content, _):
        loss = 1.0 if message.content["config"]["cluster"] == "0" else loss_apart
        content["metrics"] = MetricRecord({"loss": loss, "num-examples": num_examples})
        return Message(content, reply_to=message)

    return dict.fromkeys(range(6), spoil)


@pytest.mark.slow
@pytest.mark.parametrize("loss_apart", [1.0, 2.0])
def test_every_split_that_clients_refused_is_shown(tmp_path, monkeypatch, loss_apart):
    monkeypatch.setattr("cflower.strategy.conditions.FOR_QUESTIONS", 9.0)
    run = recorded(tmp_path, Quadratics((0,) * 6, spoil_evaluate=always(loss_apart)), 16)
    page, text = page_content(run), str(explanation(run))
    trials = [(trial["round"], trial["began"], trial["status"]) for trial in page["trials"]]
    # In round 12 the examples that decide trained, so the clients were asked after round 13.
    assert trials == [(3, 3, "refused"), (6, 6, "refused"), (13, 13, "refused")]
    assert all(trial["reason"] in text for trial in page["trials"])
    assert [cluster["name"] for cluster in page["clusters"]] == ["0"]
    assert page["lines"]["round"] == [*range(1, 17)]
    assert page["run"]["firstSplit"] is None
    assert page["heard"] == [[16, 16]] * 6
    assert run.summary.splits == run.summary.lasting == []
    assert run.summary.common_rounds == 16
    assert "Cluster 0 (6 clients, rounds 1 to 16): was not split." in text
    assert text.count("round 3, split refused") == 1


@pytest.mark.parametrize("rounds", [3, 9])
def test_a_split_is_shown_with_what_its_clients_judged(rounds, tmp_path):
    run = recorded(tmp_path, Quadratics((0, 0, 0, 1, 1, 1)), rounds)
    page = page_content(run)
    assert [cluster["name"] for cluster in page["clusters"]] == ["0", "0.0", "0.1"]
    assert [(split.round, split.trial) for split in run.summary.splits] == [(3, "confirmed")]
    (trial,) = page["trials"]
    assert (trial["round"], trial["began"], trial["status"]) == (3, 3, "confirmed")
    assert trial["tested"] and trial["sure"]
    assert trial["reason"] == run.summary.splits[0].verdict
    assert run.ways.in_words("fl") == "average of the clusters' models (not conventional FL)"
    assert "split in round 3, confirmed" in as_text(cluster_tree(run.summary, run.clusters))
    assert f"round 3, split confirmed: {trial['reason']}" in str(explanation(run))


def test_what_was_not_measured_is_not_confirmed(tmp_path):
    spoilt = always(1.0, num_examples=0)
    run = recorded(tmp_path, Quadratics((0, 0, 0, 1, 1, 1), spoil_evaluate=spoilt), 9)
    assert run.summary.splits[0].trial is None
    (shown,) = page_content(run)["trials"]
    assert not (shown["tested"] or shown["sure"])
    assert "confirmed" not in as_text(cluster_tree(run.summary, run.clusters))
    assert run.summary.decided_by == "none"
