"""Algorithm 4 in a run: unassigned clients go down the tree, one level with each update."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import chain

from cflower.algorithm.placement import Branches, Placement
from cflower.algorithm.state import CFLState, Move
from cflower.algorithm.tree import Cluster
from cflower.algorithm.weights import Vector
from cflower.ordering import only, without


def placed(state: CFLState, places: Mapping[str, Vector], server_round: int) -> CFLState:
    """The state after every unassigned client that replied has gone one level down.

    ``places`` are the clients' updates of split clusters' models, shape (k,).
    """
    unassigned, moved = state.tree.unassigned, {move.client for move in state.moves}
    places = only(places, unassigned)
    clusters = set(only(unassigned, places).values())
    branches = {name: Branches.of(state.tree, name) for name in clusters}
    steps = {c: branches[unassigned[c]].place(update) for c, update in places.items()}
    # A member that a split left out is of one of its groups, also if it had never trained; a
    # newcomer may be of none, and so may a member with changed data.
    above = chain.from_iterable(map(state.tree.path, clusters))
    left_out = {*chain.from_iterable(cluster.left_out for cluster in above)}
    members = state.known.keys() | (left_out - moved)
    familiar = {
        client: step.child
        for client, step in steps.items()
        if client in members or (step.familiar and client not in moved)
    }
    state = replace(state, tree=state.tree.descended(familiar))
    for client in without(steps, familiar):
        # Once more: it may resemble another client that has just begun a leaf of its own.
        steps[client] = Branches.of(state.tree, unassigned[client]).place(places[client])
        state = stepped(state, client, places[client], steps[client], server_round)
    return replace(state, placed=steps)


def stepped(
    state: CFLState,
    client: str,
    update: Vector,
    placement: Placement,
    server_round: int,
    suspicion: str = "",
) -> CFLState:
    """The state with an unassigned client one step further down, or in a leaf of its own.

    A client that resembles no child starts its own leaf: a member from the model of the leaf that
    it left, a newcomer from that of the split cluster. The step of a member is a `Move`;
    ``suspicion`` is the reason for its first one.
    """
    tree, moves, child = state.tree, state.moves, placement.child
    cluster, left = tree.clusters[placement.cluster], tree.leaf_of(client)
    is_member = suspicion or any(move.client == client for move in moves)
    if not placement.familiar:
        child = cluster.next_child
        start = left if is_member else tree.serving(cluster.name)
        branch = Cluster(child, (), start.model, server_round, edge={client: update})
        branch = replace(branch, optimizer=start.optimizer, rounds=start.rounds)
        tree = tree.with_child(cluster.name, branch)
    tree = tree.descended({client: child})
    if is_member:
        reason = f"{suspicion}; {placement}" if suspicion else str(placement)
        target = tree.unassigned.get(client, child)
        moves = (*moves, Move(server_round, client, left.name, target, reason))
    # The client's last update is of a model that is no longer its own.
    return replace(state, tree=tree, moves=moves, known=without(state.known, [client]))
