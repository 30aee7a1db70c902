"""Why a cluster is split, or is not: eqs. 32, 33 and 39, answered with figures and a sentence."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from math import ceil
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from cflower.algorithm.bipartition import (
    Bipartition,
    Linkage,
    bipartition,
    certified_bipartition,
    largest_safe_gamma,
)
from cflower.algorithm.similarity import LARGE, Matrix, Points, cosine_similarity

Memory = dict[str, Any]
"""What a criterion remembers of one cluster between rounds: arrays and plain numbers."""


class Outcome(StrEnum):
    """What became of a cluster in a round."""

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


@dataclass(frozen=True)
class Evidence:
    """What the server knows of one cluster when it decides.

    Only members with a fresh update count: one computed since the cluster was born, from a
    model that has since moved by no more than the update's own length.
    """

    cluster: str
    server_round: int
    num_members: int
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
    rounds: NDArray[np.integer] | None = None
    """The round each update came in, shape (m,); None: all in this one."""

    @property
    def heard_now(self) -> NDArray[np.bool_]:
        """Which clients were heard from in this very round, shape (m,)."""
        if self.rounds is None:
            return np.ones(len(self.clients), dtype=bool)
        return np.asarray(self.rounds == self.server_round, dtype=bool)

    @property
    def max_norm(self) -> float:
        """Max ‖Δ_i‖, left side of eq. 33."""
        return float(self.norms.max(initial=0.0))

    @cached_property
    def similarity(self) -> Matrix:
        """Cosine matrix of the clients' updates, shape (m, m), computed when first asked for."""
        return cosine_similarity(np.stack(self.vectors))

    @property
    def points(self) -> Points:
        """The updates as vectors whose inner products are the cosines, for a large cluster."""
        rows = np.stack(self.vectors)
        return Points.of(rows, np.arange(len(rows)), np.zeros(rows.shape[1])).cosines()


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
    """Of the sides considered, when a similarity matrix was computed."""
    sides: tuple[tuple[str, ...], ...] = ()
    """The members of each child, when split."""
    children: tuple[str, ...] = ()
    """The children's names, when split."""
    clients: tuple[str, ...] = ()
    """Order of ``similarity``."""
    similarity: Matrix | None = field(default=None, repr=False, compare=False)
    figures: Mapping[str, float] = field(default_factory=dict)
    """What else the criterion went by, under its own names; ``eps1`` and ``eps2`` where it set
    these itself."""


class Criterion(Protocol):
    """Decides, from the evidence of one cluster and what it remembers of it, what to do."""

    def decide(self, evidence: Evidence, memory: Memory) -> tuple[Decision, Memory]:
        """The verdict, and the memory to hand in next round; the one given is not changed."""

    def inherit(self, memory: Memory) -> Memory:
        """The memory that the children of a split cluster start with."""


def early_verdict(
    evidence: Evidence,
    share: float,
    least: int,
    heard: int | None = None,
    how: str = "heard from since the model last moved far",
) -> Decision | None:
    """The verdicts that need no figures: too few members, or too few of them heard from.

    Parameters
    ----------
    evidence : Evidence
    share : float
        Share of the members that must have been heard from.
    least : int
        Members that a split needs.
    heard : int, optional
        Members that count as heard from; those of the evidence if not given.
    how : str
        What they had to do to count, for the sentence.
    """
    members = evidence.num_members
    heard = len(evidence.clients) if heard is None else heard
    if members < least:
        reason = f"{members} member(s), and a split needs at least {least}"
        return verdict(evidence, Outcome.TOO_SMALL, reason)
    # 0.14 * 150 is 21.000000000000004: the share asked for must not lose a client to rounding.
    needed = max(least, ceil(share * members - 1e-9))
    if heard < needed:
        reason = f"{heard} of {members} members {how}, and a decision needs {needed}"
        return verdict(evidence, Outcome.TOO_FEW_HEARD, reason)
    return None


def verdict(evidence: Evidence, outcome: Outcome, reason: str, **figures: Any) -> Decision:
    """A decision on this evidence; ``figures`` are the further fields of `Decision`."""
    return Decision(
        evidence.cluster,
        evidence.server_round,
        outcome,
        reason,
        evidence.mean_norm,
        evidence.max_norm,
        **figures,
    )


@dataclass(frozen=True)
class NeverSplit:
    """Conventional federated learning and isolated training: clusters stay as they are."""

    name: ClassVar[str] = "never"

    def decide(self, evidence: Evidence, memory: Memory) -> tuple[Decision, Memory]:
        """Never a split."""
        reason = "this method does not split clusters"
        return verdict(evidence, Outcome.NEVER, reason), memory

    def inherit(self, memory: Memory) -> Memory:
        """Nothing."""
        return {}


class NormVerdict(NamedTuple):
    """What `NormCriterion` says of one cluster in one round."""

    outcome: Outcome | None
    """None where the norms allow a split but the similarities are not known."""
    reason: str
    parts: Bipartition | None = None
    """Of the similarities, where they were looked at."""


