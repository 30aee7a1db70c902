"""Who takes part in a round: the same share of every cluster."""

from collections.abc import Iterable

import numpy as np

from cflower.algorithm.tree import ParameterTree
from cflower.ordering import in_order


def sample(
    tree: ParameterTree,
    connected: Iterable[str],
    fraction: float,
    least: int,
    rng: np.random.Generator,
) -> tuple[str, ...]:
    """Connected clients drawn at random from every cluster, in natural order.

    Parameters
    ----------
    tree : ParameterTree
    connected : iterable of str
        The clients that can be reached.
    fraction : float in [0, 1]
        Share of each cluster's connected members, at least one of them; 0 draws nobody. Those
        who walk down the tree (Algorithm 4) always take part: nothing else finds their place.
    least : int
        Draw at least so many in all, as far as there are.
    rng : numpy.random.Generator
    """
    if fraction == 0:
        return ()
    reachable = set(connected)
    chosen: list[str] = []
    others: list[str] = []
    for leaf in tree.leaves:
        there = [name for name in leaf.members if name in reachable]
        settled = [name for name in there if name not in tree.unassigned]
        order = [settled[i] for i in rng.permutation(len(settled))]
        share = max(1, round(fraction * len(order)))
        chosen += [name for name in there if name in tree.unassigned] + order[:share]
        others += order[share:]
    return in_order(chosen + others[: max(0, least - len(chosen))])
