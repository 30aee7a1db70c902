"""What a split criterion decides from, and its decision, with the figures and a sentence."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from itertools import chain, zip_longest
from math import ceil
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from cflower.algorithm.similarity import Matrix, cosine_similarity
from cflower.errors import ConfigError
from cflower.ordering import counted, in_order, listed
from cflower.seeding import generator

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
    PROPOSED = "split proposed"
    CONFIRMED = "split confirmed"
    REFUSED = "split refused"
    UNDONE = "split taken back"
    PUT_OFF = "split put off"
    UNJUDGED = "split not judged"
    FOUND = "groups found"


@dataclass(frozen=True)
class Evidence:
    """The members of one cluster and their updates, from which a criterion decides."""

    cluster: str
    server_round: int
    members: tuple[str, ...]
    """All members that take part in the decision, in natural order."""
    clients: tuple[str, ...]
    """The m of them with a fresh update (`KnownUpdate.is_fresh`), in natural order."""
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
    absent: tuple[str, ...] = ()
    """Members that do not count, because they are gone, silent or excluded; they may come back."""
    outputs: tuple[NDArray[np.floating], ...] = ()
    """The clients' updates of the output layer, shape (C, h + 1) each, a row for each class:
    weights, then bias; empty if the model has no such layer."""

    def heard_in(self, rounds: int) -> set[str]:
        """The clients with an update of the last so many rounds; 1: of this one."""
        here = self.rounds > self.server_round - rounds
        return {client for client, is_here in zip(self.clients, here, strict=True) if is_here}

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
    """The members of each child, when split; those of each group, when not steady yet."""
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

    @property
    def parts(self) -> tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]:
        """Each of `sides`, with the members of `unsure` that belong to it."""
        return tuple(zip_longest(self.sides, self.unsure, fillvalue=()))


class Criterion(Protocol):
    """Decides in every round whether to split a cluster; only its two methods are required.

    Three optional class attributes are the defaults of the `ClusteredFL` settings with these names:

    - ``trial_rounds`` (int, default 0): 0: a split is made at once; else its clients are asked
      before it is made;
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
    """The answer of a criterion's ``decide``, if it is a valid one.

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
    if problem := next((problem for problem, is_there in problems.items() if is_there), ""):
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
