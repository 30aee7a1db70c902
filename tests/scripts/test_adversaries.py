"""Clients that spoil the training, on the digits: separated, with no effect on the others."""

from typing import Any

import pytest
from adversaries import ATTACKS, accuracy, attacked, separated, without

CLIENTS, ADVERSARIES, HONEST = 10, 2, 8
KEYS: dict[str, Any] = {"model": "mlp", "num-server-rounds": 15}


@pytest.fixture(scope="module")
def alone() -> float:
    """How accurate the honest clients' model is when the others stay away."""
    return accuracy(without(CLIENTS, ADVERSARIES, KEYS), HONEST)


@pytest.mark.slow
@pytest.mark.parametrize("attack", ATTACKS)
def test_adversaries_are_separated_and_do_no_harm(attack: str, alone: float) -> None:
    found = attacked(attack, CLIENTS, ADVERSARIES, KEYS)
    assert separated(found, HONEST)
    assert accuracy(found, HONEST) >= alone - 0.02
    assert alone > 0.9


def test_separated_looks_at_company_only() -> None:
    def summary(*clusters: str) -> dict[str, Any]:
        return {"clients": {f"partition-{i}": {"cluster": c} for i, c in enumerate(clusters)}}

    assert separated(summary("0.0", "0.0", "0.1", "0.2"), 2)
    assert separated(summary("0.0", "0.1", "0.2", "0.2"), 2)
    assert not separated(summary("0.0", "0.1", "0.1", "0.2"), 2)
