"""Split criteria: eqs. 32, 33 and 39, each decision with its figures and a sentence."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from itertools import chain
from math import ceil
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from cflower.algorithm.bipartition import LINKAGES, Bipartition, Linkage, bipartition
from cflower.algorithm.constants import HEARD_SHARE
from cflower.algorithm.similarity import Matrix, cosine_similarity
from cflower.errors import ConfigError
from cflower.ordering import counted, in_order, listed
from cflower.seeding import generator
from cflower.settings import Checked, choice, number

Memory = dict[str, Any]
"""A criterion's memory of one cluster between rounds: arrays, plain numbers and tuples."""

LARGE = 2_000
"""More members than this are split by a random sample of so many (docs/evidence/performance.md)."""


class Outcome(StrEnum):
    SPLIT = "split"
    MOVING = "still moving"
    CONTENT = "clients content"
    NOT_APART = "sides not apart enough"
    UNSTEADY = "sides not steady yet"
    TOO_SMALL = "too small"
    TOO_FEW_HEARD = "waiting for members"
    NEVER = "never split"
    ON_TRIAL = "on trial"
    CONFIRMED = "split confirmed"
    UNDONE = "split taken back"
    PUT_OFF = "split put off"
    UNJUDGED = "split not judged"


@dataclass(frozen=True)
class Evidence:
    """The members of one cluster and their updates, from which a criterion decides.

    Only members with a fresh update count (`KnownUpdate.is_fresh`).
    """

    cluster: str
    server_round: int
    members: tuple[str, ...]
    """All members that take part in the decision, in natural order."""
    clients: tuple[str, ...]
    """The m members with a fresh update, in natural order."""
    vectors: tuple[NDArray[np.floating], ...]
    """Their updates as similarity sees them, shape (k,) each."""
    norms: NDArray[np.floating]
    """‖Δ_i‖ over all trained entries, shape (m,)."""
    weights: NDArray[np.floating]
    """w_i, summing to 1, shape (m,)."""
    mean_norm: float
    """‖Σ w_i Δ_i‖, left side of eq. 32."""
    rounds: NDArray[np.integer]
    """The round of each update, shape (m,)."""
    outputs: tuple[NDArray[np.floating], ...] = ()
    """Their updates of the output layer, shape (C, h + 1) each, a row for each class: weights, then
    bias; empty if the model has no such layer."""

    @property
    def max_norm(self) -> float:
        """Max ‖Δ_i‖, left side of eq. 33."""
        return float(self.norms.max(initial=0.0))

    @cached_property
    def compared(self) -> NDArray[np.intp]:
        """Positions of the clients in ``similarity``: all, or a random `LARGE` of more."""
        return sampled(np.arange(len(self.clients)), self.cluster)

    @cached_property
    def similarity(self) -> Matrix:
        """Cosine matrix of the compared clients' updates, computed when first asked for."""
        return cosine_similarity(np.stack([self.vectors[i] for i in self.compared]))


@dataclass(frozen=True)
class Decision:
    """One cluster's verdict of one round."""

    cluster: str
    server_round: int
    outcome: Outcome
    reason: str
    """One plain sentence with the figures behind the outcome."""
    mean_norm: float
    max_norm: float
    alpha_cross: float | None = None
    """Eq. 17 for the sides considered, when a similarity matrix was computed."""
    sides: tuple[tuple[str, ...], ...] = ()
    """The members of each child, when split."""
    unsure: tuple[tuple[str, ...], ...] = ()
    """Members of each child that did not take part in the decision: it is the nearest child."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Members that were not considered, each with the reason."""
    children: tuple[str, ...] = ()
    """The children's names, when split."""
    clients: tuple[str, ...] = ()
    """Order of ``similarity``."""
    similarity: Matrix | None = field(default=None, repr=False, compare=False)
    figures: Mapping[str, float] = field(default_factory=dict)
    """The criterion's other figures, under its own names; ``eps1`` and ``eps2`` where it set
    these itself."""


