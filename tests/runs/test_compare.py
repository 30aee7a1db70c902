"""Runs side by side."""

from shutil import copytree

import pytest

from cflower.errors import ConfigError
from cflower.runs.compare import comparison_table, differing, grouped, pairs
from cflower.runs.record import RunRecord
from cflower.runs.tables import as_text
from tests.runs.folders import edited, made_up_run


def table_of(*runs):
    return as_text(comparison_table(grouped(runs)), width=140)


@pytest.fixture
def run(made_up):
    return RunRecord.read(made_up)


def test_several_runs_side_by_side(run, tmp_path):
    path = made_up_run(tmp_path / "other", eps1=0.5, seed=3, baselines={"federated": 0.5})
    other = RunRecord.read(path)
    rows = [line.split() for line in table_of(run, other).splitlines()]
    assert ["made-up", "other"] in rows
    assert ["seed", "0", "3"] in rows and ["eps1", "0.9", "0.5"] in rows
    assert ["mean", "90.3%*", "90.3%*"] in rows
    assert ["conventional", "FL", "-", "50.0%"] in rows
    assert not [row for row in rows if row[:3] == ["each", "client", "alone"]]


def test_a_run_that_goes_on_is_shown_but_not_paired(run, tmp_path):
    other = RunRecord.read(made_up_run(tmp_path / "other", finished=False))
    assert "(not finished)" in table_of(run, other)
    assert differing([[run], [other]]) == {}
    assert pairs([run, other]) == []


def test_two_runs_of_the_same_clients_are_paired(run, tmp_path):
    path = made_up_run(tmp_path / "other", method="federated")
    with edited(path / "summary.json") as summary:
        for client in summary["clients"].values():
            client["accuracy"] = 0.5
    other = RunRecord.read(path)
    ((first, second, pair),) = pairs([run, other], data_keys=["seed"])
    assert (first, second) == (run, other)
    assert pair.sentence.startswith("+40.4 points (95% interval ")
    assert pair.sentence.endswith("), 8 clients better, 0 worse: worth it")
    assert pairs([run, other], data_keys=["method"]) == []
    other_seed = made_up_run(tmp_path / "seed", method="federated", seed=1)
    assert pairs([run, RunRecord.read(other_seed)]) == []
    with edited(path / "summary.json") as summary:
        summary["clients"]["client-0"]["held_out"] = 21.0  # not the same examples
    assert pairs([run, RunRecord.read(path)]) == []


def test_a_run_and_its_copy_are_equal(run, made_up, tmp_path):
    other = RunRecord.read(copytree(made_up, tmp_path / "copy"))
    ((_, _, pair),) = pairs([run, other])
    assert pair.verdict == pair.as_json()["verdict"] == "equal"
    assert pair.sentence.endswith("0 clients better, 0 worse: equal")


def test_runs_with_different_leading_metrics_are_not_compared(run, tmp_path):
    path = made_up_run(tmp_path / "other")
    with edited(path / "summary.json") as summary:
        summary["metric"] = {"name": "loss", "higher_is_better": False}
    other = RunRecord.read(path)
    for runs in ([run, other], [other, run]):
        with pytest.raises(ConfigError, match=r"accuracy in made-up.*with --metric NAME"):
            comparison_table(grouped(runs))
    table = table_of(RunRecord.read(run.path, "loss"), other)
    assert "loss (lower is better) of the clients" in table


def test_a_key_of_the_app_with_the_name_of_a_measure_is_told_apart(run, tmp_path):
    other = RunRecord.read(made_up_run(tmp_path / "other"))
    run.config, other.config = {"rounds": 3}, {"rounds": 4}
    rows = [line.split() for line in table_of(run, other).splitlines()]
    assert ["rounds", "(config)", "3", "4"] in rows
    assert [row[1:] for row in rows if row[:1] == ["rounds"]][1:] == [["20", "20"]]


def test_a_mean_over_some_clients_says_over_how_many(run, tmp_path):
    path = made_up_run(tmp_path / "other")
    with edited(path / "summary.json") as summary:
        del summary["clients"]["client-0"]["accuracy"]
    rows = [line.split() for line in table_of(run, RunRecord.read(path)).splitlines()]
    assert ["mean", "of", "-", "7", "of", "8", "clients"] in rows
    assert not [
        row for line in table_of(run, run).splitlines() if "mean of" in line for row in line
    ]


def test_runs_that_differ_in_the_seed_only_are_one_column(run, tmp_path):
    others = [made_up_run(tmp_path / f"seed-{seed}", seed=seed) for seed in (1, 2)]
    with edited(others[0] / "summary.json") as summary:
        summary["metrics"]["accuracy"] = 0.8
    runs = [run, *map(RunRecord.read, others)]
    runs.append(RunRecord.read(made_up_run(tmp_path / "eps", eps1=0.5)))
    assert [len(group) for group in grouped(runs)] == [3, 1]
    assert [len(group) for group in grouped([run, run])] == [1, 1]  # the same seed twice
    assert [len(group) for group in grouped(runs, each=True)] == [1, 1, 1, 1]
    rows = [line.split() for line in table_of(*runs).splitlines()]
    assert ["3", "runs", "eps"] in rows and ["seed", "0,", "1,", "2", "0"] in rows
    (mean,) = (row for row in rows if row[:1] == ["mean"])
    assert mean == ["mean", "86.9%", "±", "6.0", "90.3%*"]
