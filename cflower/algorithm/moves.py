"""Members with changed data: Algorithm 4 finds their new place.

Not in the paper, in which a client never leaves its leaf. A member with changed data sends a longer
update at once, because its leaf's model has nothing of what it needs now. That is only a suspicion:
training may go wrong for once. So a suspected member also trains the models from which its leaf was
split, and leaves only if its update of one of them no longer resembles its own branch.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from cflower.algorithm.constants import FEW, LONG, RESEMBLES
from cflower.algorithm.criteria import Decision, Outcome
from cflower.algorithm.norm_history import NormHistory, updated
from cflower.algorithm.placement import Branches, Placement
from cflower.algorithm.state import CFLState, Move
from cflower.algorithm.tree import ROOT, Cluster, Proposal, is_below
from cflower.algorithm.weights import Vector
from cflower.ordering import in_order, only, without


def watched(state: CFLState, server_round: int) -> CFLState:
    """The state with the norm histories of all members that replied in this round.

    A late update has another length, because it is of an older model, and does not count.
    """
    norms, known = dict(state.norms), without(state.known, state.tree.unassigned)
    timely = {
        c: u.norm for c, u in known.items() if u.server_round == server_round and not u.staleness
    }
    for leaf in state.tree.leaves:
        norms |= updated(norms, leaf.name, only(timely, leaf.members))
    return replace(state, norms=norms)


def leaving(state: CFLState, clients: Sequence[str], decision: Decision) -> Decision:
    """The decision on an unsplit root: a split into members that changed and the others, if any.

    ``clients`` are the members with a fresh update, and ``decision`` is the criterion's, no split.
    A member changed if it has been suspected for `FEW` rounds, and its first suspicious update was
    `LONG` times as long as usual: no sibling model can confirm the change.
    """
    histories = {client: state.norms.get(client, NormHistory(ROOT)) for client in clients}
    changed = [c for c, h in histories.items() if h.suspected >= FEW and h.factor >= LONG]
    stay = [client for client, history in histories.items() if not history.suspected]
    if not changed or not stay:
        return decision
    factor = max(histories[client].factor for client in changed)
    reason = f"{' and '.join(changed)} changed: updates {factor:.1f} times as long as usual"
    sides = in_order(stay), in_order(changed)
    return replace(decision, outcome=Outcome.SPLIT, sides=sides, reason=reason)


def place_at(state: CFLState, client: str) -> str:
    """The split cluster with a model that a suspected member trains next; empty if none."""
    return state.norms[client].place_at if may_move(state, client) else ""


def may_move(state: CFLState, client: str) -> bool:
    """Whether a member has a history in its leaf, and no split above it is on trial."""
    history, leaf = state.norms.get(client), state.tree.leaf_of(client).name
    return history is not None and history.leaf == leaf and not state.tree.awaits_trial(leaf)


def checked(state: CFLState, updates: Mapping[str, Vector], server_round: int) -> CFLState:
    """The state after suspected members have shown their place, with new suspects marked.

    ``updates`` are those of the models that these members owed, shape (k,).
    """
    for client, update in updates.items():
        if place_at(state, client):
            state = confirmed_or_moved(state, client, update, server_round)
    norms = dict(state.norms)
    for client, history in norms.items():
        unasked = history.suspected and not history.place_at and history.leaf != ROOT
        if unasked and may_move(state, client):
            norms[client] = history._replace(place_at=ROOT)
    return replace(state, norms=norms)


def confirmed_or_moved(state: CFLState, client: str, update: Vector, server_round: int) -> CFLState:
    """The state after one member has shown its place below the cluster that it was asked about."""
    history, tree = state.norms[client], state.tree
    cluster, leaf = tree.clusters[history.place_at], tree.leaf_of(client)
    own = next(child for child in cluster.children if is_below(leaf.name, child))
    branches = Branches.of(tree, cluster.name)
    placement = branches.place(update)
    fits = placement.child == own and placement.familiar
    # Of a branch that was nearly at rest, the members resemble each other little more than others.
    least = max(branches.least_similarity(own), RESEMBLES * placement.similarity)
    if fits or placement.similarities[own] >= least:
        history = history._replace(place_at="" if tree.clusters[own].is_leaf else own)
        if history.suspected and not history.place_at:
            history = NormHistory(leaf.name)  # its updates are longer, and it stays
        return replace(state, norms={**state.norms, client: history})
    tree, norms = tree.called_back(client, cluster.name), without(state.norms, [client])
    state = replace(state, tree=tree, norms=norms)
    return stepped(state, client, update, placement, server_round, history.suspicion)


def new_starts(state: CFLState, server_round: int) -> Iterator[Proposal]:
    """New starts, from the run's first model, of leaves that members with changed data began."""
    changed = {move.client for move in state.moves if move.server_round == server_round}
    changed |= {client for client, history in state.norms.items() if history.suspected}
    for leaf in state.tree.leaves:
        if state.first and leaf.born == server_round and {*leaf.members} <= changed:
            now, own = (server_round, server_round), (leaf.name,)
            yield Proposal(leaf.name, *now, (leaf.members,), leaves=own, common=state.first)


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
    it left, a newcomer from that of the split cluster. The step of a member is a `Move`.
    """
    tree, moves, child = state.tree, state.moves, placement.child
    cluster, left = tree.clusters[placement.cluster], tree.leaf_of(client)
    is_member = suspicion or any(move.client == client for move in moves)
    if not placement.familiar:
        child, start = cluster.next_child, left if is_member else cluster.grown
        branch = Cluster(child, (), start.model, server_round, edge={client: update})
        branch = replace(branch, optimizer=start.optimizer, rounds=start.rounds)
        tree = tree.update(replace(cluster, children=(*cluster.children, child)), branch)
    tree = tree.descended({client: child})
    if is_member:
        reason = f"{suspicion}; {placement}" if suspicion else str(placement)
        target = tree.unassigned.get(client, child)
        moves = (*moves, Move(server_round, client, left.name, target, reason))
    # The client's last update is of a model that is no longer its own.
    return replace(state, tree=tree, moves=moves, known=without(state.known, [client]))
