"""The folder for Flower's baselines: its run config, its model and its apps."""

import tomllib
from importlib import import_module
from pathlib import Path

import pytest

from cflower.config import RunConfig
from cflower.learning.models import build_model

FOLDER = Path(__file__).parents[1] / "examples" / "flower-baseline"


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, str]]:
    monkeypatch.syspath_prepend(FOLDER)
    return tomllib.loads((FOLDER / "pyproject.toml").read_text())["tool"]["flwr"]["app"]


def test_its_config_is_ifcas_federation(app: dict[str, dict[str, str]]) -> None:
    config = RunConfig.read(app["config"])
    clients, held_out = config.min_available_nodes, config.validation_fraction
    assert config.dataset_size * (1 - held_out) / clients == config.batch_size == 200
    model = build_model(config.model, (1, 28, 28), 10, seed=0)
    assert sum(p.numel() for p in model.parameters()) == 784 * 200 + 200 + 200 * 10 + 10


def test_its_apps_are_cflowers(app: dict[str, dict[str, str]]) -> None:
    for side, reference in app["components"].items():
        module, _, name = reference.partition(":")
        theirs = import_module(f"cflower.{'server' if side == 'serverapp' else 'client'}_app")
        assert getattr(import_module(module), name) is theirs.app


def test_its_results_are_of_its_run_config(
    app: dict[str, dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    # README's figures come from this script.
    monkeypatch.syspath_prepend(FOLDER.parents[1] / "scripts")
    measured = import_module("rotated_mnist").keys_of(Path("/data/mnist"), 120, 200, 15, 0, 1.0)
    own = RunConfig.read(app["config"]).as_keys()
    differing = {key for key in own if own[key] != measured[key]}
    assert differing <= {"dataset", "model", "output-dir"}
