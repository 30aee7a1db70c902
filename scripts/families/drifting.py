"""What `drift` measures: who belongs to which group when, and an oracle that knows it."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid

from cflower import ClusteredFL
from cflower.algorithm.criteria import NeverSplit
from cflower.algorithm.tree import ROOT, Cluster, ParameterTree
from cflower.data.settings import group_at
from cflower.ordering import in_order

NUM_ANGLES = 18
Table = tuple[tuple[int, ...], ...]
"""The group of every client (a column) in every step (a row)."""


def table(text: str) -> Table:
    """Rows of digits between blanks, a digit a client."""
    return tuple(tuple(map(int, row)) for row in text.split())


def turning(pairs: Sequence[tuple[int, int]]) -> Table:
    """Two halves of the clients, each of the group that a pair has for it in a step."""
    half = NUM_ANGLES // 2
    return tuple((one,) * half + (other,) * half for one, other in pairs)


SCHEMES = {
    # FedDrift's change points (microsoft/FedDrift, data/changepoints, A.cp, R1.cp, D.cp):
    # ten clients, eleven steps.
    "A": table(
        "0000000000 0100000000 0100000100 0111010100 0111010110 1011011010 1001001010 1000101011 "
        "1000101001 1000101001 1000101001"
    ),
    "R1": table(
        "0000000000 0000000000 2123110113 2123110113 2001033203 2001033203 1221012200 1221012200 "
        "1321231201 1321231201 1321231201"
    ),
    "D": table(
        "1112220033 1112220033 2211222032 2221232002 2321133002 3323133202 3033313201 0033313221 "
        "0003311321 0003311321 0003311321"
    ),
    # Both groups take on a third one's data at once.
    "joint": table("0000011111 0000011111 0000011111 2222222222 2222222222 2222222222"),
    # With ``rotation`` and a client for every angle: groups that turn by 20 degrees a step. They
    # stay opposite to each other...
    "gradual": turning(((0, 9),) * 3 + ((1, 10), (2, 11), (3, 12), (4, 13), (5, 14))),
    # ... or turn towards each other until they are one.
    "gradual-join": turning(((0, 4),) * 3 + ((1, 4), (1, 3), (2, 3)) + ((2, 2),) * 6),
}
"""By name."""
NUM_GROUPS = dict.fromkeys(("gradual", "gradual-join"), NUM_ANGLES)
"""Where a scheme has not all the groups that there are."""


def drift_of(scheme: Table, rounds: int) -> str:
    """The run config's key ``drift`` for a scheme of steps of so many rounds.

    >>> drift_of(((0, 0), (0, 1)), 10)
    '1:0=0,1:1=0,11:1=1'
    """
    changes, before = [], (-1,) * len(scheme[0])
    for step, row in enumerate(scheme):
        changes += [
            f"{step * rounds + 1}:{client}={group}"
            for client, group in enumerate(row)
            if group != before[client]
        ]
        before = row
    return ",".join(changes)


class Oracle(ClusteredFL):
    """Clustered federated learning that knows every change in the round in which it happens.

    A group that is new begins with the model of the cluster that its first client was in, or
    ``afresh`` with the run's first model, as FedDrift's authors do it.
    """

    def __init__(self, drift: str, afresh: bool = False, **settings: Any) -> None:
        super().__init__(NeverSplit(), **settings)
        self.drift, self.afresh = drift, afresh

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As of `ClusteredFL`, with every client where it belongs in this round."""
        clients = range(len(self.tree.clients))
        groups = [group_at(self.drift, client, server_round) for client in clients]
        run = self._run  # the state is the run's, and nobody else may change it
        assert run is not None, "start was called"
        run.state = replace(run.state, tree=arranged(self.tree, groups, self.afresh), known={})
        return super().configure_train(server_round, arrays, config, grid)


def arranged(tree: ParameterTree, groups: Sequence[int], afresh: bool) -> ParameterTree:
    """A tree with a leaf for every group there is or was, and the clients where they belong."""
    members: dict[str, list[str]] = {}
    for client, group in zip(in_order(tree.clients), groups, strict=True):
        members.setdefault(f"{ROOT}.{group}", []).append(client)
    leaves = {end.name: replace(end, members=()) for end in tree.ends if end.name != ROOT}
    for name, clients in members.items():
        first = tree.root if afresh else tree.leaf_of(clients[0])
        start = leaves.get(name) or Cluster(name, (), first.model)
        leaves[name] = replace(start, members=in_order(clients))
    root = replace(tree.root, children=in_order(leaves), split_round=0)
    return ParameterTree({ROOT: root, **leaves})
