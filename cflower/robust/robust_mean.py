"""Bounds on what one client counts for, by what is usual in its cluster.

By the mean of eq. 2 one reply could count for more than all others. Whatever a client sends, and
whenever, it may move the model about as far as one more honest member of its cluster could: this is
what medians show, without a setting. Nearly half of the members may be wrong.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf

import numpy as np

from cflower.algorithm.constants import FEW, LONG, MOST
from cflower.algorithm.state import CFLState, KnownUpdate, Training
from cflower.algorithm.weights import Update, Vector
from cflower.ordering import only, without

NORM, CLAIM, COUNTS = 0, 1, slice(1, 3)
"""The figures of an update, shape (3,): its norm; the weight that its client claims; and its pull,
norm times claim, which is its part in the sum of eq. 2."""


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
    """A cluster's members with their last updates, of earlier rounds and of this one so far."""

    size: int
    last: dict[str, Vector]
    """The figures of each, shape (3,)."""
    before: Mapping[str, KnownUpdate]
    """Their last updates of earlier rounds."""
    replied: int = 0
    """Number of those that replied in this round."""
    usual: Vector | None = None
    """Their usual figures, once `FEW` are known."""
    num_known: int = 0
    """Number of replies that ``usual`` rests on; those of this round count twice."""
    waiting: list[Training] = field(default_factory=list)
    """Replies of this round beyond the bounds when they came."""

    def add(self, client: str, figures: Vector) -> None:
        """Take up a reply of this round."""
        self.last[client] = figures
        self.replied += 1
        num_known = len(self.last) + self.replied
        if len(self.last) >= FEW and num_known >= 2 * self.num_known:
            # Anew when twice as much is known: seldom enough for clusters of thousands.
            self.usual, self.num_known = self.usual_now(), num_known

    def usual_now(self) -> Vector:
        """The usual figures by all updates that are known now."""
        return usual_of(self.last.values(), self.size)

    @cached_property
    def direction(self) -> Vector:
        """The sum of their updates of earlier rounds, as `Projection.keep` keeps them."""
        return sum((update.vector for update in self.before.values()), np.zeros(()))

    def turned_back_by(self, reply: Training) -> bool:
        """Whether an update points against the sum of the other members' last ones."""
        own = self.before.get(reply.client)
        others = self.direction - own.vector if own else self.direction
        return bool(np.sum(reply.kept * others) < 0)


