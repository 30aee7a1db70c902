"""Bounds on what one client counts for, by what is usual among the others.

By the mean of eq. 2 one reply could count for more than all others. Whatever a client sends, and
whenever, it may move the model about as far as one more honest member of its cluster could: this is
what the medians of the others show, without a setting. Nearly half of them may be wrong.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import inf

import numpy as np

from cflower.algorithm.constants import FEW, LONG, MOST
from cflower.algorithm.state import CFLState, KnownUpdate, Reply
from cflower.algorithm.weights import Update, Vector
from cflower.ordering import only, without

NORM, CLAIM, COUNTS, LENGTHS = 0, 1, slice(1, 3), slice(3, None)
"""The figures of an update, shape (3 + a,): its norm; the weight that its client claims; its pull,
norm times claim, which is its part in the sum of eq. 2; and the length of the change of each array
that is not trained."""


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
    """What a cluster's members sent last, in earlier rounds and in this one so far."""

    size: int
    last: dict[str, Vector]
    """The figures of each, shape (3 + a,)."""
    heard: list[str] = field(default_factory=list)
    """Those that replied in this round."""
    usual: Vector | None = None
    """Their medians, once `FEW` are known."""
    num_known: int = 0
    """Number of replies that ``usual`` rests on; those of this round count twice."""

    def hear(self, client: str, figures: Vector) -> None:
        """Take up a reply of this round."""
        self.last[client] = figures
        self.heard.append(client)
        num_known = len(self.last) + len(self.heard)
        if len(self.last) >= FEW and num_known >= 2 * self.num_known:
            # Anew when twice as much is known: seldom enough for clusters of thousands. Whoever is
            # the longest of all is not its own measure.
            self.usual = medians(self.last.values(), least=FEW, spare=1)
            self.num_known = num_known

    def others(self, client: str) -> tuple[Vector, Vector]:
        """The medians of the other members, and the sum over those that replied in this round."""
        others = without(self.last, [client])
        nothing = np.zeros_like(self.last[client])
        replied = only(others, self.heard).values()
        return medians((nothing, *others.values())), np.sum((nothing, *replied), axis=0)


