"""What a run logs of clients: one line for one cause, however many there are."""

import logging

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict

from cflower import ClusteredFL, simulate

CLIENTS, ROUNDS = 1000, 3


def client(message, context):
    """Every second one fails, and none has examples to evaluate on."""
    number = context.node_config["partition-id"]
    if not message.metadata.message_type.startswith("train"):
        content = {"metrics": MetricRecord({"num-examples": 0})}
        return Message(RecordDict(content), reply_to=message)
    if number % 2:
        raise ValueError(f"no data in /clients/{number}.csv")
    arrays = ArrayRecord({"w": Array(np.full(3, number % 7, np.float32))})
    metrics = MetricRecord({"num-examples": 10})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


@pytest.mark.slow
def test_a_thousand_clients_with_the_same_fault_are_a_few_lines(caplog, capsys):
    caplog.set_level(logging.INFO, "flwr")
    arrays = ArrayRecord({"w": Array(np.zeros(3, np.float32))})
    strategy = ClusteredFL(exclude_after=2)
    simulate(client, CLIENTS, strategy=strategy, arrays=arrays, num_rounds=ROUNDS)
    assert [m for m in caplog.messages if "no data in" in m] == [
        "The round goes on without 500 clients (1001, 1003, 1005, 1007, 1009, 1011, 1013, 1015, "
        "1017, 1019, 1021, 1023 and 488 more): the reply is an error: "
        "ValueError: no data in /clients/1.csv (or alike).",
        "No messages are sent to 500 clients (1001, 1003, 1005, 1007, 1009, 1011, 1013, "
        "1015, 1017, 1019, 1021, 1023 and 488 more) for 5 rounds: 2 unusable replies in a row; "
        "the last one is an error: ValueError: no data in /clients/1.csv (or alike).",
    ]
    # No examples to evaluate on is no fault.
    (line,) = [m for m in caplog.messages if m.startswith("Without held-out examples")]
    assert "1,000 clients" in line or "500 clients" in line
    assert len([r for r in caplog.records if r.levelno >= logging.WARNING]) <= ROUNDS * 3
    assert capsys.readouterr().err.count("Traceback") == 1


def honest(message, context):
    """All clients want the same; what is left of their updates in the end is noise."""
    metrics, config = {"num-examples": 30, "accuracy": 0.5}, message.content["config"]
    content = {"metrics": MetricRecord(metrics)}
    if message.metadata.message_type.startswith("train"):
        rng = np.random.default_rng((context.node_config["partition-id"], config["server-round"]))
        model = message.content["arrays"]["w"].numpy()
        moved = model + 0.7 * (1 - model) + 1e-3 * rng.normal(size=20) * rng.uniform(0.1, 3)
        content["arrays"] = ArrayRecord({"w": Array(moved.astype(np.float32))})
    return Message(RecordDict(content), reply_to=message)


def test_equal_honest_clients_are_accused_of_nothing(caplog):
    caplog.set_level(logging.INFO, "flwr")
    arrays = ArrayRecord({"w": Array(np.zeros(20, np.float32))})
    simulate(honest, 12, strategy=ClusteredFL(personal=False), arrays=arrays, num_rounds=30)
    assert [m for m in caplog.messages if "as large as usual" in m] == []
    assert [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING] == []
