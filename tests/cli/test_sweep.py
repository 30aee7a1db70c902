"""`cflower sweep` and the comparison of what it ran."""

import json
import re

import pytest

from cflower.cli.sweeps import combinations_of
from cflower.errors import ConfigError
from tests.cli.apps import flower_app
from tests.command import cflower, error_of, output_of

TINY = "num-server-rounds=2 dataset-size=400 model='linear' local-epochs=1 min-available-nodes=4"


def test_the_combinations_are_the_product_of_the_values(tmp_path):
    (tmp_path / "base.toml").write_text("model = 'linear'\nseed = 7\n")
    texts = [str(tmp_path / "base.toml"), "seed=0,1 group-sizes='6,4','5,5'", "batch-size=8"]
    combinations = combinations_of(texts)
    assert combinations[0] == {
        **{"model": "linear", "seed": 0, "group-sizes": "6,4", "batch-size": 8}
    }
    assert [(one["seed"], one["group-sizes"]) for one in combinations] == [
        *((0, "6,4"), (0, "5,5"), (1, "6,4"), (1, "5,5"))
    ]


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        ([], "Got no key with several values"),
        (["seed=1"], 'such as -c "seed=0,1,2"'),
        (["seed=0,1 model=mlp,cnn"], "put texts in quotes: model='mlp'"),
        (["seed=0,1,"], "put texts in quotes: seed='0,'"),
        (["seed = 0,1"], "without spaces around the equals sign"),
    ],
)
def test_values_that_cannot_be_read_are_one_sentence(texts, says):
    with pytest.raises(ConfigError, match=re.escape(says)):
        combinations_of(texts)


def test_a_sweep_runs_each_combination_once_and_compares_them(tmp_path):
    command = "sweep", "-c", f"seed=0,1 method='clustered','federated' {TINY}", "--out", tmp_path
    out = output_of(*command)
    assert "Run 4 of 4: seed=1, method='federated'\n" in out
    assert out.count("1 cluster among 4 clients after 2 rounds.") == 4
    rows = {line.split("  ")[0].strip(): line.split() for line in out.splitlines()}
    assert rows["seed"] == ["seed", "0,", "1", "0,", "1"]
    assert rows["mean"].count("±") == 2
    curves = (tmp_path / "curves.html").read_text()
    assert "method=clustered" in curves and curves.count('<polygon class="band"') == 2
    again = output_of(*command)
    assert again.count("finished before") == 4
    each = json.loads(output_of("compare", tmp_path, "--json"))["groups"]
    assert [len(group["runs"]) for group in each] == [2, 2]
    assert each[0]["mean"]["deviation"] > 0 and each[0]["clients"]["deviation"] == 0
    single = json.loads(output_of("compare", tmp_path, "--each", "--json"))["groups"]
    assert [len(group["runs"]) for group in single] == [1, 1, 1, 1]


def test_an_interrupted_run_of_a_sweep_goes_on(tmp_path):
    output_of("simulate", "-c", f"seed=1 {TINY}", "--out", tmp_path)
    (run,) = tmp_path.iterdir()
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps(summary | {"finished": False}))
    out = output_of("sweep", "-c", f"seed=0,1 {TINY}", "--out", tmp_path)
    assert "finished before" not in out
    assert len(list(tmp_path.glob("*/config.json"))) == 2
    again = json.loads((run / "summary.json").read_text())
    assert again["finished"] and again["clients"] == summary["clients"]


def test_only_runs_of_the_strategy_can_be_swept(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    app = flower_app(tmp_path, "swept")
    config = "-c", "wanted.step=0.5,1.0", "--out", tmp_path / "runs"
    status, _, err = cflower("sweep", app, *config)
    assert status == 1 and "The app starts FedAvg, which writes no run folder" in err
    wrong = error_of("sweep", "-c", "seed=0,1 batch-size=8,0", "--out", tmp_path / "none")
    assert "batch-size" in wrong and not (tmp_path / "none").exists()  # before the first run
    assert "Got the key resume" in error_of("sweep", "-c", "seed=0,1 resume='x'")