class Criterion(Protocol):
    """Decides in every round whether to split a cluster; only its two methods are required.

    Three optional class attributes are the defaults of the `ClusteredFL` settings with these names:

    - ``trial_rounds`` (int, default 0): rounds until the clients judge a split; 0: it is final;
    - ``moving`` (bool, default False): whether clients with changed data may move to another leaf,
      and leaves whose clients agree are joined;
    - ``personal`` (bool, default False): whether the run ends with the personal step.
    """

    def decide(self, evidence: Evidence, memory: Memory) -> tuple[Decision, Memory]:
        """Return the decision and the memory for the next round, without changing ``memory``.

        Members on no side of a split are placed by Algorithm 4 with their next update.
        """

    def inherit(self, memory: Memory) -> Memory:
        """Return the memory that the children of a split cluster start with: none by default."""
        return {}


def sampled(members: NDArray[np.intp], *seed: str | int, most: int = 0) -> NDArray[np.intp]:
    """At most so many of some members, ascending, or `LARGE`; for the same seed nearly the same.

    >>> len(sampled(np.arange(5000), "0")), sampled(np.array([3, 7]), "0")
    (2000, array([3, 7]))
    """
    most = most or LARGE
    if len(members) <= most:
        return members
    # Every position has its own random number, so members that come or go replace few others.
    order = generator(0, "sample", *seed).random(members.max() + 1)[members].argsort()
    return np.sort(members[order[:most]])


def too_few(
    members: int, ready: int, what: str, *, least: int, share: float
) -> tuple[Outcome, str] | None:
    """Refuse a cluster with too few members, or with too few that are ready for a decision.

    A split needs at least ``least`` members, and a ``share`` of all members must be ready; ``what``
    makes them ready, such as "a fresh update".
    """
    if members < least:
        return Outcome.TOO_SMALL, f"{counted(members, 'member')}, {least} needed for a split"
    # 0.14 * 150 is 21.000000000000004: the required share must not lose a client to rounding.
    needed = max(least, ceil(share * members - 1e-9))
    if ready < needed:
        first = f"{needed} of {members} members have to send {what} before a decision"
        return Outcome.TOO_FEW_HEARD, f"{first}, {ready} have done so"
    return None


def verdict(evidence: Evidence, outcome: Outcome, reason: str, **figures: Any) -> Decision:
    """Make a decision on this evidence; ``figures`` are the further fields of `Decision`."""
    norms = evidence.mean_norm, evidence.max_norm
    return Decision(evidence.cluster, evidence.server_round, outcome, reason, *norms, **figures)


def check_sides(
    criterion: object, answer: object, evidence: Evidence, known: Iterable[str]
) -> tuple[Decision, Memory]:
    """What a criterion's ``decide`` returned, as it has to be.

    ``known`` are the clients that have sent an update, fresh or not: each child begins with some.
    Raises a ConfigError with what is wrong.
    """
    match answer:
        case (Decision() as decision, dict() as memory):
            pass
        case _:
            raise ConfigError(
                f"The criterion {criterion!r} returned {answer!r:.200}, but expected a Decision "
                "and the memory for the next round, a dict."
            )
    if decision.outcome is not Outcome.SPLIT:
        return decision, memory
    sided = list(chain.from_iterable(decision.sides))
    placed = Counter([*sided, *chain.from_iterable(decision.unsure)])
    strangers = in_order(placed.keys() - {*evidence.members})
    silent = in_order({*sided}.difference(known))
    twice = in_order(client for client, times in placed.items() if times > 1)
    problems = {
        "fewer than two sides": len(decision.sides) < 2,
        "an empty side": not all(decision.sides),
        "more groups of unsure members than sides": len(decision.unsure) > len(decision.sides),
        f"{listed(strangers)}, not in the cluster": strangers,
        f"{listed(silent)} on a side, without an update so far": silent,
        f"{listed(twice)} on two sides": twice,
    }
    if problem := next((problem for problem, found in problems.items() if found), ""):
        raise ConfigError(
            f"The criterion {criterion!r} returned a split of cluster {evidence.cluster} that has "
            f"{problem}: expected each member with an update on one side at most."
        )
    return decision, memory


@dataclass(frozen=True)
class NeverSplit(Criterion):
    """Conventional federated learning and isolated training: clusters stay as they are."""

    name: ClassVar[str] = "never"

    def decide(self, evidence: Evidence, memory: Memory) -> tuple[Decision, Memory]:
        reason = "this method does not split clusters"
        return verdict(evidence, Outcome.NEVER, reason), memory


