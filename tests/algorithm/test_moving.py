"""Members whose data change: who is suspected, where they go, and that nobody else does."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import stdtrit

from cflower.algorithm.auto.criterion import AutoCriterion
from cflower.algorithm.criteria import Decision, Outcome
from cflower.algorithm.moving import Move, Moves, outgrown
from cflower.algorithm.norm_history import Habit, watch
from cflower.algorithm.round import CFL, Reply
from cflower.algorithm.state import CFLState
from cflower.algorithm.tree import ROOT, Cluster, ParameterTree, Weights
from cflower.algorithm.trial import Trial
from tests.algorithm.planted import DIM, Federation, cfl_of

MOVING = cfl_of(AutoCriterion(), moving=True)
FEDERATION = Federation.dealt(5, 5, noise=0.05)


def answers(cfl: CFL, federation: Federation, state: CFLState, now: int) -> Iterator[Reply]:
    """Everyone's reply, and those of clients that also train a model above their own."""
    for client in federation.clients:
        yield federation.reply(state, client, now)
        if above := cfl.probes(state, client):
            there = replace(state, tree=state.tree.called_back(client, above.name))
            yield federation.reply(there, client, now)._replace(general=above.name, probe=True)


def trained(
    *phases: tuple[Federation, int], cfl: CFL = MOVING, state: CFLState | None = None, done: int = 0
) -> CFLState:
    """After so many rounds with the clients as each of these federations has them."""
    state = phases[0][0].state() if state is None else state
    for federation, rounds in phases:
        for now in range(done + 1, done + rounds + 1):
            replies = list(answers(cfl, federation, state, now))
            state = cfl.run_round(state, replies, server_round=now).state
            members = [client for leaf in state.tree.leaves for client in leaf.members]
            assert sorted(members) == sorted(federation.clients)
        done += rounds
    return state


def changed(federation: Federation, **groups: int) -> Federation:
    """With some clients' data those of another group; clients by number, as ``c3=1``."""
    new = {f"client-{name[1:]}": group for name, group in groups.items()}
    return replace(federation, groups=federation.groups | new)


def home(state: CFLState, client: int) -> Cluster:
    return state.tree.leaf_of(f"client-{client}")


def test_nobody_moves_where_nobody_changes() -> None:
    state = trained((FEDERATION, 60))
    assert len(state.tree.leaves) == 2
    assert state.moves == ()


def test_who_changes_is_with_its_like_two_rounds_later_and_who_changes_back_returns() -> None:
    state = trained((FEDERATION, 20))
    assert home(state, 0) is not home(state, 1)
    state = trained((changed(FEDERATION, c0=1), 2), state=state, done=20)
    assert home(state, 0) is home(state, 1)
    assert [(m.server_round, m.client) for m in state.moves] == [(22, "client-0")]
    again = (changed(FEDERATION, c0=1), 6), (FEDERATION, 2)
    state = trained(*again, state=state, done=22)
    assert home(state, 0) is home(state, 2)
    assert len(state.moves) == 2


def test_its_leaf_forgets_who_left() -> None:
    state = trained((FEDERATION, 20), (changed(FEDERATION, c0=1), 10))
    memory = home(state, 2).memory
    assert memory["clients"] == home(state, 2).members
    assert len(memory["averages"]) == len(memory["clients"]) == 4


def test_who_resembles_nobody_goes_on_alone_until_others_come() -> None:
    third = Federation.dealt(5, 5, 1, noise=0.05)
    first = changed(third, c2=0)
    state = trained((first, 20), (changed(first, c0=2), 6))
    assert home(state, 0).members == ("client-0",)
    assert "resembles nobody" in state.moves[-1].reason
    state = trained((changed(first, c0=2, c3=2), 6), state=state, done=26)
    assert home(state, 0).members == ("client-0", "client-3")


def test_a_cluster_whose_last_member_left_is_closed_and_opens_for_who_comes() -> None:
    uneven = Federation.dealt(6, 3, noise=0.05)
    others = {f"c{name.rpartition('-')[2]}": 0 for name, group in uneven.groups.items() if group}
    state = trained((uneven, 20), (changed(uneven, **others), 12))
    assert len(state.tree.leaves) == 1
    closed = next(end for end in state.tree.ends if not end.members)
    state = trained((changed(uneven, **others | {"c0": 1}), 8), state=state, done=32)
    assert home(state, 0).name == closed.name


