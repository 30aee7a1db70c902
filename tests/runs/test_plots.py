"""Pictures for papers, and runs side by side."""

import json
from pathlib import Path

import pytest

from cflower.errors import ConfigError
from cflower.runs import plots
from cflower.runs.compare import comparison_table, differences, named, pair_lines
from cflower.runs.record import RunRecord
from cflower.runs.tables import as_text
from tests.runs.folders import made_up_run

pytest.importorskip("matplotlib", reason="matplotlib is not installed")


@pytest.mark.slow
def test_accuracy_and_norms_as_png_and_svg(made_up: Path, tmp_path: Path) -> None:
    run = RunRecord.read(made_up)
    written = plots.write_figures(run, tmp_path / "new" / "folder")
    names = ["accuracy.png", "accuracy.svg", "norms.png", "norms.svg"]
    assert [path.name for path in written] == names
    assert written[0].read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in written[1].read_bytes()
    before = [path.read_bytes() for path in written]
    again = plots.write_figures(run, tmp_path / "new" / "folder")
    assert [path.read_bytes() for path in again] == before


def test_what_the_pictures_draw(made_up: Path) -> None:
    run = RunRecord.read(made_up)
    with plots.new_figure(4, 3) as figure:
        axes = figure.subplots()
        plots.norm_picture(axes, run)
        level = {line.get_ydata()[0] for line in axes.lines if len(set(line.get_ydata())) == 1}
        assert {0.9, 1.6} <= level
        assert [text.get_text() for text in axes.texts] == ["ε1 = 0.9", "ε2 = 1.6"]
        assert [6, 6] in [list(line.get_xdata()) for line in axes.lines]


def test_several_runs_side_by_side(made_up: Path, tmp_path: Path) -> None:
    other = made_up_run(tmp_path / "other", method="federated", eps1=0.5)
    runs = named([RunRecord.read(made_up), RunRecord.read(other)])
    assert list(runs) == ["clustered", "federated"]
    table = as_text(comparison_table(runs), width=140)
    assert "clustered" in table
    assert "90.3%*" in table
    assert "not measured" not in table
    assert differences(list(runs.values())) == (
        "The runs differ in:\n  method: 'clustered', 'federated'\n  eps1: 0.9, 0.5"
    )
    (picture,) = plots.write_comparison(runs, tmp_path / "side-by-side.svg")
    assert "clustered" in picture.read_text() or picture.stat().st_size > 5000


def test_runs_are_named_by_the_keys_that_differ(made_up: Path, tmp_path: Path) -> None:
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


def test_one_run_given_twice_is_said_so(made_up: Path) -> None:
    with pytest.raises(ConfigError, match="Got the run made-up twice"):
        named([RunRecord.read(made_up), RunRecord.read(made_up / ".." / made_up.name)])


def test_two_runs_of_the_same_clients_are_paired(made_up: Path, tmp_path: Path) -> None:
    other = made_up_run(tmp_path / "other", method="federated")
    summary = json.loads((other / "summary.json").read_text())
    for client in summary["clients"].values():
        client["accuracy"] = 0.5
    (other / "summary.json").write_text(json.dumps(summary))
    runs = named([RunRecord.read(made_up), RunRecord.read(other)])
    (line,) = pair_lines(runs)
    assert line.startswith("clustered against federated: 145 against 80 of 160 held-out examples; ")
    assert line.endswith(": worth it")
    summary["clients"]["client-0"]["held_out"] = 21.0  # not the same examples
    (other / "summary.json").write_text(json.dumps(summary))
    assert pair_lines(named([RunRecord.read(made_up), RunRecord.read(other)])) == []


def test_without_matplotlib_it_says_what_to_install(
    made_up: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r"pip install 'cflower\[figures\]'"):
        plots.write_figures(RunRecord.read(made_up), tmp_path)
