"""Clients that spoil the training, on the digits: with next to no effect on the others."""

from functools import cache
from typing import Any

import numpy as np
import pytest
from adversaries import ATTACKS, CLAIMED, accuracy, attacked, scaled, separated, without

from cflower.messages.arrays import record_of

CLIENTS, ADVERSARIES = 10, 2
KEYS: dict[str, Any] = {"model": "mlp", "num-server-rounds": 20}


@cache
def alone(sleeper: bool) -> float:
    """How accurate the honest clients' model is when the others stay away."""
    attack, bad = ("sleeper", 1) if sleeper else ("", ADVERSARIES)
    return accuracy(without(CLIENTS, bad, KEYS, attack), CLIENTS - bad)


@pytest.mark.slow
@pytest.mark.parametrize("attack", ATTACKS)
def test_adversaries_do_no_harm_with_the_defaults(attack):
    bad = 1 if attack == "sleeper" else ADVERSARIES  # at most a fifth of a cluster
    found = attacked(attack, CLIENTS, bad, KEYS)
    # 144 held-out examples: one of them is 0.7 points.
    assert accuracy(found, CLIENTS - bad) >= alone(attack == "sleeper") - 0.03
    assert alone(attack == "sleeper") > 0.85


def test_an_update_is_scaled_but_not_what_is_only_averaged():
    received = record_of({"w": np.ones(2, np.float32), "bn.running_mean": np.ones(1, np.float32)})
    trained = record_of({"w": np.float32([2, 0]), "bn.running_mean": np.float32([5])})
    sent = scaled(received, trained, -10)
    np.testing.assert_array_equal(sent["w"].numpy(), [-9, 11])
    np.testing.assert_array_equal(sent["bn.running_mean"].numpy(), [5])
    assert CLAIMED == 10**12


def test_separated_depends_on_the_other_members_only():
    def summary(*clusters: str) -> dict[str, Any]:
        return {"clients": {f"partition-{i}": {"cluster": c} for i, c in enumerate(clusters)}}

    assert separated(summary("0.0", "0.0", "0.1", "0.2"), 2)
    assert separated(summary("0.0", "0.1", "0.2", "0.2"), 2)
    assert not separated(summary("0.0", "0.1", "0.1", "0.2"), 2)