def test_the_first_that_changes_where_all_are_one_cluster_parts_from_it() -> None:
    alike = Federation.dealt(9, 1, noise=0.05)
    before = replace(alike, groups=dict.fromkeys(alike.groups, 0))
    state = trained((before, 20))
    assert state.tree.root.is_leaf
    now = replace(alike, groups=before.groups | {"client-4": 1})
    astray = trained((now, 2), (before, 6), state=state, done=20)
    assert astray.tree.root.is_leaf
    state = trained((now, 3), state=state, done=20)
    assert home(state, 4).members == ("client-4",)
    assert len(state.tree.leaves) == 2
    state = trained((now, 6), (before, 3), state=state, done=23)
    assert home(state, 4).members == tuple(alike.clients)


def test_the_split_by_a_change_is_a_decision_like_any_other() -> None:
    alike = Federation.dealt(9, 1, noise=0.05)
    before = replace(alike, groups=dict.fromkeys(alike.groups, 0))
    now = replace(alike, groups=before.groups | {"client-4": 1})
    state = trained((before, 20), (now, 2))
    result = MOVING.run_round(state, answers(MOVING, now, state, 23), server_round=23)
    assert [d.outcome for d in result.decisions] == [Outcome.SPLIT]
    assert result.decisions[0].children == ("0.0", "0.1")
    assert "client-4 changed" in result.decisions[0].reason


def test_a_long_update_for_once_is_no_change() -> None:
    state = trained((FEDERATION, 20))
    again = trained((changed(FEDERATION, c0=1), 1), (FEDERATION, 10), state=state, done=20)
    assert again.moves == ()
    assert home(again, 0).members == home(state, 0).members


def test_who_trains_a_model_above_only_to_see_moves_no_model() -> None:
    state = trained((FEDERATION, 20), (changed(FEDERATION, c0=1), 1))
    now = changed(FEDERATION, c0=1)
    both = list(answers(MOVING, now, state, 22))
    own = [reply for reply in both if not reply.probe]
    assert len(both) == len(own) + 1
    with_probe, without = (
        MOVING.run_round(state, replies, server_round=22).state.tree for replies in (both, own)
    )
    for name, cluster in without.clusters.items():
        np.testing.assert_array_equal(
            with_probe.clusters[name].model.trained, cluster.model.trained
        )


def test_without_moving_all_stay() -> None:
    staying = cfl_of(AutoCriterion())
    state = trained((FEDERATION, 20), (changed(FEDERATION, c0=1), 4), cfl=staying)
    assert state.moves == ()
    assert state.habits == {}


def test_lengths_are_compared_not_measured() -> None:
    rng = np.random.default_rng(0)
    rounds = np.exp(rng.normal(scale=0.1, size=(12, 5)))
    rounds[10:, 2] *= 20
    for unit in (1.0, 1e-6):
        habits: dict = {}
        for norms in rounds:
            habits = watch(habits, "0.0", {str(i): unit * n for i, n in enumerate(norms)})
        assert [client for client, habit in habits.items() if habit.held == 2] == ["2"]


def test_who_changes_is_found_in_a_leaf_of_two_whose_model_follows_it() -> None:
    small = Federation.dealt(2, 6, noise=0.05)
    state = trained((small, 20), (changed(small, c0=1), 2))
    assert home(state, 0) is home(state, 1)
    assert home(state, 2).members == ("client-2",)


