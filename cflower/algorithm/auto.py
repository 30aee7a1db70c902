"""`AutoCriterion`: when to split, without thresholds on norms.

Not in the paper. Its quantities are: the mean update against the single ones (eq. 32 against
33), and similarities across a cut against those within (eqs. 17, 21). But every one of them is
a ratio or a cosine, so multiplying all updates by a constant changes nothing, and each is taken
of averages over rounds, in which a client's own sampling noise cancels.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from cflower.algorithm.criteria import Decision, Evidence, Memory, Outcome, heard_enough, verdict
from cflower.algorithm.cut import best_cut, separation
from cflower.algorithm.similarity import Matrix, cosine_similarity
from cflower.seeding import generator


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
    settled, alive, companions, small, sure : float
        See above.
    patience : int
        See above, in rounds.
    heard_share : float in (0, 1]
        Share of the members that must have been heard from at least twice.

    Notes
    -----
    Two clients are never split: at a stationary point of theirs the two updates point in
    opposite directions whether or not they belong together (eq. 12).
    """

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
        weights = memory["weights"]
        lengths = np.linalg.norm(memory["averages"], axis=1)
        memory["peak"] = max(memory.get("peak", 0.0), float(lengths.max()))
        settled = np.linalg.norm(weights @ memory["averages"]) / (weights @ lengths or 1.0)
        here = np.flatnonzero(in_touch(memory))
        if len(here) < 3:
            reason = f"{len(here)} member(s) still in touch, and a split needs at least 3"
            return verdict(evidence, Outcome.TOO_FEW_HEARD, reason), memory
        cloud = Cloud.of(memory, here)
        cut = best_cut(cloud.cosines)
        clients = tuple(memory["clients"][i] for i in here)
        labels = cut.labels[cloud.place]
        same = memory.get("cut") == (clients, labels.tolist())
        memory["streak"] = memory["streak"] + 1 if same else 1
        memory["cut"] = clients, labels.tolist()
        figures = {
            "alive": float(lengths.max() / (memory["peak"] or 1.0)),
            "settled": float(settled),
            "companions": cut.companions,
            "apart": cut.apart,
            "apart_needed": self.small / len(cut.labels) ** 2,
            "errors": cut.standard_errors,
            "errors_needed": float(stdtrit(max(cut.freedom, 1), self.sure)),
            "steady": float(memory["streak"]),
            "steady_needed": float(max(self.patience, memory["counts"].max() / 4)),
            "together": together(memory["together"][np.ix_(here, here)], labels),
            "scatters": 0.0, "scatters_needed": 0.0
        }
        outcome, reason = self._judge(figures)
        if outcome is Outcome.SPLIT:
            f = figures
            f["scatters"] = separation(cloud.gram, cut.labels, cloud.noise)
            rng = generator(evidence.server_round, "clouds", evidence.cluster)
            f["scatters_needed"] = clouds(cloud.gram, f["scatters"], rng, CLOUDS)
            if f["scatters"] <= f["scatters_needed"]:
                outcome, reason = Outcome.NOT_APART, f"no groups {f}"
        parts = [np.flatnonzero(labels == part) for part in range(labels.max() + 1)]
        similarity = cloud.cosines[np.ix_(cloud.place, cloud.place)]
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
        if f["together"] < 0.5:
            reason = f"not together {f['together']:.2f}"
            return Outcome.NOT_APART, reason
        if f["companions"] < self.companions:
            reason = f"no groups: only {f['companions']:.0%} of the members have company in a part"
            return Outcome.NOT_APART, reason
        if f["apart"] <= f["apart_needed"] or f["errors"] <= f["errors_needed"]:
            return Outcome.NOT_APART, f"the parts are not far enough apart: {apart}"
        if f["steady"] < f["steady_needed"]:
            reason = f"the same parts for {f['steady']:.0f} rounds, {f['steady_needed']:.3g} needed"
            return Outcome.UNSTEADY, reason
        return Outcome.SPLIT, f"settled, and the parts keep apart: {apart}"


