"""`AutoCriterion`: when to split, without thresholds on norms.

Not in the paper. Its quantities are the lengths of updates (eq. 33) and similarities across a cut
against those within (eqs. 17, 21). But every one of them is a ratio or a cosine, so multiplying
all updates by a constant changes nothing, and each is taken of averages over rounds, in which a
client's own sampling noise cancels. It does not wait until the mean update is nearly zero (eq.
32): what all members still have in common makes their cosines alike, so that parts keep apart less.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from cflower.algorithm.auto.clustering import best_clustering, in_appearance
from cflower.algorithm.auto.null_distribution import Cloud, distinct, joint_rounds
from cflower.algorithm.criteria import Decision, Evidence, Memory, Outcome, early_verdict, verdict
from cflower.algorithm.similarity import (
    CACHED,
    LARGE,
    Blocks,
    Gram,
    Points,
    Similarities,
    blocks,
    cosine_similarity,
    row_lengths,
    weighted_sum,
    widened,
)
from cflower.seeding import generator

ENOUGH = 50
"""Members heard from twice that may tell the parts of any cluster; all others walk."""
FULL_PRECISION = 2**28
"""With more entries than this, a cluster's averages are kept in half precision."""
MIN_JOINT_ROUNDS = 0.5
"""How often parts must have been heard in the same rounds, compared with any two members."""


