"""The commands that look at a run, as their user types them."""

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
    assert out.count("Figure: ") == len(list((tmp_path / "f").iterdir())) == 4
    picture = tmp_path / "c.svg"
    status, out, _ = cflower("compare", "20260101", "20260102", "--runs", runs, "--figure", picture)
    assert status == 0
    assert "clustered" in out
    assert "method: 'clustered', 'federated'" in out
    assert picture.is_file()


def test_one_run_is_nothing_to_compare(runs: Path) -> None:
    status, _, err = cflower("compare", "20260101", "--runs", runs)
    assert (status, err) == (1, "Error: Got one run, but expected two or more to compare.\n")


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
