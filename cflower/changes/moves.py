"""Members with changed data move to the place that Algorithm 4 finds for them.

Not in the paper, in which a client never leaves its leaf. A member with changed data sends a longer
update at once, because its leaf's model has nothing of what it needs now. That is only a suspicion:
training may go wrong for once. So a suspected member trains the models from which its leaf was
split, and leaves only if its update of one of them no longer resembles its own branch.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from cflower.algorithm.change import Change
from cflower.algorithm.constants import FEW, LONG, RESEMBLES
from cflower.algorithm.criteria import Decision, Evidence, Outcome
from cflower.algorithm.placement import Branches
from cflower.algorithm.similarity import cosines_to
from cflower.algorithm.state import Ask, CFLState, Role
from cflower.algorithm.steps import stepped
from cflower.algorithm.tree import ROOT, Cluster, is_below
from cflower.algorithm.weights import Vector
from cflower.changes.norm_history import NormHistory, updated
from cflower.ordering import in_order, listed, only, without

Histories = Mapping[str, NormHistory]
NAME = "moves"
"""The place of the histories in `CFLState.memory`."""


def histories(state: CFLState) -> Histories:
    """The norm history of each member, by client."""
    return state.memory.get(NAME, {})


def suspects_of(state: CFLState) -> Histories:
    """The histories of the members that are suspected."""
    return {client: history for client, history in histories(state).items() if history.suspected}


def changed_in(state: CFLState) -> dict[str, float]:
    """The members whose data have changed, each with the factor by which its updates are longer.

    They have been suspected for `FEW` rounds, and their updates were `LONG` times as long in all.
    """
    suspects = suspects_of(state).items()
    return {c: h.factor for c, h in suspects if h.suspected >= FEW and h.factor >= LONG}


def remembered(state: CFLState, norms: Histories) -> CFLState:
    """The state with these histories."""
    return replace(state, memory={**state.memory, NAME: norms})


class Moves(Change):
    """Watches the lengths of updates, and moves the members whose data changed."""

    def asked(self, state: CFLState, asks: list[Ask]) -> list[Ask]:
        """Members that owe an update that shows their place train a split cluster's model.

        They do it instead of their leaf's, which is none for them if their data changed. If all
        members of a leaf owe one, it may be changing as a whole, and they train both.
        """
        places = {ask: place for ask in asks if (place := place_at(state, ask.client))}
        whole = {leaf.name for leaf in state.tree.leaves if changes_as_a_whole(state, leaf)}
        kept = [ask for ask in asks if ask not in places or ask.cluster in whole]
        return kept + [a._replace(cluster=c, role=Role.PLACE) for a, c in places.items()]

    def observed(self, state: CFLState, server_round: int) -> CFLState:
        """The state with the norm histories of all members that replied in this round.

        A late update has another length, because it is of an older model, and does not count.
        """
        norms = dict(histories(state))
        timely = {
            client: update.norm
            for client, update in state.known.items()
            if update.server_round == server_round and not update.staleness
        }
        for leaf in state.tree.leaves:
            here = only(timely, state.tree.assigned(leaf))
            norms |= updated(norms, leaf.name, here, all_train=state.all_train)
        return remembered(state, norms)

    def revised(self, state: CFLState, evidence: Evidence, decision: Decision) -> Decision:
        """A split of an unsplit root because members changed: no sibling model can confirm it.

        If most members have been suspected for two rounds, and the criterion only waits until its
        groups are steady, it is into these (`changed_at_once`). Otherwise it is into members that
        changed (`changed_in`) and the others, if there are any.
        """
        if decision.cluster != ROOT or decision.outcome is Outcome.SPLIT:
            return decision
        suspects = only(suspects_of(state), evidence.clients)
        again = {client for client, history in suspects.items() if history.suspected > 1}
        if decision.outcome is Outcome.UNSTEADY and 2 * len(again) > len(evidence.clients):
            return changed_at_once(decision, again)
        changed = only(changed_in(state), evidence.clients)
        stay = without(dict.fromkeys(evidence.clients), suspects)
        if not changed or not stay:
            return decision
        factor = min(changed.values())
        longer = f"the updates of {listed(changed)} became at least {factor:.1f} times as long"
        reason = f"{longer} as usual, so the data seem to have changed"
        sides = in_order(stay), in_order(changed)
        return replace(decision, outcome=Outcome.SPLIT, sides=sides, reason=reason)

    def followed(
        self, state: CFLState, decisions: Sequence[Decision], places: Mapping[str, Vector]
    ) -> CFLState:
        """The state after suspected members have shown their place, with new suspects marked."""
        for client, update in places.items():
            if place_at(state, client):
                state = confirmed_or_moved(state, client, update, decisions[0].server_round)
        norms = dict(histories(state))
        for client, history in suspects_of(state).items():
            if not history.place_at and history.leaf != ROOT and may_move(state, client):
                norms[client] = history._replace(place_at=ROOT)
        return remembered(state, norms)


def changed_at_once(decision: Decision, changed: Collection[str]) -> Decision:
    """The split into the groups of a decision, and one more of the members that did not change."""
    stay = in_order(client for client in chain(*decision.unsure) if client not in changed)
    unsure = tuple(tuple(without(dict.fromkeys(near), stay)) for near in decision.unsure)
    sides = (*decision.sides, stay) if stay else decision.sides
    many = f"the updates of {len(changed)} of {len(decision.clients)} members"
    reason = f"{many} became longer than ever at once, so their data seem to have changed"
    return replace(decision, outcome=Outcome.SPLIT, reason=reason, sides=sides, unsure=unsure)


def place_at(state: CFLState, client: str) -> str:
    """The split cluster with a model that a suspected member trains next; empty if none."""
    return histories(state)[client].place_at if may_move(state, client) else ""


def changes_as_a_whole(state: CFLState, leaf: Cluster) -> bool:
    """Whether a leaf has several members, and each owes an update that shows its place.

    It does not depend on who takes part, so a silent client has the effect of an absent one.
    """
    members = without(dict.fromkeys(state.tree.assigned(leaf)), state.absent)
    return len(members) > 1 and all(place_at(state, client) for client in members)


def may_move(state: CFLState, client: str) -> bool:
    """Whether a client has a history in its leaf: not while Algorithm 4 still has to place it."""
    leaf, history = state.tree.leaf_of(client).name, histories(state).get(client)
    return history is not None and history.leaf == leaf


def confirmed_or_moved(state: CFLState, client: str, update: Vector, server_round: int) -> CFLState:
    """The state after one member has shown its place below the cluster that it was asked about."""
    history, tree = histories(state)[client], state.tree
    cluster, leaf = tree.clusters[history.place_at], tree.leaf_of(client)
    own = next(child for child in cluster.children if is_below(leaf.name, child))
    before = tree.clusters[own].edge.get(client, update)
    # If its update at the split was another one, it is of data that the client no longer has.
    changed = float(cosines_to(update, [before])[0]) < RESEMBLES
    placement = Branches.of(tree, cluster.name, client if changed else "").place(update)
    fits = placement.child == own and placement.familiar
    if fits:
        history = history._replace(place_at="" if tree.clusters[own].is_leaf else own)
        if history.suspected and not history.place_at:
            history = NormHistory(leaf.name)  # its updates are longer, and it stays
        return remembered(state, {**histories(state), client: history})
    norms = without(histories(state), [client])
    state = remembered(replace(state, tree=tree.called_back(client, cluster.name)), norms)
    return stepped(state, client, update, placement, server_round, history.suspicion)
