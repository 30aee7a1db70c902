"""The sampling of clients: the same share of every cluster."""

from collections.abc import Collection, Iterable

import numpy as np

from cflower.algorithm.tree import ParameterTree
from cflower.ordering import in_order


def sample(
    tree: ParameterTree,
    connected: Iterable[str],
    fraction: float,
    least: int,
    rng: np.random.Generator,
    first: Collection[str] = (),
) -> tuple[str, ...]:
    """Connected clients drawn at random from every cluster, in natural order.

    The fraction in [0, 1] is the share of each cluster's connected members, at least one of them;
    0 samples none. Clients that are named in ``first`` take part in any case. So do unassigned
    clients, because only their updates show their place (Algorithm 4), as long as they are no more
    than the share of all that are connected; a large cluster that is split leaves more, which take
    turns. At least ``least`` clients are drawn in all, if there are as many: the further ones from
    all others alike.
    """
    if fraction == 0:
        return ()
    reachable = set(connected)
    free = reachable.difference(first)
    chosen = [client for client in first if client in reachable]
    waiting = [client for client in tree.unassigned if client in free]
    others: list[str] = []
    if len(waiting) > (most := max(1, round(fraction * len(reachable)))):
        waiting = rng.permutation(in_order(waiting)).tolist()
    chosen += waiting[:most]
    for leaf in tree.leaves:
        order = rng.permutation([c for c in tree.assigned(leaf) if c in free]).tolist()
        share = max(1, round(fraction * len(order)))
        chosen += order[:share]
        others += order[share:]
    others += waiting[most:]
    more = min(len(others), max(0, least - len(chosen)))
    return in_order(chosen + (rng.permutation(others).tolist()[:more] if more else []))
