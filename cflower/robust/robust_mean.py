"""Bounds on what one client counts for, by what is usual among the others.

The mean of eq. 2 gives a client a weight for as many examples as it claims, and a pull as long as
its update: one reply could count for more than all others. The median of the cluster's other
members bounds both without a setting; nearly half of them may be wrong.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from cflower.algorithm.constants import FEW, LONG, MOST
from cflower.algorithm.state import CFLState, Reply, Role
from cflower.algorithm.weights import Vector, Weights
from cflower.ordering import only, without

NO_LIMIT = 1e300


def limited(claims: Iterable[float]) -> Vector:
    """Numbers of examples as they count in a mean of metrics: up to `MOST` medians, shape (m,).

    With fewer than three clients there is no limit.

    >>> limited([100, 100, 100, 1000, 1e12])
    array([100., 100., 100., 300., 300.])
    """
    examples = np.array(list(claims), dtype=float)
    return examples if len(examples) < FEW else np.minimum(examples, MOST * np.median(examples))


@dataclass
class Members:
    """What is known of a cluster's members, of the last round and of this one so far."""

    size: int
    trained: dict[str, Vector]
    """Norm, claim and pull of each update, shape (3,): the claim of a client is its weight before
    normalisation, the pull its norm times its claim, which is its part in the sum of eq. 2."""
    carried: dict[str, Vector] = field(default_factory=dict)
    """Norm of the update of each array that is not trained, of this round only."""
    waiting: list[Reply] = field(default_factory=list)
    """Replies of this round that have not been passed on."""
    usual: tuple[Vector, Vector] | None = None
    """The medians of ``trained`` and ``carried``."""
    num_known: int = 0
    """Number of replies that ``usual`` rests on; those of this round count twice."""

    def medians(self, without: str = "") -> tuple[Vector, Vector]:
        """The medians of the members, one of them left out."""
        others = [sizes for client, sizes in self.trained.items() if client != without]
        carried = [sizes for client, sizes in self.carried.items() if client != without]
        return np.median(others, axis=0), np.median(carried, axis=0) if carried else np.zeros(0)


