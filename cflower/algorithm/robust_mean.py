"""Bounds on what one client counts for, by what is usual among the others.

The mean of eq. 2 gives a client a weight for as many examples as it claims, and a pull as long as
its update: one reply could count for more than all others. The median of the cluster's other
members bounds both without a setting; nearly half of them may be wrong.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from cflower.algorithm.state import CFLState, Reply, Role
from cflower.algorithm.weights import Vector, Weights
from cflower.ordering import only

ENOUGH = 3
"""Number of other clients that must be known to judge a reply; until then it waits."""
LONGEST = 2.0
"""Largest update norm, in medians; a longer update is shortened to it."""
MOST = 3.0
"""Largest claim and largest pull, in medians. A fifth of the clients at this limit have three
sevenths of the whole, so the others outweigh them."""
AMONG = 9
"""In a small cluster no client has a larger part of the whole than one at the limit has among so
many usual ones: a quarter with `MOST`. The equal part is always allowed."""
NO_LIMIT = 1e300


def limited(claims: Iterable[float]) -> Vector:
    """Numbers of examples as they count in a mean of metrics: up to `MOST` medians, shape (m,).

    With fewer than three clients there is no limit.

    >>> limited([100, 100, 100, 1000, 1e12])
    array([100., 100., 100., 300., 300.])
    """
    examples = np.array(list(claims), dtype=float)
    return examples if len(examples) < 3 else np.minimum(examples, MOST * np.median(examples))


@dataclass
class Members:
    """The norms and claims of a cluster's members: of the last round, and of this one so far.

    The claim of a client is its weight before normalisation. Its pull is its claim times the norm
    of its update: its part in the sum of eq. 2.
    """

    size: int
    norms: dict[str, float]
    claims: dict[str, float]
    carried: dict[str, Vector] = field(default_factory=dict)
    """Norm of the update of each array that is not trained, of this round only."""
    waiting: list[Reply] = field(default_factory=list)
    """Replies of this round that have not been passed on."""
    usual: "Usual | None" = None

    @property
    def num_known(self) -> int:
        """Number of known norms; those of this round count twice."""
        return len(self.norms) + len(self.carried)

    def medians(self, without: str = "") -> "Usual":
        """The medians of the members, one of them left out."""
        others = [client for client in self.norms if client != without]
        norms = np.array([self.norms[client] for client in others])
        claims = np.array([self.claims[client] for client in others])
        carried = [lengths for client, lengths in self.carried.items() if client != without]
        return Usual(
            float(np.median(norms)),
            float(np.median(claims)),
            float(np.median(norms * claims)),
            np.median(carried, axis=0) if carried else np.zeros(0),
            self.num_known,
        )


class Usual(NamedTuple):
    """The medians of a cluster's members."""

    norm: float
    claim: float
    pull: float
    carried: Vector
    num_known: int


