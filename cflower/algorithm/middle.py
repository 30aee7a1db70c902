"""Entries that are not trained, such as BatchNorm's statistics: the middle one of those sent.

A mean has no bound for a single entry: one client could pull a variance below 0, and the mean of
two indices is none of them. The middle one lies within what the other clients sent as long as fewer
than half of them are hostile.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from cflower.algorithm.aggregation import MEDIAN, trimmed_mean
from cflower.algorithm.constants import FEW
from cflower.algorithm.tree import Cluster
from cflower.algorithm.weights import Vector
from cflower.seeding import generator

RECENT = 9
"""Members whose values count: where fewer replied in a round, the last values of others count too.
Four hostile ones are outvoted, a fifth of 20 clients. With five, of two runs with two replies a
round one had three hostile ones among them, and the variance that they left stayed."""
MOST_BYTES = 2**26
"""Memory for the values that are kept during a round. Where more are sent, the middle one of a
random sample is taken: of 158 replies for the 53,120 statistics of a ResNet-50."""


class Middle:
    """The entries that are not trained, as members send them in one round.

    They are those of a leaf, or of all ``leaves`` that share a body, where these entries are equal.
    """

    def __init__(self, leaves: Sequence[Cluster]) -> None:
        together = tuple(client for leaf in leaves for client in leaf.members)
        self._leaf, self._count = replace(leaves[0], members=together), 0
        self._sent = dict[str, Vector]()
        self._most = max(RECENT, MOST_BYTES // max(self._leaf.model.carried.nbytes, 1))

    def add(self, client: str, change: Vector, origin: Vector) -> None:
        """Take up a client's change of these entries of the model that it trained."""
        self._count += 1
        if len(self._sent) >= self._most:
            place = int(generator(0, "sent", self._leaf.name, self._count).integers(self._count))
            if place >= self._most:
                return
            del self._sent[[*self._sent][place]]
        # Values that did not change, such as those of a frozen backbone, are not copied.
        self._sent[client] = origin + change if change.any() else origin

    @cached_property
    def changed(self) -> tuple[Vector, dict[str, Vector]]:
        """The change of the leaf's entries, shape (e,), and the values to keep for later rounds."""
        leaf, recent = self._leaf, dict(self._sent)
        if len(recent) < RECENT:
            others = {*leaf.members} - recent.keys()
            before = [(client, known) for client, known in leaf.sent.items() if client in others]
            recent |= dict(before[: RECENT - len(recent)])
        return middle(recent.values(), leaf), {} if len(self._sent) >= RECENT else recent


def middle(values: Iterable[Vector], leaf: Cluster) -> Vector:
    """The change of a leaf's entries to the middle one of these values, shape (e,).

    Where fewer than three are known, of a leaf with as many members, its own count among them: what
    only one client ever sent changes nothing.
    """
    own, known = leaf.model.carried, [*values]
    known += [own] * (min(FEW, len(leaf.members)) - len(known))
    return np.asarray(trimmed_mean(known, MEDIAN) - own)
