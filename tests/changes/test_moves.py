"""Members with changed data: which are suspected, where they move, and that no others do."""

from dataclasses import replace

import numpy as np
import pytest

from cflower.algorithm.criteria import Decision, Evidence, Outcome
from cflower.algorithm.round import CFL
from cflower.algorithm.state import CFLState, Move, Role
from cflower.algorithm.tree import ROOT, Cluster, ParameterTree
from cflower.auto.criterion import AutoCriterion
from cflower.changes import changes_of
from cflower.changes.moves import Moves, histories, place_at
from cflower.changes.norm_history import NormHistory
from tests.algorithm.planted import DIM, Federation, cfl_of, final, run, trained_reply, vector

MOVING = cfl_of(AutoCriterion(), changes=changes_of(0, moving=True))
JUDGED = cfl_of(AutoCriterion(), changes=changes_of(1, moving=True))
FEDERATION = Federation.dealt(5, 5, noise=0.05)
CHANGED = FEDERATION.changed({0: 1})


def after(
    *phases: tuple[Federation, int], cfl: CFL = MOVING, state: CFLState | None = None, done: int = 0
) -> CFLState:
    """The state after so many rounds with each of these federations."""
    for federation, rounds in phases:
        state = final(federation, cfl, rounds, state=state, done=done)
        done += rounds
    assert state is not None
    return state


@pytest.fixture(scope="module")
def settled() -> CFLState:
    """The state after 20 rounds: two leaves."""
    return after((FEDERATION, 20))


def leaf(state: CFLState, client: int) -> Cluster:
    return state.tree.leaf_of(f"client-{client}")


def test_no_member_moves_if_no_data_change(settled):
    state = after((FEDERATION, 40), state=settled, done=20)
    assert len(state.tree.leaves) == 2
    assert state.moves == ()


def test_a_changed_member_is_in_its_new_group_after_two_rounds_and_can_return(settled):
    assert leaf(settled, 0) is not leaf(settled, 1)
    state = after((CHANGED, 2), state=settled, done=20)
    assert leaf(state, 0) is leaf(state, 1)
    assert [(move.server_round, move.client) for move in state.moves] == [(22, "client-0")]
    state = after((CHANGED, 6), (FEDERATION, 2), state=state, done=22)
    assert leaf(state, 0) is leaf(state, 2)
    assert len(state.moves) == 2


def test_a_change_in_a_leaf_of_two_with_a_model_that_follows_it_is_detected():
    small = Federation.dealt(2, 6, noise=0.05)
    state = after((small, 20), (small.changed({0: 1}), 2))
    assert leaf(state, 0) is leaf(state, 1) is not leaf(state, 2)


def test_the_criterion_forgets_a_member_that_left(settled):
    memory = leaf(after((CHANGED, 10), state=settled, done=20), 2).memory
    assert sorted(memory["clients"]) == ["client-2", "client-4", "client-6", "client-8"]
    assert len(memory["averages"]) == 4


def test_a_member_that_resembles_no_group_gets_a_leaf_that_others_can_join():
    third = Federation.dealt(5, 5, 1, noise=0.05).changed({2: 0})
    state = after((third, 20), (third.changed({0: 2}), 6))
    assert leaf(state, 0).members == ("client-0",)
    assert "below" in state.moves[-1].reason
    state = after((third.changed({0: 2, 3: 2}), 6), state=state, done=26)
    assert leaf(state, 0).members == ("client-0", "client-3")


def test_a_leaf_without_members_opens_again_for_a_member_that_resembles_it():
    uneven = Federation.dealt(6, 3, noise=0.05)
    joined = uneven.changed({1: 0, 3: 0, 5: 0})
    state = after((uneven, 20), (joined, 12))
    assert len(state.tree.leaves) == 1
    closed = next(end for end in state.tree.ends if not end.members)
    state = after((joined.changed({0: 1}), 8), state=state, done=32)
    assert leaf(state, 0).name == closed.name


def test_a_long_update_in_one_round_moves_no_member(settled):
    state = after((CHANGED, 1), (FEDERATION, 10), state=settled, done=20)
    assert state.moves == ()
    unmoved = after((CHANGED, 4), cfl=replace(MOVING, changes=()), state=settled, done=20)
    assert (unmoved.moves, histories(unmoved)) == ((), histories(settled))


ALIKE = Federation.dealt(9, 1, noise=0.05).changed({1: 0})
ODD = ALIKE.changed({4: 1})


def test_the_first_change_in_an_unsplit_root_splits_it_after_three_rounds():
    state = after((ALIKE, 20))
    assert state.tree.root.is_leaf
    assert after((ODD, 2), (ALIKE, 6), state=state, done=20).tree.root.is_leaf
    *_, (_, result) = run(ODD, MOVING, 3, state=state, done=20)
    (decision,) = result.decisions
    assert (decision.outcome, decision.children) == (Outcome.SPLIT, ("0.0", "0.1"))
    assert decision.reason.startswith("the updates of client-4 became at least ")
    assert leaf(result.state, 4).members == ("client-4",)
    assert len(result.state.tree.leaves) == 2
    state = after((ODD, 6), (ALIKE, 3), state=result.state, done=23)
    assert leaf(state, 4).members == tuple(ALIKE.clients)


