"""Runs side by side."""

import pytest

from cflower.errors import ConfigError
from cflower.runs.compare import by_seeds, comparison_table, differences, named, pair_lines
from cflower.runs.record import RunRecord
from cflower.runs.tables import as_text
from tests.runs.folders import edited, made_up_run


def test_seeds_are_one_column(tmp_path):
    paths = [made_up_run(tmp_path / f"{i}", seed=i) for i in range(3)]
    paths.append(made_up_run(tmp_path / "other", method="federated"))
    runs = named([RunRecord.read(path) for path in paths])
    counts = {name: len(alike) for name, alike in by_seeds(runs).items()}
    assert counts == {"clustered, 3 seeds": 3, "federated, 1 seed": 1}
    assert "90.3% ± " not in as_text(comparison_table(runs), 120)  # the made-up ends are alike
    assert "clustered, 3 seeds" in as_text(comparison_table(runs), 120)


def test_several_runs_side_by_side(made_up, tmp_path):
    other = made_up_run(tmp_path / "other", method="federated", eps1=0.5)
    runs = named([RunRecord.read(made_up), RunRecord.read(other)])
    assert list(runs) == ["clustered, eps1=0.9", "federated, eps1=0.5"]
    table = as_text(comparison_table(runs), width=140)
    assert "clustered" in table
    assert "90.3%*" in table
    assert "not measured" not in table
    assert differences(list(runs.values())) == (
        "The runs differ in:\n  method: 'clustered', 'federated'\n  eps1: 0.9, 0.5"
    )


def test_runs_are_named_by_the_keys_that_differ(made_up, tmp_path):
    other = made_up_run(tmp_path / "other", finished=False)
    runs = named([RunRecord.read(made_up), RunRecord.read(other)])
    assert list(runs) == ["made-up", "other"]
    assert "not finished" in as_text(comparison_table(runs), width=160)
    assert differences(list(runs.values())) == "The runs have one config."
    assert pair_lines(runs) == []
    third = made_up_run(tmp_path / "third", eps1=0.5, seed=3, baselines={"federated": 0.5})
    runs = named([RunRecord.read(made_up), RunRecord.read(third)])
    assert list(runs) == ["seed=0, eps1=0.9", "seed=3, eps1=0.5"]
    rows = [line.split() for line in as_text(comparison_table(runs), 160).splitlines()]
    assert ["conventional", "FL", "for", "all", "rounds", "-", "50.0%"] in rows
    assert not [row for row in rows if row[:3] == ["each", "client", "alone"]]


def test_one_run_given_twice_is_refused(made_up):
    with pytest.raises(ConfigError, match="Got the run made-up twice"):
        named([RunRecord.read(made_up), RunRecord.read(made_up / ".." / made_up.name)])


def test_two_runs_of_the_same_clients_are_paired(made_up, tmp_path):
    other = made_up_run(tmp_path / "other", method="federated")
    with edited(other / "summary.json") as summary:
        for client in summary["clients"].values():
            client["accuracy"] = 0.5
    runs = named([RunRecord.read(made_up), RunRecord.read(other)])
    (line,) = pair_lines(runs)
    assert line.startswith("clustered against federated: 90.3% against 50.0%; clients: 8 better, ")
    assert line.endswith(": worth it")
    assert pair_lines(runs, data_keys=["seed"]) == [line]
    assert pair_lines(runs, data_keys=["method"]) == []
    other_seed = made_up_run(tmp_path / "seed", method="federated", seed=1)
    assert pair_lines(named([RunRecord.read(made_up), RunRecord.read(other_seed)])) == []
    with edited(other / "summary.json") as summary:
        summary["clients"]["client-0"]["held_out"] = 21.0  # not the same examples
    assert pair_lines(named([RunRecord.read(made_up), RunRecord.read(other)])) == []