class Cloud(NamedTuple):
    """The members' average updates about their centre."""

    gram: Matrix
    cosines: Matrix
    noise: NDArray[np.float64]
    place: NDArray[np.intp]

    @classmethod
    def of(cls, memory: Memory, here: NDArray[np.intp]) -> "Cloud":
        averages = memory["averages"][here]
        _, first, place = np.unique(averages, axis=0, return_index=True, return_inverse=True)
        if 2 * (np.bincount(place)[place] > 1).sum() > len(here):
            first, place = np.arange(len(here)), np.arange(len(here))
        averages = averages[first].astype(np.float64)
        centred = averages - averages.mean(axis=0)
        gram = centred @ centred.T
        scale = np.trace(gram) / len(gram) or 1.0
        return cls(
            gram / scale, cosine_similarity(centred if CENTRE else averages), memory["noise"][here][first] / scale, place
        )

CENTRE=True
CLOUDS=200

def in_touch(memory: Memory) -> NDArray[np.bool_]:
    """Which members."""
    missed = np.median(memory["counts"]) - memory["median"]
    return np.asarray(missed <= 2 * memory["counts"])


def together(counts: NDArray[np.int64], labels) -> float:
    """Least."""
    counts = counts - np.diag(np.diag(counts))
    m = len(labels)
    mean = counts.sum() / (m * (m - 1))
    least = np.inf
    for part in range(labels.max() + 1):
        inside = labels == part
        if 0 < inside.sum() < m:
            least = min(least, float(counts[np.ix_(inside, ~inside)].mean()))
    return 1.0 if mean == 0 or least == np.inf else least / mean


def clouds(gram, scatters: float, rng, count: int) -> float:
    """Most."""
    m = len(gram)
    spread = np.sqrt(np.maximum(np.linalg.eigvalsh(gram), 0.0)[1:] / (m - 1))
    most = 0.0
    for _ in range(count):
        points = rng.normal(size=(m, m - 1)) * spread
        points -= points.mean(axis=0)
        g = points @ points.T
        cut = best_cut(cosine_similarity(points))
        if cut.companions < 0.5:
            continue
        most = max(most, separation(g, cut.labels, np.zeros(m)))
        if most >= scatters:
            break
    return most


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
    width = len(evidence.vectors[0]) if evidence.vectors else 0
    averages = np.zeros((len(clients), width), np.float32)
    counts, weights = np.zeros(len(clients), np.int64), np.zeros(len(clients))
    if len(clients) > len(new):
        old = slice(len(clients) - len(new))
        averages[old], counts[old] = memory["averages"], memory["counts"]
        weights[old] = memory["weights"]
    for i in heard:
        row = place[evidence.clients[i]]
        counts[row] += 1
        step = 4.0 / (counts[row] + 3)
        averages[row] += np.float32(step) * (evidence.vectors[i] - averages[row])
        weights[row] = evidence.weights[i]
    figures: dict[str, Any] = {"averages": averages, "counts": counts, "weights": weights}
    rows = [place[evidence.clients[i]] for i in heard]
    power, shrink, median = np.zeros(len(clients)), np.ones(len(clients)), np.zeros(len(clients))
    both = np.zeros((len(clients), len(clients)), np.int32)
    if len(clients) > len(new):
        power[old], shrink[old], median[old] = memory["power"], memory["shrink"], memory["median"]
        both[old, old] = memory["together"]
    both[np.ix_(rows, rows)] += 1
    known = [r for r in rows if counts[r] > 1]
    if known:
        steps = 4.0 / (counts[known] + 3)
        innovations = (averages[known] - memory["averages"][known]) / steps[:, None]
        innovations = innovations - innovations.mean(axis=0)
        squares = np.einsum("ij,ij->i", innovations, innovations, dtype=np.float64)
        later = 4.0 / (counts[known] + 2)
        power[known] += later * (squares - power[known])
        shrink[known] = (1 - steps) ** 2 * shrink[known] + steps**2
    median[rows] = np.median(counts)
    figures |= {"power": power, "shrink": shrink, "noise": power * shrink, "median": median, "together": both}
    return {"streak": 0, **memory, "clients": tuple(clients), **figures}
