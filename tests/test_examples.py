"""The apps in `examples/`: each finds its planted groups and leaves its whole evidence."""

import json
import tomllib
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from cflower.config import RunConfig
from cflower.learning.models import build_model
from tests.command import cflower
from tests.test_flwr_run import nodes, run

EXAMPLES = Path(__file__).parents[1] / "examples"
BASELINE = EXAMPLES / "flower-baseline"
ALL = tuple(f"partition-{i}" for i in range(10))


class Expected(NamedTuple):
    """The known result of an example."""

    groups: set[tuple[str, ...]]
    metric: str
    better: tuple[float, float]
    """The mean over all clients lies between these."""
    needs: str
    config: str = ""
    """Beyond the number of rounds, with FOLDER for one that is empty."""


EVEN_AND_ODD = {ALL[0::2], ALL[1::2]}
LORA = "languages='de,fi' base='FOLDER/base' local-epochs=4"
EXPECTED = {
    "pytorch": Expected(EVEN_AND_ODD, "eval_acc", (0.85, 1.0), "torch"),
    "sklearn": Expected({ALL[:5], ALL[5:]}, "rmse", (0.9, 1.2), "sklearn"),
    "jax": Expected(EVEN_AND_ODD, "accuracy", (0.75, 1.0), "jax"),
    "transformers": Expected(EVEN_AND_ODD, "perplexity", (2.0, 4.5), "transformers"),
    "lora": Expected(EVEN_AND_ODD, "perplexity", (5.0, 16.0), "peft", LORA),
}
ROUNDS = 7


def check(folder, expected):
    """The run folder of an example has the groups, the metric and the report."""
    summary = json.loads((folder / "summary.json").read_text())
    assert {tuple(members) for members in summary["clusters"].values()} == expected.groups
    assert summary["finished"]
    assert summary["metric"]["name"] == expected.metric
    low, high = expected.better
    assert low <= summary["metrics"][expected.metric] <= high
    assert expected.metric in (folder / "report.html").read_text()
    config = json.loads((folder / "config.json").read_text())
    assert {"num-server-rounds", "learning-rate"} <= set(config["config"])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # those of frameworks that are not ours
@pytest.mark.parametrize("name", [name for name in EXPECTED if name != "pytorch"])
def test_the_groups_are_found(name, tmp_path, monkeypatch):
    expected = EXPECTED[name]
    if find_spec(expected.needs) is None:
        pytest.skip(f"{expected.needs} is not installed: pip install -e examples/{name}")
    monkeypatch.syspath_prepend(EXAMPLES / name)
    runs = tmp_path / "runs"
    config = f"output-dir='{runs}' num-server-rounds={ROUNDS} "
    config += expected.config.replace("FOLDER", str(tmp_path))
    done = cflower("simulate", EXAMPLES / name, "-c", config)
    assert done.returncode == 0, done.stderr
    (folder,) = runs.iterdir()
    check(folder, expected)


@pytest.mark.slow
def test_flwr_run_finds_the_groups_without_a_line_of_error(flwr, tmp_path):
    config = f"output-dir='{tmp_path}' num-server-rounds={ROUNDS}"
    options = "-c", config, "--federation-config", nodes(10)
    printed, status = run(flwr, *options, app=EXAMPLES / "pytorch")
    assert status["status"] == "finished:completed", printed
    assert not [line for line in printed.splitlines() if "ERROR" in line or "Traceback" in line]
    for text in (f"[ROUND {ROUNDS}/{ROUNDS}]", "cluster 0, split: ", "cluster 0.1: 5 clients"):
        assert text in printed
    (folder,) = tmp_path.iterdir()
    check(folder, EXPECTED["pytorch"])


@pytest.fixture
def baseline(monkeypatch):
    monkeypatch.syspath_prepend(BASELINE)
    return tomllib.loads((BASELINE / "pyproject.toml").read_text())["tool"]["flwr"]["app"]


def test_its_config_is_ifcas_federation(baseline):
    config = RunConfig.read(baseline["config"])
    clients, held_out = config.min_available_nodes, config.validation_fraction
    assert config.dataset_size * (1 - held_out) / clients == config.batch_size == 200
    model = build_model(config.model, (1, 28, 28), 10, seed=0)
    assert sum(p.numel() for p in model.parameters()) == 784 * 200 + 200 + 200 * 10 + 10


def test_its_apps_are_cflowers(baseline):
    for side, reference in baseline["components"].items():
        module, _, name = reference.partition(":")
        theirs = import_module(f"cflower.{'server' if side == 'serverapp' else 'client'}_app")
        assert getattr(import_module(module), name) is theirs.app


def test_its_results_belong_to_its_run_config(baseline, monkeypatch, tmp_path):
    # README's figures come from this script.
    monkeypatch.syspath_prepend(EXAMPLES.parent / "scripts")
    peers = import_module("peers.peers")
    measured = peers.config_of("mnist", "/data/mnist", "rotated-mnist", 0, {}, tmp_path)
    own = RunConfig.read(baseline["config"]).as_keys()
    differing = {key for key in own if own[key] != measured[key]}
    assert differing <= {"dataset", "model", "output-dir"}


@pytest.mark.slow
def test_the_notebook_runs_and_stops_early(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    cells = json.loads((EXAMPLES / "digits.ipynb").read_text())["cells"]
    names: dict[str, Any] = {"__name__": "notebook"}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
    strategy, recorder = names["strategy"], names["recorder"]
    assert {tuple(leaf.members) for leaf in strategy.tree.leaves} == EVEN_AND_ODD
    assert recorder.summary["finished"] and recorder.summary["rounds"] < 40
    assert "<td>0.1</td><td>5</td><td>eval_acc 0." in names["result"]._repr_html_()
    assert "served better in two groups" in recorder._repr_html_()
