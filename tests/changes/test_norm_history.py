"""Which members' updates are suspiciously long."""

import numpy as np
import pytest

from cflower.algorithm.constants import FEW, LONG
from cflower.changes.norm_history import NormHistory, updated


def histories(rounds: np.ndarray, leaf: str, unit: float = 1.0) -> dict[str, NormHistory]:
    """After rounds with these norms, shape (rounds, m)."""
    state: dict[str, NormHistory] = {}
    for norms in rounds:
        now = {str(i): unit * n for i, n in enumerate(norms)}
        state = updated(state, leaf, now)
    return state


def suspects(state: dict[str, NormHistory]) -> list[str]:
    return [client for client, history in state.items() if history.suspected]


@pytest.mark.parametrize("unit", [1.0, 1e-6])
def test_norms_have_no_unit(unit):
    rounds = np.exp(np.random.default_rng(0).normal(scale=0.1, size=(12, 5)))
    rounds[10:, 2] *= 20
    state = histories(rounds, "0.0", unit)
    assert suspects(state) == ["2"]
    assert state["2"].suspected == 2


@pytest.mark.parametrize("leaf", ["0", "0.0"])
@pytest.mark.parametrize("seed", range(5))
def test_norms_that_always_vary_are_suspicious_for_too_few_rounds_to_leave_a_root(leaf, seed):
    rng = np.random.default_rng(seed)
    rounds = np.exp(rng.normal(scale=[0.01] * 4 + [0.2], size=(40, 5)))
    for end in range(1, 41):
        assert all(h.suspected < FEW for h in histories(rounds[:end], leaf).values())


def test_members_seldom_leave_a_root_because_the_norms_of_a_single_weight_vary_widely():
    leave = 0
    for seed in range(20):
        state: dict[str, NormHistory] = {}
        for norms in np.abs(np.random.default_rng(seed).normal(size=(50, 10))):
            state = updated(state, "0", {str(i): norm for i, norm in enumerate(norms)})
            leave += any(h.suspected == FEW and h.factor >= LONG for h in state.values())
    assert leave <= 2  # of 10,000 updates


@pytest.mark.parametrize(("factor", "expected"), [(LONG - 0.1, []), (LONG + 0.1, ["2"])])
@pytest.mark.parametrize(("leaf", "needed"), [("0", 2 * FEW), ("0.0", FEW)])
def test_an_update_is_suspicious_from_twice_the_usual_length(leaf, needed, factor, expected):
    rounds = np.ones((needed + 1, 5))
    rounds[needed, 2] = factor
    assert suspects(histories(rounds, leaf)) == expected
    assert suspects(histories(rounds[1:], leaf)) == []  # too short a history


@pytest.mark.parametrize(("longer", "expected"), [(3, ["0", "1", "2"]), (2, [])])
def test_less_is_suspicious_if_most_members_updates_are_longer_than_ever(longer, expected):
    rounds = np.ones((FEW + 1, 5))
    rounds[FEW, :longer] = 1.2
    assert suspects(histories(rounds, "0.0")) == expected


@pytest.mark.parametrize(
    ("all_train", "expected"), [(True, []), (False, ["0", "1", "2", "3", "4"])]
)
def test_longer_updates_because_more_examples_train_are_no_change_of_data(all_train, expected):
    state = histories(np.ones((FEW, 5)), "0.0")
    now = updated(state, "0.0", dict.fromkeys(state, 1.2), all_train=all_train)
    assert suspects(now) == expected
    # They are usual from then on, so that a change in the next round is noticed.
    later = updated(now, "0.0", dict.fromkeys(state, 1.2) | {"2": 3.0}, all_train=all_train)
    assert suspects(later) == (["2"] if all_train else expected)


def test_half_of_the_members_may_change_at_once():
    rounds = np.ones((FEW + 1, 4))
    rounds[FEW, :2] = 3
    assert suspects(histories(rounds, "0.0")) == ["0", "1"]


def test_what_is_usual_is_what_a_member_did_last():
    """Next to those of the former other members its updates were long."""
    state: dict[str, NormHistory] = {}
    for others in 14 * [{"a": 0.1, "b": 0.1}] + 5 * [{"c": 1.0, "d": 1.0}]:
        state = updated(state, "0.0", others | {"2": 1.0})
    assert suspects(state) == []
    assert suspects(updated(state, "0.0", {"c": 1.0, "d": 1.0, "2": 3.0})) == ["2"]


def test_rounds_with_a_suspect_leave_all_histories_as_they_were_until_patience_ends():
    rounds = np.ones((6, 4)) + 0.01 * np.arange(24).reshape(6, 4) % 0.03
    state = histories(rounds, "0.0")
    for expected in (*range(1, 2 * FEW + 1), 0):
        now = {str(i): 5.0 if i == 2 else 1.0 for i in range(4)}
        before, state = state, updated(state, "0.0", now)
        assert state["2"].suspected == expected
        grown = [history.rounds - before[c].rounds for c, history in state.items()]
        assert grown == [0 if expected else 1] * 4


def test_a_norm_without_a_logarithm_does_not_count():
    norms = {"a": 0.0, "b": 1.0, "c": float("inf")}
    assert list(updated({}, "0", norms)) == ["b"]
