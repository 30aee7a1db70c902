"""The commands that look at a run, as their user types them."""

import json
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.command import cflower
from tests.runs.folders import made_up_run


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    made_up_run(folder / "20260101-a")
    made_up_run(folder / "20260102-b", method="federated")
    return folder


def test_report_writes_the_page_and_says_where(runs: Path) -> None:
    status, out, _ = cflower("report", "20260101", "--runs", runs)
    path = runs / "20260101-a" / "report.html"
    assert (status, out) == (0, f"Report: {path}\n")
    assert path.read_text().startswith("<!doctype html>")


def test_report_opens_it(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    cflower("report", "20260101", "--runs", runs, "--open")
    assert opened == [(runs / "20260101-a" / "report.html").as_uri()]


@pytest.mark.slow
@pytest.mark.skipif(find_spec("matplotlib") is None, reason="matplotlib is not installed")
def test_figures_and_comparison(runs: Path, tmp_path: Path) -> None:
    status, out, _ = cflower("report", "20260101", "--runs", runs, "--figures", tmp_path / "f")
    assert status == 0
    assert out.count("Figure: ") == len(list((tmp_path / "f").iterdir())) == 12
    picture = tmp_path / "c.svg"
    status, out, _ = cflower("compare", "20260101", "20260102", "--runs", runs, "--figure", picture)
    assert status == 0
    assert "clustered" in out
    assert "method: 'clustered', 'federated'" in out
    assert picture.is_file()


def test_one_run_is_nothing_to_compare(runs: Path) -> None:
    status, _, err = cflower("compare", "20260101", "--runs", runs)
    assert (status, err) == (1, "Error: Got one run, but expected two or more to compare.\n")


@pytest.mark.skipif(find_spec("matplotlib") is None, reason="matplotlib is not installed")
def test_a_place_that_cannot_be_written_is_one_sentence(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", "/proc/x"):
        status, _, err = cflower("report", "20260101", "--runs", runs, "--figures", place)
        assert status == 1
        assert err.startswith(f"Error: Cannot write --figures {place}: ")
        assert err.count("\n") == 1
    for place in (tmp_path / "file" / "c.png", "/proc/x/y.png"):
        status, _, err = cflower(
            "compare", "20260101", "20260102", "--runs", runs, "--figure", place
        )
        assert status == 1
        assert err.startswith(f"Error: Cannot write --figure {place}: ")
        assert err.count("\n") == 1


def test_list_has_every_run_also_those_that_ended_early(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "20260101-a", tmp_path / "20260101-a")
    for name in ("20260102-begun", "20260103-damaged"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    (tmp_path / "20260103-damaged" / "summary.json").write_text("{")
    status, out, _ = cflower("list", "--runs", tmp_path)
    assert status == 0
    rows = [line.split() for line in out.splitlines() if line.strip().startswith("2026")]
    assert [row[0] for row in rows] == ["20260101-a", "20260102-begun", "20260103-damaged"]
    summary = json.loads((runs / "20260101-a" / "summary.json").read_text())
    accuracy = summary["metrics"]["accuracy"]
    numbers = [str(summary["rounds"]), *(str(len(summary[k])) for k in ("clients", "clusters"))]
    assert rows[0][1:] == ["finished", *numbers, f"{accuracy:.1%}"]
    assert rows[1][1:3] == ["not", "begun"]
    assert rows[2][1] == "damaged"
    listed = json.loads(cflower("list", "--runs", tmp_path, "--json").stdout)
    assert [row["run"] for row in listed] == [row[0] for row in rows]
    assert listed[0]["accuracy"] == accuracy
    assert listed[1]["accuracy"] is None
    status, out, _ = cflower("list", "--runs", tmp_path / "nosuch")
    assert (status, out) == (0, f"There is no run in {tmp_path / 'nosuch'}.\n")


def test_show_and_compare_for_programs(runs: Path) -> None:
    shown = json.loads(cflower("show", "20260101", "--runs", runs, "--json").stdout)
    assert shown.pop("tree") == json.loads((runs / "20260101-a/tree.json").read_text())["clusters"]
    assert shown == json.loads((runs / "20260101-a/summary.json").read_text())
    compared = cflower("compare", "20260101", "20260102", "--runs", runs, "--json").stdout
    told = json.loads(compared)
    assert told["differences"]["method"] == ["clustered", "federated"]
    assert [run["run"] for run in told["runs"]] == ["20260101-a", "20260102-b"]
    assert told["runs"][0]["mean"] == shown["metrics"]["accuracy"]


@pytest.mark.parametrize("command", ["show", "report", "watch", "explain", "assign", "export"])
def test_help_says_what_run_is(command: str) -> None:
    status, out, _ = cflower(command, "--help")
    assert status == 0
    assert "RUN is a run folder or the beginning of its id" in out


def test_explain_with_and_without_other_thresholds(runs: Path) -> None:
    status, out, _ = cflower("explain", "20260101", "--runs", runs)
    assert status == 0
    assert "split in round 6 into 0.0 and 0.1" in out
    status, out, _ = cflower("explain", "20260101", "--runs", runs, "-c", "eps1=9.0 eps2=0.1")
    assert "what if eps1 = 9.0, eps2 = 0.1?" in out
    status, _, err = cflower("explain", "20260101", "--runs", runs, "-c", "momentum=0.5")
    assert (status, "'momentum' needs a new run" in err) == (1, True)


def test_watch_serves_until_it_is_interrupted(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(server: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("cflower.runs.watch.ReportServer.serve_forever", interrupted)
    status, out, _ = cflower("watch", "20260101", "--runs", runs)
    assert status == 0
    assert "20260101-a: http://127.0.0.1:" in out


def test_a_run_that_is_not_there(runs: Path) -> None:
    for command in ("report", "watch", "explain"):
        status, _, err = cflower(command, "1999", "--runs", runs)
        assert status == 1
        assert "'1999'" in err