def usual_of(figures: Iterable[Vector], size: int) -> Vector:
    """What is usual among ``size`` members by the updates that are not zero, shape (3,).

    Each figure by itself: what at least half of the members reach; as long as fewer are known, or
    if it is more, the median without the largest, so that no client is its own measure. The mean of
    two in the middle is at most `LONG` times the smaller: a hostile client may make one of two as
    large as it likes. Zeros if fewer than two updates are not zero.

    >>> few = [np.array(one) for one in ([1.0, 10.0], [3.0, 1e6], [9.0, 1e6], [0.0, 99.0])]
    >>> half = [np.array([norm, 10.0]) for norm in (1.0, 1.0, 9.0, 9.0)]
    >>> usual_of(few, size=9), usual_of(half, size=9), usual_of(half, size=4)
    (array([ 2., 20.]), array([ 1., 10.]), array([ 9., 10.]))
    """
    rows, half = np.array(list(figures)), (size + 1) // 2
    moved = np.sort(rows[rows[:, NORM] > 0], axis=0)
    if (count := len(moved)) < 2:
        return np.zeros_like(rows[0])
    low, high = moved[(count - 2) // 2], moved[(count - 1) // 2]
    middle = np.asarray(np.minimum((low + high) / 2, LONG * low))
    return np.maximum(middle, moved[count - half]) if count >= half else middle


def fractions(most: Vector, values: Vector) -> Vector:
    """The fraction of each value that is within its bound, at most 1.

    >>> fractions(np.array([1.0, 2.0, 0.0]), np.array([4.0, 1.0, 0.0]))
    array([0.25, 1.  , 1.  ])
    """
    return np.divide(most, values, out=np.ones_like(values), where=values > most)


@dataclass
class RobustMean:
    """Passes the replies of one round on, each with a bounded update and weight.

    With m what is usual among the last updates of the cluster's members (`usual_of`):

    - an update longer than `LONG` m is shortened to that, and pulls like one of length m;
    - with a claim or a pull above ``most`` m, a client has its weight lowered until both are at
      most this;
    - with an update that points against the sum of the others' last ones, a client claims at most
      m: nobody turns the model back by what it claims.

    A reply beyond that when it comes waits for the end of the round. If no other member has sent an
    update by then, nothing shows what one more could have done, and the model stays as it is.

    An update that places a client (Algorithm 4) moves no model and is not bounded, nor is one in a
    cluster of fewer than three, where a median means nothing.
    """

    state: CFLState
    """Before the round."""
    weight: Callable[[float], float]
    """w_i before normalisation, from a number of examples."""
    refuse: Callable[[str, str], None]
    """Called with each client with a reply that is not passed on, and why: "the reply ..."."""
    most: float = MOST
    """Number of usual clients for which one may count; 0: any number, as eq. 2 has it."""

    def bounded(self, replies: Iterable[Training]) -> Iterator[Training]:
        """The replies as they count, those beyond the bounds last."""
        tree = self.state.tree
        shared = {
            name: self._members([client for leaf in leaves for client in leaf.members])
            for name, leaves in tree.bodies.items()
        }
        clusters = {leaf.name: shared[tree.body_of(leaf.name)] for leaf in tree.leaves}
        for reply in replies:
            if not np.isfinite(reply.norm):
                self.refuse(reply.client, "has an update with a norm that is not finite")
            elif self.state.places_client(reply.ask) or clusters[reply.ask.cluster].size < FEW:
                yield reply
            else:
                members, figures = clusters[reply.ask.cluster], self._figures(reply)
                members.add(reply.client, figures)
                usual = members.usual
                if usual is not None and (figures <= (bounds := self._bounds(usual))).all():
                    yield self._weighted(reply, members, usual, bounds[COUNTS])
                else:
                    members.waiting.append(reply)
        for members in shared.values():
            if members.waiting:
                yield from self._held(members)

    def _members(self, clients: Sequence[str]) -> Members:
        present = without(dict.fromkeys(clients), self.state.absent)
        known = only(self.state.known, present)
        return Members(len(present), {c: self._figures(u) for c, u in known.items()}, known)

    def _figures(self, update: Training | KnownUpdate) -> Vector:
        claim = self.weight(update.num_examples)
        return np.array([update.norm, claim, update.norm * claim])

    def _bounds(self, usual: Vector) -> Vector:
        """The figures that a client may have where these are usual."""
        if not self.most:
            return np.full_like(usual, inf)
        bounds = self.most * usual
        bounds[NORM] = LONG * usual[NORM]
        return bounds

    def _held(self, members: Members) -> Iterator[Training]:
        """The replies that waited, within the bounds of their cluster."""
        usual = members.usual_now()
        bounds = self._bounds(usual)
        for reply in members.waiting:
            kept = float(fractions(bounds, members.last[reply.client])[NORM])
            if usual[NORM]:
                reply = self._weighted(reply, members, usual, bounds[COUNTS], kept)
            yield self._shortened(reply, kept)

    def _weighted(
        self, reply: Training, members: Members, usual: Vector, most: Vector, length: float = 1.0
    ) -> Training:
        """The reply, to be cut to this fraction, with a claim and a pull of at most these.

        As evidence a long update stays longer than usual, like the updates of a small group before
        its split; in the mean it pulls no more than a usual one.
        """
        own = members.last[reply.client][COUNTS] * [1.0, length]
        if self.most and own[0] > usual[CLAIM] and members.turned_back_by(reply):
            most = np.minimum(most, [usual[CLAIM], inf])
        share = min(float(fractions(most, own).min()), 1.0 if length == 1 else 1 / LONG)
        return replace(reply, share=share, counts=length * share) if share < 1 else reply

    def _shortened(self, reply: Training, fraction: float) -> Training:
        """The reply with this fraction of its update."""
        if fraction == 1:
            return reply
        scale = reply.update.trained.dtype.type(fraction)
        update = Update(reply.update.trained * scale, reply.update.carried)
        return replace(reply, update=update, kept=reply.kept * scale)
