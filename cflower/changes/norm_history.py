"""The history of each member's update norms: it shows which members' data may have changed.

Not in the paper. Norms are compared on a logarithmic scale and relative to the median of the leaf,
so a factor that is common to all, such as a decaying learning rate, has no effect. The median is
the lower one of two: if half of the members change, it is that of one that does not.
"""

from collections.abc import Mapping
from statistics import median_low
from typing import NamedTuple

import numpy as np

from cflower.algorithm.constants import FEW, LONG
from cflower.algorithm.tree import ROOT
from cflower.ordering import only

NOTHING = -1e300
"""Logarithm of a norm of zero, in a form that JSON can hold."""


class NormHistory(NamedTuple):
    """The update norms of one member since it came to its leaf."""

    leaf: str
    rounds: int = 0
    """Rounds that count."""
    usual: float = 0.0
    """Usual log(norm / median norm of the leaf in the same round): about the mean of the last `FEW`
    rounds, because other members come and go, and the median with them. In an unsplit root, where
    they do not, it is the largest: of models with few weights norms vary widely by chance."""
    longest: float = NOTHING
    """Largest log norm but the first, which is long in a new leaf."""
    suspected: int = 0
    """Consecutive rounds, up to now, for which the member has been suspected."""
    factor: float = 0.0
    """Least ratio of its norm to its usual one in these rounds, both relative to the median."""
    place_at: str = ""
    """The split cluster for which the member still owes an update that shows its place."""
    all_train: bool = False
    """Whether it last trained with the examples that decide, too."""

    def suspecting(self, relative: float, *, longer: bool, most: bool) -> "NormHistory":
        """The history with the suspicion after one more update, of this relative log norm.

        ``longer``: it is longer than all before; ``most``: so are most members' updates.
        """
        factor = float(np.exp(relative - self.usual))
        if longer and self.suspected:
            again = (self.suspected + 1) % (2 * FEW + 1)
            return self._replace(suspected=again, factor=min(factor, self.factor))
        return self._replace(suspected=int(longer and (most or factor >= LONG)), factor=factor)

    @property
    def suspicion(self) -> str:
        """The reason for the suspicion, in words."""
        if self.factor >= LONG:
            return f"its update is {self.factor:.1f} times as long as usual"
        return "its updates are longer than ever"


def updated(
    histories: Mapping[str, NormHistory],
    leaf: str,
    norms: Mapping[str, float],
    *,
    all_train: bool = False,
) -> dict[str, NormHistory]:
    """The histories of a leaf's members after one round, from ‖Δ_i‖ of those that replied.

    ``all_train``: they trained with the examples that decide, too.

    A member is suspected if its update is longer than all before in this leaf, and

    - `LONG` times as long as usual, both relative to the leaf's median; or
    - most members' updates are longer than all before, too, and not because the server had them
      train with other examples than in their last round.

    It stays suspected as long as its updates are longer than those before, for 2 `FEW` rounds: by
    then they are usual. A round with a suspected member is not added to any history. A history
    needs `FEW` rounds, and twice as many in an unsplit root, where no sibling model can confirm a
    suspicion.
    """
    lengths = {client: float(np.log(norm)) for client, norm in norms.items() if 0 < norm < np.inf}
    median = median_low(lengths.values() or [0.0])
    here = {c: h for c, h in only(histories, lengths).items() if h.leaf == leaf}
    before = dict.fromkeys(lengths, NormHistory(leaf)) | here
    needed = FEW * (1 + (leaf == ROOT))
    longer = {c for c, h in before.items() if h.rounds >= needed and lengths[c] > h.longest}
    as_before = {c for c in longer if before[c].all_train == all_train}
    most = 2 * len(as_before) > len(lengths)
    before = {client: h._replace(all_train=all_train) for client, h in before.items()}
    now = {
        client: history.suspecting(lengths[client] - median, longer=client in longer, most=most)
        for client, history in before.items()
    }
    if any(history.suspected for history in now.values()):
        return now
    return {client: grown(history, lengths[client], median) for client, history in now.items()}


def grown(history: NormHistory, length: float, median: float) -> NormHistory:
    """The history with one more round in which nobody was suspected."""
    relative, rounds = float(length - median), history.rounds + 1
    if history.leaf == ROOT and history.rounds:
        usual = max(history.usual, relative)
    else:
        usual = history.usual + (relative - history.usual) / min(rounds, FEW)
    longest = max(history.longest, length) if history.rounds else history.longest
    return history._replace(rounds=rounds, usual=usual, longest=longest, factor=0.0)
