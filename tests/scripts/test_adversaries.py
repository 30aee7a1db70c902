"""Clients that spoil the training, on the digits: with next to no effect on the others."""

from functools import cache, partial
from typing import Any

import numpy as np
import pytest
from adversaries.attacks import (
    ATTACKS,
    COMES_AND_GOES,
    NEW_NAMES,
    Attack,
    Moment,
    Turn,
    backdoored,
)
from adversaries.federation import Federation
from adversaries.measure import separated
from adversaries.runs import AWAY, attacked, shift_of

from cflower.data.examples import Examples
from cflower.messages.layout import Layout
from cflower.simulation.inline_grid import FIRST_NODE_ID

CLIENTS, ADVERSARIES = 10, 2
KEYS: dict[str, Any] = {"model": "mlp", "num-server-rounds": 20}


def accuracy(attack: str, grouped: bool) -> float:
    keys = KEYS | shift_of("5,5" if grouped else "")
    bad = 1 if grouped else ADVERSARIES  # at most a fifth of a cluster
    return attacked(attack, CLIENTS, bad, keys).accuracy


alone = cache(partial(accuracy, AWAY))


@pytest.mark.slow
@pytest.mark.parametrize("attack", ATTACKS)
def test_adversaries_do_no_harm_with_the_defaults(attack):
    grouped = ATTACKS[attack].grouped
    # 72 or 81 reported examples: four of them are 5 points.
    assert accuracy(attack, grouped) >= alone(grouped) - 0.056
    assert alone(grouped) > 0.85


@pytest.mark.slow
@pytest.mark.parametrize(("sizes", "bad", "most"), [("", 3, 0.5), ("5,5", 1, 0.25)])
def test_a_median_withstands_a_backdoor_with_groups_and_without(sizes, bad, most):
    keys = {**KEYS, **shift_of(sizes), "aggregation": "fedmedian"}
    found = attacked("backdoor", CLIENTS, bad, keys)
    # A mean: 1.0. Honest examples do not show a backdoor, so no vote parts three of ten clients.
    assert found.success < most
    assert found.accuracy > 0.9


def test_adversaries_come_and_go_and_have_new_nodes_in_each_round():
    def nodes(presence, now):
        federation = Federation(Attack(presence=presence), [4])
        federation.now = now
        grid = federation.grid(lambda message, context: None, 5, {}, 1)
        return [*grid.get_node_ids()], grid

    honest = [FIRST_NODE_ID + client for client in range(4)]
    assert [len(nodes(COMES_AND_GOES, now)[0]) for now in range(4)] == [5, 4, 5, 4]
    assert nodes("", 3)[0] == [*honest, FIRST_NODE_ID + 4]
    first, second = (nodes(NEW_NAMES, now)[0] for now in (0, 1))
    assert first[:4] == second[:4] == honest and len({*first, *second}) == 6
    (ids, grid) = nodes(NEW_NAMES, 7)
    assert [*grid.get_node_ids()] == ids
    assert grid._contexts[ids[-1]].node_config["partition-id"] == 4


def test_what_adversaries_send():
    own, others = np.float32([3.0, 4.0]), [np.float32([1.0, 0.0]), np.float32([3.0, 2.0])]
    moment, layout = Moment(3, 20, "0", 3, 7), Layout((), np.dtype("f4"), 2)
    turn = Turn(own, others, [*others, np.float32([5.0, 1.0])], moment, -own, layout)
    sent = {name: attack.send(turn) for name, attack in ATTACKS.items()}
    np.testing.assert_array_equal(sent["x-10"], [-30, -40])
    np.testing.assert_array_equal(sent["unchanged"], [0, 0])
    np.testing.assert_array_equal(sent["alternating"], -own)
    np.testing.assert_array_equal(sent["ipm"], [-1, -0.5])
    np.testing.assert_array_equal(sent["alie"], [0.5, -0.5])
    np.testing.assert_array_equal(sent["bridge"], [3, 1])
    assert np.linalg.norm(sent["noise"]) == pytest.approx(5)
    assert ATTACKS["unchanged"].claim == 1e5


def test_a_backdoor_is_in_every_second_example():
    examples = Examples(np.full((4, 1, 3, 3), 0.5, np.float32), np.array([3] * 4), tuple("abcd"))
    examples.inputs[0, 0, 2, 2] = 1.0
    poisoned = backdoored(examples, 0)
    assert poisoned.labels.tolist() == [0, 3, 0, 3]
    assert (poisoned.inputs.reshape(4, -1)[::2, :4] == 1).all()
    np.testing.assert_array_equal(poisoned.inputs[1::2], examples.inputs[1::2])


def test_separated_depends_on_the_other_members_only():
    def summary(*clusters: str) -> dict[str, Any]:
        return {"clients": {f"partition-{i}": {"cluster": c} for i, c in enumerate(clusters)}}

    assert separated(summary("0.0", "0.0", "0.1", "0.2"), 2)
    assert separated(summary("0.0", "0.1", "0.2", "0.2"), 2)
    assert not separated(summary("0.0", "0.1", "0.1", "0.2"), 2)