def test_only_the_changed_members_are_asked_about_a_leaf_of_their_own():
    """The others would vote by chance, because one of ten hardly moves their common model."""
    state = after((ALIKE, 20), cfl=JUDGED)
    *_, (_, result) = run(ODD, JUDGED, 3, state=state, done=20)
    made, judged = result.decisions
    assert (made.outcome, judged.outcome) == (Outcome.SPLIT, Outcome.CONFIRMED)
    assert judged.figures["voters"] == 1


@pytest.mark.parametrize(
    ("suspected", "factor", "leaves"), [(3, 2.4, True), (3, 1.6, False), (2, 2.4, False)]
)
def test_members_leave_an_unsplit_root_only_if_updates_stay_much_longer(suspected, factor, leaves):
    norms = {"a": NormHistory(ROOT, rounds=9, suspected=suspected, factor=factor)}
    decision = Decision(ROOT, 20, Outcome.MOVING, "", 0.0, 0.0)
    tree = ParameterTree.initial(vector(np.zeros(DIM)), "abc")
    state = CFLState(tree, memory={"moves": norms})
    three = tuple("abc")
    of = Evidence(ROOT, 20, three, three, (), np.ones(3), np.ones(3), 0.0, np.ones(3, int))
    decided = Moves().revised(state, of, decision)
    assert (decided.outcome is Outcome.SPLIT) == leaves
    assert decided.sides == ((("b", "c"), ("a",)) if leaves else ())


@pytest.mark.parametrize(("cfl", "rounds"), [(JUDGED, 2), (replace(JUDGED, changes=()), 7)])
def test_an_unsplit_root_is_split_in_the_round_after_most_of_its_members_changed(cfl, rounds):
    alike = Federation.dealt(8, 1, 1, 1, noise=0.05).changed({1: 0, 2: 0, 3: 0})
    changed = alike.changed({0: 1, 2: 1, 3: 1, 4: 2, 5: 2, 6: 2, 7: 3, 9: 3, 10: 3})
    state = after((alike, 20), cfl=cfl)
    *before, (_, result) = run(changed, cfl, rounds, state=state, done=20)
    assert all(one.state.tree.root.is_leaf for _, one in before)
    decision, *judged = result.decisions
    assert decision.outcome is Outcome.SPLIT
    assert [made.outcome for made in judged] == [Outcome.CONFIRMED] * bool(cfl.changes)
    if cfl.changes:
        assert decision.reason.startswith("the updates of 9 of 11 members became longer than ever")
        assert {frozenset(leaf.members) for leaf in result.state.tree.leaves} == changed.planted
        # In one round updates may be long by chance.
        assert after((changed, 1), (alike, 6), cfl=cfl, state=state, done=20).tree.root.is_leaf


def test_a_suspected_member_trains_one_more_model_and_moves_none(settled):
    state = after((CHANGED, 1), state=settled, done=20)
    replies = CHANGED.replies(MOVING, state, 22)
    extra = [reply.ask for reply in replies if reply.ask.role is not Role.OWN]
    assert [(ask.client, ask.cluster, ask.role) for ask in extra] == [("client-0", "0", Role.PLACE)]
    own = [reply for reply in replies if reply.ask.role is Role.OWN]
    checked, unchecked = (MOVING.heard(state, given, 22).state for given in (replies, own))
    for name, cluster in unchecked.tree.clusters.items():
        other = checked.tree.clusters[name].model.trained
        np.testing.assert_array_equal(other, cluster.model.trained)
    # Without its reply it stays, and is asked again.
    assert unchecked.moves == ()
    state = after((CHANGED, 1), state=unchecked, done=22)
    assert leaf(state, 0) is leaf(state, 1)


def test_a_suspected_client_trains_the_split_clusters_model_instead_of_its_leafs(settled):
    state = after((CHANGED, 1), cfl=JUDGED, state=settled, done=20)
    asks = JUDGED.asks(state, 22)
    assert [ask.role for ask in asks if ask.client == "client-0"] == [Role.PLACE]
    assert sorted(ask.client for ask in asks) == sorted(CHANGED.clients)
    state = after((CHANGED, 1), cfl=JUDGED, state=state, done=21)
    assert [move.server_round for move in state.moves] == [22]