def medians(figures: Iterable[Vector], least: int = 1, spare: int = 0) -> Vector:
    """The medians of the updates that are not zero, shape (3 + a,); zeros if these are too few.

    Without the ``spare`` largest, each figure by itself. Of two in the middle their mean, but at
    most `LONG` times the smaller: one of two may be as large as a hostile client likes. Changes of
    statistics differ by more among honest clients, so of those it is their mean.

    >>> medians([np.array([1.0, 10.0]), np.array([3.0, 1e6]), np.array([0.0, 99.0])])
    array([ 2., 20.])
    """
    rows = np.array(list(figures))
    moved = np.sort(rows[rows[:, NORM] > 0], axis=0)
    if (count := len(moved)) < least:
        return np.zeros_like(rows[0])
    low, high = moved[(count - 1 - spare) // 2], moved[(count - spare) // 2]
    middle = np.asarray((low + high) / 2)
    middle[: LENGTHS.start] = np.minimum(middle, LONG * low)[: LENGTHS.start]
    return middle


def fractions(most: Vector, values: Vector) -> Vector:
    """What of each value is within its bound, at most 1.

    >>> fractions(np.array([1.0, 2.0, 0.0]), np.array([4.0, 1.0, 0.0]))
    array([0.25, 1.  , 1.  ])
    """
    return np.divide(most, values, out=np.ones_like(values), where=values > most)


@dataclass
class RobustMean:
    """Passes the replies of one round on, each with a bounded update and weight.

    With m the median of the last updates of the cluster's other members, and Σ the sum over those
    that replied in this round:

    - an update longer than `LONG` m is shortened to that, and pulls like one of length m;
    - the change of an array that is not trained is shortened to ``most`` m, each by itself: what
      most others leave as it is stays as it is;
    - with a claim or a pull above ``most`` m, a client has its weight lowered until both are at
      most min(most m, max(m, most Σ / `MOST`²)).

    A reply beyond that when it comes waits for the end of the round. If no other member has sent an
    update by then, nothing shows what one more could have done, and the model stays as it is.

    An update that places a client (Algorithm 4) moves no model and is not bounded, nor is one in a
    cluster of fewer than three, where a median means nothing.
    """

    state: CFLState
    """Before the round."""
    carried: Sequence[slice]
    """The place of each array that is not trained in `Weights.carried`."""
    weight: Callable[[float], float]
    """w_i before normalisation, from a number of examples."""
    refuse: Callable[[str, str], None]
    """Called with each client with a reply that is not passed on, and why: "the reply ..."."""
    max_norm_ratio: float = 0.0
    """A longer update than this times the median is refused; 0: only one with an infinite norm."""
    most: float = MOST
    """Number of usual clients for which one may count; 0: any number, as eq. 2 has it."""

    def bounded(self, replies: Iterable[Reply]) -> Iterator[Reply]:
        """The replies as they count, those beyond the bounds last."""
        waiting = list[Reply]()
        clusters = {leaf.name: self._members(leaf.members) for leaf in self.state.tree.leaves}
        for reply in replies:
            if not np.isfinite(reply.norm):
                self.refuse(reply.client, "has an update with a norm that is not finite")
            elif self.state.places_client(reply.ask) or clusters[reply.ask.cluster].size < FEW:
                yield reply
            else:
                members, figures = clusters[reply.ask.cluster], self._figures(reply)
                members.hear(reply.client, figures)
                if members.usual is not None and (figures <= self._most_of(members.usual)).all():
                    yield reply
                else:
                    waiting.append(reply)
        for reply in waiting:
            yield from self._held(reply, clusters[reply.ask.cluster])

    def _members(self, clients: Sequence[str]) -> Members:
        known = only(self.state.known, clients)
        return Members(len(clients), {c: self._figures(u) for c, u in known.items()})

    def _figures(self, update: Reply | KnownUpdate) -> Vector:
        claim = self.weight(update.num_examples)
        return np.array([update.norm, claim, update.norm * claim, *update.lengths])

    def _most_of(self, usual: Vector) -> Vector:
        """The figures that a client may have where these are usual."""
        most = np.full_like(usual, inf)
        if self.most:
            most = self.most * usual
            most[NORM] = LONG * usual[NORM]
        if self.max_norm_ratio:
            most[NORM] = min(most[NORM], self.max_norm_ratio * usual[NORM])
        return most

    def _held(self, reply: Reply, members: Members) -> Iterator[Reply]:
        """A reply within the bounds of all others, unless it is refused."""
        client, figures = reply.client, members.last[reply.client]
        usual, replied = members.others(client)
        kept = fractions(self._most_of(usual), figures)
        if 0 < self.max_norm_ratio * usual[NORM] < figures[NORM]:
            del members.last[client]  # the others are judged without it
            ratio = f"{figures[NORM] / usual[NORM]:.3g} times the usual norm of its cluster"
            limit = f"max-norm-ratio {self.max_norm_ratio:g}"
            self.refuse(client, f"has an update of norm {reply.norm:.3g}, {ratio} ({limit})")
        elif not self.most or kept.min() == 1:
            yield reply
        else:
            if usual[NORM]:
                share = self._share(figures[COUNTS], usual[COUNTS], replied[COUNTS], kept[NORM])
                reply = replace(reply, share=share, counts=kept[NORM] * share)
            yield self._shortened(reply, kept)

    def _share(self, own: Vector, usual: Vector, replied: Vector, length: float) -> float:
        """The fraction of its weight that a client keeps, with its update cut to this fraction."""
        most = self.most * usual
        if replied.any():
            most = np.minimum(most, np.maximum(usual, replied * self.most / MOST**2))
        share = fractions(most, own * [1.0, length]).min()
        # As evidence a long update stays longer than usual, like the updates of a small group
        # before its split; in the mean it pulls no more than a usual one.
        return float(share if length == 1 else min(share, 1 / LONG))

    def _shortened(self, reply: Reply, fraction: Vector) -> Reply:
        """The reply with these fractions of its update and of each array that is not trained."""
        assert reply.update is not None and reply.kept is not None
        (trained, carried), kept = reply.update, reply.kept
        if fraction[NORM] < 1:
            scale = trained.dtype.type(fraction[NORM])
            trained, kept = trained * scale, kept * scale
        carried = carried.copy()
        for place, part in zip(self.carried, fraction[LENGTHS], strict=True):
            carried[place] *= part
        return replace(reply, update=Update(trained, carried), kept=kept)
