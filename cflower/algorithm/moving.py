"""When a member of a leaf has changed: its updates suddenly stand out, and go on doing so.

Not in the paper, in which a client never leaves its leaf. A member that fits sends updates about
as long, beside those of the leaf's other members, as it ever did. One whose data change sends
longer ones at once, for its leaf's model has nothing of what it needs now. Lengths are compared
on a logarithmic scale, where a factor common to all, such as a decaying learning rate, adds the
same to each, so nothing here has a unit. What becomes of the member is Algorithm 4's to say.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr

from cflower.algorithm.similarity import cosine_similarity

CHANCE = 0.01
"""Probability that chance alone makes any member of a leaf stand out in all rounds so far."""
LEAST = 3
"""Rounds after which a member's habits are known."""


class Habit(NamedTuple):
    """What is known of how long a member's updates are, since it came to its leaf."""

    leaf: str
    heard: int = 0
    mean: float = 0.0
    """Of the logarithm of their length over the median length of the leaf's of the same round."""
    squares: float = 0.0
    """Sum of squared deviations from that mean."""
    longest: float = -np.inf
    """Logarithm of the longest one's length, but for the first, which a new leaf makes long."""
    standing_out: float = 0.0
    """By what factor its last update stood out, which does not count as habit; 0: it did not."""

    def usual(self, share: float, length: float) -> "Habit":
        """With a round in which it did not stand out."""
        heard = self.heard + 1
        mean = self.mean + (share - self.mean) / heard
        squares = self.squares + (share - mean) * (share - self.mean)
        longest = max(self.longest, length) if self.heard else self.longest
        return Habit(self.leaf, heard, mean, squares, longest)


class Move(NamedTuple):
    """What became of a member that changed: a step away from its leaf, or to a leaf."""

    server_round: int
    client: str
    origin: str
    """The cluster that it was in, or whose model it trained."""
    target: str
    reason: str


def watch(
    habits: Mapping[str, Habit], leaf: str, norms: Mapping[str, float]
) -> tuple[dict[str, Habit], dict[str, str]]:
    """One round of one leaf: what its members' habits are now, and who has changed, with why.

    A member has changed when its update is longer than all before it (in this leaf), and by more
    standard errors longer beside the others', than chance makes anybody's in so many rounds; and
    its next update is as long again.

    Parameters
    ----------
    habits : mapping of str to Habit
    leaf : str
    norms : mapping of str to float
        ‖Δ_i‖ of the members heard from in this round.
    """
    lengths = {c: float(np.log(n)) for c, n in norms.items() if 0 < n < np.inf}
    if not lengths:
        return {}, {}
    middle = float(np.median(list(lengths.values())))
    before = {
        c: habits[c] if c in habits and habits[c].leaf == leaf else Habit(leaf) for c in lengths
    }
    freedom = sum(max(0, habit.heard - 1) for habit in before.values())
    scatter = np.sqrt(sum(habit.squares for habit in before.values()) / max(1, freedom))
    after, changed = {}, {}
    for client, length in lengths.items():
        habit, share = before[client], length - middle
        longer = length > habit.longest and habit.heard >= LEAST
        if habit.standing_out and longer:
            changed[client] = (
                f"its update was {habit.standing_out:.1f} times as long as usual, beside those of "
                "the others, and the next one is longer than all before, too"
            )
        if longer and not habit.standing_out and scatter > 0:
            errors = (share - habit.mean) / (scatter * np.sqrt(1 + 1 / habit.heard))
            if stdtr(freedom, -errors) < CHANCE / (len(lengths) * habit.heard):
                after[client] = habit._replace(standing_out=float(np.exp(share - habit.mean)))
                continue
        after[client] = habit.usual(share, length)
    return after, changed


def resembles(edges: Mapping[str, Mapping[str, NDArray[np.floating]]]) -> float:
    """The similarity to a branch above which a client resembles it, rather than nobody.

    Halfway between the medians, over the clients of a fork, of their largest cosine to others of
    their own branch and of that to the other branches. Where there is only one branch or no
    company, nothing is known, and nobody resembles it.

    Parameters
    ----------
    edges : mapping of str to mapping of str to ndarray, shape (k,)
        Δ_e of every branch of the fork (eq. 47).

    Examples
    --------
    >>> up, right = np.array([0.0, 1.0]), np.array([1.0, 0.0])
    >>> resembles({"0.0": {"a": up, "b": up}, "0.1": {"c": right}})
    0.5
    """
    branch = np.array([name for name, edge in edges.items() for _ in edge])
    cosines = cosine_similarity(np.stack([v for edge in edges.values() for v in edge.values()]))
    np.fill_diagonal(cosines, -np.inf)  # nobody is in its own company
    same = branch[:, None] == branch
    within = np.where(same, cosines, -np.inf).max(axis=1)
    across = np.where(same, -np.inf, cosines).max(axis=1)
    if same.all() or not np.isfinite(within).any():
        return 1.0
    return float(np.median(within[np.isfinite(within)]) + np.median(across)) / 2
