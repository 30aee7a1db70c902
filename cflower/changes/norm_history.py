"""The history of each member's update norms: it shows which members' data may have changed.

Not in the paper. Norms are compared on a logarithmic scale and relative to the median of the leaf,
so a factor that is common to all, such as a decaying learning rate, has no effect.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cflower.algorithm.constants import ERROR, FEW, LONG
from cflower.algorithm.tree import ROOT

Numbers = NDArray[np.floating]

NOTHING = -1e300
"""Logarithm of a norm of zero, in a form that JSON can hold."""


class NormHistory(NamedTuple):
    """The update norms of one member since it came to its leaf."""

    leaf: str
    rounds: int = 0
    """Rounds that count."""
    mean: float = 0.0
    """Mean of log(norm / median norm of the leaf in the same round)."""
    squares: float = 0.0
    """Sum of squared deviations from that mean."""
    longest: float = NOTHING
    """Largest log norm but the first, which is long in a new leaf."""
    suspected: int = 0
    """Consecutive rounds, up to now, for which the member has been suspected."""
    factor: float = 0.0
    """Ratio of its norm to its usual one in the first of these rounds, both relative to the median;
    0 if most members were suspected at once."""
    place_at: str = ""
    """The split cluster for which the member still owes an update that shows its place."""

    @property
    def suspicion(self) -> str:
        """The reason for the suspicion, in words."""
        if self.factor:
            return f"its update is {self.factor:.1f} times as long as usual"
        return "its updates are longer than ever"


def updated(
    histories: Mapping[str, NormHistory], leaf: str, norms: Mapping[str, float]
) -> dict[str, NormHistory]:
    """The histories of a leaf's members after one round, from ‖Δ_i‖ of those that replied.

    A member is suspected if its update is longer than all before in this leaf and, in addition, an
    outlier (Student's t), or twice as long below a split, or if most members' updates are longer
    than ever. It stays suspected as long as its updates are longer than those before, for 2 `FEW`
    rounds: by then they are usual. A round with a suspected member is not added to any history. A
    history needs `FEW` rounds, and twice as many in an unsplit root, where no sibling model can
    confirm a suspicion.
    """
    clients, unsplit = [client for client, norm in norms.items() if 0 < norm < np.inf], leaf == ROOT
    if not clients:
        return {}
    lengths = np.log([norms[client] for client in clients])
    relative = lengths - np.median(lengths)
    before = [histories.get(client, NormHistory(leaf)) for client in clients]
    before = [history if history.leaf == leaf else NormHistory(leaf) for history in before]
    rounds, means, squares, longest, counts, factors = np.array([h[1:7] for h in before]).T
    longer = (rounds >= FEW * (1 + unsplit)) & (lengths > longest)
    most = 2 * longer.sum() > len(before)
    twice = (lengths > longest + np.log(LONG)) & (not unsplit)
    outliers = are_outliers(relative, rounds, means, squares, unsplit=unsplit)
    still = longer & (counts > 0) & (counts < 2 * FEW)
    new = longer & (counts == 0) & (outliers | twice | most)
    if np.any(still | new):
        ratios = np.where(new & outliers, np.exp(relative - means), 0.0)
        counts, factors = np.where(still, counts + 1, new), np.where(still, factors, ratios)
    else:
        counts = factors = np.zeros(len(before))
        longest = np.where(rounds > 0, np.maximum(longest, lengths), longest)
        rounds, away = rounds + 1, relative - means
        means = means + away / rounds
        squares = squares + away * (relative - means)
    columns = rounds.astype(int), means, squares, longest, counts.astype(int), factors
    rows = zip(*(column.tolist() for column in columns), strict=True)
    now = zip(clients, rows, before, strict=True)
    return {client: NormHistory._make((leaf, *row, h.place_at)) for client, row, h in now}


def are_outliers(
    relative: Numbers, rounds: Numbers, means: Numbers, squares: Numbers, *, unsplit: bool
) -> NDArray[np.bool_]:
    """Whether relative log norms are larger than chance makes any member's in so many rounds.

    The scatter of all members together is the yardstick; in an unsplit root also a member's own, if
    it is larger.
    """
    from scipy.special import stdtr  # a client's process, which never gets here, starts faster

    freedom = max(1.0, np.maximum(rounds - 1, 0).sum())
    scatter = np.full(len(rounds), np.sqrt(squares.sum() / freedom))
    if unsplit:
        scatter = np.maximum(scatter, np.sqrt(squares / np.maximum(rounds - 1, 1)))
    width = scatter * np.sqrt(1 + 1 / np.maximum(rounds, 1))
    errors = np.divide(relative - means, width, out=np.zeros(len(width)), where=width > 0)
    return np.asarray(stdtr(freedom, -errors) < ERROR / (len(rounds) * np.maximum(rounds, 1)))
