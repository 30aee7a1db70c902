"""The ClientApp by itself: its answer to the roll call, and the modules that it loads."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict

from cflower import ClusteredFL, NeverSplit
from cflower.algorithm.state import ALL_EXAMPLES, DECIDE, REPORT
from cflower.algorithm.weights import Weights
from cflower.changes.personal import LEAF, MIX
from cflower.client_app import app
from cflower.clients.node import Instructions
from cflower.config import RunConfig
from cflower.data import own_data
from cflower.data.client_data import client_data
from cflower.data.settings import DataSettings
from cflower.errors import CFlowerError
from cflower.learning.models import arrays_of, build_model
from cflower.learning.training import train
from cflower.messages.arrays import record_of
from cflower.messages.client_names import ADAPT_MESSAGE, PART
from cflower.messages.layout import Layout
from cflower.messages.roll_call import FACTS, ROLL_CALL
from cflower.simulation.inline_grid import InlineGrid
from tests.command import in_new_process


def roll_call(folder, **keys):
    """The answer of a SuperNode with a folder of its own."""
    node = {"client-id": "clinic-a", "data-path": str(folder)}
    config = RunConfig(shift="none", **keys).as_keys()
    message = Message(RecordDict(), 1005, ROLL_CALL)
    message.metadata.__dict__["_message_id"] = "the question"
    reply = app(message, Context(1, 1005, node, RecordDict(), config))
    return dict(reply.content.config_records[FACTS])


def write_rows(folder):
    rows = pd.DataFrame({"dose": range(20), "side": ["left"] * 20, "outcome": [0, 1] * 10})
    rows.to_csv(folder / "rows.csv", index=False)


@pytest.mark.parametrize("error", [MemoryError("12 GiB"), ValueError("odd\nlines"), KeyError(3)])
def test_whatever_its_data_raise_a_client_reports_its_name_and_cause(tmp_path, monkeypatch, error):
    def broken(*arguments):
        raise error

    write_rows(tmp_path)
    monkeypatch.setattr(own_data, "load_folder", broken)
    facts = roll_call(tmp_path, label_column="outcome")
    assert facts["client-id"] == "clinic-a"
    assert f"({type(error).__name__}: " in facts["problem"]
    assert "\n" not in facts["problem"]


def test_the_roles_of_columns_hold_for_its_own_folder(tmp_path):
    write_rows(tmp_path)
    facts = roll_call(tmp_path, label_column="outcome", input_columns="dose", group_column="side")
    assert facts["class-names"] == ["0", "1"]
    assert facts["input-shape"] == []  # the server says how a table is prepared
    assert list(json.loads(facts["table"])) == ["dose"]
    assert facts["classes-here"] == ["0", "1"]
    # The true group is for the end of the run, not for its beginning.
    assert not [value for value in facts.values() if value == "left"]
    wrong = roll_call(tmp_path, label_column="outcom")
    assert "did you mean 'outcome'? Its columns are dose, side, outcome." in wrong["problem"]


READ = """
import sys
import cflower.client_app
from cflower.data.own_data import load_own_data
from cflower.data.settings import DataSettings
for folder in sys.argv[1:]:
    load_own_data(folder, DataSettings())
