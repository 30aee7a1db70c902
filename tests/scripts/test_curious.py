import numpy as np
import pytest
from adversaries.curious import CLASSES, INPUTS, learned

RNG = np.random.default_rng(0)
ENTRIES = CLASSES * (INPUTS + 1)
CLIENTS = 20


def replies(count, shares):
    """Updates of a linear model in a secret order, and the true place of each entry."""
    weights = RNG.normal(1.0, 1.0, (count, CLASSES, INPUTS))
    weights -= weights.mean(axis=1, keepdims=True)
    biases = np.tile(shares, (count // CLIENTS, 1)) + RNG.normal(0, 0.05, (count, CLASSES))
    biases -= biases.mean(axis=1, keepdims=True)
    weights += np.linspace(-1, 1, CLASSES)[:, None]  # weights go on in one direction
    places = RNG.permutation(ENTRIES)
    return np.hstack([weights.reshape(count, -1), biases])[:, places], places


def test_about_as_many_replies_as_entries_show_the_groups_the_biases_and_the_labels():
    shares = RNG.dirichlet(np.full(CLASSES, 10.0), CLIENTS)
    shares -= shares.mean(axis=0)
    updates, places = replies(600, shares)
    found = learned(updates, places, shares)
    assert found["groups"] == 1
    assert found["biases"]
    assert found["r"] > 0.9


@pytest.mark.parametrize("count", [200, 400])
def test_fewer_replies_show_nothing(count):
    shares = np.eye(CLIENTS, CLASSES)
    updates, places = replies(count, shares)
    assert learned(updates, places, shares)["groups"] == 0
