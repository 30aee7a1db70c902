from copy import deepcopy

import numpy as np
import pytest

from cflower.algorithm.optimizers import ADAPTIVE, SERVER_OPTIMIZERS, ServerOptimizer
from cflower.errors import ConfigError

ROUNDS = np.random.default_rng(0).normal(size=(6, 4))
"""The mean updates of six rounds."""


def follow(optimizer, updates, dtype=np.float64):
    """The model after each round."""
    model, state, path = np.zeros(updates.shape[1], dtype), {}, []
    for update in updates:
        model, state = optimizer.step(model, update.astype(dtype), state)
        path.append(model)
    return np.array(path)


def test_fedavgm_equals_flowers():
    # flwr FedAvgM: v = beta v + (old - new), v = old - new at first; model = old - lr v.
    model, velocity, way = np.zeros(4), None, []
    for update in ROUNDS:
        gradient = -update
        velocity = gradient if velocity is None else 0.7 * velocity + gradient
        model = model - 0.5 * velocity
        way.append(model)
    ours = follow(ServerOptimizer("fedavgm", learning_rate=0.5, momentum=0.7), ROUNDS)
    np.testing.assert_allclose(ours, way, rtol=1e-12)


SECOND = {
    "fedadagrad": lambda v, u: v + u**2,
    "fedadam": lambda v, u: 0.95 * v + 0.05 * u**2,
    "fedyogi": lambda v, u: v - 0.05 * u**2 * np.sign(v - u**2),
}


@pytest.mark.parametrize("rule", ADAPTIVE)
def test_adaptive_rules_equal_flowers_but_for_the_start(rule):
    # flwr FedOpt: m = b1 m + (1 - b1) d; x = x + eta m / (sqrt(v) + tau), per coordinate.
    # Differences: v starts at tau² as in Reddi et al., Alg. 2 (flwr: 0), and FedAdam has no
    # bias correction of eta (flwr's follows Kingma & Ba there).
    beta = 0.0 if rule == "fedadagrad" else 0.8
    way = np.zeros((len(ROUNDS), 4))
    for k in range(4):
        x, m, v = 0.0, 0.0, 0.01**2
        for t, update in enumerate(ROUNDS[:, k]):
            m = beta * m + (1 - beta) * update
            v = SECOND[rule](v, update)
            x = x + 0.3 * m / (v**0.5 + 0.01)
            way[t, k] = x
    ours = ServerOptimizer(rule, learning_rate=0.3, momentum=0.8, second_momentum=0.95, tau=0.01)
    np.testing.assert_allclose(follow(ours, ROUNDS), way, rtol=1e-12)


@pytest.mark.parametrize("rule", SERVER_OPTIMIZERS)
def test_arguments_are_not_changed(rule):
    optimizer = ServerOptimizer(rule)
    _, state = optimizer.step(np.ones(4), ROUNDS[0], {})
    arguments = np.ones(4), ROUNDS[0].copy(), state
    before = deepcopy(arguments)
    optimizer.step(*arguments)
    np.testing.assert_equal(arguments, before)


@pytest.mark.parametrize("rule", SERVER_OPTIMIZERS)
def test_the_models_precision_is_kept_and_updates_of_zero_move_nothing(rule):
    assert follow(ServerOptimizer(rule), ROUNDS, np.float32).dtype == np.float32
    np.testing.assert_array_equal(follow(ServerOptimizer(rule), np.zeros((3, 4))), 0)


def test_an_unknown_rule_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError, match=r"'adam' is not known: did you mean 'fedadam'"):
        ServerOptimizer("adam")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"learning_rate": -1}, "Got learning_rate=-1, but expected a number > 0"),
        ({"momentum": 1.0}, "Got momentum=1.0, but expected a number >= 0 and < 1"),
        ({"second_momentum": "much"}, "Got second_momentum='much', but expected a number"),
        ({"tau": float("nan")}, "Got tau=nan, but expected a number > 0"),
    ],
)
def test_settings_out_of_range_are_refused(settings, words):
    with pytest.raises(ConfigError, match=words):
        ServerOptimizer("fedadam", **settings)
