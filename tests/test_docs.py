"""The code of the documentation runs, and its links lead somewhere."""

import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from run import MEASUREMENTS

from cflower import ClusteredFL, Recorder
from cflower.algorithm.criteria import NeverSplit
from cflower.config import RunConfig
from cflower.settings import key_of
from tests.command import ENVIRONMENT, cflower, output_of
from tests.strategy.quadratics import (
    CENTERS,
    Quadratics,
    drawn_to_the_opposite,
    initial_arrays,
)

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
GENERATED = {DOCS / "reference/keys.md", DOCS / "reference/classes.md"}
"""Written by `make docs`."""
PAGES = [
    *ROOT.glob("*.md"),
    *sorted(set(DOCS.rglob("*.md")) - GENERATED),
    *(ROOT / "examples").rglob("README.md"),
    ROOT / "tests/golden/README.md",
]


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


def anchor(heading):
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_leads_to_a_file_and_its_heading(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" in link:
            continue
        path, _, fragment = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), f"{page.name} links to {link}"
        if fragment:
            headings = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)
            assert fragment in map(anchor, headings), f"{page.name} links to {link}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_and_measurement_that_a_page_names_exists(page):
    if page.name == "CHANGELOG.md":  # names files of earlier versions
        return
    for path in re.findall(r"`((?:cflower|scripts|tests)/[\w/.]+)`", page.read_text()):
        assert (ROOT / path).exists(), f"{page.name} names {path}"
    experiments = "".join(path.read_text() for path in ROOT.glob("scripts/reproduction/*.py"))
    for name in re.findall(r"scripts/run\.py ([a-z][\w-]+)", page.read_text()):
        assert name in MEASUREMENTS or f'"{name}"' in experiments, name
    assert not re.findall(r"python scripts/(?!run|release|federation)", page.read_text())


@pytest.mark.slow
def test_the_tutorial_runs_from_top_to_bottom(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", os.fspath(tmp_path))
    monkeypatch.chdir(tmp_path)
    install, *commands = "".join(blocks(DOCS / "guide/tutorial.md", "bash")).splitlines()
    assert "pip install" in install
    exec("".join(blocks(DOCS / "guide/tutorial.md", "python")), {})  # writes the CSV files
    for line in commands:
        words = shlex.split(line, comments=True)
        if words[0] == "python":  # what an export leaves
            run = subprocess.run([sys.executable, *words[1:-2]], capture_output=True, text=True)
            assert run.stdout.startswith("predicted,"), run.stderr
            continue
        assert words[0] == "cflower"
        short = ["-c", "num-server-rounds=2"] if words[1] in ("simulate", "try") else []
        status, _, errors = cflower(*words[1:], *short)
        assert status == 0, line + errors


@pytest.mark.slow
def test_the_loop_over_seeds_is_compared_and_drawn(tmp_path, monkeypatch):
    page, loop = DOCS / "guide/compare-methods.md", "set -e\n"
    loop += next(block for block in blocks(page, "bash") if block.startswith("for seed"))
    for long, short in (
        ("seed in 0 1 2", "seed in 0 1"),
        ("rounds=10", "rounds=2 dataset-size=400"),
    ):
        assert long in loop
        loop = loop.replace(long, short)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    done = subprocess.run(
        ["bash", "-c", loop], env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {line.split("  ")[0].strip(): line.split() for line in done.stdout.splitlines()}
    assert rows["seed"] == ["seed", "0,", "1", "0,", "1"]
    assert rows["mean"].count("±") == 2
    groups = json.loads(output_of("compare", "compared", "--json"))["groups"]
    assert [len(group["runs"]) for group in groups] == [2, 2]
    each = json.loads(output_of("compare", "compared", "--each", "--json"))["groups"]
    assert [len(group["runs"]) for group in each] == [1, 1, 1, 1]

    names = {}
    (plot,) = blocks(page, "python")
    exec(plot, names)
    assert names["plt"].gca().get_legend_handles_labels()[1] == ["clustered", "federated"]
    assert (tmp_path / "curves.png").stat().st_size > 5000
    names["plt"].close()


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path):
    pytest.importorskip("sphinx")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "-b", "html", DOCS, tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    keys = (tmp_path / "reference/keys.html").read_text()
    assert all(key_of(spec) in keys for spec in fields(RunConfig))


@pytest.fixture
def own_app(tmp_path, monkeypatch):
    """The arguments of a ServerApp, with a home folder of its own."""
    monkeypatch.setenv("HOME", os.fspath(tmp_path))
    clients = Quadratics((0,) * 5 + (1,) * 5)
    context = SimpleNamespace(run_config={"resume": "", "lr": 0.5})
    return SimpleNamespace(grid=clients.grid(), context=context, arrays=initial_arrays())


@pytest.mark.slow
def test_the_code_of_own_app_runs_from_top_to_bottom(own_app):
    names = vars(own_app)
    for block in blocks(DOCS / "guide/own-app.md", "python"):
        if "resume=" in block:
            own_app.context.run_config["resume"] = names["recorder"].path.name
        exec(re.sub(r"num_rounds=(\d)0\b", r"num_rounds=1\1", block), names)  # 15 for 50
    assert len(names["strategy"].models) > 1


def test_the_criterion_of_contributing_splits(own_app):
    names = vars(own_app)
    exec(blocks(ROOT / "CONTRIBUTING.md", "python")[0], names)
    strategy = ClusteredFL(names["EveryTenthRound"]())
    strategy.start(own_app.grid, own_app.arrays, num_rounds=10)
    assert len(strategy.tree.leaves) == 2


@pytest.mark.parametrize("projection_dim", [0, 4])
def test_the_aggregator_of_contributing_withstands_two_of_six_clients(projection_dim):
    names = {}
    exec(blocks(ROOT / "CONTRIBUTING.md", "python")[1], names)
    distances = []
    for rule in ("fedavg", names["GeometricMedian"]()):
        clients = Quadratics((0,) * 6, spoil=dict.fromkeys((0, 1), drawn_to_the_opposite))
        strategy = ClusteredFL(NeverSplit(), aggregation=rule, projection_dim=projection_dim)
        strategy.start(clients.grid(), initial_arrays(), num_rounds=20)
        model = strategy.tree.root.model.trained
        distances.append(float(np.linalg.norm(model - CENTERS[0])))
    assert distances[1] < 0.2 * distances[0]
    plain = strategy.as_plain()
    assert plain["aggregation"] == {"name": "geometric-median"}


def test_every_field_of_a_run_folder_is_described(own_app):
    recorder = Recorder("~/runs", config={"lr": 0.5})
    ClusteredFL(observers=[recorder]).start(own_app.grid, own_app.arrays, num_rounds=10)
    first_line = (recorder.path / "rounds.jsonl").read_text().splitlines()[0]
    written = {
        "config.json": json.loads((recorder.path / "config.json").read_text()),
        "summary.json": recorder.summary,
        "rounds.jsonl": json.loads(first_line),
        "tree.json": json.loads((recorder.path / "tree.json").read_text()),
    }
    text = (DOCS / "reference/run-folder.md").read_text()
    sections = dict(re.findall(r"^## (\S+)\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE))
    for file, content in written.items():
        assert set(content) <= set(re.findall(r"`(\w+)`", sections[file])), file
    for path in recorder.path.iterdir():
        assert f"`{path.name}" in text, f"{path.name} is not described"