@dataclass
class RobustMean:
    """Passes the replies of one round on, each with a bounded update and weight.

    An update longer than `LONG` times the median norm of its cluster's other members is shortened
    to that, and pulls like one of the median norm. Then a client with a claim or a pull above
    `MOST` times their median, or above the part of the whole that one at this limit has among
    `MOST`² usual ones, has its weight lowered until both fit. Arrays that are not trained, such as
    BatchNorm's statistics, are bounded one by one. A reply beyond these bounds waits for the end of
    the round, when all others are known.

    An update that places a client (Algorithm 4) moves no model and is not bounded, nor is one in a
    cluster of fewer than three, where a median means nothing.
    """

    state: CFLState
    """Before the round."""
    carried: Sequence[slice]
    """The place of each array that is not trained in `Weights.carried`."""
    weight: Callable[[float], float]
    """w_i before normalisation, from a number of examples."""
    max_norm_ratio: float = 0.0
    """A longer update than this times the median is refused; 0: only one with an infinite norm."""
    most: float = MOST
    """Number of usual clients for which one may count; 0: any number, as eq. 2 has it."""
    refused: dict[str, str] = field(default_factory=dict)
    """The reason for each reply that was not passed on; completes "the reply ..."."""
    lowered: dict[str, float] = field(default_factory=dict)
    """The fraction of its claim for which a client counts, if it is bounded."""

    def __post_init__(self) -> None:
        self._max_norm_ratio = self.max_norm_ratio or NO_LIMIT
        self._most, self._longest = (self.most, LONG) if self.most else (NO_LIMIT, NO_LIMIT)
        self._members = {}
        for name, cluster in self.state.tree.clusters.items():
            # Nothing is known of inner models.
            known = only(self.state.known, cluster.members) if cluster.is_leaf else {}
            trained = {c: self._measured(u.norm, u.num_examples) for c, u in known.items()}
            self._members[name] = Members(len(cluster.members), trained)

    def _measured(self, norm: float, num_examples: float) -> Vector:
        claim = self.weight(num_examples)
        return np.array([norm, claim, norm * claim])

    def bounded(self, replies: Iterable[Reply]) -> Iterator[Reply]:
        """The replies as they count, those beyond the bounds last."""
        for reply in replies:
            members, client = self._members[reply.ask.cluster], reply.client
            places = reply.ask.role is Role.PLACE or client in self.state.tree.unassigned
            if not np.isfinite(reply.norm):
                self.refused[client] = "has an update with a norm that is not finite"
            elif places or members.size < FEW:
                yield reply
            else:
                assert reply.update is not None
                parts = [reply.update.carried[place] for place in self.carried]
                members.trained[client] = self._measured(reply.norm, reply.num_examples)
                members.carried[client] = np.array(list(map(np.linalg.norm, parts)))
                members.waiting.append(reply)
                yield from self._within_bounds(members)
        for members in self._members.values():
            for reply in members.waiting:
                yield from self._held_to_bounds(members, reply)

    def _within_bounds(self, members: Members) -> Iterator[Reply]:
        """The waiting replies that are within the bounds by all that is known so far."""
        enough = min(FEW, members.size - 1)
        if len(members.trained) <= enough or (self.carried and len(members.carried) <= enough):
            return
        new = members.waiting[-1:] if members.usual else members.waiting[:]
        num_known = len(members.trained) + len(members.carried)
        if members.usual is None or num_known >= 2 * members.num_known:
            # Anew when twice as much is known: seldom enough for clusters of thousands.
            members.usual, members.num_known = members.medians(), num_known
        most = np.array([min(self._max_norm_ratio, self._longest), self._most, self._most])
        for reply in new:
            with np.errstate(over="ignore"):
                trained = members.trained[reply.client] <= most * members.usual[0]
                carried = members.carried[reply.client] <= self._most * members.usual[1]
            if trained.all() and carried.all():
                members.waiting.remove(reply)
                yield reply

    def _held_to_bounds(self, members: Members, reply: Reply) -> Iterator[Reply]:
        """A reply within the bounds of all others of the round, unless it is refused."""
        client = reply.client
        if len(members.trained) < FEW:
            yield reply
            return
        usual, usual_carried = members.medians(without=client)
        ratio = float(reply.norm / usual[0]) if usual[0] else 1.0
        if ratio > self._max_norm_ratio:
            # The others are judged without it.
            del members.trained[client], members.carried[client]
            self.refused[client] = (
                f"has an update of norm {reply.norm:.3g}, {ratio:.3g} times the usual norm of its "
                f"cluster (max-norm-ratio {self._max_norm_ratio:g})"
            )
            return
        factor = min(1.0, self._longest / ratio) if ratio else 1.0
        share = self._share(members, client, usual, factor)
        if ratio > self._longest:
            # As evidence it stays longer than usual, like the updates of a small group before its
            # split; in the mean it pulls no more than a usual one.
            share = min(share, 1 / self._longest)
        if factor * share < 1:
            self.lowered[client] = factor * share
        update, kept = self._shortened(reply, factor, members.carried[client], usual_carried)
        yield replace(reply, update=update, kept=kept, share=share)

    def _share(self, members: Members, client: str, usual: Vector, factor: float) -> float:
        """The fraction of a client's weight that keeps its claim and its pull within the bounds."""
        if self._most == NO_LIMIT:
            return 1.0
        replied = only(members.trained, without(members.carried, [client]))
        total = np.sum([np.zeros(3), *replied.values()], axis=0)
        most = self._most * usual
        part = np.maximum(usual, total * self._most / MOST**2)
        most = np.where(total > 0, np.minimum(most, part), most)
        value = members.trained[client] * np.array([0.0, 1.0, factor])
        return float(
            np.divide(most, value, out=np.ones(3), where=(most > 0) & (most < value)).min()
        )

    def _shortened(
        self, reply: Reply, factor: float, lengths: Vector, usual: Vector
    ) -> tuple[Weights, Vector]:
        """The update and what is kept of it, with each part within its bound."""
        assert reply.update is not None and reply.kept is not None
        (trained, carried), kept = reply.update, reply.kept
        if factor < 1:
            scale = trained.dtype.type(factor)
            trained, kept = trained * scale, kept * scale
        if self.carried and usual.size:
            carried, bounds = carried.copy(), self._most * usual
            for place, length, bound in zip(self.carried, lengths, bounds, strict=True):
                if length > bound > 0:
                    carried[place] *= bound / length
        return Weights(trained, carried), kept
