"""How long each member's updates usually are, and who stands out: the suspicion behind a move."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from cflower.algorithm.tree import ROOT

CHANCE = 0.01
"""Probability that chance alone makes any member of a leaf stand out in all rounds so far."""
NOTHING = -1e300
"""Logarithm of no length at all, as JSON can write it."""
PATIENCE = 8
"""Rounds after which longer updates are a member's habit, when nothing has come of it."""
LEAST = 3
"""Rounds after which a member's habits are known; twice as many in a root without splits, where
nothing tells whether a suspicion is right."""


class Habit(NamedTuple):
    """What is known of how long a member's updates are, since it came to its leaf."""

    leaf: str
    heard: int = 0
    """Rounds that count as habit."""
    mean: float = 0.0
    """Of the logarithm of their length over the median length of the leaf's of the same round."""
    squares: float = 0.0
    """Sum of squared deviations from that mean."""
    longest: float = NOTHING
    """Logarithm of the longest one's length, but for the first, which a new leaf makes long."""
    held: int = 0
    """Rounds in a row, up to now, that it has stood out for."""
    factor: float = 0.0
    """How many times as long as usual, beside the others', its update was in the first of these; 0
    where most of them stood out at once."""
    probing: str = ""
    """The split cluster whose model it is to train beside its own, as that was when it was split:
    until it has, as it may be absent."""

    @property
    def suspicion(self) -> str:
        """Why it stands out, in words."""
        if self.factor:
            return f"its update was {self.factor:.1f} times as long as usual beside the others'"
        return "its updates are longer than ever"

    def usual(self, share: float, length: float) -> "Habit":
        """With a round in which it did not stand out."""
        heard = self.heard + 1
        mean = self.mean + (share - self.mean) / heard
        squares = self.squares + (share - mean) * (share - self.mean)
        longest = max(self.longest, length) if self.heard else self.longest
        return Habit(self.leaf, heard, mean, squares, longest, probing=self.probing)


def watch(habits: Mapping[str, Habit], leaf: str, norms: Mapping[str, float]) -> dict[str, Habit]:
    """One round of one leaf: its members' habits, which also tell who stands out.

    A member stands out when its update is longer than all before it in this leaf, and by more
    standard errors longer beside the others' than chance makes anybody's in so many rounds; or
    when most of the members have longer ones than ever at once; or, below a split, when it is twice
    as long as all before. It goes on standing out as long as its updates are longer than those
    before. No round in which one stands out counts as habit.

    Parameters
    ----------
    habits : mapping of str to Habit
    leaf : str
    norms : mapping of str to float
        ‖Δ_i‖ of the members heard from in this round.
    """
    lengths = {c: float(np.log(n)) for c, n in norms.items() if 0 < n < np.inf}
    middle = float(np.median(list(lengths.values()))) if lengths else 0.0
    before = {
        c: habits[c] if c in habits and habits[c].leaf == leaf else Habit(leaf) for c in lengths
    }
    freedom = sum(max(0, habit.heard - 1) for habit in before.values())
    scatter = np.sqrt(sum(habit.squares for habit in before.values()) / max(1, freedom))
    least = 2 * LEAST if leaf == ROOT else LEAST
    longer = {c for c, h in before.items() if h.heard >= least and lengths[c] > h.longest}
    most = 2 * len(longer) > len(lengths)
    after, stand_out = {}, False
    for client, habit in before.items():
        share = lengths[client] - middle
        errors = 0.0
        if client in longer and scatter > 0:
            # Above the root there is no model that tells whether a suspicion is right; so there a
            # longer one says less of one whose lengths vary more than the others'.
            own = np.sqrt(habit.squares / (habit.heard - 1)) if leaf == ROOT else 0.0
            errors = (share - habit.mean) / (max(scatter, own) * np.sqrt(1 + 1 / habit.heard))
        chance = CHANCE / (len(lengths) * max(1, habit.heard))
        from scipy.special import stdtr  # no client's process needs it

        alone = bool(stdtr(max(1, freedom), -errors) < chance)
        twice = leaf != ROOT and lengths[client] > habit.longest + np.log(2)
        suspicious = 0 < habit.held < PATIENCE or (not habit.held and (alone or most or twice))
        if client in longer and suspicious:
            factor = float(np.exp(share - habit.mean)) if alone and not habit.held else habit.factor
            after[client] = habit._replace(held=habit.held + 1, factor=factor)
            stand_out = True
    for client, habit in before.items():
        if client not in after:
            # What is usual is not seen beside one that is not.
            same = habit._replace(held=0, factor=0.0) if stand_out else None
            after[client] = same or habit.usual(lengths[client] - middle, lengths[client])
    return after