def test_who_leaves_is_like_those_at_rest_only_if_it_is_short_and_like_nobody_else() -> None:
    rng, along = np.random.default_rng(0), np.eye(50)[0]
    far = {f"far-{i}": 10 * along + 0.5 * rng.normal(size=50) for i in range(3)}
    near = {f"near-{i}": 0.1 * rng.normal(size=50) for i in range(4)}
    model = Weights(np.zeros(50), np.zeros(0))
    leaves = [
        Cluster("0.0", tuple(near), model, edge=near),
        Cluster("0.1", tuple(far), model, edge=far),
    ]
    root = Cluster("0", (*near, *far), model, children=("0.0", "0.1"), split_round=4)
    moves = Moves(ParameterTree({c.name: c for c in (root, *leaves)}), {}, [], 10)
    anywhere = 0.1 * rng.normal(size=50)
    for vector, leaving, child in (
        (anywhere, True, "0.0"),
        (0.5 * along, False, "0.0"),
        (0.5 * along, True, "0.1"),
        (10 * along, False, "0.1"),
    ):
        fork, bar, resting = moves.compared(root, vector, leaving)
        assert (fork.child, resting) == (child, "0.0")
        assert fork.similarities[child] > bar


def test_a_suspicion_lasts_until_the_client_has_been_looked_at() -> None:
    now = changed(FEDERATION, c0=1)
    state = trained((FEDERATION, 20), (now, 1))
    own = [reply for reply in answers(MOVING, now, state, 22) if not reply.probe]
    state = MOVING.run_round(state, own, server_round=22).state
    assert state.moves == ()
    state = trained((now, 1), state=state, done=22)
    assert home(state, 0) is home(state, 1)


def test_lengths_that_always_vary_are_no_change_where_nothing_can_be_asked() -> None:
    rng = np.random.default_rng(0)
    rounds = np.exp(rng.normal(scale=[0.01] * 4 + [0.5], size=(12, 5)))
    rounds[11, 4] = 1.1 * rounds[1:, 4].max()
    for leaf, held in (("0", []), ("0.0", ["4"])):
        habits: dict = {}
        for norms in rounds:
            habits = watch(habits, leaf, {str(i): n for i, n in enumerate(norms)})
        assert [client for client, habit in habits.items() if habit.held] == held


def test_who_stands_out_before_inner_models_learn_is_looked_at_all_the_same() -> None:
    learning = replace(MOVING, inner_interval=10)
    state = trained((FEDERATION, 18), (changed(FEDERATION, c0=1), 1), cfl=learning)
    client = "client-0"
    assert learning.also_trains(state.tree, client, 20) is not None
    above = learning.probes(state, client)
    assert above is not None
    assert above.name == "0"
    state = trained((changed(FEDERATION, c0=1), 1), cfl=learning, state=state, done=19)
    assert [move.server_round for move in state.moves] == [20]


X, Y, Z = np.eye(DIM)[:3]
DEEP = {"0": "", "0.0": "ab", "0.1": "cdef", "0.1.0": "cd", "0.1.1": "ef"}
UPDATES = dict(zip("abcdef", (X, 2 * X, Y + Z, 2 * (Y + Z), Y - Z, 2 * (Y - Z)), strict=True))


def walking(client: str, **trials: Trial) -> CFLState:
    """A tree of two levels in which a client has left its leaf and walks down from the root."""
    clusters = {}
    for name, members in DEEP.items():
        children = tuple(n for n in DEEP if n.rpartition(".")[0] == name)
        clusters[name] = Cluster(
            name,
            tuple(members or "abcdef"),
            Weights(np.zeros(DIM), np.zeros(0)),
            children=children,
            split_round=4 if children else None,
            edge={member: UPDATES[member] for member in members},
            trial=trials.get(f"_{name}".replace(".", "_")),
        )
    left = Move(9, client, "0.0", "0", "it changed")
    return CFLState(ParameterTree(clusters).called_back(client, ROOT), moves=(left,))


def walked(state: CFLState, client: str, *updates: np.ndarray) -> CFLState:
    """After its updates of the models above."""
    for now, update in enumerate(updates, start=10):
        reply = Reply(client, Weights(update, np.zeros(0)), float(np.linalg.norm(update)), 1.0)
        state = MOVING.run_round(state, [reply], server_round=now).state
    return state


def test_who_left_walks_down_one_level_a_round() -> None:
    state = walked(walking("a"), "a", Y - 0.4 * Z)
    assert state.tree.unassigned == {"a": "0.1"}
    state = walked(state, "a", Y - 0.4 * Z)
    assert state.tree.unassigned == {}
    assert state.tree.leaf_of("a").name == "0.1.1"
    assert [move.target for move in state.moves] == ["0", "0.1", "0.1.1"]
    assert "a" not in state.known


