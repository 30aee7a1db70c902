"""A model and a data set of the user's own, named in the run config."""

import sys

import numpy as np
import pytest

from cflower.data.client_data import load_client_data
from cflower.data.settings import DataSettings
from cflower.errors import CFlowerError
from cflower.learning.models import arrays_of, build_model
from cflower.learning.settings import TrainingSettings
from cflower.learning.training import train
from tests.command import cflower, error_of, output_of, simulated
from tests.run_content import read_json

MODELS = """
from math import prod
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, inputs, classes):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(inputs, 32), nn.ReLU(), nn.Dropout(0.2))
        self.head = nn.Linear(32, classes)
        self.spare = nn.Linear(2, 2)  # never used

    def forward(self, rows):
        return self.head(self.body(rows))

def net(input_shape, num_classes):
    return Net(prod(input_shape), num_classes)

def lazy(input_shape, num_classes):
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(num_classes))

def nothing(input_shape, num_classes):
    print("no return")

def narrow(input_shape, num_classes):
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(num_classes - 1))

def fixed(input_shape, num_classes):
    return nn.Linear(3, num_classes)

def frozen(input_shape, num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes)).requires_grad_(False)

def half(input_shape, num_classes):
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(num_classes)).to(torch.bfloat16)

pi = 3.14
"""

DATA = """
import numpy as np
import pandas as pd
import datasets
from sklearn.datasets import load_iris

ROWS, KINDS = load_iris(return_X_y=True)
KINDS = np.array(["setosa", "versicolor", "virginica"])[KINDS]
PLACES = np.arange(150) % 6

def arrays():
    return ROWS, KINDS

def columns():
    return {"inputs": ROWS, "label": KINDS, "garden": PLACES, "country": PLACES // 3}

def frame():
    return pd.DataFrame(ROWS, columns=list("abcd"), index=range(7, 157)).assign(
        label=KINDS, garden=PLACES, country=PLACES // 3
    )

def dataset():
    return datasets.Dataset.from_pandas(frame(), preserve_index=False)

def parts():
    return datasets.DatasetDict({"train": dataset(), "test": dataset().select(range(10))})

def three():
    return ROWS, KINDS, PLACES

def uneven():
    return ROWS, KINDS[:9]

def number():
    return 5

def broken():
    raise OSError("the disk\\nis gone")
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of one's own to work in, with two modules."""
    (tmp_path / "our_models.py").write_text(MODELS)
    (tmp_path / "our_data.py").write_text(DATA)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    for name in ("our_models", "our_data"):
        sys.modules.pop(name, None)


def test_a_run_with_both_from_the_current_folder(folder):
    keys = (
        "dataset='our_data:columns' model='our_models:net' shift='none' group-column='country' "
        "partitioner='natural-id' natural-id-column='garden' num-server-rounds=2 "
        "learning-rate=0.05 min-available-nodes=6"
    )
    run = simulated(folder / "runs", keys)
    summary = read_json(run, "summary.json")
    assert set(summary["groups"].values()) == {"0", "1"}
    assert summary["adjusted_rand_index"] is not None
    assert set(summary["clients"]) == {f"garden-{i}" for i in range(6)}
    sys.modules.pop("our_models")  # the folder may be somebody else's: code runs when asked for
    words = ("--cluster", "0", "--runs", folder / "runs")
    error = error_of("export", run.name, *words)
    assert "made by Python code of its owner, our_models:net: give --own-code" in error
    assert "our_models" not in sys.modules
    output_of("export", run.name, *words, "--own-code")


@pytest.mark.parametrize("made", ["arrays", "columns", "frame", "dataset", "parts"])
def test_every_kind_of_data_gives_the_same_examples(folder, made):
    def client(place, name):
        settings = DataSettings(shift="none", dataset=f"our_data:{name}", partitioner="dirichlet")
        exclude = {} if name == "arrays" else {"natural_id_column": "garden"}
        inputs = {"frame": "a,b,c,d", "dataset": "a,b,c,d", "parts": "a,b,c,d"}.get(name, "")
        changed = {**vars(settings), "input_columns": inputs, **exclude}
        return load_client_data(DataSettings(**changed), place, 3)

    for place in range(3):
        ours, theirs = client(place, made), client(place, "arrays")
        assert ours.train.class_names == ("setosa", "versicolor", "virginica")
        np.testing.assert_array_equal(ours.train.inputs, theirs.train.inputs)
        np.testing.assert_array_equal(ours.train.labels, theirs.train.labels)


