"""A split is a hypothesis: it is on trial, then confirmed or taken back.

Not in the paper. For some rounds after a split the common model of the cluster goes on learning
from all its clients beside the children's models. Then every client judges both on its held-out
examples, and a paired test over the clients decides. Nothing here is random.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from scipy.special import stdtr

SURE = 0.95
"""Probability that chance alone does not make the gain that confirms a split."""
ENOUGH = 30
"""Held-out examples, of all clients together, below which the test is not asked."""
WAIT = 4
"""A cluster whose split was taken back waits so many times as long as the trial took."""


class Standing(StrEnum):
    """What became of a trial."""

    OPEN = "open"
    CONFIRMED = "confirmed"
    UNDONE = "undone"


class Trial(NamedTuple):
    """The trial of one split."""

    began: int
    """The round of the split."""
    until: int
    """The round at whose end the clients judge."""
    parts: tuple[tuple[str, ...], ...]
    """The members of each child as the split made them."""
    standing: Standing = Standing.OPEN
    reason: str = ""
    """One sentence, once it is judged."""


class Comparison(NamedTuple):
    """Both models on the held-out examples of one client."""

    child: str
    """The cluster it is in."""
    own: float
    """The leading metric under that cluster's model."""
    common: float
    """The same under the common model."""
    num_examples: float
    """Held-out examples, the same for both."""


class Finding(NamedTuple):
    """The outcome of the test."""

    confirmed: bool
    reason: str
    """One sentence with the figures behind it."""
    figures: Mapping[str, float]


def judge(compared: Sequence[Comparison], *, higher_is_better: bool, metric: str) -> Finding:
    """Whether the children's models serve the clients better than the common one.

    Each client's gain is weighted by its held-out examples. How far chance carries the mean gain
    is told by how the gains scatter within the children: σ² = Σ n_i (g_i − ḡ_c)² / (m − k) for one
    example, m clients and k children. The split is confirmed if the mean is above zero by more
    standard errors than Student's t with m − k degrees of freedom allows with probability `SURE`.

    Where the clients have fewer than `ENOUGH` examples together, or no child has two clients, the
    better mean decides, and the sentence says so. Where nobody can tell, the split stands.

    Parameters
    ----------
    compared : sequence of Comparison
        At most one a client.
    higher_is_better : bool
        Of the metric.
    metric : str
        Its name, for the sentence.
    """
    if not compared:
        reason = f"it stands unjudged: no client told its {metric} under both models"
        return Finding(True, reason, {"compared": 0.0})
    sign = 1.0 if higher_is_better else -1.0
    gains = np.array([sign * (one.own - one.common) for one in compared])
    sizes = np.array([one.num_examples for one in compared])
    own, common = (
        float(np.average([getattr(one, name) for one in compared], weights=sizes))
        for name in ("own", "common")
    )
    children = [one.child for one in compared]
    rest = gains.copy()
    for child in set(children):
        here = np.array([name == child for name in children])
        rest[here] -= np.average(gains[here], weights=sizes[here])
    gain, freedom = float(np.average(gains, weights=sizes)), len(gains) - len(set(children))
    error = float(np.sqrt(sizes @ rest**2 / max(freedom, 1) / sizes.sum()))
    figures = {
        "compared": float(len(gains)),
        "examples": float(sizes.sum()),
        "own": own,
        "common": common,
        "gain": gain,
        "standard_error": error,
        "better": float((gains > 0).sum()),
        "worse": float((gains < 0).sum()),
    }
    told = (
        f"{metric} {own:.4g} with the children's models and {common:.4g} with the common one, "
        f"{(gains > 0).sum()} of {len(gains)} clients better and {(gains < 0).sum()} worse"
    )
    if sizes.sum() < ENOUGH or freedom < 1:
        few = f"{sizes.sum():.0f} held-out examples of {len(gains)} client(s)"
        end = "the better mean decides" if gain else "there is no difference, so one model serves"
        return Finding(gain > 0, f"{told}; {few} are too few for a test: {end}", figures)
    chance = float(stdtr(freedom, -gain / error)) if error else 1.0 - (gain > 0)
    figures["chance"] = chance
    if chance < 1 - SURE:
        return Finding(True, f"{told}; chance alone: {chance:.2g}", figures)
    why = "no better" if gain <= 0 else f"chance alone makes as much: {chance:.2g}"
    return Finding(False, f"{told}; {why}", figures)


def not_again(
    undone: Iterable[Trial], sides: Iterable[Iterable[str]], server_round: int
) -> str | None:
    """Why a cluster whose split was taken back is not split like this now; None if it may be.

    It waits `WAIT` times as long as the trial took: so trials that fail take up a fifth of the
    rounds at most. The same parts, of the same members, wait until there have been twice as many
    rounds as when they were taken back.

    Parameters
    ----------
    undone : iterable of Trial
        The splits of this cluster that were taken back.
    sides : iterable of iterables of str
        The parts that the criterion wants now.
    server_round : int
    """
    wanted = {frozenset(side) for side in sides}
    for trial in undone:
        again = trial.until + WAIT * (trial.until - trial.began)
        if wanted == {frozenset(part) for part in trial.parts}:
            again = max(again, 2 * trial.until)
        if server_round < again:
            return (
                f"a split was taken back in round {trial.until}, and the next one waits until "
                f"round {again}"
            )
    return None