@dataclass(frozen=True)
class NormCriterion:
    """The paper's criterion: split a stationary cluster whose clients are not (Algorithm 5).

    Parameters
    ----------
    eps1 : float > 0
        ε1 of eq. 32, in units of the update norm: below it the cluster counts as stationary.
    eps2 : float > 0
        ε2 of eq. 33, same unit: above it some client still wants to move.
    gamma_max : float in [0, 1)
        γ_max of eq. 39: the approximation noise to allow for. Larger rejects more splits;
        0 accepts every bipartition.
    linkage : {"single", "complete"}
        See `bipartition`.
    min_cluster_size : int >= 1
        Smallest side of a split.
    heard_share : float in (0, 1]
        Share of the members that must have a fresh update (see `Evidence`). Members without
        one are placed by Algorithm 4 when they are next heard from.

    Notes
    -----
    Norms scale with learning rate, local epochs, data and model size: thresholds found for
    one setting mean nothing in another. The defaults were found for the digits.
    """

    name: ClassVar[str] = "norms"

    eps1: float = 0.9
    eps2: float = 1.75
    gamma_max: float = 0.68
    linkage: Linkage = "single"
    min_cluster_size: int = 2
    heard_share: float = 0.8

    def decide(self, evidence: Evidence, memory: Memory) -> tuple[Decision, Memory]:
        """Eqs. 32, 33, then Algorithm 1, then eq. 39; remembers nothing."""
        return self._decide(evidence), memory

    def inherit(self, memory: Memory) -> Memory:
        """Nothing."""
        return {}

    def judge(
        self,
        mean_norm: float,
        max_norm: float,
        num_members: int,
        sides: Callable[[], Bipartition | None],
    ) -> NormVerdict:
        """Eqs. 32, 33 and 39 for one cluster in one round, when it decides and in hindsight.

        Parameters
        ----------
        mean_norm, max_norm : float
            Left sides of eqs. 32 and 33.
        num_members : int
        sides : callable
            The bipartition of the members' updates, or None if it is not known; called only where
            the norms allow a split.
        """
        least = max(2, 2 * self.min_cluster_size)
        if num_members < least:
            reason = f"{num_members} member(s), and a split needs at least {least}"
            return NormVerdict(Outcome.TOO_SMALL, reason)
        if mean_norm >= self.eps1:
            reason = f"the mean update still moves: norm {mean_norm:.3g} >= eps1 {self.eps1:g}"
            return NormVerdict(Outcome.MOVING, reason)
        if max_norm <= self.eps2:
            reason = f"no client wants to move: largest norm {max_norm:.3g} <= eps2 {self.eps2:g}"
            return NormVerdict(Outcome.CONTENT, reason)
        norms = (
            f"stationary (mean norm {mean_norm:.3g} < {self.eps1:g}) but not for every client "
            f"(largest norm {max_norm:.3g} > {self.eps2:g})"
        )
        parts = sides()
        if parts is None:
            return NormVerdict(None, f"{norms}; the similarities of this round were not recorded")
        gamma = largest_safe_gamma(parts.alpha_cross)
        if self.gamma_max >= gamma:
            reason = (
                f"the two sides are too alike: alpha_cross {parts.alpha_cross:.3g} allows "
                f"gamma < {gamma:.3g}, and gamma_max is {self.gamma_max:g}"
            )
            return NormVerdict(Outcome.NOT_APART, reason, parts)
        sizes = len(parts.first), len(parts.second)
        told = f"sides of {sizes[0]} and {sizes[1]}"
        if min(sizes) < self.min_cluster_size:
            reason = f"{told}, at least {self.min_cluster_size} asked"
            return NormVerdict(Outcome.TOO_SMALL, reason, parts)
        reason = f"{norms}; {told} with alpha_cross {parts.alpha_cross:.3g}"
        return NormVerdict(Outcome.SPLIT, reason, parts)

    def _decide(self, evidence: Evidence) -> Decision:
        least = max(2, 2 * self.min_cluster_size)
        if early := early_verdict(evidence, self.heard_share, least):
            return early
        # Complete linkage needs the similarities of all pairs, however many.
        certified = self.linkage == "single" and len(evidence.clients) > LARGE

        def parts() -> Bipartition:
            if certified:
                return certified_bipartition(evidence.points)
            return bipartition(evidence.similarity, self.linkage)

        found = self.judge(evidence.mean_norm, evidence.max_norm, evidence.num_members, parts)
        assert found.outcome is not None  # similarities are at hand
        if found.parts is None:
            return verdict(evidence, found.outcome, found.reason)
        sides = tuple(tuple(evidence.clients[i] for i in side) for side in found.parts[:2])
        return verdict(
            evidence,
            found.outcome,
            found.reason,
            alpha_cross=found.parts.alpha_cross,
            clients=evidence.clients,
            similarity=None if certified else evidence.similarity,
            figures={"alpha_cross_loss": found.parts.loss} if certified else {},
            sides=sides if found.outcome is Outcome.SPLIT else (),
        )
