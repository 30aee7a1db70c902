"""Clients that leave for good, or come seldom: the others go on as if they had never been there."""

from collections.abc import Callable

import pytest
from flwr.app import Context, RecordDict

from cflower import ClusteredFL
from cflower.auto.criterion import AutoCriterion
from cflower.messages.client_names import answer
from cflower.messages.failures import FailureRecord
from cflower.simulation.inline_grid import FIRST_NODE_ID, InlineGrid
from tests.strategy.quadratics import Quadratics, Reports, initial_arrays

GROUPS = (0, 1) * 9
ROUNDS = 30


class Named(Quadratics):
    """Clients with the names of their nodes; the server does not know how many there will be."""

    def _answer(self, message, context):
        return answer(message, client_id=f"node-{context.node_id}")


class Coming(InlineGrid):
    """Nodes that are connected in some rounds; ``now`` is the current one."""

    def __init__(self, clients: Quadratics, here: Callable[[int, int], int | None]) -> None:
        super().__init__(clients.app(), len(clients.groups), {})
        self.here, self.now, self.places = here, 1, len(clients.groups)

    def get_node_ids(self):
        nodes = []
        for place in range(self.places):
            if (node := self.here(place, self.now)) is not None:
                node += FIRST_NODE_ID
                config = {"partition-id": place, "num-partitions": self.places}
                self._contexts.setdefault(node, Context(1, node, config, RecordDict(), {}))
                nodes.append(node)
        return nodes


class Clock(Reports):
    """Keeps the reports, and the grid's current round."""

    def __init__(self, grid):
        self.grid = grid

    def on_round(self, report):
        super().on_round(report)
        self.grid.now = report.server_round + 1


def run(here, groups=GROUPS, rounds=ROUNDS, more=(), **settings):
    """The strategy after a run in which a place has a node with this number, or none."""
    grid = Coming(Named(groups), here)
    settings = {"metric": "loss", "fraction_evaluate": 0.0} | settings
    strategy = ClusteredFL(AutoCriterion(), observers=[Clock(grid), *more], **settings)
    strategy.start(grid, initial_arrays(), rounds, timeout=5)
    return strategy


def parts_of(strategy, places):
    """The leaves with the clients that have nodes of these numbers."""
    names = {f"node-{FIRST_NODE_ID + place}" for place in places}
    parts = (names & {*leaf.members} for leaf in strategy.tree.leaves)
    return {frozenset(part) for part in parts if part}


def planted(places, groups=GROUPS):
    return {
        frozenset(f"node-{FIRST_NODE_ID + place}" for place in places if groups[place] == group)
        for group in {*groups}
    }


LEAVING = {
    "after a round": lambda place, now: place if now == 1 else None,
    "and come back under other names": lambda place, now: 100 * now + place,
}


@pytest.mark.slow
@pytest.mark.parametrize("leaving", LEAVING)
@pytest.mark.parametrize("number", [0, 3, 4, 6])
def test_who_leaves_does_not_keep_the_others_together(number, leaving):
    stay = range(number, len(GROUPS))
    strategy = run(lambda p, now: p if p in stay else LEAVING[leaving](p, now))
    assert parts_of(strategy, stay) == planted(stay)
    assert len(strategy.tree.leaves) == 2
    gone = {*strategy.failures.counts("gone")}
    assert not gone & {f"node-{FIRST_NODE_ID + place}" for place in stay}
    if leaving == "after a round":
        assert len(gone) == number


@pytest.mark.slow
@pytest.mark.parametrize("place", [0, 5])
def test_a_client_that_is_there_in_every_sixth_round_only_is_not_lost(place):
    strategy = run(lambda p, now: p if p != place or now % 6 == 1 else None, rounds=44)
    assert parts_of(strategy, range(len(GROUPS))) == planted(range(len(GROUPS)))
    assert not strategy.failures.counts("gone")
    assert strategy.tree.unassigned == {}


def test_a_client_is_gone_once_it_is_away_for_as_long_as_it_was_there():
    record, gone_after = FailureRecord(), {}
    for here in (True, True, True, *[False] * 9):
        record = record.met(["a", "b"] if here else ["b"])
        gone_after.setdefault(record.clients["a"].gone, record.clients["a"].away)
    assert gone_after == {False: 0, True: 3}
    record = record.met(["a", "b"])
    assert not record.counts("gone")
    # Once it was away for nine rounds, it is waited for twice as long.
    for away in range(1, 20):
        record = record.met(["b"])
        assert record.clients["a"].gone == (away >= 18)
