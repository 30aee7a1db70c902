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
from numpy.typing import NDArray
from scipy.special import stdtrit

from cflower.algorithm.cloud import Cloud, distinct, together
from cflower.algorithm.clustering import best_clustering
from cflower.algorithm.criteria import Decision, Evidence, Memory, Outcome, early_verdict, verdict
from cflower.algorithm.similarity import cosine_similarity
from cflower.seeding import generator


@dataclass(frozen=True)
class AutoCriterion:
    """Split when the members' average updates fall into parts that keep apart, round by round.

    A member's average update since the last split weighs its t-th update by about t³, so it
    looks back over about the last quarter of the rounds. The cosines of these averages tell the
    best cut, see `best_clustering`; copies of a member count once. The cluster is split, into all
    parts at once, when all of these hold:

    - alive: the longest is longer than ``alive`` times the longest this branch of the tree saw;
    - settled: the mean of the averages is shorter than ``settled`` times their mean length;
    - companions: at least that share of the members has company in its part;
    - apart: every member is nearer to its own part than to the next one, in mean cosine, by more
      than ``small / m²``: among few members chance alone leaves wide gaps;
    - sure: and by more standard errors than chance would, Student's t with probability ``sure``;
    - together: members of different parts were heard in the same rounds, at least half as often
      as any two members, or it may be the rounds that differ;
    - steady: the same cut came out for ``patience`` rounds, and for a quarter of all rounds;
    - scatters: as the averages lie or by angle, the parts are further apart, measured in the
      scatter of their members, than those of any of up to 200 clouds without groups that spread
      as the averages do about their unweighted centre, see `Cloud`.

    Who has long not been heard from, see `in_touch`, holds nobody up: it is on no side.

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
    trial_rounds: ClassVar[int] = 4

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
        if early := early_verdict(evidence, self.heard_share, 3, heard_twice, "heard from twice"):
            return early, memory
        averages, weights = memory["averages"], memory["weights"]
        lengths = np.linalg.norm(averages, axis=1)
        memory["peak"] = max(memory.get("peak", 0.0), float(lengths.max()))
        here = np.flatnonzero(in_touch(memory))
        single, which = distinct(averages[here])
        if len(single) < 3:
            reason = f"{len(single)} different member(s) in touch, and a split needs at least 3"
            return verdict(evidence, Outcome.TOO_SMALL, reason), memory
        single = here[single]
        cloud = Cloud.of(averages[single], memory["noise"][single])
        # As if all weighed the same: or beside a client of much weight, where the model rests, the
        # others would all want to go the same way.
        uneven = (weights / (weights.sum() or 1.0)) @ averages - averages.mean(axis=0)
        cosines = cosine_similarity(averages[single] + uneven.astype(np.float32))
        cut = best_clustering(cosines)
        labels = cut.labels[which]
        everyone = np.full(len(averages), -1)
        everyone[here] = labels
        same = np.array_equal(memory.get("cut", ()), everyone)
        memory["streak"] = memory["streak"] + 1 if same else 1
        memory["cut"] = everyone
        figures = {
            "alive": float(lengths.max() / (memory["peak"] or 1.0)),
            "settled": float(np.linalg.norm(weights @ averages) / (weights @ lengths or 1.0)),
            "companions": cut.companions,
            "apart": cut.apart,
            "apart_needed": self.small / len(single) ** 2,
            "errors": cut.standard_errors,
            "errors_needed": float(stdtrit(max(cut.freedom, 1), self.sure)),
            "together": together(memory["together"][np.ix_(here, here)], labels),
            "steady": float(memory["streak"]),
            "steady_needed": float(max(self.patience, memory["counts"].max() / 4)),
        }
        outcome, reason = self._judge(figures)
        if outcome is Outcome.SPLIT:
            found = cloud.scatters(cut.labels)
            # The same clouds in every round: or one would in time be found that has fewer.
            rng = generator(0, "clouds", evidence.cluster)
            chance = cloud.by_chance(found, self.companions, rng)
            names = "scatters", "scatters_by_angle"
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
        clients = tuple(memory["clients"][i] for i in here)
        similarity = cosines[np.ix_(which, which)]
        parts = [np.flatnonzero(labels == part) for part in range(labels.max() + 1)]
        across = labels[:, None] != labels[None, :]
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
        if f["together"] < 0.5:
            reason = (
                f"the parts were heard in the same rounds {f['together']:.2f} times as often as "
                "any two members, less than 0.5: it may be the rounds that differ"
            )
            return Outcome.NOT_APART, reason
        if f["apart"] <= f["apart_needed"] or f["errors"] <= f["errors_needed"]:
            return Outcome.NOT_APART, f"the parts are not far enough apart: {apart}"
        if f["steady"] < f["steady_needed"]:
            reason = f"the same parts for {f['steady']:.0f} rounds, {f['steady_needed']:.3g} needed"
            return Outcome.UNSTEADY, reason
        return Outcome.SPLIT, f"settled, and the parts keep apart: {apart}"


def in_touch(memory: Memory) -> NDArray[np.bool_]:
    """Which members still take part, shape (m,).

    Not who has since been silent while half of the others were heard from more than twice as often
    as it ever was: little is known of it, or it left. It walks (Algorithm 4) if it comes back.
    """
    missed = np.median(memory["counts"]) - memory["median"]
    return np.asarray(missed <= 2 * memory["counts"])


def remember(memory: Memory, evidence: Evidence) -> Memory:
    """The memory with this round's updates averaged in; the one given is not changed.

    Polynomial-decay averaging (Shamir and Zhang, arXiv 1212.1824) with η = 3: the t-th update
    enters with weight 4 / (t + 3). Beside it: what chance adds to an average's squared length
    (``noise``), from how far updates lay from their averages, apart from what all had in common;
    how often two members were heard ``together``; and how often the ``median`` member had been
    heard from when each last was.
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
    after: dict[str, NDArray[Any]] = {
        "averages": np.zeros((size, width), np.float32),
        "counts": np.zeros(size, np.int64),
        "weights": np.zeros(size),
        "power": np.zeros(size),
        "share": np.zeros(size),
        "median": np.zeros(size),
        "together": np.zeros((size, size), np.uint16),
    }
    if size > len(new):
        for name, array in after.items():
            old = memory[name]
            array[tuple(slice(length) for length in old.shape)] = old
    rows = np.array([place[evidence.clients[i]] for i in heard], dtype=int)
    after["together"][np.ix_(rows, rows)] += 1
    after["weights"][rows] = evidence.weights[heard]
    after["counts"][rows] += 1
    steps = 4.0 / (after["counts"][rows] + 3)
    averages, common, known = after["averages"], np.zeros(width), after["counts"][rows] > 1
    surprise = np.zeros(len(rows))
    for row, i in zip(rows, heard, strict=True):
        if after["counts"][row] > 1:
            common += (evidence.vectors[i] - averages[row]) / known.sum()
    for j, (row, i) in enumerate(zip(rows, heard, strict=True)):
        difference = evidence.vectors[i] - averages[row]
        surprise[j] = float(((difference - common) ** 2).sum())
        averages[row] += np.float32(steps[j]) * difference
    if known.sum() > 1:
        # Their own mean was taken off; and t updates are t - 1 surprises.
        surprise *= known.sum() / (known.sum() - 1)
        learn = 4.0 / (after["counts"][rows] + 2)
        change = learn * (surprise - after["power"][rows])
        after["power"][rows[known]] += change[known]
    after["share"][rows] = (1 - steps) ** 2 * after["share"][rows] + steps**2
    after["median"][rows] = np.median(after["counts"])
    noise = {"noise": after["power"] * after["share"]}
    return {"streak": 0, **memory, "clients": tuple(clients), **after, **noise}