@dataclass(frozen=True)
class AutoCriterion:
    """Split when the members' average updates fall into parts that keep apart, round by round.

    A member's average update since the last split weighs its t-th update by about t³, so it
    looks back over about the last quarter of the rounds. The cosines of these averages tell the
    best cut, see `best_clustering`; copies of a member count once. The cluster is split, into all
    parts at once, when all of these hold:

    - the longest is longer than ``min_norm_ratio`` times the longest this branch of the tree saw;
    - at least ``min_grouped_share`` of the members have company in their part;
    - every member is nearer to its own part than to the next one, in mean cosine, by more than
      ``min_margin / m²``: among few members chance alone leaves wide gaps;
    - and by more standard errors than chance would, Student's t with ``confidence_level``;
    - members of different parts were heard in the same rounds, at least half as often as any two
      members, or it may be the rounds that differ;
    - the same cut came out for ``min_stable_rounds``, and for a quarter of all rounds;
    - the parts are further apart, measured in the scatter of their members, than those of any of
      up to 200 clouds without groups that spread as the averages do about their unweighted centre,
      as they lie or by angle; or both as they lie and by angle than those of 97.5 %, see `Cloud`.

    Who was hardly or has long not been heard from, see `in_touch`, holds nobody up: it is on no
    side, and walks (Algorithm 4) when it is next heard from. Few well-known members of a large
    cluster are enough: the test itself says how sure they are.

    The defaults were found on seeds that no reported figure uses (docs/criteria.md). None depends
    on the scale of the updates, and chance is measured on the updates themselves, so there
    is nothing to tune for other data.

    Parameters
    ----------
    min_norm_ratio : float in [0, 1)
        Smallest ratio of the longest update to the longest that this branch of the tree saw.
    min_grouped_share : float in [0, 1]
        Smallest share of members that are not alone in their part.
    min_margin : float >= 0
        In mean cosine times m²: the margin that a cluster of m members needs.
    confidence_level : float in (0, 1)
        Probability that chance alone does not produce the margin, Student's t.
    min_stable_rounds : int >= 1
        Rounds for which the same cut must have come out.
    heard_share : float in (0, 1]
        Share of the members that must have been heard from at least twice; 50 of them are always
        enough.

    Notes
    -----
    Two clients are never split: at a stationary point of theirs the two updates point in
    opposite directions whether or not they belong together (eq. 12).
    """

    name: ClassVar[str] = "auto"
    trial_rounds: ClassVar[int] = 4
    moving: ClassVar[bool] = True
    inner_interval: ClassVar[int] = 10

    min_norm_ratio: float = 0.3
    min_grouped_share: float = 0.5
    min_margin: float = 12.0
    confidence_level: float = 0.99
    min_stable_rounds: int = 3
    heard_share: float = 0.8

    def decide(self, evidence: Evidence, memory: Memory) -> tuple[Decision, Memory]:
        """Update the averages and judge the best cut of them."""
        memory = remember(memory, evidence)
        heard_twice = int((memory["counts"] >= 2).sum())
        share = min(self.heard_share, ENOUGH / max(1, evidence.num_members))
        how = "heard from twice since the cluster began"
        if early := early_verdict(evidence, share, 3, heard_twice, how):
            return early, memory
        averages, weights = memory["averages"], memory["weights"]
        lengths = memory["unit"] * row_lengths(averages)
        memory["peak"] = max(memory.get("peak", 0.0), float(lengths.max()))
        here = np.flatnonzero(in_touch(memory))
        single, which = distinct(averages, here)
        if len(single) < 3:
            reason = f"{len(single)} different member(s) in touch, and a split needs at least 3"
            return verdict(evidence, Outcome.TOO_SMALL, reason), memory
        # As if all weighed the same: or beside a client of much weight, where the model rests, the
        # others would all want to go the same way.
        even = np.full(len(averages), 1 / len(averages))
        uneven = weighted_sum(weights / (weights.sum() or 1.0) - even, averages).astype(np.float32)
        cosines: Similarities
        if len(single) > LARGE:
            cosines = Points.of(averages, single, uneven).cosines()
        else:
            rows = averages[single].astype(np.float32, copy=False)
            rows += uneven
            cosines = Gram(cosine_similarity(rows))
        cut = best_clustering(cosines)
        labels = cut.labels[which]
        everyone = np.full(len(averages), -1)
        everyone[here] = labels
        same = same_parts(memory.get("cut", everyone[:0]), everyone)
        memory["streak"] = memory["streak"] + 1 if same else 1
        memory["cut"] = everyone
        figures = {
            "norm_ratio": float(lengths.max() / (memory["peak"] or 1.0)),
            "grouped_share": cut.grouped_share,
            "margin": cut.margin,
            "margin_needed": self.min_margin / len(single) ** 2,
            "margin_errors": cut.margin_errors,
            "margin_errors_needed": float(stdtrit(max(cut.freedom, 1), self.confidence_level)),
            "joint_rounds": joint_rounds(memory["heard"][here], labels),
            "stable_rounds": float(memory["streak"]),
            "stable_rounds_needed": float(max(self.min_stable_rounds, memory["counts"].max() / 4)),
        }
        outcome, reason = self._judge(figures)
        if outcome is Outcome.SPLIT:
            cloud = Cloud.of(averages, memory["noise"][single], single)
            found = cloud.separation(cut.labels)
            # The same clouds in every round: or one would in time be found that has fewer.
            rng = generator(0, "clouds", evidence.cluster)
            chance = cloud.by_chance(found, self.min_grouped_share, rng)
            names = "separation", "separation_by_angle"
            figures |= zip(names, found.tolist(), strict=True)
            figures |= {f"{n}_by_chance": float(c) for n, c in zip(names, chance, strict=True)}
            how = (
                f"{found[0]:.1f} scatters apart and {found[1]:.1f} by angle, clouds without "
                f"groups up to {chance[0]:.1f} and {chance[1]:.1f}"
            )
            if np.all(found <= chance):
                outcome, reason = Outcome.NOT_APART, f"chance makes such parts: {how}"
            else:
                reason = f"{reason}; {how}"
        similarity = cosines.matrix[np.ix_(which, which)] if isinstance(cosines, Gram) else None
        alpha_cross = None
        if similarity is not None and (across := labels[:, None] != labels[None, :]).any():
            alpha_cross = float(similarity[across].max())
        clients = np.array(memory["clients"])[here]
        decision = verdict(
            evidence,
            outcome,
            reason,
            alpha_cross=alpha_cross,
            clients=tuple(clients.tolist()),
            similarity=similarity,
            figures=figures,
            sides=tuple(tuple(clients[labels == part].tolist()) for part in range(max(labels) + 1))
            if outcome is Outcome.SPLIT
            else (),
        )
        return decision, memory

    def without(self, memory: Memory, client: str) -> Memory:
        """The memory without a member that has left."""
        clients = memory.get("clients", ())
        if client not in clients:
            return memory
        kept = np.array([name != client for name in clients])
        rows = ("averages", "counts", "weights", "power", "share", "median", "heard", "noise")
        cut = memory.get("cut", kept[:0])
        return {
            **memory,
            **{name: memory[name][kept] for name in rows},
            "clients": tuple(name for name in clients if name != client),
            "cut": cut[kept[: len(cut)]],
        }

    def inherit(self, memory: Memory) -> Memory:
        """What a child takes over: how long updates have been; everything else starts anew."""
        return {"peak": memory["peak"]} if "peak" in memory else {}

    def _judge(self, figures: Mapping[str, float]) -> tuple[Outcome, str]:
        f = figures
        apart = (
            f"by {f['margin']:.2f} in mean cosine, {f['margin_needed']:.2f} needed, and "
            f"by {f['margin_errors']:.1f} standard errors, {f['margin_errors_needed']:.1f} needed"
        )
        if f["norm_ratio"] <= self.min_norm_ratio:
            reason = (
                f"updates have shrunk to {f['norm_ratio']:.2f} of the longest seen: all but done"
            )
            return Outcome.CONTENT, reason
        if f["grouped_share"] < self.min_grouped_share:
            reason = (
                f"no groups: only {f['grouped_share']:.0%} of the members have company in a part"
            )
            return Outcome.NOT_APART, reason
        if f["joint_rounds"] < MIN_JOINT_ROUNDS:
            reason = (
                f"the parts were heard in the same rounds {f['joint_rounds']:.2f} times as often "
                f"as any two members, less than {MIN_JOINT_ROUNDS:g}: it may be the rounds that "
                "differ"
            )
            return Outcome.NOT_APART, reason
        if f["margin"] <= f["margin_needed"] or f["margin_errors"] <= f["margin_errors_needed"]:
            return Outcome.NOT_APART, f"the parts are not far enough apart: {apart}"
        if f["stable_rounds"] < f["stable_rounds_needed"]:
            needed = f"{f['stable_rounds_needed']:.3g} needed"
            reason = f"the same parts for {f['stable_rounds']:.0f} rounds, {needed}"
            return Outcome.UNSTEADY, reason
        return Outcome.SPLIT, f"the parts keep apart: {apart}"


