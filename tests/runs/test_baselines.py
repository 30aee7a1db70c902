"""A run against a baseline: counts, interval, verdict, and where they are shown."""

import json

import pytest

from cflower.errors import RunFolderError
from cflower.messages.metrics import Metric
from cflower.runs.baselines import against
from cflower.runs.findings import baseline_lines, finding
from cflower.runs.record import RunRecord
from cflower.runs.report.content import page_content
from tests.runs.folders import edited, made_up_run

ACCURACY, PERPLEXITY = Metric(), Metric("perplexity", False)


def compared(ours, theirs, metric=ACCURACY, held_out=36):
    values = {f"c-{i}": value for i, value in enumerate(ours)}
    clients = {name: {metric.name: v, "held_out": held_out} for name, v in values.items()}
    other = dict(zip(values, theirs, strict=True))
    pair = against({"clients": clients}, other, metric)
    assert pair is not None
    return pair


def test_clients_and_interval_in_words():
    pair = compared([35 / 36] * 8 + [0.5, 1.0], [34 / 36] * 8 + [0.75, 1.0])
    assert pair.figures.startswith("92.8% against 93.1%; clients: 8 better, 1 worse; -0.3 points")
    low, high = pair.interval or (1.0, -1.0)
    assert low < pair.difference < high
    assert pair.verdict == "cannot say"


@pytest.mark.parametrize(
    ("ours", "theirs", "verdict"),
    [
        ([0.95] * 10, [0.85] * 10, "worth it"),
        ([0.85] * 10, [0.95] * 10, "not worth it"),
        ([0.95] * 20, [0.1] * 2 + [0.95] * 18, "cannot say"),  # two of twenty may be chance
        ([1.0], [0.97], "cannot say"),
        ([0.9] * 3, [0.9] * 3, "cannot say"),
    ],
)
def test_the_verdict(ours, theirs, verdict):
    assert compared(ours, theirs).verdict == verdict


def test_a_lower_perplexity_is_better():
    pair = compared([20.0 + 0.1 * i for i in range(30)], [24.0] * 30, PERPLEXITY)
    assert (pair.test.better, pair.test.worse, pair.verdict) == (30, 0, "worth it")
    assert pair.interval is not None
    assert pair.interval[1] < 0
    assert pair.figures.startswith("21.45 against 24; clients: 30 better, 0 worse; -2.55 (95%")


def test_too_few_examples_are_not_tested():
    pair = compared([1.0] * 5, [0.0] * 5, held_out=2)
    assert (pair.verdict, pair.interval) == ("cannot say", None)
    assert pair.figures.endswith("(too few examples to test)")


def test_only_clients_with_both_values_and_held_out_examples_count():
    ours = {"a": (1.0, 9), "b": (0.5, 10), "d": (1.0, None)}
    clients = {name: {"accuracy": v, "held_out": size} for name, (v, size) in ours.items()}
    pair = against({"clients": clients}, {"b": 0.25, "c": 0.0, "d": 0.0}, ACCURACY)
    assert pair is not None
    assert (pair.test.own, pair.test.num_examples) == (0.5, 10)
    assert against({"clients": clients}, {"c": 1.0}, ACCURACY) is None


def test_it_is_in_sentence_lines_and_report(tmp_path):
    run = made_up_run(tmp_path / "run", 20, baselines={"federated": 0.7, "isolated": 0.89})
    record = RunRecord.read(run)
    assert "conventional FL for all rounds: 70.0%" in finding(record.summary)
    lines = baseline_lines(record.summary)
    assert lines[0].startswith(
        "conventional FL for all rounds: 70.0% (worst tenth 70.0%, spread 0.0 points). Own model: "
        "91.0% against "
    )
    assert lines[0].endswith(": worth it")
    assert lines[1].startswith("each client alone for all rounds: 89.0% (worst tenth 89.0%")
    federated, isolated = page_content(record)["run"]["baselines"]
    assert (federated["value"], federated["against"]["verdict"]) == (0.7, "worth it")
    assert isolated["key"] == "isolated"
    stored = json.loads((run / "summary.json").read_text())["baselines"]["federated"]
    assert (stored["better"], stored["verdict"]) == (20, "worth it")
    assert stored["interval"][0] < stored["difference"] < stored["interval"][1]


@pytest.mark.parametrize(("baselines", "words"), [(None, "not measured"), ({}, "measured next")])
def test_before_there_is_a_baseline(tmp_path, baselines, words):
    summary = RunRecord.read(made_up_run(tmp_path / "run", baselines=baselines)).summary
    assert f"conventional FL for all rounds: {words}." in finding(summary)
    assert baseline_lines(summary) == []


def test_a_baseline_that_nobody_asked_for_is_not_to_come(tmp_path):
    run = made_up_run(tmp_path / "run", baselines={"isolated": 0.5})
    with edited(run / "summary.json") as summary:
        del summary["baselines"]["federated"]
    record = RunRecord.read(run)
    assert "conventional FL for all rounds: not measured." in finding(record.summary)
    assert not any(one["toCome"] for one in page_content(record)["run"]["baselines"])


def test_another_metric_leads_if_the_clients_sent_it(tmp_path):
    run = made_up_run(tmp_path / "run", baselines={"federated": 0.7})
    record = RunRecord.read(run, "loss")
    assert record.metric == Metric("loss", higher_is_better=False)
    assert record.scores == {n: line["loss"] for n, line in record.summary["clients"].items()}
    assert "Own model: mean loss " in finding(record.summary)
    with pytest.raises(RunFolderError, match="the clients sent accuracy, loss: give one"):
        RunRecord.read(run, "rmse")
