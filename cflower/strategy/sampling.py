"""The sampling of clients: the same share of every cluster."""

from collections.abc import Iterable
from logging import INFO

import numpy as np
from flwr.supercore import log

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

    The fraction in [0, 1] is the share of each cluster's connected members, at least one of them;
    0 samples none. Unassigned clients always take part: only their updates show their place
    (Algorithm 4). At least ``least`` clients are drawn in all, if there are as many.
    """
    if fraction == 0:
        return ()
    reachable = set(connected)
    chosen = [client for client in tree.unassigned if client in reachable]
    others: list[str] = []
    for leaf in tree.leaves:
        settled = [c for c in leaf.members if c in reachable and c not in tree.unassigned]
        order = rng.permutation(settled).tolist()
        share = max(1, round(fraction * len(order)))
        chosen += order[:share]
        others += order[share:]
    return in_order(chosen + others[: max(0, least - len(chosen))])


def admitted(
    tree: ParameterTree, clients: Iterable[str], server_round: int, *, isolated: bool
) -> ParameterTree:
    """The tree with the connected clients that are not in it yet, which are logged."""
    newcomers = in_order(set(clients) - set(tree.clients))
    for client in newcomers:
        tree = tree.admit(client, server_round, isolated=isolated)
    if newcomers:
        log(INFO, "New client(s): %s", ", ".join(newcomers))
    return tree