def in_touch(memory: Memory) -> NDArray[np.bool_]:
    """Which members are known well enough and still take part, shape (m,).

    Not who was heard from once, or half as often as half of the others. Nor who has since been
    silent while half of the others were heard from more than twice as often as it ever was: it
    left. They walk (Algorithm 4) when they are next heard from.
    """
    counts, median = memory["counts"], np.median(memory["counts"])
    known = counts >= max(2, median / 2)
    return np.asarray(known & (median - memory["median"] <= 2 * counts))


def same_parts(before: NDArray[Any], now: NDArray[Any]) -> bool:
    """Whether two cuts agree on all whom both know; who came later stands at the end.

    >>> same_parts(np.array([0, 1, -1, 0]), np.array([1, 0, 0, 1, 1]))
    True
    """
    both = (before >= 0) & (now[: len(before)] >= 0)
    one, other = in_appearance(before[both]), in_appearance(now[: len(before)][both])
    return before.max(initial=-1) == now.max() and np.array_equal(one, other)


def remember(memory: Memory, evidence: Evidence) -> Memory:
    """The memory with this round's updates averaged in; the one given is not changed.

    Polynomial-decay averaging (Shamir and Zhang, arXiv 1212.1824) with η = 3: the t-th update
    enters with weight 4 / (t + 3). Beside it: what chance adds to an average's squared length
    (``noise``), from how far updates lay from their averages, apart from what all had in common;
    in which rounds each member was ``heard``, a bit each; how often the ``median`` member had been
    heard from when each last was; and the ``unit`` of averages and noise.
    """
    clients: list[str] = list(memory.get("clients", ()))
    place = {name: i for i, name in enumerate(clients)}
    heard = np.flatnonzero(evidence.heard_now)
    new = [evidence.clients[i] for i in heard if evidence.clients[i] not in place]
    place |= {name: len(clients) + i for i, name in enumerate(new)}
    clients += new
    size, before = len(clients), memory.get("averages", np.zeros((0, 0)))
    # No update is fresh when all models have just moved far, such as by a wrapper's noise.
    width = len(evidence.vectors[0]) if evidence.vectors else before.shape[1]
    rounds, unit = memory.get("rounds", 0), memory.get("unit", 1.0)
    half = size * width > FULL_PRECISION
    if half and unit == 1.0 and len(heard):
        # Half precision has little range.
        unit = float(np.linalg.norm(evidence.vectors[heard[0]]) / np.sqrt(width)) or 1.0
        memory = {**memory, "averages": before / unit, "power": memory.get("power", 0) / unit**2}
    after: dict[str, NDArray[Any]] = {
        "averages": np.zeros((size, width), np.float16 if half else np.float32),
        "counts": np.zeros(size, np.int64),
        "weights": np.zeros(size),
        "power": np.zeros(size),
        "share": np.zeros(size),
        "median": np.zeros(size),
        "heard": np.zeros((size, rounds // 8 + 1), np.uint8),
    }
    if size > len(new):
        for name, array in after.items():
            old = memory[name]
            array[tuple(slice(length) for length in old.shape)] = old
    rows = np.array([place[evidence.clients[i]] for i in heard], dtype=int)
    after["heard"][rows, rounds // 8] |= 1 << rounds % 8
    after["weights"][rows] = evidence.weights[heard]
    after["counts"][rows] += 1
    counts, averages = after["counts"][rows], after["averages"]
    steps, known = 4.0 / (counts + 3), counts > 1
    common, surprise = np.zeros(width), np.zeros(len(rows))

    def differences() -> Blocks:
        for part in blocks(len(rows), width, CACHED):
            difference = np.stack([evidence.vectors[i] for i in heard[part]])
            if unit != 1.0:
                difference /= np.float32(unit)
            difference -= widened(averages[rows[part]])
            yield part, difference

    for part, difference in differences():
        common += known[part].astype(difference.dtype) @ difference
    common /= max(1, known.sum())
    for part, difference in differences():
        averages[rows[part]] += np.float32(steps[part, None]) * difference
        difference -= common.astype(difference.dtype)
        surprise[part] = np.einsum("ij,ij->i", difference, difference)
    if known.sum() > 1:
        # Their own mean was taken off; and t updates are t - 1 surprises.
        surprise *= known.sum() / (known.sum() - 1)
        learn = 4.0 / (counts + 2)
        change = learn * (surprise - after["power"][rows])
        after["power"][rows[known]] += change[known]
    after["share"][rows] = (1 - steps) ** 2 * after["share"][rows] + steps**2
    after["median"][rows] = np.median(after["counts"])
    return {
        "streak": 0,
        **memory,
        **after,
        "clients": tuple(clients),
        "rounds": rounds + 1,
        "unit": unit,
        "noise": after["power"] * after["share"],
    }
