"""`AutoCriterion`: when to split, without thresholds on norms.

Not in the paper. Its quantities are: the mean update against the single ones (eq. 32 against
33), and similarities across a cut against those within (eqs. 17, 21). But every one of them is
a ratio or a cosine, so multiplying all updates by a constant changes nothing, and each is taken
of averages over rounds, in which a client's own sampling noise cancels.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy.special import stdtrit

from cflower.algorithm.criteria import Decision, Evidence, Memory, Outcome, heard_enough, verdict
from cflower.algorithm.cut import best_cut
from cflower.algorithm.similarity import cosine_similarity


@dataclass(frozen=True)
class AutoCriterion:
    """Split when the members' average updates fall into parts that keep apart, round by round.

    A member's average update since the last split weighs its t-th update by about t³, so it
    looks back over about the last quarter of the rounds. The cosines of these averages tell the
    best cut, see `best_cut`. The cluster is split, into all parts at once, when all of these hold:

    - alive: the longest is longer than ``alive`` times the longest this branch of the tree saw;
    - settled: the mean of the averages is shorter than ``settled`` times their mean length;
    - companions: at least that share of the members has company in its part;
    - apart: every member is nearer to its own part than to the next one, in mean cosine, by more
      than ``small / m²``: among few members chance alone leaves wide gaps;
    - sure: and by more standard errors than chance would, Student's t with probability ``sure``;
    - steady: the same cut came out for ``patience`` rounds, and for a quarter of all rounds.

    The defaults were found on seeds that no reported figure uses (docs/criteria.md). None depends
    on the scale of the updates, and ``sure`` measures chance on the updates themselves, so there
    is nothing to tune for other data.

    Parameters
    ----------
    settled : float in (0, 1]
        Largest ratio of the mean update's length to the mean length of the updates.
    alive : float in [0, 1)
        Smallest ratio of the longest update to the longest that this branch of the tree saw.
    companions : float in [0, 1]
        Smallest share of members that are not alone in their part.
    small : float >= 0
        In mean cosine times m²: the margin that a cluster of m members needs.
    sure : float in (0, 1)
        Probability that chance alone does not produce the margin, Student's t.
    patience : int >= 1
        Rounds for which the same cut must have come out.
    heard_share : float in (0, 1]
        Share of the members that must have been heard from at least twice.

    Notes
    -----
    Two clients are never split: at a stationary point of theirs the two updates point in
    opposite directions whether or not they belong together (eq. 12).
    """

    name: ClassVar[str] = "auto"

    settled: float = 0.6
    alive: float = 0.3
    companions: float = 0.5
    small: float = 12.0
    sure: float = 0.99
    patience: int = 3
    heard_share: float = 0.8

    def decide(self, evidence: Evidence, memory: Memory) -> tuple[Decision, Memory]:
        """Update the averages and judge the best cut of them."""
        memory = remember(memory, evidence)
        heard_twice = int((memory["counts"] >= 2).sum())
        if early := heard_enough(evidence, self.heard_share, 3, heard_twice, "heard from twice"):
            return early, memory
        averages, weights = memory["averages"], memory["weights"]
        lengths = np.linalg.norm(averages, axis=1)
        memory["peak"] = max(memory.get("peak", 0.0), float(lengths.max()))
        similarity = cosine_similarity(averages)
        cut = best_cut(similarity)
        same = np.array_equal(memory.get("cut", ()), cut.labels)
        memory["streak"] = memory["streak"] + 1 if same else 1
        memory["cut"] = cut.labels
        figures = {
            "alive": float(lengths.max() / (memory["peak"] or 1.0)),
            "settled": float(np.linalg.norm(weights @ averages) / (weights @ lengths or 1.0)),
            "companions": cut.companions,
            "apart": cut.apart,
            "apart_needed": self.small / len(averages) ** 2,
            "errors": cut.standard_errors,
            "errors_needed": float(stdtrit(max(cut.freedom, 1), self.sure)),
            "steady": float(memory["streak"]),
            "steady_needed": float(max(self.patience, memory["counts"].max() / 4)),
        }
        outcome, reason = self._judge(figures)
        clients = memory["clients"]
        parts = [np.flatnonzero(cut.labels == part) for part in range(cut.labels.max() + 1)]
        across = cut.labels[:, None] != cut.labels[None, :]
        decision = verdict(
            evidence,
            outcome,
            reason,
            alpha_cross=float(similarity[across].max()) if across.any() else None,
            clients=clients,
            similarity=similarity,
            figures=figures,
            sides=tuple(tuple(clients[i] for i in part) for part in parts)
            if outcome is Outcome.SPLIT
            else (),
        )
        return decision, memory

    def inherit(self, memory: Memory) -> Memory:
        """What a child takes over: how long updates have been; everything else starts anew."""
        return {"peak": memory["peak"]}

    def _judge(self, figures: Mapping[str, float]) -> tuple[Outcome, str]:
        f = figures
        apart = (
            f"by {f['apart']:.2f} in mean cosine, {f['apart_needed']:.2f} needed, and "
            f"by {f['errors']:.1f} standard errors, {f['errors_needed']:.1f} needed"
        )
        if f["alive"] <= self.alive:
            reason = f"updates have shrunk to {f['alive']:.2f} of the longest seen: all but done"
            return Outcome.CONTENT, reason
        if f["settled"] >= self.settled:
            reason = (
                f"the members still move together: their mean is {f['settled']:.2f} of their "
                f"length, {self.settled:g} or more"
            )
            return Outcome.MOVING, reason
        if f["companions"] < self.companions:
            reason = f"no groups: only {f['companions']:.0%} of the members have company in a part"
            return Outcome.NOT_APART, reason
        if f["apart"] <= f["apart_needed"] or f["errors"] <= f["errors_needed"]:
            return Outcome.NOT_APART, f"the parts are not far enough apart: {apart}"
        if f["steady"] < f["steady_needed"]:
            reason = f"the same parts for {f['steady']:.0f} rounds, {f['steady_needed']:.3g} needed"
            return Outcome.UNSTEADY, reason
        return Outcome.SPLIT, f"settled, and the parts keep apart: {apart}"


def remember(memory: Memory, evidence: Evidence) -> Memory:
    """The memory with this round's updates averaged in; the one given is not changed.

    Polynomial-decay averaging (Shamir and Zhang, arXiv 1212.1824) with η = 3: the t-th update
    enters with weight 4 / (t + 3).
    """
    clients: list[str] = list(memory.get("clients", ()))
    place = {name: i for i, name in enumerate(clients)}
    heard = [i for i, now in enumerate(evidence.heard_now) if now]
    new = [evidence.clients[i] for i in heard if evidence.clients[i] not in place]
    place |= {name: len(clients) + i for i, name in enumerate(new)}
    clients += new
    before = memory.get("averages", np.zeros((0, 0), np.float32))
    # No update is fresh when all models have just moved far, such as by a wrapper's noise.
    width = len(evidence.vectors[0]) if evidence.vectors else before.shape[1]
    averages = np.zeros((len(clients), width), np.float32)
    counts, weights = np.zeros(len(clients), np.int64), np.zeros(len(clients))
    if len(clients) > len(new):
        old = slice(len(clients) - len(new))
        averages[old], counts[old] = before, memory["counts"]
        weights[old] = memory["weights"]
    for i in heard:
        row = place[evidence.clients[i]]
        counts[row] += 1
        step = 4.0 / (counts[row] + 3)
        averages[row] += np.float32(step) * (evidence.vectors[i] - averages[row])
        weights[row] = evidence.weights[i]
    figures: dict[str, Any] = {"averages": averages, "counts": counts, "weights": weights}
    return {"streak": 0, **memory, "clients": tuple(clients), **figures}
