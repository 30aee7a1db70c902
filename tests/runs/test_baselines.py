"""A run against a baseline: counts, interval, verdict, and where they are shown."""

import json
import re

import pytest

from cflower.errors import RunFolderError
from cflower.metric import Metric
from cflower.runs.findings import finding, personal_steps, way_lines
from cflower.runs.record import RunRecord
from cflower.runs.report.content import page_content
from cflower.runs.tables import as_text, run_view
from cflower.runs.ways import Ways, against
from tests.runs.folders import edited, made_up_run

ACCURACY, PERPLEXITY = Metric(), Metric("perplexity", False)


def compared(ours, theirs, metric=ACCURACY, held_out=36):
    values = {f"c-{i}": value for i, value in enumerate(ours)}
    other = dict(zip(values, theirs, strict=True))
    pair = against(values, other, dict.fromkeys(values, held_out), metric)
    assert pair is not None
    return pair


def test_clients_and_interval_in_words():
    pair = compared([35 / 36] * 8 + [0.5, 1.0], [34 / 36] * 8 + [0.75, 1.0])
    assert pair.sentence.startswith("-0.3 points (95% interval ")
    assert pair.sentence.endswith("), 8 clients better, 1 worse: may be chance")
    low, high = pair.interval or (1.0, -1.0)
    assert low < pair.difference < high
    assert pair.verdict == "may be chance"


@pytest.mark.parametrize(
    ("ours", "theirs", "verdict"),
    [
        ([0.95] * 10, [0.85] * 10, "worth it"),
        ([0.85] * 10, [0.95] * 10, "not worth it"),
        ([0.95] * 20, [0.1] * 2 + [0.95] * 18, "may be chance"),  # two of twenty may be chance
        ([1.0], [0.97], "may be chance"),
        ([0.9] * 3, [0.9] * 3, "equal"),
        ([0.9] * 30, [0.9] * 30, "equal"),
    ],
)
def test_the_verdict(ours, theirs, verdict):
    assert compared(ours, theirs).verdict == verdict


def test_a_lower_perplexity_is_better():
    pair = compared([20.0 + 0.1 * i for i in range(30)], [24.0] * 30, PERPLEXITY)
    assert (pair.better, pair.worse, pair.verdict) == (30, 0, "worth it")
    assert pair.interval is not None
    assert pair.interval[1] < 0
    assert pair.sentence.startswith("-2.55 (95% interval ")


def test_too_few_examples_are_not_tested():
    pair = compared([1.0] * 5, [0.0] * 5, held_out=2)
    assert (pair.verdict, pair.interval) == ("may be chance", None)
    assert "(too few examples to test), " in pair.sentence


def test_only_clients_with_both_values_and_held_out_examples_count():
    ours, sizes = {"a": 1.0, "b": 0.5, "d": 1.0}, {"a": 9, "b": 10, "d": None}
    pair = against(ours, {"b": 0.25, "c": 0.0, "d": 0.0}, sizes, ACCURACY)
    assert pair is not None
    assert (pair.difference, pair.held_out) == (0.25, 10)
    assert against(ours, {"c": 1.0}, sizes, ACCURACY) is None


def test_it_is_in_sentence_lines_and_report(tmp_path):
    run = made_up_run(tmp_path / "run", 20, baselines={"federated": 0.7, "isolated": 0.89})
    record = RunRecord.read(run)
    lines = finding(record.summary).splitlines()
    assert lines[-2].startswith(
        "- conventional FL: 70.0% (worst 10% of clients 70.0%, standard deviation 0.0 points). "
        "This run against it: +2"
    )
    assert lines[-2].endswith(": worth it")
    assert lines[-1].startswith("- each client alone: 89.0% (worst 10% of clients 89.0%")
    *_, federated, isolated = page_content(record)["run"]["ways"]
    assert federated["mean"] == 0.7
    assert federated["against"] in f"{lines[-2]}."
    assert isolated["key"] == "isolated"
    stored = json.loads((run / "summary.json").read_text())["baselines"]["federated"]
    assert (stored["better"], stored["verdict"]) == (20, "worth it")
    assert stored["interval"][0] < stored["difference"] < stored["interval"][1]


@pytest.mark.parametrize(("baselines", "words"), [(None, "not measured"), ({}, "measured next")])
def test_before_there_is_a_baseline(tmp_path, baselines, words):
    summary = RunRecord.read(made_up_run(tmp_path / "run", baselines=baselines)).summary
    assert (
        f"conventional FL: {words}"
        in finding(summary).splitlines()[-1 if baselines is None else -2]
    )
    assert not any(way["against"] for way in way_lines(Ways(summary)))