def test_a_model_is_made_from_the_seed_and_trains_reproducibly(folder):
    data = load_client_data(DataSettings(shift="none", dataset="our_data:arrays"), 0, 2)

    def trained(seed):
        model = build_model("our_models:net", (4,), 3, seed=5)
        # Dropout draws from PyTorch's own generator, unused layers get no gradient.
        train(model, data.train, TrainingSettings(), server_round=1, seed=seed)
        return {key: array.tobytes() for key, array in arrays_of(model).items()}

    first = trained(1)
    assert first == trained(1) != trained(2)
    one, two = (arrays_of(build_model("our_models:lazy", (2, 3), 4, seed=s)) for s in (0, 1))
    assert one["1.weight"].shape == (4, 6)
    assert not np.array_equal(one["1.weight"], two["1.weight"])


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ("model='our_models:nothing'", "model = 'our_models:nothing' returned a NoneType: exp"),
        ("model='our_models:narrow'", "answers two inputs of shape (1, 8, 8) with shape (2, 9)"),
        ("model='our_models:fixed'", "model = 'our_models:fixed' failed (RuntimeError: "),
        ("model='our_models:frozen'", "a model without anything to train"),
        ("model='our_models:half'", "model = 'our_models:half' failed ("),
        ("model='our_models:pi'", "pi is no function in "),
        ("model='our_models:nett'", "nett does not exist in "),
        ("model='our_modles:net'", "the module our_modles cannot be imported (ModuleNotFound"),
        ("dataset='our_data:three' shift='none'", "returned 3 values: expected (inputs, labels)"),
        ("dataset='our_data:uneven' shift='none'", "of different lengths (x 150, label 9)"),
        ("dataset='our_data:number' shift='none'", "dataset = 'our_data:number' returned a int ("),
        ("dataset='our_data:broken' shift='none'", "failed (OSError: the disk): correct it"),
        ("dataset='our_data:nope' shift='none'", "nope does not exist in "),
        ("dataset='our_data:frame' shift='none' label-column='kind'", "no column of dataset = "),
    ],
)
def test_what_cannot_be_used_is_one_sentence_and_leaves_nothing(folder, keys, says):
    keys += " min-available-nodes=2 num-server-rounds=1"
    done = cflower("simulate", "-c", keys, "--out", folder / "runs")
    assert done.returncode == 1
    assert says in done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert len(done.stderr.strip().splitlines()[-1]) < 500
    assert not list(folder.glob("runs/*"))


def test_a_file_here_hides_nothing_that_is_installed(folder):
    (folder / "torch.py").write_text("raise RuntimeError('not this one')")
    assert build_model("our_models:net", (4,), 3, seed=0)
    with pytest.raises(CFlowerError, match=r"does not exist in .*torch"):
        build_model("torch:no_such_net", (4,), 3, seed=0)


RULES = """
from cflower.algorithm.aggregation import Aggregator
from cflower.algorithm.criteria import Criterion, Outcome, verdict

class InRoundTwo(Criterion):
    name = "in-round-two"
    trial_rounds = 1

    def decide(self, evidence, memory):
        if evidence.server_round != 2:
            return verdict(evidence, Outcome.MOVING, "not now"), memory
        middle = len(evidence.clients) // 2
        sides = evidence.clients[:middle], evidence.clients[middle:]
        return verdict(evidence, Outcome.SPLIT, "round two", sides=sides), memory

def criterion():
    return InRoundTwo()

class HalfSteps:
    name = "half-steps"

    def step(self, model, mean_update, state):
        return (model + mean_update / 2).astype(model.dtype), state

class Largest(Aggregator):
    name = "largest"

    def mean(self, vectors, weights):
        return vectors[weights.argmax()]

class Neither:
    pass

def needs(argument):
    pass
"""


@pytest.fixture
def rules(folder):
    (folder / "our_rules.py").write_text(RULES)
    yield folder
    sys.modules.pop("our_rules", None)


@pytest.mark.parametrize("made", ["InRoundTwo", "criterion"])
def test_a_run_with_rules_of_ones_own(rules, made):
    keys = f"split-criterion='our_rules:{made}' server-optimizer='our_rules:HalfSteps' "
    keys += "aggregation='our_rules:Largest' "
    run = simulated(
        rules / "runs",
        f"{keys} num-server-rounds=3 min-available-nodes=4 personal=fal"
        "se model='linear' moving=false",
    )
    settings, summary = read_json(run, "config.json")["settings"], read_json(run, "summary.json")
    ours = "criterion", "server-optimizer", "aggregation"
    assert [settings[key]["name"] for key in ours] == ["in-round-two", "half-steps", "largest"]
    (split,) = summary["splits"]
    assert split["round"] == 2
    assert settings["trial-rounds"] == 1
    assert "round two" in output_of("explain", run)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("split-criterion", "our_rules:Neither", "expected an object with the method decide"),
        ("server-optimizer", "our_rules:Neither", "expected an object with the method step"),
        ("aggregation", "our_rules:Neither", "expected an object with the method mean"),
        ("split-criterion", "our_rules:needs", "failed (TypeError: "),
        ("server-optimizer", "our_rules:nope", "nope does not exist in "),
        ("split-criterion", "our_rulez:X", "the module our_rulez cannot be imported"),
        ("split-criterion", "normz", "did you mean 'norms'?"),
        ("server-optimizer", "fedavgg", "did you mean 'fedavg'?"),
        ("aggregation", "fedmedina", "did you mean 'fedmedian'?"),
    ],
)
def test_a_wrong_rule_is_refused_in_a_sentence(rules, key, value, words):
    error = error_of("simulate", "--clients", "4", "-c", f"{key}='{value}' min-available-nodes=4")
    assert words in " ".join(error.split()) and key in error
