"""The run config: one source of truth, checked at the edge."""

import re
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

from cflower.algorithm.norm_criterion import NormCriterion
from cflower.config import RunConfig
from cflower.errors import ConfigError, RunFolderError
from cflower.recording.recorder import Recorder
from cflower.settings import key_of
from cflower.strategy.clustered_fl import ClusteredFL

PYPROJECT = Path(__file__).parent.parent / "pyproject.toml"


def test_pyproject_lists_every_key_with_its_default_and_no_federations():
    table = tomllib.loads(PYPROJECT.read_text())["tool"]["flwr"]
    listed, defaults = table["app"]["config"].items(), RunConfig().as_keys().items()
    assert {k: repr(v) for k, v in listed} == {k: repr(v) for k, v in defaults}
    assert "federations" not in table  # Flower would rewrite it


def test_pyproject_says_every_choice_of_a_key():
    """In the comment at the key, as "name"."""
    text = PYPROJECT.read_text().partition("[tool.flwr.app.config]")[2]
    for spec in fields(RunConfig):
        comment = re.search(rf"^{key_of(spec)} = .*(\n +#.*)*", text, re.MULTILINE)
        assert comment is not None, spec.name
        options = spec.metadata.get("options", ())
        missing = [name for name in options if f'"{name}"' not in comment[0]]
        assert not missing, (spec.name, missing)
        assert not spec.metadata.get("own_code") or "package.module:" in comment[0], spec.name


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"lerning-rate": 0.1}, "Unknown run-config key 'lerning-rate': did you mean 'learning-r"),
        ({"zzz": 1}, "Unknown run-config key 'zzz': `cflower keys` lists"),
        ({"learning-rate": "fast"}, "Got learning-rate='fast', but expected a number > 0."),
        ({"batch-size": 3.5}, "Got batch-size=3.5, but expected a whole number >= 1."),
        ({"seed": True}, "Got seed=True, but expected a whole number >= 0"),
        ({"moving": 1}, "Got moving=1, but expected true or false."),
        ({"server-optimizer": 3}, "Got server-optimizer=3, but expected a text in quotes."),
        ({"dataset": 3}, "Got dataset=3, but expected a text in quotes."),
        ({"batch-size": 0}, "Got batch-size=0, but expected a whole number >= 1."),
        ({"gamma-max": 1.5}, "Got gamma-max=1.5, but expected a number >= 0 and <= 1."),
        ({"fraction-train": 0}, "Got fraction-train=0, but expected a number > 0 and <= 1."),
        ({"eps1": float("nan")}, "Got eps1=nan, but expected a number > 0."),
        ({"method": "clusterd"}, "did you mean 'clustered'?"),
        ({"group-sizes": "6,x"}, "Got group-sizes='6,x', but expected whole numbers above 0"),
        ({"partitioner": "natural-id"}, "needs natural-id-column"),
        ({"max-influence": 0.5}, "max-influence=0.5, but expected 0 (no limit) or a number >= 1"),
        ({"device": "gpu"}, "Got device='gpu', but expected 'auto', 'cpu', 'cuda', 'mps' or"),
        ({"dataset": " "}, "dataset is empty"),
        ({"missing-labels": "1;2"}, "set shift = 'label-subset'"),
        ({"drift": "20:3"}, "'20:3' is not that"),
        ({"class-names": "cat,,dog"}, "expected at least two different names"),
        ({"group-column": "side"}, "Got group-column='side' with shift='rotation', which makes"),
        (
            {"standardise": "all"},
            "standardise = 'all' is not known. It can be common, none or client.",
        ),
        (
            {"metric": "f2"},
            "'f2' is not known. It can be accuracy, f1, auc, loss, perplexity, rmse or mae.",
        ),
        ({"metric": "perplexity"}, "but clients measure it of texts only"),
        ({"model": "lstm"}, "Got model='lstm' with dataset='digits', but only model='lstm'"),
        ({"dataset": "text:/posts"}, "Got model='cnn' with dataset='text:/posts'"),
    ],
)
def test_a_wrong_value_is_refused_by_name_value_and_expectation(values, words):
    with pytest.raises(ConfigError) as refused:
        RunConfig.read(values)
    assert words in str(refused.value)


def test_a_key_takes_the_values_that_the_setting_of_the_same_name_takes():
    parts = (ClusteredFL, NormCriterion)
    settings = {spec.name: spec for part in parts for spec in fields(part)}
    alike = {spec.name: spec for spec in fields(RunConfig) if spec.name in settings}
    # -1 for None; of its own clients; at least one; a seed of PyTorch, too; or an object
    other = {"trial_rounds", "metric", "min_available_nodes", "seed", "aggregation"}
    assert len(alike) > 20 and other < alike.keys()
    for name in alike.keys() - other:
        assert alike[name].metadata == settings[name].metadata, name


def test_a_whole_number_is_a_fine_float():
    assert RunConfig.read({"learning-rate": 1}).learning_rate == 1.0


def test_a_relative_output_dir_is_refused_before_the_run_where_flower_started_it(
    monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    assert Recorder("runs").path.parent == tmp_path / "runs"  # a script, a notebook
    monkeypatch.setattr("sys.argv", ["/usr/bin/flwr-serverapp"])
    with pytest.raises(RunFolderError, match="Give an absolute one"):
        Recorder(RunConfig(output_dir="runs").output_path)
