from types import SimpleNamespace
from typing import Any

import pytest
from families.participation import SELDOM, UPDATES, WAYS, Presence, config_of, line, run_one
from records import Job


def rounds_of(presence: Presence, client: int) -> list[int]:
    """The rounds in which a client is there."""
    presence.on_start(None)
    there = []
    for now in range(1, presence.rounds + 1):
        if not presence.is_away(client):
            there.append(now)
        presence.on_round(SimpleNamespace(server_round=now))  # type: ignore[arg-type]
    return there


@pytest.mark.parametrize("family", SELDOM)
def test_a_group_is_there_in_every_so_many_th_round_and_at_least_ten_times(family):
    seldom, every = SELDOM[family]
    rounds = config_of("digits", seldom, every, 30, {}, 0)["num-server-rounds"]
    presence = Presence(seldom, every, rounds)
    assert rounds_of(presence, 19) == list(range(every, rounds + 1, every))
    assert len(rounds_of(presence, 20 - seldom)) >= UPDATES
    assert len(rounds_of(presence, 19 - seldom)) == rounds


def test_scattered_clients_are_there_in_different_rounds():
    presence = Presence(5, 4, 40, scattered=True)
    assert rounds_of(presence, 16)[:2] == [4, 8]
    assert rounds_of(presence, 17)[:2] == [3, 7]


def test_everyone_is_there_before_the_first_round_and_after_the_last_one():
    presence = Presence(5, 3, 4)
    assert not presence.is_away(19)
    rounds_of(presence, 0)
    assert not presence.is_away(19)


def test_a_client_that_is_served_worse_than_alone_is_counted():
    run: dict[str, Any] = {
        "data": "digits", "family": "half-4", "seed": 0, "exact": False, "clusters": 1,
        "split_lines": [{"round": 4, "trial": "undone"}], "seldom": 10,
        "accuracies": [0.9] * 10 + [0.1] * 10, "leaves": [0.9] * 20, "alone": [0.8] * 20,
        "held_out": [20] * 20,
    }  # fmt: skip
    row = line(run)
    assert (row["worse"], row["leaf worse"], row["last split"]) == (10, 0, None)
    assert row["accuracy seldom"] == pytest.approx(0.1)


@pytest.mark.slow
def test_a_group_that_is_always_there_is_found():
    config = config_of("digits", 5, 1, 10, WAYS["auto"], 0)
    record = run_one(Job({}, {**config, "every": 1, "scattered": False}))
    assert record["exact"] and record["seldom"] == 5
