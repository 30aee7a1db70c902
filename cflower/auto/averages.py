"""The average updates of a cluster's clients over rounds: the memory of `AutoCriterion`."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cflower.algorithm.constants import ETA, FEW
from cflower.algorithm.criteria import Evidence
from cflower.algorithm.similarity import Matrix
from cflower.auto.clustering import Labels
from cflower.ordering import counted, without

Numbers = NDArray[np.float64]
NEW = -2
"""The part of clients that a clustering did not have."""


def empty(dtype: Any = float, *row: int) -> Any:
    """Field with an array without clients as its default, with rows of this shape."""
    return field(default_factory=lambda: np.zeros((0, *row), dtype))


@dataclass(frozen=True)
class Averages:
    """Polynomial-decay averages (Shamir and Zhang, arXiv 1212.1824) with η = `ETA`.

    A client's t-th update enters its average with weight (η + 1) / (t + η). Every array has a row
    or an entry for each of the m clients.
    """

    clients: tuple[str, ...] = ()
    """All clients with an update since the cluster was born, in order of the first one."""
    averages: Matrix = empty(np.float32, 0)
    """Average update, shape (m, k)."""
    counts: NDArray[np.int64] = empty(int)
    """Number of updates."""
    weights: Numbers = empty()
    """w_i of the last update."""
    power: Numbers = empty()
    """Mean squared distance of an update from the average before it, without the common part."""
    median: Numbers = empty()
    """Median of ``counts`` at the last update."""
    outputs: Matrix = empty(np.float32, 0, 0)
    """Average update of the output layer, shape (m, C, h + 1); C = 0 without such a layer."""
    cut: NDArray[np.int32] = empty(np.int32, 2)
    """Part of each client in the last clustering of each view, shape (m, 2); -1 for clients that
    it left out, `NEW` for those that it did not have."""
    streak: NDArray[np.int32] = empty(np.int32, 2)
    """Number of rounds in a row for which each client has been in this part, shape (m, 2); of new
    clients the median of the others in the part."""

    def updated(self, evidence: Evidence) -> "Averages":
        """Return the members' averages with this round's updates; these ones are not changed."""
        now = np.flatnonzero(evidence.rounds == evidence.server_round)
        names = [evidence.clients[i] for i in now]
        members = {*evidence.members, *evidence.absent}
        clients = tuple(dict.fromkeys((*(c for c in self.clients if c in members), *names)))
        if not names:  # such as after a round in which all models moved far
            return self._of(clients)
        updates = np.stack([evidence.vectors[i] for i in now])
        layers = evidence.outputs or (np.zeros((0, 0)),) * len(evidence.clients)
        outputs = np.stack([layers[i] for i in now])
        after = self._of(clients, averages=updates.shape[1:], outputs=outputs.shape[1:])
        place = {client: i for i, client in enumerate(clients)}
        rows = np.array([place[name] for name in names])
        after.weights[rows] = evidence.weights[now]
        after.counts[rows] += 1
        after.median[rows] = np.median(after.counts)
        steps = ((ETA + 1) / (after.counts[rows] + ETA)).astype(np.float32)
        after.outputs[rows] += steps[:, None, None] * (outputs - after.outputs[rows])
        updates = updates - after.averages[rows]
        after.averages[rows] += steps[:, None] * updates
        again = after.counts[rows] > 1
        rows, own = rows[again], updates[again]
        if (size := len(rows)) > 1:
            own = own - own.mean(axis=0)  # without the common part
            squares = np.einsum("ij,ij->i", own, own) * size / (size - 1)
            # Of t updates, t - 1 had an average before them.
            steps = (ETA + 1) / (after.counts[rows] - 1 + ETA)
            after.power[rows] += steps * (squares - after.power[rows])
        return after

    def _of(self, clients: tuple[str, ...], **shapes: tuple[int, ...]) -> "Averages":
        """A copy with rows of these ``shapes``, by field: of known clients, then of new ones."""
        wanted = {*clients}
        kept = [i for i, client in enumerate(self.clients) if client in wanted]
        arrays = dict[str, Any](without(vars(self), ["clients"]))
        for name, before in arrays.items():
            row = shapes.get(name, before.shape[1:])
            arrays[name] = np.zeros((len(clients), *row), before.dtype)
            arrays[name][: len(kept)] = before[kept].reshape(len(kept), *row)
        arrays["cut"][len(kept) :] = NEW
        return replace(self, clients=clients, **arrays)

    @property
    def noise(self) -> Numbers:
        """Expected contribution of chance to each average's squared length, shape (m,)."""
        t = np.arange(1.0, 1 + self.counts.max())
        # The j-th of t updates weighs 4 j (j + 1) (j + 2) / (t (t + 1) (t + 2) (t + 3)) for η = 3.
        product = np.prod([t + i for i in range(ETA)], axis=0)
        squared_weights = (ETA + 1) ** 2 * np.cumsum(product**2) / (product * (t + ETA)) ** 2
        return np.asarray(self.power * squared_weights[self.counts - 1])

    @property
    def steps(self) -> Numbers:
        """How much longer each client trains than the average one, by its weight, shape (m,).

        The length of an update grows with the steps of which it is the sum (FedNova, Wang et al.,
        NeurIPS 2020, arXiv 2007.07481).
        """
        known = np.where(self.weights > 0, self.weights, 1.0)
        return np.asarray(known / known.mean())

    @property
    def least(self) -> int:
        """Updates that a client needs: `FEW`, or half as many as the median client, at least two.

        Its noise is measured, so a client that seldom takes part counts like any other.
        """
        return max(2, min(FEW, ceil(np.median(self.counts) / 2)))

    def left_out(self, members: Sequence[str], absent: Sequence[str] = ()) -> dict[str, str]:
        """The members that are not considered, each with the reason; ``absent`` ones are away.

        An update is too old if the median client has since sent more than twice as many updates as
        this client ever.
        """
        reasons = dict.fromkeys(without(dict.fromkeys(members), self.clients), "no update yet")
        few, old = self.counts < self.least, np.median(self.counts) - self.median > 2 * self.counts
        for i in np.flatnonzero(few | old | ~self.averages.any(axis=1)):
            reason = "its last update is too old" if old[i] else "it sends back what it got"
            if few[i]:
                reason = f"{counted(int(self.counts[i]), 'update')}, {self.least} needed"
            reasons[self.clients[i]] = reason
        return reasons | dict.fromkeys(absent, "it is away")

    def evenly_weighted(self, clients: NDArray[np.intp]) -> Matrix:
        """The averages of some clients as if the model weighed all m clients the same.

        Otherwise, next to a client of much weight, where the model rests, the updates of all
        others would point the same way.
        """
        excess = self.weights / (self.weights.sum() or 1.0) - 1 / len(self.weights)
        return np.asarray(self.averages[clients] + excess.astype(np.float32) @ self.averages)

    def with_cut(self, view: int, clients: NDArray[np.intp], labels: Labels) -> "Averages":
        """Remember a view's clustering of some clients, and for how long each is in its part."""
        cut, streak = self.cut.copy(), self.streak.copy()
        before, now = self.cut[:, view], np.full(len(cut), NEW)
        now[clients] = labels
        rounds = np.where(now < 0, 0, 1)
        stayed, new = same_part(before, now), before == NEW
        rounds[stayed] += streak[stayed, view]
        # How steady the parts are is not known from new clients: in a large federation of which
        # few take part in a round, there are many for a long time.
        for part in range(now.max(initial=-1) + 1):
            if np.any(others := (now == part) & ~new):
                rounds[(now == part) & new] = np.median(rounds[others])
        cut[:, view], streak[:, view] = now, rounds
        return replace(self, cut=cut, streak=streak)


def same_part(before: NDArray[Any], now: NDArray[Any]) -> NDArray[np.bool_]:
    """Mask of the clients that are in the same part of two clusterings.

    Two parts are the same if each has more clients in common with the other than with any else.

    >>> same_part(np.array([0, 0, 0, 1, 1, -1]), np.array([1, 1, 0, 0, 0, 0]))
    array([ True,  True, False,  True,  True, False])
    """
    both = np.flatnonzero((before >= 0) & (now >= 0))
    common = np.zeros((before.max(initial=-1) + 1, now.max(initial=-1) + 1), int)
    np.add.at(common, (before[both], now[both]), 1)
    same = np.zeros(len(now), dtype=bool)
    if len(both):
        follows = common.argmax(axis=1)[before[both]] == now[both]
        same[both] = follows & (common.argmax(axis=0)[now[both]] == before[both])
    return same