class RobustMean:
    """Passes the replies of one round on, each with a bounded update and weight.

    An update longer than `LONGEST` times the median norm of its cluster's other members is
    shortened to that, and pulls like one of the median norm. Then a client with a claim or a pull
    above `MOST` times their median, or above the part that `AMONG` allows, has its weight lowered
    until both fit. Arrays that are not trained, such as BatchNorm's statistics, are bounded one by
    one. A reply beyond these bounds waits for the end of the round, when all others are known.

    An update that places a client (Algorithm 4) moves no model and is not bounded, nor is one in a
    cluster of fewer than three, where a median means nothing.

    Parameters
    ----------
    state : CFLState
        Before the round.
    carried : sequence of slice
        The place of each array that is not trained in `Weights.carried`.
    weight : callable
        w_i before normalisation, from a number of examples.
    max_norm_ratio : float
        An update longer than this times the median is refused; 0: none is, unless its norm is not
        finite.
    most : float
        Number of usual clients for which one may count; 0: any number, as eq. 2 has it.

    Attributes
    ----------
    refused : dict of str to str
        The reason for each reply that was not passed on; completes "the reply ...".
    lowered : dict of str to float
        The fraction of its claim for which a client counts, if it is bounded.
    """

    def __init__(
        self,
        state: CFLState,
        carried: Sequence[slice],
        weight: Callable[[float], float],
        max_norm_ratio: float = 0.0,
        most: float = MOST,
    ) -> None:
        self._carried, self._weight = carried, weight
        self._max_norm_ratio = max_norm_ratio or NO_LIMIT
        self._most, self._longest = (most, LONGEST) if most else (NO_LIMIT, NO_LIMIT)
        self._unassigned = state.tree.unassigned
        self.refused: dict[str, str] = {}
        self.lowered: dict[str, float] = {}
        self._members = {}
        for name, cluster in state.tree.clusters.items():
            there = cluster.members if cluster.is_leaf else ()  # nothing is known of inner models
            known = only(state.known, there)
            norms = {client: update.norm for client, update in known.items()}
            claims = {client: weight(update.num_examples) for client, update in known.items()}
            self._members[name] = Members(len(cluster.members), norms, claims)

    def bounded(self, replies: Iterable[Reply]) -> Iterator[Reply]:
        """The replies as they count, those beyond the bounds last."""
        for reply in replies:
            members = self._members[reply.ask.cluster]
            if not np.isfinite(reply.norm):
                self.refused[reply.client] = "has an update with a norm that is not finite"
            elif not self._moves_a_model(reply) or members.size < ENOUGH:
                yield reply
            else:
                self._note(members, reply)
                yield from self._in_line(members)
        for members in self._members.values():
            for reply in members.waiting:
                yield from self._held_to_bounds(members, reply)

    def _moves_a_model(self, reply: Reply) -> bool:
        return reply.ask.role is not Role.PLACE and reply.client not in self._unassigned

    def _note(self, members: Members, reply: Reply) -> None:
        assert reply.update is not None
        members.norms[reply.client] = reply.norm
        members.claims[reply.client] = self._weight(reply.num_examples)
        carried = [np.linalg.norm(reply.update.carried[place]) for place in self._carried]
        members.carried[reply.client] = np.array(carried)
        members.waiting.append(reply)

    def _in_line(self, members: Members) -> Iterator[Reply]:
        """The waiting replies that are within the bounds by all that is known so far."""
        enough = min(ENOUGH, members.size - 1)
        if len(members.norms) <= enough or (self._carried and len(members.carried) <= enough):
            return
        new = members.waiting[:] if members.usual is None else members.waiting[-1:]
        if members.usual is None or members.num_known >= 2 * members.usual.num_known:
            # Anew when twice as much is known: seldom enough for clusters of thousands.
            members.usual = members.medians()
        usual, longest = members.usual, min(self._max_norm_ratio, self._longest)
        for reply in new:
            length, claim = members.norms[reply.client], members.claims[reply.client]
            if (
                length <= longest * usual.norm
                and claim <= self._most * usual.claim
                and length * claim <= self._most * usual.pull
                and np.all(members.carried[reply.client] <= self._most * usual.carried)
            ):
                members.waiting.remove(reply)
                yield reply

    def _held_to_bounds(self, members: Members, reply: Reply) -> Iterator[Reply]:
        """A reply within the bounds of all others of the round, unless it is refused."""
        client = reply.client
        if len(members.norms.keys() - {client}) < 2:
            yield reply
            return
        usual = members.medians(without=client)
        ratio = reply.norm / usual.norm if usual.norm else 1.0
        if ratio > self._max_norm_ratio:
            # The others are judged without it.
            del members.norms[client], members.claims[client], members.carried[client]
            self.refused[client] = (
                f"has an update of norm {reply.norm:.3g}, {ratio:.3g} times the usual norm of its "
                f"cluster (max-norm-ratio {self._max_norm_ratio:g})"
            )
            return
        shortened = min(1.0, self._longest / ratio) if ratio else 1.0
        share = self._share(members, client, usual, shortened)
        if ratio > self._longest:
            # As evidence it stays longer than usual, like the updates of a small group before its
            # split; in the mean it pulls no more than a usual one.
            share = min(share, 1 / self._longest)
        if shortened * share < 1:
            self.lowered[client] = shortened * share
        yield self._shortened(reply, shortened, share, members.carried[client], usual)

    def _share(self, members: Members, client: str, usual: Usual, shortened: float) -> float:
        """The fraction of a client's weight that keeps its claim and its pull within the bounds."""
        others = [name for name in members.carried if name != client]
        claims = sum(members.claims[name] for name in others)
        pulls = sum(members.claims[name] * members.norms[name] for name in others)
        claim = members.claims[client]
        pull = claim * members.norms[client] * shortened
        share = 1.0
        for value, median, total in (claim, usual.claim, claims), (pull, usual.pull, pulls):
            most = self._most * median
            if total:
                most = min(most, max(median, total * self._most / AMONG))
            if 0 < most < value and self._most < NO_LIMIT:
                share = min(share, most / value)
        return share

    def _shortened(
        self, reply: Reply, factor: float, share: float, lengths: Vector, usual: Usual
    ) -> Reply:
        assert reply.update is not None and reply.kept is not None
        trained, carried = reply.update
        kept = reply.kept
        if factor < 1:
            scale = trained.dtype.type(factor)
            trained, kept = trained * scale, kept * scale
        if self._carried and usual.carried.size:
            carried, bounds = carried.copy(), self._most * usual.carried
            for place, length, bound in zip(self._carried, lengths, bounds, strict=True):
                if length > bound > 0:
                    carried[place] *= bound / length
        return replace(reply, update=Weights(trained, carried), kept=kept, share=share)
