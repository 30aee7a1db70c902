"""A ClientApp with scikit-learn only, as if written for FedAvg: it knows nothing of cflower."""

from functools import cache

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier

from cflower import ClusteredFL
from cflower.algorithm.criteria import NormCriterion
from cflower.simulation.inline_grid import FIRST_NODE_ID, InlineGrid

NUM_CLIENTS = 8
CLASSES = np.arange(10)

app = ClientApp()


@cache
def digits_of(partition: int) -> tuple[np.ndarray, ...]:
    """A share of the digits; in every second one each digit is called by another's name."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    share = np.array_split(order, NUM_CLIENTS)[partition]
    names = CLASSES if partition % 2 == 0 else np.roll(CLASSES, 3)
    x, y = images[share] / 16, names[labels[share]]
    held_out = len(x) // 5
    return x[held_out:], y[held_out:], x[:held_out], y[:held_out]


def received(message: Message) -> SGDClassifier:
    arrays = message.content["arrays"]
    model = SGDClassifier(loss="log_loss", learning_rate="constant", eta0=0.01, random_state=0)
    model.partial_fit(np.zeros((1, 64)), [0], classes=CLASSES)
    model.coef_ = arrays["coef_"].numpy().copy()
    model.intercept_ = arrays["intercept_"].numpy().copy()
    return model


@app.train()
def train(message: Message, context: Context) -> Message:
    x, y, _, _ = digits_of(context.node_config["partition-id"])
    model = received(message).partial_fit(x, y)
    arrays = {"intercept_": Array(model.intercept_), "coef_": Array(model.coef_)}
    metrics = MetricRecord({"num-examples": len(x)})
    return Message(
        RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics}), reply_to=message
    )


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    _, _, x, y = digits_of(context.node_config["partition-id"])
    accuracy = float(received(message).score(x, y))
    metrics = MetricRecord({"accuracy": accuracy, "num-examples": len(x)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


@pytest.fixture(scope="module")
def strategy() -> ClusteredFL:
    arrays = {"coef_": Array(np.zeros((10, 64))), "intercept_": Array(np.zeros(10))}
    strategy = ClusteredFL(NormCriterion(eps1=0.4, eps2=0.6), fraction_evaluate=0.0)
    strategy.start(InlineGrid(app, NUM_CLIENTS, {}), ArrayRecord(arrays), num_rounds=14)
    return strategy


@pytest.mark.slow
def test_the_two_groups_are_found_exactly(strategy):
    nodes = [str(FIRST_NODE_ID + i) for i in range(NUM_CLIENTS)]
    assert [leaf.members for leaf in strategy.tree.leaves] == [
        tuple(nodes[0::2]),
        tuple(nodes[1::2]),
    ]


@pytest.mark.slow
def test_every_client_is_served_far_better_than_by_one_model_for_all(strategy):
    clients = strategy.final_report.clients.values()
    assert len(clients) == NUM_CLIENTS
    for client in clients:
        assert client.leaf.metrics["accuracy"] > 0.8
        assert client.federated.metrics["accuracy"] < client.leaf.metrics["accuracy"] - 0.2
