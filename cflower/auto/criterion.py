"""`AutoCriterion`: when to split, without thresholds on norms.

Not in the paper. Its quantities are the lengths of updates (eq. 33) and similarities across a cut
and within its parts (eqs. 17, 21). But every one of them is a ratio or a cosine, so multiplying all
updates by a constant changes nothing, and each is computed from averages over rounds, in which a
client's own sampling noise cancels. It does not wait until the mean update is nearly zero (eq. 32):
the part that all updates have in common only makes their cosines more similar.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cflower.algorithm.constants import ERROR, ETA, FEW, HEARD_SHARE, RESEMBLES, SUFFICIENT
from cflower.algorithm.criteria import (
    Criterion,
    Decision,
    Evidence,
    Memory,
    Outcome,
    sampled,
    too_few,
    verdict,
)
from cflower.algorithm.similarity import Matrix, cosine_similarity
from cflower.auto.averages import Averages
from cflower.auto.class_view import class_matched
from cflower.auto.clustering import Clustering, Labels, in_appearance, sure_clustering, with_nearest
from cflower.auto.separation import agreement, by_chance, centred, separation
from cflower.ordering import counted, in_order, listed
from cflower.settings import Checked, number

MOST_NAMES = 5
"""Members named in a reason; of more their number."""


class View(NamedTuple):
    """One way to compare m members."""

    number: int
    name: str
    similarity: Matrix
    """The cosines by which the members are clustered, shape (m, m)."""
    noise: NDArray[np.float64]
    """Share of chance in the squared lengths of the vectors with these cosines, shape (m,)."""
    points: tuple[tuple[Matrix, NDArray[np.float64]], ...]
    """The vectors of which the groups' separation is tested, shape (m, k), with the expected
    contribution of chance to their squared lengths, shape (m,). It suffices in one of several."""


@dataclass(frozen=True)
class AutoCriterion(Checked, Criterion):
    """Split when the members' average updates form groups that stay separated over rounds.

    The averages are clustered by their cosines (`sure_clustering`).
    The cluster is split, into all parts at once, if four conditions hold:

    - enough is known of enough members, and they are sure of their part;
    - the parts are further apart than chance makes those of data without groups (`by_chance`);
    - their mean updates no longer point the same way (`agreement`);
    - the same parts came out for as many rounds as the averages cover.

    Members are compared in two views: by their updates, and by the class-matched updates of the
    output layer if the model has one (`class_matched`). A split that either supports is made.

    No member can prevent a split. Members that are not sure of their part, changed it or send noise
    take no part in the decision and go to the nearest child. Those with too few or old updates
    (`Averages.left_out`) are placed by Algorithm 4 with their next update; so are all but a random
    2,000 of a larger cluster. Members that never trained do not count.

    Parameters
    ----------
    confidence_level : float in (0, 1)
        Probability that chance alone does not make a member sure of its part, Student's t.
    min_stable_rounds : int >= 1
        Fewest rounds for which the parts must have been the same.
    heard_share : float in (0, 1]
        Share of the members that need at least two updates, where 50 are always enough, and share
        of these that must be sure of their part.

    Notes
    -----
    Two clients are never split: at a stationary point of theirs the two updates point in
    opposite directions whether or not they belong together (eq. 12).
    """

    name: ClassVar[str] = "auto"
    trial_rounds: ClassVar[int] = 1
    moving: ClassVar[bool] = True
    personal: ClassVar[bool] = True

    confidence_level: float = number(1 - ERROR, above=0, below=1)
    min_stable_rounds: int = number(FEW, least=1)
    heard_share: float = number(HEARD_SHARE, above=0, most=1)

    def decide(self, evidence: Evidence, memory: Memory) -> tuple[Decision, Memory]:
        """Update the averages, cluster them and test the result."""
        known = Averages(**memory).updated(evidence)
        if refused := self._too_few(evidence, known):
            return verdict(evidence, *refused), vars(known)
        left_out, decisions = known.left_out(evidence.members, evidence.absent), []
        in_touch = [i for i, client in enumerate(known.clients) if client not in left_out]
        here = sampled(np.array(in_touch, dtype=np.intp), evidence.cluster)
        if len(here) < FEW:
            recent = f"{counted(len(here), 'member')} with recent updates that are not zero"
            reason = f"{recent}, {FEW} needed for a split"
            return verdict(evidence, Outcome.TOO_SMALL, reason), vars(known)
        for view in views(known, here):
            cut = sure_clustering(view.similarity, view.noise, self.confidence_level)
            known = known.with_cut(view.number, here, cut.labels)
            decisions.append(self._judged(evidence, known, here, view, cut))
        splits = (decision for decision in decisions if decision.outcome is Outcome.SPLIT)
        decision = next(splits, decisions[0])
        reason = decision.reason
        if left_out:
            names = f"{len(left_out)} of {len(evidence.members)} members"
            names = names if len(left_out) > MOST_NAMES else ", ".join(in_order(left_out))
            reason += f"; not considered: {names}"
        return replace(decision, reason=reason, left_out=left_out), vars(known)

    def inherit(self, memory: Memory) -> Memory:
        """The averages: members of a new leaf need not train twice again before it can be split.

        They count as those of `FEW` updates, so that they soon follow the new model, and how long
        parts have been the same is counted anew.
        """
        known = Averages(**memory)
        few = np.minimum(known.counts, FEW)
        return vars(replace(known, counts=few, streak=np.zeros_like(known.streak)))

    def _too_few(self, evidence: Evidence, known: Averages) -> tuple[Outcome, str] | None:
        """Refuse a cluster in which too few members have sent two updates."""
        # A client that has just sent its first update could not send two.
        first = {c for c, n in zip(known.clients, known.counts, strict=True) if n == 1}
        away = {*evidence.absent, *(first & evidence.heard_in(1))}
        counts = known.counts[[client not in away for client in known.clients]]
        members, ready = len(evidence.members), int((counts >= 2).sum())
        # Members that never trained do not count.
        trained = len(counts) or len(known.clients)
        share = min(self.heard_share * trained, SUFFICIENT) / max(1, members)
        return too_few(members, ready, "two updates", least=FEW, share=share)

    def _judged(
        self,
        evidence: Evidence,
        known: Averages,
        here: NDArray[np.intp],
        view: View,
        cut: Clustering,
    ) -> Decision:
        """Apply the four conditions to a clustering of the clients at ``here`` in ``known``."""
        labels = cut.labels
        streaks = known.streak[here, view.number]
        stable = max(self.min_stable_rounds, known.counts.max() / (ETA + 1))
        enough = max(FEW, ceil(self.heard_share * len(labels) - 1e-9))
        figures = {
            "margin_errors": reached_by(cut.errors, enough),
            "margin_errors_needed": cut.errors_needed,
            "stable_rounds": reached_by(streaks, enough),
            "stable_rounds_needed": stable,
        }
        refused = unsure_or_unsteady(figures)
        if not refused:
            labels = np.where(streaks >= stable, labels, -1)
            labels[labels >= 0] = in_appearance(labels[labels >= 0])
            sure = np.flatnonzero(labels >= 0)
            parts, left_out = labels[sure], len(labels) - len(sure)
            figures["left_out"] = float(left_out)
            figures["agreement"] = agreement(known.averages[here[sure]], parts)
            figures["separation"] = max(
                separation(centred(points[sure]), parts, noise[sure])
                for points, noise in view.points
            )
            figures["separation_by_chance"] = by_chance(len(sure), left_out)
        groups = f"{counted(labels.max() + 1, 'group')} by {view.name}"
        decision = verdict(
            evidence,
            *(refused or significance(figures, groups)),
            alpha_cross=largest_across(view.similarity, labels),
            clients=tuple(known.clients[i] for i in here),
            similarity=view.similarity,
            figures=figures,
        )
        if decision.outcome not in (Outcome.SPLIT, Outcome.UNSTEADY, Outcome.MOVING):
            return decision
        return with_sides(decision, view.similarity, labels)


def views(known: Averages, clients: NDArray[np.intp]) -> list[View]:
    """The views of these clients: their updates, and their output layers if they have one."""
    noise, raw, even = known.noise[clients], known.averages[clients], known.evenly_weighted(clients)
    # Some train longer than others; but a client could hide groups by what it claims to have.
    steps = known.steps[clients]
    points = (raw, noise), (raw / steps[:, None].astype(raw.dtype), noise / steps**2)
    updates = View(0, "updates", cosine_similarity(even), noise / squares_of(even), points)
    if not known.outputs.size:
        return [updates]
    matched = class_matched(known.outputs[clients])
    share = noise / squares_of(raw - raw.mean(axis=0))
    cosines, matched_noise = cosine_similarity(matched), share * squares_of(matched)
    name = "output layers, class by class"
    return [updates, View(1, name, cosines, share, ((matched, matched_noise),))]


def unsure_or_unsteady(f: Mapping[str, float]) -> tuple[Outcome, str] | None:
    """Refuse a split without enough sure members, or without steady groups."""
    if not f["margin_errors"]:
        return Outcome.NOT_APART, "no clear groups"
    if f["margin_errors"] <= f["margin_errors_needed"]:
        errors, needed = f["margin_errors"], f["margin_errors_needed"]
        alike = f"{errors:.1f} standard errors apart, and a split needs {needed:.1f}"
        return Outcome.NOT_APART, f"the possible groups are too alike: {alike}"
    if f["stable_rounds"] < f["stable_rounds_needed"]:
        seen = f"the same groups were seen in {counted(int(f['stable_rounds']), 'round')}"
        return Outcome.UNSTEADY, f"{seen}, and a split needs {ceil(f['stable_rounds_needed'])}"
    return None


def with_sides(decision: Decision, similarity: Matrix, groups: Labels) -> Decision:
    """The decision with its sides, and with the nearest side of every client without a group.

    Sides that are not steady yet are no reason to split, but a change may know another one.
    """
    clients, sure = np.array(decision.clients), groups >= 0
    labels = with_nearest(similarity, groups)
    sides, unsure = (
        tuple(tuple(clients[mask & (labels == part)].tolist()) for part in range(labels.max() + 1))
        for mask in (sure, ~sure)
    )
    reason = decision.reason
    if decision.outcome is Outcome.SPLIT and not sure.all():
        names = listed(in_order(clients[~sure].tolist()), 5)
        reason += f"; not sure of their group and placed in the nearest one: {names}"
    return replace(decision, reason=reason, sides=sides, unsure=unsure)


def squares_of(points: Matrix) -> NDArray[np.float64]:
    """Squared lengths, shape (m,); the smallest positive number for 0."""
    squares = np.einsum("ij,ij->i", points, points, dtype=np.float64)
    return np.asarray(np.maximum(squares, np.finfo(float).tiny))


def reached_by(values: NDArray[Any], count: int) -> float:
    """The largest value that so many of these reach.

    >>> reached_by(np.array([4.0, 0.0, 2.0, 3.0]), 3)
    2.0
    """
    return float(np.sort(values)[-count])


def largest_across(similarity: Matrix, labels: Labels) -> float | None:
    """The largest similarity of members on different sides (eq. 17); None with fewer than two."""
    across = (labels[:, None] != labels) & (np.minimum.outer(labels, labels) >= 0)
    return float(similarity[across].max()) if across.any() else None


def significance(f: Mapping[str, float], groups: str) -> tuple[Outcome, str]:
    """Whether groups that are separated no longer move the same way.

    As long as they do, one model that all of them train becomes better for each: the cluster is not
    stationary yet (eq. 32).
    """
    chance = f"chance gives {f['separation_by_chance']:.1f} at most"
    distance = f"separation {f['separation']:.1f}, {chance}"
    if f["separation"] <= f["separation_by_chance"]:
        return Outcome.NOT_APART, f"{groups}: {distance}"
    if f["agreement"] >= RESEMBLES:
        cosine = f"cosine {f['agreement']:.2f}, less than {RESEMBLES:g} needed for a split"
        return Outcome.MOVING, f"{groups} still move the same way: {cosine}"
    return Outcome.SPLIT, f"{groups}: {distance}"
