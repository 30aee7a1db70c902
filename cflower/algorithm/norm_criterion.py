"""The paper's criterion: thresholds on the norms of updates, and the bipartition's margin."""

from dataclasses import dataclass
from typing import ClassVar

from cflower.algorithm.bipartition import LINKAGES, Bipartition, Linkage, bipartition
from cflower.algorithm.constants import HEARD_SHARE
from cflower.algorithm.criteria import (
    Criterion,
    Decision,
    Evidence,
    Memory,
    Outcome,
    too_few,
    verdict,
)
from cflower.ordering import counted
from cflower.settings import Checked, choice, number


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
