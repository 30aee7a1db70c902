"""The commands that look at a run, as their user types them."""

import json
import shutil
from collections import defaultdict
from dataclasses import fields
from io import StringIO
from pathlib import Path
from statistics import fmean

import pandas as pd
import pytest

from cflower.cli.simulate import app_toml, meanings_in
from cflower.config import RunConfig
from cflower.settings import key_of
from tests.command import cflower, error_of, output_of
from tests.runs.folders import edited, made_up_run


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    made_up_run(folder / "20260101-a")
    made_up_run(folder / "20260102-b", method="federated")
    return folder


def test_report_writes_the_page_and_opens_it(runs, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    path = runs / "20260101-a" / "report.html"
    assert cflower("report", "20260101", "--runs", runs)[:2] == (0, f"Report: {path}\n")
    assert path.read_text().startswith("<!doctype html>")
    assert opened == []
    cflower("report", "20260101", "--runs", runs, "--open")
    assert opened == [path.as_uri()]


def test_a_place_that_cannot_be_written_is_one_sentence(runs, tmp_path):
    run = tmp_path / "20260101-a"
    shutil.copytree(runs / run.name, run)
    (run / "report.html").unlink(missing_ok=True)
    (run / "report.html").mkdir()
    status, _, err = cflower("report", "--runs", tmp_path)
    assert (status, err.count("\n")) == (1, 1)
    assert err.startswith(f"Error: Cannot write RUN {run}: ")


def test_list_has_every_run_also_those_that_ended_early(runs, tmp_path, monkeypatch):
    shutil.copytree(runs / "20260101-a", tmp_path / "20260101-a")
    others = ["20260102-begun", "20260103-damaged", "20260104-old"]
    for name in others:
        (tmp_path / name).mkdir()
        shutil.copy(runs / "20260101-a" / "config.json", tmp_path / name)
    (tmp_path / "20260103-damaged" / "summary.json").write_text("{")
    with edited(tmp_path / "20260104-old" / "config.json") as begun:
        del begun["format"]
    out = output_of("list", "--runs", tmp_path)
    rows = [line.split() for line in out.splitlines() if line.strip().startswith("2026")]
    assert [row[0] for row in rows] == ["20260101-a", *others]
    summary = json.loads((runs / "20260101-a" / "summary.json").read_text())
    accuracy = summary["metrics"]["accuracy"]
    numbers = [str(summary["rounds"]), *(str(len(summary[k])) for k in ("clients", "clusters"))]
    assert rows[0][1:] == ["finished", "cflower", *numbers, "accuracy", f"{accuracy:.1%}"]
    assert rows[1][1:3] == ["not", "begun"]
    assert rows[2][1] == "damaged" and rows[3][1:3] == ["other", "version"]
    monkeypatch.setenv("COLUMNS", "60")
    narrow = output_of("list", "--runs", tmp_path).split()
    assert {"finished", "accuracy", f"{accuracy:.1%}"} <= {*narrow}  # nothing is cut
    listed = json.loads(cflower("list", "--runs", tmp_path, "--json").stdout)
    assert [row["run"] for row in listed] == [row[0] for row in rows]
    assert (listed[0]["metric"], listed[0]["mean"]) == ("accuracy", accuracy)
    assert listed[1]["mean"] is None
    status, out, _ = cflower("list", "--runs", tmp_path / "nosuch")
    assert (status, out) == (0, f"There is no run in {tmp_path / 'nosuch'}.\n")


def test_show_and_compare_for_programs(runs):
    shown = json.loads(cflower("show", "20260101", "--runs", runs, "--json").stdout)
    assert shown.pop("tree") == json.loads((runs / "20260101-a/tree.json").read_text())["clusters"]
    best = shown.pop("best_rounds")
    assert shown == json.loads((runs / "20260101-a/summary.json").read_text())
    scores = defaultdict[int, list[float]](list)
    for text in (runs / "20260101-a/rounds.jsonl").read_text().splitlines():
        entry = json.loads(text)
        scores[entry["round"]] += [one["accuracy"] for one in entry["clients"].values()]
        if entry["round"] == best["0.1"][0] and entry["cluster"] == "0.1":
            assert entry["metrics"]["accuracy"] == best["0.1"][1]
    means = {number: fmean(of) for number, of in scores.items()}
    assert best["0"][1] == pytest.approx(max(means.values()))
    assert means[best["0"][0]] == pytest.approx(max(means.values()))
    compared = cflower("compare", "20260101", "20260102", "--runs", runs, "--json").stdout
    content = json.loads(compared)
    assert content["differences"]["method"] == ["clustered", "federated"]
    assert [run["run"] for run in content["runs"]] == ["20260101-a", "20260102-b"]
    assert content["runs"][0]["mean"] == shown["metrics"]["accuracy"]


def test_runs_do_not_differ_in_keys_without_an_effect(tmp_path):
    made_up_run(tmp_path / "20260101-a")
    made_up_run(tmp_path / "20260102-b", seed=1, run_name="b", clients_together=False)
    (group,) = json.loads(output_of("compare", tmp_path, "--json"))["groups"]
    assert group["runs"] == ["20260101-a", "20260102-b"]


def test_explain_with_and_without_other_thresholds(runs):
    out = output_of("explain", "20260101", "--runs", runs)
    assert "split in round 6 into 0.0 and 0.1" in out
    out = output_of("explain", "20260101", "--runs", runs, "-c", "eps1=9.0 eps2=0.1")
    assert "What if the norm criterion had decided, with eps1 = 9.0, eps2 = 0.1?" in out


def test_explain_for_programs_has_a_paragraph_for_each_cluster(runs):
    content = json.loads(output_of("explain", "20260101", "--runs", runs, "--json"))
    assert [*content["clusters"]] == ["0", "0.0", "0.1"]
    assert content["clusters"]["0"] in output_of("explain", "20260101", "--runs", runs)


def test_each_client_by_round_is_a_table(runs):
    text = output_of("show", "20260101", "--runs", runs, "--by-round")
    table = pd.read_csv(StringIO(text), dtype={"cluster": str})
    rows = json.loads(output_of("show", "20260101", "--runs", runs, "--by-round", "--json"))
    assert table[["round", "client"]].drop_duplicates().shape[0] == len(table) == len(rows)
    entries = map(json.loads, (runs / "20260101-a/rounds.jsonl").read_text().splitlines())
    assert len(rows) == sum(len(entry["clients"]) for entry in entries)
    assert table.loc[0, "accuracy"] == rows[0]["accuracy"]


def test_a_run_is_found_by_its_name(runs):
    with edited(runs / "20260101-a" / "config.json") as config:
        config["name"] = "screening"
    assert json.loads(output_of("show", "screening", "--runs", runs, "--json"))["run_id"]
    assert "have the name 'screen'" in error_of("show", "screen", "--runs", runs)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("compare", "20260101"), "Got one run, but expected two or more to compare."),
        (("explain", "20260101", "-c", "momentum=0.5"), "'momentum' needs a new run"),
        (("explain", "20260101", "-c", "eps1=-1"), "eps1"),
        (("explain", "20260101", "-c", "linkage='ward'"), "linkage"),
        (("explain", "20260101", "-c", "esp1=0.5"), "did you mean 'eps1'?"),
        *(((command, "1999"), "'1999'") for command in ("report", "explain")),
        (
            ("show", "1999"),
            "begins so: give the whole id of one, such as the newest: 20260101-a, 20260102-b.",
        ),
        (("show", "2026"), "2 runs in"),
        (("show", Path(__file__).parent), "tests/cli has no config.json: it is not a run folder."),
    ],
)
def test_what_cannot_be_shown_is_one_sentence(runs, command, words):
    assert words in error_of(*command, "--runs", runs)


def test_every_key_is_explained_and_h_is_help():
    assert set(meanings_in(app_toml())) == {key_of(spec) for spec in fields(RunConfig)}
    for command in ("list", "show", "simulate"):
        assert "Usage:" in output_of(command, "-h")
    assert "--install-completion" in output_of("-h")