def test_a_baseline_that_nobody_asked_for_is_not_to_come(tmp_path):
    run = made_up_run(tmp_path / "run", baselines={"isolated": 0.5})
    with edited(run / "summary.json") as summary:
        del summary["baselines"]["federated"]
    record = RunRecord.read(run)
    assert "conventional FL: not measured; `cflower try` compares methods\n" in finding(
        record.summary
    )
    assert "measured next" not in [way["remark"] for way in way_lines(record.ways)]


def test_another_metric_leads_if_the_clients_sent_it(tmp_path):
    run = made_up_run(tmp_path / "run", baselines={"federated": 0.7})
    record = RunRecord.read(run, "loss")
    assert record.metric == Metric("loss", higher_is_better=False)
    clients = record.summary.clients.items()
    assert record.ways["own"].values == {name: line.figures["loss"] for name, line in clients}
    words = finding(record.summary)
    assert "Mean loss (lower is better) on held-out examples:\n- this run: 0." in words
    assert "(worst 10% of clients 0." in words
    assert "conventional FL: not kept by this metric" in words
    with pytest.raises(RunFolderError, match="the clients sent accuracy, loss: give one"):
        RunRecord.read(run, "rmse")


def test_another_metric_with_a_name_that_shows_no_direction_needs_one(tmp_path):
    run = made_up_run(tmp_path / "run")
    with edited(run / "summary.json") as summary:
        for client in summary["clients"].values():
            client["power"] = 0.5
    with pytest.raises(RunFolderError, match="write --metric power:lower or --metric power:hig"):
        RunRecord.read(run, "power")
    assert RunRecord.read(run, "power:lower").metric == Metric("power", higher_is_better=False)
    assert RunRecord.read(run, "power:higher").metric == Metric("power")


def test_an_accuracy_in_per_cent_is_shown_as_it_is(tmp_path):
    run = made_up_run(tmp_path / "run", baselines={"federated": 70.0})
    with edited(run / "summary.json") as summary:
        for client in summary["clients"].values():
            client["accuracy"] *= 100
        summary["metrics"] = {key: 100 * value for key, value in summary["metrics"].items()}
    record = RunRecord.read(run)
    words = " ".join(as_text(run_view(record.summary, record.clusters)).split())
    assert "this run: 90." in words and "conventional FL: 70 (" in words
    assert "%" not in re.sub("95% interval|worst 10% of", "", words) and "points" not in words
    assert not page_content(record)["run"]["metric"]["percent"]


def test_a_mean_over_some_clients_says_over_how_many(tmp_path):
    run = made_up_run(tmp_path / "run", baselines={"federated": 0.7})
    with edited(run / "summary.json") as summary:
        del summary["clients"]["client-0"]["accuracy"]
        del summary["baselines"]["federated"]["clients"]["client-1"]
        del summary["baselines"]["federated"]["clients"]["client-2"]
    record = RunRecord.read(run)
    words = finding(record.summary)
    assert "% (of 7 of 8 clients, worst 10% of clients" in words
    assert "conventional FL: 70.0% (of 6 of 8 clients, worst" in words


@pytest.mark.parametrize(
    ("shares", "words"),
    [
        ((0.5, 0.75), "50% to 75% of each is what the client trained further, the rest its"),
        ((1.0, 1.0), "100% of each is what the client trained further.\n"),
    ],
)
def test_the_share_of_personal_models_is_said(tmp_path, shares, words):
    run, step = made_up_run(tmp_path / "run"), {"reason": "", "start": "leaf", "length": 1}
    with edited(run / "summary.json") as summary:
        summary["personal"]["0.0"] = step | {"accepted": True, "kappa": 9.0, "clients": 2}
        for client, share in zip(("client-0", "client-1"), shares, strict=True):
            summary["clients"][client]["served_by"] |= {"model": "personal", "share": share}
    assert f"2 clients of 1 cluster have models of their own: {words}" in finding(
        RunRecord.read(run).summary
    )


def test_a_personal_step_that_nobody_measured_is_not_refused(tmp_path):
    run, step = made_up_run(tmp_path / "run"), {"start": None, "length": 3, "clients": 0}
    with edited(run / "summary.json") as summary:
        step |= {"accepted": False, "kappa": None, "reason": "no member measured the models"}
        summary["personal"] = {"0.0": step | {"evaluations": 0}, "0.1": step | {"evaluations": 2}}
    first, second = personal_steps(RunRecord.read(run).summary).values()
    assert first == "personal step not judged: no member measured the models"
    assert second.startswith("personal step refused: ")
