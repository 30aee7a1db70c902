"""A simulation trains small dense models of many clients at once, with the same result."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from cflower import client_app
from cflower.clients import stacks as together
from cflower.learning.models import arrays_of, build_model
from cflower.messages.arrays import record_of
from cflower.simulation.inline_grid import InlineGrid

CLIENTS = 30


def replies(monkeypatch, run_config, broken=None):
    """The replies of all clients to one training, and how many were trained in each stack."""
    stacks = []
    train_jobs = together.train_jobs

    def counted(model, jobs, *others):
        stacks.append(len(jobs))
        train_jobs(model, jobs, *others)

    monkeypatch.setattr(together, "train_jobs", counted)
    grid = InlineGrid(client_app.app, CLIENTS, run_config)
    model = build_model(run_config["model"], (1, 8, 8), 10, seed=0)
    messages = []
    for place, node in enumerate(grid.get_node_ids()):
        record = record_of(arrays_of(model))
        if place == broken:
            record = ArrayRecord({"w": Array(np.zeros(3))})
        config = ConfigRecord({"server-round": 2, "cluster": "0"})
        content = RecordDict({"arrays": record, "config": config})
        messages.append(Message(content, node, "train"))
    return list(grid.send_and_receive(messages)), stacks


@pytest.mark.parametrize("partitioner", ["iid", "dirichlet"])
def test_replies_have_the_same_bits_with_and_without_stacks(monkeypatch, partitioner):
    keys = {"model": "mlp", "partitioner": partitioner, "dirichlet-alpha": 1.0}
    with_stacks, stacks = replies(monkeypatch, keys)
    alone, none = replies(monkeypatch, {**keys, "clients-together": False})
    assert (sum(stacks), none) == (CLIENTS, [])
    for one, other in zip(with_stacks, alone, strict=True):
        assert one.content["metrics"] == other.content["metrics"]
        for key, array in one.content["arrays"].items():
            np.testing.assert_array_equal(array.numpy(), other.content["arrays"][key].numpy())


def test_a_client_with_another_model_fails_alone(monkeypatch):
    answers, stacks = replies(monkeypatch, {"model": "mlp"}, broken=4)
    assert [place for place, answer in enumerate(answers) if answer.has_error()] == [4]
    assert sum(stacks) == CLIENTS - 1


def test_models_with_convolutions_are_trained_one_by_one(monkeypatch):
    answers, stacks = replies(monkeypatch, {"model": "cnn", "local-epochs": 1})
    assert not any(answer.has_error() for answer in answers)
    assert stacks == []