@pytest.mark.parametrize(("members", "owing", "trained"), [(5, 5, 1), (5, 4, 0), (1, 1, 0)])
def test_a_leaf_that_may_be_changing_as_a_whole_is_still_trained(settled, members, owing, trained):
    here, there = leaf(settled, 0), leaf(settled, 1)
    tree = settled.tree.moved(dict.fromkeys(here.members[members:], there.name))
    suspected = NormHistory(here.name, 9, suspected=1, place_at=ROOT)
    memory = {"moves": dict.fromkeys(here.members[:owing], suspected)}
    asks = MOVING.asks(replace(settled, tree=tree, memory=memory), 21, here.members[:owing])
    assert [a.role for a in asks] == [Role.OWN] * owing * trained + [Role.PLACE] * owing


X, Y, Z = np.eye(DIM)[:3]
UPDATES = dict(zip("abcdef", (X, 2 * X, Y + Z, 2 * (Y + Z), Y - Z, 2 * (Y - Z)), strict=True))
MEMBERS = {"0": "abcdef", "0.0": "ab", "0.1": "cdef", "0.1.0": "cd", "0.1.1": "ef"}


def deep(**settings: object) -> CFLState:
    """A tree of two levels; a suspected in leaf 0.0."""
    clusters = {}
    for name, members in MEMBERS.items():
        children = tuple(other for other in MEMBERS if other.rpartition(".")[0] == name)
        clusters[name] = Cluster(
            name,
            tuple(members),
            vector(np.zeros(DIM)),
            children=children,
            split_round=4 if children else None,
            edge={client: UPDATES[client] for client in members if name != ROOT},
        )
    norms = {"a": NormHistory("0.0", rounds=9, suspected=1)}
    return CFLState(ParameterTree(clusters), memory={"moves": norms}, **settings)


def placed(state: CFLState, client: str, *updates: np.ndarray) -> CFLState:
    """The state after rounds in which a client replies for its placement with these updates."""
    for server_round, update in enumerate(updates, start=10):
        ask = MOVING.asks(state, server_round, [client])[-1]
        assert ask.role is Role.PLACE
        reply = trained_reply(MOVING, ask, vector(update))
        state = MOVING.heard(state, [reply], server_round).state
    return state


def test_a_member_that_left_goes_down_one_level_a_round():
    left = Move(9, "a", "0.0", "0", "it changed")
    state = deep(moves=(left,))
    state = placed(replace(state, tree=state.tree.called_back("a", ROOT)), "a", Y - 0.4 * Z)
    assert state.tree.unassigned == {"a": "0.1"}
    state = placed(state, "a", Y - 0.4 * Z)
    assert state.tree.unassigned == {}
    assert state.tree.leaf_of("a").name == "0.1.1"
    assert [move.target for move in state.moves] == ["0", "0.1", "0.1.1"]
    assert "a" not in state.known


@pytest.mark.parametrize(("client", "update"), [("a", X + 0.1 * Y), ("c", Y + Z)])
def test_a_suspected_member_that_fits_every_level_stays(client, update):
    name = deep().tree.leaf_of(client).name
    norms = {client: NormHistory(name, rounds=9, suspected=1, place_at=ROOT)}
    state = replace(deep(), memory={"moves": norms})
    state = placed(state, client, *[update] * name.count("."))
    assert histories(state)[client] == NormHistory(name)
    assert (state.tree.leaf_of(client).name, state.moves) == (name, ())
    assert place_at(state, client) == ""


def test_a_suspected_member_leaves_a_branch_that_was_nearly_at_rest():
    # There all updates are nearly orthogonal, so every update resembles its members a little.
    state = deep()
    resting = replace(state.tree.clusters["0.0"], edge={"a": X, "b": 1.5 * np.eye(DIM)[3]})
    state = replace(state, tree=state.tree.update(resting))
    norms = {"a": NormHistory("0.0", rounds=9, suspected=1, place_at=ROOT)}
    state = replace(state, memory={"moves": norms})
    state = placed(state, "a", 0.2 * X + Y + 0.4 * Z)
    assert [move.target for move in state.moves] == ["0.1"]


@pytest.mark.parametrize(("update", "goes"), [(0.1 * X + 0.05 * Y, True), (0.9 * X, False)])
def test_the_founder_of_a_leaf_is_not_held_there_by_its_own_old_update(update, goes):
    """Where all others are at rest, an update resembles them hardly more than its own old one."""
    state = deep()
    alone = replace(state.tree.clusters["0.0"], edge={"a": 5 * (X + 0.5 * np.eye(DIM)[4])})
    resting = {"c": Y + 0.3 * np.eye(DIM)[5], "d": np.eye(DIM)[6] + 0.1 * np.eye(DIM)[5]}
    there = replace(state.tree.clusters["0.1"], edge=resting)
    update = update + goes * np.eye(DIM)[7]
    norms = {"a": NormHistory("0.0", rounds=9, suspected=1, place_at=ROOT)}
    state = replace(state, tree=state.tree.update(alone, there), memory={"moves": norms})
    state = placed(state, "a", update)
    assert bool(state.moves) == goes