print(*sys.modules)
"""


@pytest.mark.slow
def test_a_message_does_not_load_what_it_does_not_need(tmp_path):
    folders = [str(tmp_path / form) for form in ("csv", "npz", "parquet")]
    for folder in folders:
        Path(folder).mkdir()
    rows = pd.DataFrame({"a": range(20), "label": [0, 1] * 10})
    rows.to_csv(tmp_path / "csv" / "rows.csv", index=False)
    rows.to_parquet(tmp_path / "parquet" / "rows.parquet")
    np.savez(tmp_path / "npz" / "a.npz", x=np.zeros((20, 3)), y=[0, 1] * 10)
    slow = {"datasets", "flwr_datasets", "torchvision", "PIL"}
    slow |= {"pydantic", "cflower.strategy", "cflower.messages.roll_call"}
    assert slow.isdisjoint(in_new_process(READ, *folders).split())
    prepares = {"pandas", "sklearn", "scipy.special"}  # tables only
    assert prepares.isdisjoint(in_new_process(READ, str(tmp_path / "npz")).split())


def message_to(kind, arrays, server_round, node=1005, **config):
    """A message with a model."""
    config = ConfigRecord({"server-round": server_round, "part": "decide", **config})
    message = Message(RecordDict({"arrays": arrays, "config": config}), node, kind)
    message.metadata.__dict__["_message_id"] = "the question"
    return message


DIGITS = RunConfig(dataset_size=400, local_epochs=1, batch_size=16)


def node_of(config=DIGITS, **node):
    return Context(1, 1005, {"partition-id": 0, "num-partitions": 4} | node, RecordDict(), config)


def first_model():
    return record_of(arrays_of(build_model("cnn", (1, 8, 8), 10, 0)))


@pytest.mark.parametrize(("part", "brier"), [(DECIDE, True), (REPORT, False)])
def test_examples_that_decide_are_also_measured_by_the_brier_score(part, brier):
    message = message_to("evaluate", first_model(), 5, **{PART: part})
    metrics = app(message, node_of(DIGITS.as_keys())).content["metrics"]
    assert ("brier" in metrics) == brier
    assert 0 <= metrics.get("brier", 0) <= 2


@pytest.mark.parametrize("together", [True, False])
def test_examples_that_decide_train_if_the_message_says_so_and_reported_ones_never(together):
    """The same as without a part that decides, as its examples come after the others."""
    config = {**DIGITS.as_keys(), "clients-together": together}
    data = client_data(RunConfig.read(config).part(DataSettings), 0, 4)
    counts = {}
    for all_examples in (False, True):
        message = message_to("train", first_model(), 5, **{ALL_EXAMPLES: all_examples})
        app.look_ahead([(message, node_of(config))])
        counts[all_examples] = app(message, node_of(config)).content["metrics"]["num-examples"]
        used = Instructions.of(message).trained(data)
        assert not {*map(bytes, used.inputs)} & {*map(bytes, data.report.inputs)}
    assert counts == {False: len(data.train), True: len(data.train) + len(data.decide)}


def test_examples_that_are_reported_do_not_train_if_they_also_decide():
    config = {**DIGITS.as_keys(), "decide-fraction": 0.0}
    data = client_data(RunConfig.read(config).part(DataSettings), 0, 4)
    message = message_to("train", first_model(), 5, **{ALL_EXAMPLES: True})
    assert Instructions.of(message).trained(data) is data.train


def test_the_whole_personal_step_is_what_single_messages_would_do():
    context, leaf, of_own = node_of(DIGITS.as_keys()), first_model(), 0.75
    config = {"trainings": 3, "share": of_own}
    reply = app(message_to(ADAPT_MESSAGE, leaf, 5, **config), context).content
    model = leaf
    for server_round in (6, 7, 8):
        replied = app(message_to("train", model, server_round), context).content
        model = replied.array_records["arrays"]
    for key, array in model.items():
        np.testing.assert_array_equal(reply["arrays"][key].numpy(), array.numpy())
    assert reply["metrics"]["num-examples"] == replied["metrics"]["num-examples"]
    layout = Layout.of(leaf)
    own, before = layout.weights(model), layout.weights(leaf)
    for number, share in ((LEAF, 0.0), (MIX, of_own)):
        mix = Weights(*(w + share * (v - w) for w, v in zip(before, own, strict=True)))
        evaluated = app(message_to("evaluate", layout.record(mix), 5), context).content["metrics"]
        for name in ("accuracy", "loss", "brier"):
            measured = reply["metrics"][f"{name}.{number}"]
            assert measured == pytest.approx(evaluated[name], rel=1e-4)


@pytest.mark.parametrize(
    ("first", "trained"),
    [(None, 3), ((5, 1, 0.0), 2), ((4, 1, 0.0), 3), ((5, 1, 0.5), 3), ((5, 2, 0.0), 3)],
    ids=["none", "the same step", "another round", "another model", "not kept"],
)
def test_a_second_attempt_goes_on_from_the_first_with_the_same_result(first, trained, monkeypatch):
    rounds, leaf = [], first_model()

    def counted(*arguments, server_round, **settings):
        rounds.append(server_round)
        return train(*arguments, server_round=server_round, **settings)

    def attempt(context, server_round=5, trainings=3, shift=0.0):
        arrays = {key: a.numpy() + np.float32(shift) for key, a in leaf.items()}
        settings = {"trainings": trainings, "share": 0.75}
        return app(message_to(ADAPT_MESSAGE, record_of(arrays), server_round, **settings), context)

    monkeypatch.setattr("cflower.client_app.train", counted)
    context = node_of(DIGITS.as_keys())
    if first:
        attempt(context, *first)
    rounds.clear()
    second, again = attempt(context), attempt(node_of(DIGITS.as_keys()))
    assert rounds == [*[6, 7, 8][-trained:], 6, 7, 8]
    assert not context.state
    for key, array in again.content["arrays"].items():
        np.testing.assert_array_equal(second.content["arrays"][key].numpy(), array.numpy())
    assert second.content["metrics"] == again.content["metrics"]


@pytest.mark.slow
@pytest.mark.parametrize(("rounds", "trainings"), [(3, {0}), (7, {2}), (12, {1, 3})])
def test_an_attempt_costs_one_message_for_each_client_of_the_own_app(rounds, trainings, caplog):
    caplog.set_level("INFO", "flwr")
    kinds = Counter()

    class Counting(InlineGrid):
        def push_messages(self, messages):
            messages = list(messages)
            kinds.update(message.metadata.message_type for message in messages)
            return super().push_messages(messages)

    settings = {"personal": True, "fraction_evaluate": 0.0}
    strategy = ClusteredFL(NeverSplit(), **settings)
    strategy.start(Counting(app, 4, DIGITS.as_keys()), first_model(), rounds)
    assert kinds["train"] == 4 * rounds
    spent = {step.trainings for step in strategy.state.personal.values()} or {0}
    assert spent <= trainings
    assert kinds[ADAPT_MESSAGE] == 4 * {0: 0, 1: 1, 2: 1, 3: 2}[max(spent)]
    assert ("a client trains in 3 rounds on average, too few" in caplog.text) == (rounds == 3)


@pytest.mark.parametrize("kind", ["train", ADAPT_MESSAGE])
def test_with_permuted_weights_no_message_trains_a_model_that_the_server_chose(tmp_path, kind):
    (tmp_path / "seed").write_bytes(b"0123456789abcdef0123456789abcdef")
    config = RunConfig(
        dataset_size=400, privacy="permutation", seed_file=str(tmp_path / "seed")
    ).as_keys()
    zeros = {key: np.zeros_like(array.numpy()) for key, array in first_model().items()}
    message = message_to(kind, record_of(zeros), 5, trainings=1, share=1.0)
    with pytest.raises(CFlowerError, match="Refused to train"):
        app(message, node_of(config))


@pytest.mark.parametrize("content", [b"PK\x03\x04 cut off", None])
def test_the_server_does_not_see_where_a_node_has_its_data(tmp_path, content, caplog):
    folder = tmp_path / "scans"
    if content:
        folder.mkdir()
        (folder / "digits.npz").write_bytes(content)
    problem = roll_call(folder)["problem"]
    assert "scans" in problem and str(tmp_path) not in problem
    assert str(folder) in caplog.text
