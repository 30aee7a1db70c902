"""The end of a run in the terminal."""

import re
from io import BytesIO, TextIOWrapper

import pytest

from cflower.runs.record import RunRecord
from cflower.runs.tables import as_text, model_tables, run_view
from tests.runs.folders import edited, made_up_run


def view(run, width=100, **keys):
    record = RunRecord.read(run)
    return as_text(run_view(record.summary, record.clusters, **keys), width)


def test_few_clients_have_a_row_each(made_up):
    text = view(made_up)
    assert "client out cluster model run group" in " ".join(text.split())
    (row,) = [line.split() for line in text.splitlines() if line.split()[:1] == ["client-3"]]
    assert row == ["client-3", "20", "0.0", "100.0%*", "90.3%", "0"]
    assert "ensemble" not in text


def test_baselines_and_selection_have_columns_of_their_own(tmp_path):
    run = made_up_run(tmp_path / "run", baselines={"federated": 0.95, "isolated": 0.5})
    with edited(run / "summary.json") as summary:
        summary["selection"] = "best"
        for client in summary["clients"].values():
            client |= {"accuracy": 0.25, "best_cluster": "0"}
    text = as_text(model_tables(RunRecord.read(run).summary))
    (row,) = [line.split() for line in text.splitlines() if line.split()[:1] == ["client-2"]]
    assert row == ["client-2", "20", "0.0", "70.0%", "90.2%", "25.0%", "95.0%*", "50.0%", "0", "0"]


def test_methods_of_the_literature_have_lines_and_no_columns(tmp_path):
    values = {"federated": 0.95, "isolated": 0.5, "scaffold": 0.6}
    run = made_up_run(tmp_path / "run", baselines=values)
    lines, table = view(run, 80).split("client × model")
    assert "- SCAFFOLD: 60.0%" in lines
    assert "95.0%*" in table
    assert "60.0%" not in table


def test_many_clients_are_summed_up(tmp_path):
    text = view(made_up_run(tmp_path / "run", clients=60))
    rows = [line.split() for line in text.splitlines()]
    assert ["0.1", "30", "600", "75.0%", "92.8%*", "90.0%"] in rows
    assert "`cflower show --all` shows each of the 60 clients." in text
    every = view(tmp_path / "run", every=True)
    assert sum(line.split()[1:2] == ["20"] for line in every.splitlines()) == 60


@pytest.mark.slow
@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("clients", [8, 60])
def test_it_is_never_wider_than_the_terminal_and_cuts_nothing(tmp_path, width, clients):
    run = made_up_run(
        tmp_path / "run",
        clients,
        name="a-client-with-a-long-name-{}",
        baselines={"federated": 0.95, "isolated": 0.5},
    )
    text = view(run, width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    assert "95.0%*" in text


def test_the_tree_has_the_mean_of_the_clusters_model_and_of_those_that_serve(tmp_path):
    run = made_up_run(tmp_path / "run")
    with edited(run / "summary.json") as summary:
        client = summary["clients"]["client-0"]
        client |= {"accuracy": 1.0, "leaf_accuracy": 0.5}
        client["served_by"] = {"model": "personal", "cluster": "0.0", "share": 0.5, "file": "x"}
        del summary["clients"]["client-7"]["accuracy"]
        summary["clients"]["client-7"]["leaf_accuracy"] = None
    text = view(run, 300)
    means = re.findall(r"0\.\d: 4 clients, mean accuracy ([^:]*): client", text)
    assert means == ["80.2% (92.7% with the models that serve them)", "90.5% of 3 of them"]


def test_a_cluster_without_figures_has_no_mean(tmp_path):
    run = made_up_run(tmp_path / "run", clients=4)
    with edited(run / "summary.json") as summary:
        summary["metric"]["name"] = "f1"  # which no client sent
    assert "cluster 0.0: 2 clients: client-0, client-1" in view(run)


def test_where_standard_output_takes_few_characters_lines_are_ascii(tmp_path, monkeypatch):
    run = made_up_run(tmp_path / "run")
    out = TextIOWrapper(BytesIO(), encoding="cp1252", errors="strict")
    monkeypatch.setattr("sys.stdout", out)
    text = as_text(model_tables(RunRecord.read(run).summary))
    out.write(text)  # as on Windows, into a file
    assert "─" not in text
