"""The apps in `examples/`: each finds its planted groups and leaves its whole evidence."""

import json
import tomllib
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from flwr.app import Context, RecordDict

from cflower.simulation.inline_grid import InlineGrid
from tests.test_flwr_run import run

EXAMPLES = Path(__file__).parents[1] / "examples"
ALL = tuple(f"partition-{i}" for i in range(10))


class Expected(NamedTuple):
    """What is known of an example."""

    groups: set[tuple[str, ...]]
    metric: str
    better: tuple[float, float]
    """The mean over all clients lies between these."""
    needs: str


EVEN_AND_ODD = {ALL[0::2], ALL[1::2]}
EXPECTED = {
    "pytorch": Expected(EVEN_AND_ODD, "eval_acc", (0.85, 1.0), "torch"),
    "sklearn": Expected({ALL[:5], ALL[5:]}, "rmse", (0.9, 1.2), "sklearn"),
    "jax": Expected(EVEN_AND_ODD, "accuracy", (0.75, 1.0), "jax"),
    "transformers": Expected(EVEN_AND_ODD, "perplexity", (2.0, 4.5), "transformers"),
}
ROUNDS = 7


def components(name: str) -> tuple[Any, Any, dict[str, Any]]:
    """ServerApp, ClientApp and run config of an example."""
    app = tomllib.loads((EXAMPLES / name / "pyproject.toml").read_text())["tool"]["flwr"]["app"]

    def load(reference: str) -> Any:
        module, _, attribute = reference.partition(":")
        return getattr(import_module(module), attribute)

    return load(app["components"]["serverapp"]), load(app["components"]["clientapp"]), app["config"]


def check(folder: Path, expected: Expected) -> None:
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
@pytest.mark.parametrize("name", EXPECTED)
def test_the_groups_are_found(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = EXPECTED[name]
    if find_spec(expected.needs) is None:
        pytest.skip(f"{expected.needs} is not installed: pip install -e examples/{name}")
    monkeypatch.syspath_prepend(EXAMPLES / name)
    server_app, client_app, config = components(name)
    config |= {"output-dir": str(tmp_path), "num-server-rounds": ROUNDS}
    grid = InlineGrid(client_app, 10, config)
    server_app(grid, Context(1, 1, {}, RecordDict(), config))
    (folder,) = tmp_path.iterdir()
    check(folder, expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pytorch", "sklearn"])
def test_flwr_run_finds_the_groups_without_a_line_of_error(
    name: str, flwr: dict[str, str], tmp_path: Path
) -> None:
    printed, status = run(
        flwr,
        "-c",
        f"output-dir='{tmp_path}' num-server-rounds={ROUNDS}",
        "--federation-config",
        "num-supernodes=10 client-resources-num-cpus=1",
        app=EXAMPLES / name,
    )
    assert status["status"] == "finished:completed", printed
    assert not [line for line in printed.splitlines() if "ERROR" in line or "Traceback" in line]
    for said in (f"[ROUND {ROUNDS}/{ROUNDS}]", "cluster 0, split: ", "cluster 0.1: 5 client(s)"):
        assert said in printed
    (folder,) = tmp_path.iterdir()
    check(folder, EXPECTED[name])