def test_nobody_goes_further_down_than_a_split_on_trial() -> None:
    waiting = walked(walking("a", _0_1=Trial(8, 12, ())), "a", Y - 0.4 * Z, Y - 0.4 * Z)
    assert waiting.tree.unassigned == {"a": "0.1"}


def test_an_update_as_before_but_longer_is_no_change_of_mind() -> None:
    tree = ParameterTree.initial(Weights(np.zeros(DIM), np.zeros(0)), "abc")
    new = Habit(ROOT, heard=9, held=1, factor=8.0)
    for before, factor in ((X + 0.1 * Y, 0.0), (X - 2 * Y, 8.0)):
        moves = Moves(tree, {"a": new, "b": Habit(ROOT, heard=9)}, [], 20)
        moves.part(tree.root, {"a": before}, {"a": X, "b": Y, "c": Z}, [])
        assert moves.habits["a"].factor == factor
        assert moves.tree is tree


@pytest.mark.parametrize(("factor", "parted"), [(0.0, False), (1.6, False), (2.4, True)])
def test_who_leaves_a_root_without_splits_is_much_longer_than_usual(
    factor: float, parted: bool
) -> None:
    tree = ParameterTree.initial(Weights(np.zeros(DIM), np.zeros(0)), "abc")
    habits = {"a": Habit(ROOT, heard=9, held=3, factor=factor), "b": Habit(ROOT, heard=9)}
    moves = Moves(tree, habits, [], 20)
    decisions = [Decision(ROOT, 20, Outcome.MOVING, "", 0.0, 0.0)]
    moves.part(tree.root, {}, {"a": X, "b": Y, "c": Z}, decisions)
    assert (moves.tree is not tree) == parted
    assert (decisions[0].outcome is Outcome.SPLIT) == parted


def test_a_suspicion_ends_where_the_client_is_in_another_leaf() -> None:
    state = walking("b")
    for leaf, above in (("0.0", "0"), ("0.1.0", None)):
        habits = {"a": Habit(leaf, heard=9, held=1, probing=ROOT)}
        found = MOVING.probes(replace(state, habits=habits), "a")
        assert (found.name if found else None) == above


def test_a_suspicion_leads_to_no_question_where_none_can_be_asked() -> None:
    root = ParameterTree.initial(Weights(np.zeros(DIM), np.zeros(0)), "abc")
    below, trial = walking("f").tree, walking("f", _0=Trial(8, 12, ())).tree
    for tree, leaf, asked in ((root, "0", ""), (trial, "0.0", ""), (below, "0.0", ROOT)):
        moves = Moves(tree, {"a": Habit(leaf, heard=9, held=1)}, [], 11)
        moves.suspect(tree.clusters[leaf])
        assert moves.habits["a"].probing == asked


@pytest.mark.parametrize("beyond", [0.99, 1.01])
def test_who_stands_out_does_so_by_more_than_chance_makes_anybody(beyond: float) -> None:
    clients, heard, squares = "abcde", 9, 0.32
    freedom = len(clients) * (heard - 1)
    errors = stdtrit(freedom, 1 - 0.01 / (len(clients) * heard))
    length = beyond * errors * np.sqrt(len(clients) * squares / freedom) * np.sqrt(1 + 1 / heard)
    # Longer than ever, but not twice as long.
    habits = {c: Habit("0.0", heard, squares=squares, longest=length - 0.1) for c in clients}
    norms = dict.fromkeys(clients, 1.0) | {"a": np.exp(length)}
    after = watch(habits, "0.0", norms)
    assert [c for c in clients if after[c].held] == (["a"] if beyond > 1 else [])
    assert after["a"].factor == pytest.approx(norms["a"] if beyond > 1 else 0)


def test_of_one_update_or_none_nobody_can_tell_who_is_longer() -> None:
    assert not outgrown({"a": X}, 100 * Y)
    assert not outgrown({"a": X, "b": np.zeros(DIM)}, 100 * Y)
    assert not outgrown({"a": X, "b": 1.01 * X}, np.zeros(DIM))
    assert outgrown({"a": X, "b": 1.01 * X}, 100 * Y)
