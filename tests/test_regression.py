"""Numbers in place of classes, on the 442 patients of scikit-learn's diabetes data."""

import json

import numpy as np
import pytest
from sklearn.datasets import load_diabetes
from sklearn.metrics import mean_absolute_error, root_mean_squared_error

from cflower.config import RunConfig
from cflower.data.examples import Examples
from cflower.data.own_data import load_own_data
from cflower.data.settings import DataSettings
from cflower.errors import ConfigError, DataError
from cflower.learning.models import build_model
from cflower.learning.training import evaluate, predict, train
from tests.command import cflower, output_of, simulated

CLINICS = (
    "label-column='target' task='regression' standardise='client' shift='none' model='linear' "
    "partitioner='natural-id' natural-id-column='file' learning-rate=0.03 num-server-rounds=20"
)


@pytest.fixture(scope="module")
def diabetes():
    return load_diabetes(as_frame=True, scaled=False).frame.astype(float)


@pytest.mark.parametrize("model", ["linear", "mlp"])
def test_training_lowers_the_squared_error_and_metrics_are_those_of_scikit_learn(diabetes, model):
    inputs = diabetes.drop(columns="target")
    inputs = ((inputs - inputs.mean()) / inputs.std()).to_numpy(np.float32)
    examples = Examples(inputs, diabetes["target"].to_numpy(np.float32), ())
    network = build_model(model, *examples.sizes, seed=0)
    config = RunConfig(learning_rate=3e-4, local_epochs=40)
    train(network, examples, config, server_round=1, seed=0)
    metrics, predicted = evaluate(network, examples), predict(network, examples)[:, 0]
    assert metrics["rmse"] == pytest.approx(root_mean_squared_error(examples.labels, predicted))
    assert metrics["mae"] == pytest.approx(mean_absolute_error(examples.labels, predicted))
    assert metrics["rmse"] < 0.8 * examples.labels.std()  # what the mean predicts


@pytest.mark.slow
def test_a_run_on_clinics_that_measure_in_opposite_directions(tmp_path, diabetes):
    folder, runs = tmp_path / "clinics", tmp_path / "runs"
    folder.mkdir()
    for number in range(6):
        rows = diabetes.iloc[number::6]
        if number >= 3:
            rows = rows.assign(target=350 - rows["target"])
        rows.to_csv(folder / f"clinic-{number}.csv", index=False)
    run = simulated(runs, f"{CLINICS} dataset='{folder}'", "--clients", 6)
    summary = json.loads((run / "summary.json").read_text())
    assert summary["metric"] == {"name": "rmse", "higher_is_better": False}
    assert sorted(summary["clients"]) == [f"clinic-{number}" for number in range(6)]
    # By itself the mean predicts with an error of 77; one model for both directions with as much.
    assert summary["metrics"]["rmse"] < 65
    assert "mean rmse" in output_of("show", run)
    output_of("export", run, "--cluster", "0", "--output", tmp_path / "model")
    assert "the predicted number, shape (batch, 1)" in (tmp_path / "model.md").read_text()


def test_a_training_that_diverges_says_what_to_do(tmp_path, diabetes):
    diabetes.to_csv(tmp_path / "rows.csv", index=False)
    config = "label-column='target' task='regression' shift='none' model='mlp' learning-rate=1.0 "
    config += f"partitioner='iid' num-server-rounds=2 dataset='{tmp_path}'"
    done = cflower("simulate", "--clients", 3, "--out", tmp_path / "runs", "-c", config)
    problem = done.stderr.splitlines()[-1]
    assert problem.startswith("Error: No usable reply in round 1: the reply of ")
    assert "the training diverged, its loss is no finite number: set a smaller" in problem
    assert "or, with task='regression', the label" in problem


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"shift": "label-swap"}, "Got shift='label-swap' with task='regression'"),
        ({"partitioner": "dirichlet"}, "set partitioner to 'iid' or 'natural-id'"),
        ({"class_names": "a,b"}, "Got class-names='a,b' with task='regression'"),
        ({"selection": "ensemble"}, "Got selection='ensemble' with task='regression'"),
        ({"metric": "loss"}, "Got metric='loss' with task='regression'"),
        ({"dataset": "text:/a", "model": "lstm"}, "the next token of a text is a class"),
        ({"metric": "rmse", "task": "classification"}, "set task='regression' to predict numbers"),
    ],
)
def test_settings_of_classes_do_not_go_with_numbers(keys, words):
    with pytest.raises(ConfigError, match=words):
        RunConfig(**{"task": "regression", "shift": "none"} | keys)


@pytest.mark.parametrize("column", [["a", "b", "c"] * 5, [1.0, None, 2.0] * 5])
def test_a_label_that_is_no_number_is_refused(tmp_path, diabetes, column):
    diabetes.head(15).assign(target=column).to_csv(tmp_path / "rows.csv", index=False)
    settings = DataSettings(task="regression", shift="none")
    with pytest.raises(
        DataError, match="texts, lists or missing values in its label column 'target'"
    ):
        load_own_data(str(tmp_path), settings)
