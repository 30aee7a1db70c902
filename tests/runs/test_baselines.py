"""What a run is worth against a baseline: counts, interval, verdict, and where they are told."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from cflower.runs.baselines import Paired, against, paired
from cflower.runs.record import RunRecord, baseline_lines, finding
from cflower.runs.report.content import page_content
from cflower.seeding import generator
from cflower.strategy.reports import Metric
from tests.runs.folders import made_up_run

ACCURACY, PERPLEXITY = Metric(), Metric("perplexity", False)


def compared(
    ours: list[float], theirs: list[float], metric: Metric = ACCURACY, held_out: float | None = 36.0
) -> Paired:
    def by_name(values: list[float]) -> Mapping[str, float]:
        return {f"c-{i}": value for i, value in enumerate(values)}

    found = paired(metric, by_name(ours), by_name(theirs), dict.fromkeys(by_name(ours), held_out))
    assert found is not None
    return found


def test_it_counts_examples_and_clients() -> None:
    found = compared([35 / 36] * 8 + [0.5, 1.0], [34 / 36] * 8 + [0.75, 1.0])
    assert found.figures == (
        "334 against 335 of 360 held-out examples; 8 clients better, 1 worse; "
        "-0.3 points (95% interval -4.4 to +3.9)"
    )
    assert found.verdict == "no difference"


@pytest.mark.parametrize(
    ("ours", "theirs", "verdict"),
    [
        ([0.95] * 10, [0.85] * 10, "worth it"),
        ([0.85] * 10, [0.95] * 10, "worse"),
        # Two of twenty are rescued, nothing changes for the others.
        ([0.95] * 20, [0.1] * 2 + [0.95] * 18, "worth it"),
        ([1.0], [0.97], "no difference"),
        ([0.9], [0.9], "no difference"),
    ],
)
def test_the_verdict(ours: list[float], theirs: list[float], verdict: str) -> None:
    assert compared(ours, theirs).verdict == verdict


def test_a_lower_perplexity_is_better() -> None:
    few, many = [26.0, 27.0, 25.0], [20.0 + 0.1 * i for i in range(30)]
    assert compared(few, [30.0] * 3, PERPLEXITY).verdict == "no difference"
    found = compared(many, [24.0] * 30, PERPLEXITY, None)
    assert (found.better, found.worse, found.verdict) == (30, 0, "worth it")
    assert found.difference > 0 > found.interval[1]
    assert found.figures.startswith("21.45 against 24; 30 clients better")


@pytest.mark.parametrize(("clients", "held_out"), [(6, 40), (15, 20), (50, 4)])
def test_two_models_that_are_alike_seldom_seem_different(clients: int, held_out: int) -> None:
    rng, wrong, repeats = generator(0, "alike", clients), 0, 300
    for _ in range(repeats):
        levels = rng.uniform(0.6, 1.0, clients)
        ours, theirs = (rng.binomial(held_out, levels) / held_out for _ in range(2))
        found = compared(list(ours), list(theirs), held_out=float(held_out))
        wrong += found.verdict != "no difference"
    # 5 % allowed; 0.05 * 300 = 15 and three standard deviations of it.
    assert wrong <= 26


def test_a_true_difference_of_many_clients_is_seen() -> None:
    rng = generator(0, "apart")
    ours, theirs = (rng.binomial(40, level, 100) / 40 for level in (0.93, 0.9))
    assert compared(list(ours), list(theirs), held_out=40.0).verdict == "worth it"


def test_clients_that_only_one_of_both_served_are_left_out() -> None:
    found = paired(ACCURACY, {"a": 1.0, "b": 0.5}, {"b": 0.5, "c": 0.0}, {"a": 9, "b": 10})
    assert found is not None
    assert (found.mean, found.examples) == (0.5, 10)
    assert paired(ACCURACY, {"a": 1.0}, {"b": 1.0}, {}) is None


def test_it_stands_in_sentence_lines_and_report(tmp_path: Path) -> None:
    run = made_up_run(tmp_path / "run", 20, baselines={"federated": 0.7, "isolated": 0.89})
    record = RunRecord.read(run)
    assert "conventional FL for all rounds: 70.0%" in finding(record.summary)
    lines = baseline_lines(record.summary)
    assert lines[0] == "own model: 91.0%"
    assert lines[1].startswith("conventional FL for all rounds: 70.0%. Own model: 364 against 280 ")
    assert lines[1].endswith(": worth it")
    assert lines[2].startswith("each client alone for all rounds: 89.0%. ")
    federated, isolated = page_content(record)["run"]["baselines"]
    assert (federated["value"], federated["against"]["verdict"]) == (0.7, "worth it")
    assert isolated["key"] == "isolated"
    found = against(record.summary, record.summary["baselines"]["federated"]["clients"], ACCURACY)
    assert found is not None
    assert json.loads(json.dumps(found.as_json()))["better"] == 20
    assert np.diff(found.interval)[0] == pytest.approx(2 * found.margin)


@pytest.mark.parametrize(("baselines", "said"), [(None, "not measured"), ({}, "measured next")])
def test_what_is_said_before_there_is_one(
    tmp_path: Path, baselines: Mapping[str, float] | None, said: str
) -> None:
    summary = RunRecord.read(made_up_run(tmp_path / "run", baselines=baselines)).summary
    assert f"conventional FL for all rounds: {said}." in finding(summary)
    assert baseline_lines(summary) == []