@dataclass(frozen=True)
class NormCriterion(Checked, Criterion):
    """The paper's criterion: split a stationary cluster of clients that are not (Algorithm 5).

    Parameters
    ----------
    eps1 : float > 0
        ε1 of eq. 32, in units of the update norm: below it the cluster counts as stationary.
    eps2 : float >= 0
        ε2 of eq. 33, same unit: above it some client still wants to move.
    gamma_max : float in [0, 1]
        γ_max of eq. 39: the approximation noise to allow for. Larger rejects more splits;
        0 accepts every bipartition, 1 none.
    linkage : {"single", "complete"}
        See `bipartition`.
    min_cluster_size : int >= 1
        Smallest side of a split.
    heard_share : float in (0, 1]
        Share of the members that must have a fresh update (see `Evidence`). Members without
        one are placed by Algorithm 4 with their next update.

    Notes
    -----
    Norms scale with learning rate, local epochs, data and model size: thresholds chosen for one
    setting mean nothing in another. The defaults were chosen for the digits. A cluster with more
    than 2,000 fresh updates is split by a random sample of 2,000.
    """

    name: ClassVar[str] = "norms"

    eps1: float = number(0.9, above=0)
    eps2: float = number(1.75, least=0)
    gamma_max: float = number(0.68, least=0, most=1)
    linkage: Linkage = choice("single", LINKAGES)
    min_cluster_size: int = number(2, least=1)
    heard_share: float = number(HEARD_SHARE, above=0, most=1)

    def decide(self, evidence: Evidence, memory: Memory) -> tuple[Decision, Memory]:
        """Apply eqs. 32 and 33, then Algorithm 1, then eq. 39; remembers nothing."""
        norms, members = (evidence.mean_norm, evidence.max_norm), len(evidence.members)
        outcome, reason = self.by_norms(*norms, members, len(evidence.clients))
        if outcome is not Outcome.SPLIT:
            return verdict(evidence, outcome, reason), memory
        parts = bipartition(evidence.similarity, self.linkage)
        outcome, reason = self.by_sides(parts) or (outcome, reason)
        clients = tuple(evidence.clients[i] for i in evidence.compared)
        sides = tuple(tuple(clients[i] for i in side) for side in (parts.first, parts.second))
        decision = verdict(
            evidence,
            outcome,
            reason,
            alpha_cross=parts.alpha_cross,
            clients=clients,
            similarity=evidence.similarity,
            sides=sides if outcome is Outcome.SPLIT else (),
        )
        return decision, memory

    def by_norms(
        self, mean_norm: float, max_norm: float, members: int, fresh: int
    ) -> tuple[Outcome, str]:
        """Apply eqs. 32 and 33, in a run or to its record: a split, if they allow one.

        ``mean_norm`` and ``max_norm`` are their left sides, and ``fresh`` of the members have a
        fresh update.
        """
        least, what = 2 * self.min_cluster_size, "a fresh update"
        if refused := too_few(members, fresh, what, least=least, share=self.heard_share):
            return refused
        mean, largest = f"{mean_norm:.3g}", f"{max_norm:.3g}"
        if mean_norm >= self.eps1:
            return Outcome.MOVING, f"the mean update still moves: norm {mean} >= eps1 {self.eps1:g}"
        if max_norm <= self.eps2:
            reason = f"no client wants to move: largest norm {largest} <= eps2 {self.eps2:g}"
            return Outcome.CONTENT, reason
        return Outcome.SPLIT, f"stationary (mean norm {mean}), but not for all clients ({largest})"

    def by_sides(self, parts: Bipartition) -> tuple[Outcome, str] | None:
        """Apply eq. 39 and the least size to a bipartition; None if they allow a split."""
        if self.gamma_max >= parts.safe_gamma:
            bound = f"gamma_max {self.gamma_max:g} >= {parts.safe_gamma:.3g} (eq. 39)"
            return Outcome.NOT_APART, f"sides too similar: {bound}"
        smallest = min(len(parts.first), len(parts.second))
        if smallest < self.min_cluster_size:
            reason = f"a side of {counted(smallest, 'member')}, {self.min_cluster_size} needed"
            return Outcome.TOO_SMALL, reason
        return None
