"""Leaves that keep apart no more: which are asked about, and what becomes of the answers."""

from dataclasses import replace

import numpy as np
import pytest

from cflower.algorithm.auto.criterion import AutoCriterion
from cflower.algorithm.criteria import Decision, Outcome
from cflower.algorithm.merging import Join, alike_leaves, chance_apart, directions, judged_joins
from cflower.algorithm.round import Reply
from cflower.algorithm.state import CFLState, KnownUpdate
from cflower.algorithm.tree import ROOT, Cluster, ParameterTree, Weights
from cflower.algorithm.trial import LIKELY, Comparison, Measure, Standing, Trial, not_again
from cflower.seeding import generator
from tests.algorithm.planted import DIM, assert_partitions, cfl_of

MEMBERS = {"0.0": ("a", "b", "c"), "0.1": ("d", "e"), "0.2": ("f", "g", "h")}
MERGING = cfl_of(AutoCriterion(), moving=True, trial_rounds=4)
CLIENTS = tuple("abcdefgh")
MEASURES = [Measure("loss", higher_is_better=False)]


def updates(seed: int = 0, **towards: int) -> dict[str, np.ndarray]:
    """Everyone's update, towards the first axis or another, with as much noise."""
    rng = generator(seed, "updates")
    axes = np.eye(DIM)
    return {c: axes[towards.get(c, 0)] + rng.normal(size=DIM) / np.sqrt(DIM) for c in CLIENTS}


def tree_of(*names: str) -> ParameterTree:
    """A root that was split into these leaves, each with its number as its model."""
    leaves = {
        name: Cluster(
            name,
            MEMBERS[name],
            Weights(np.full(DIM, float(name[-1])), np.zeros(0)),
            edge={client: np.eye(DIM)[int(name[-1])] for client in MEMBERS[name]},
        )
        for name in names
    }
    members = tuple(client for name in names for client in MEMBERS[name])
    model = Weights(np.zeros(DIM), np.zeros(0))
    return ParameterTree({ROOT: Cluster(ROOT, members, model, 0, names, 4), **leaves})


def asked(tree: ParameterTree) -> dict[str, Join]:
    """The first two leaves, as clients are asked about them."""
    leaves = tree.clusters["0.0"], tree.clusters["0.1"]
    update = KnownUpdate(19, np.zeros(DIM), 0.0, 1.0, np.zeros(DIM))
    return {ROOT: MERGING._join(ROOT, *leaves, dict.fromkeys(CLIENTS, update))}


def answers(own: float, common: float) -> dict[str, list[Comparison]]:
    clients = MEMBERS["0.0"] + MEMBERS["0.1"]
    return {
        ROOT: [
            Comparison("0.0" if c in "abc" else "0.1", {"loss": own}, {"loss": common}, 20)
            for c in clients
        ]
    }


def decisions(tree: ParameterTree) -> list[Decision]:
    return [Decision(leaf.name, 20, Outcome.CONTENT, "as ever", 0.1, 0.2) for leaf in tree.leaves]


def test_leaves_are_alike_where_all_want_the_same_and_not_where_one_leaf_does_not() -> None:
    tree = tree_of("0.0", "0.1", "0.2")
    found = [alike_leaves(tree, {ROOT: updates(seed, f=5, g=5, h=5)}) for seed in range(20)]
    pairs = [(one.name, other.name) for one, other in (f[ROOT] for f in found if f)]
    assert len(pairs) > 10
    assert set(pairs) == {("0.0", "0.1")}
    for seed in range(20):
        assert alike_leaves(tree, {ROOT: updates(seed, d=5, e=5, f=6, g=6, h=6)}) == {}


def test_those_on_trial_are_left_alone() -> None:
    tree = tree_of("0.0", "0.1")
    root = replace(tree.root, trial=Trial(4, 8, ()))
    same = {ROOT: dict.fromkeys(CLIENTS, np.ones(DIM))}
    assert alike_leaves(tree, same)
    assert alike_leaves(tree.update(root), same) == {}


def test_of_a_leaf_with_company_two_must_be_heard() -> None:
    tree = tree_of("0.0", "0.1")
    heard = dict.fromkeys(CLIENTS, np.ones(DIM))
    assert alike_leaves(tree, {ROOT: heard})
    heard.pop("d")
    assert alike_leaves(tree, {ROOT: heard}) == {}


def test_chance_makes_equals_alike_more_often_than_not_and_strangers_never() -> None:
    rng = generator(0, "chance")
    alike, apart = [], []
    for _ in range(200):
        rows = directions(list(rng.normal(size=(8, DIM)) / np.sqrt(DIM) + np.eye(DIM)[0]))
        far = directions(list(rng.normal(size=(4, DIM)) / np.sqrt(DIM) + np.eye(DIM)[1]))
        alike.append(chance_apart(rows[:4], rows[4:]) > LIKELY)
        apart.append(chance_apart(rows[:4], far) > LIKELY)
    assert np.mean(alike) > 0.5
    assert np.mean(apart) == 0


def test_two_members_of_another_leaf_move_in_and_nobody_walks_there_any_more() -> None:
    tree = tree_of("0.0", "0.1", "0.2")
    join = asked(tree)
    state, told = judged_joins(
        CFLState(tree), decisions(tree), join, answers(0.5, 0.5), MEASURES, 20
    )
    assert_partitions(state.tree, CLIENTS)
    assert [leaf.name for leaf in state.tree.leaves] == ["0.0", "0.2"]
    assert state.tree.clusters["0.0"].members == ("a", "b", "c", "d", "e")
    assert set(state.tree.fork(ROOT, np.eye(DIM)[1]).similarities) == {"0.0", "0.2"}
    assert state.tree.next_child(ROOT) == "0.3"
    assert [(m.client, m.origin, m.target) for m in state.moves] == [
        ("d", "0.1", "0.0"),
        ("e", "0.1", "0.0"),
    ]
    assert [d.reason for d in told if d.cluster == "0.1"] == ["as ever; it is joined to 0.0"]


def test_the_joined_model_is_the_mean_of_theirs_by_weight() -> None:
    tree = tree_of("0.0", "0.1")
    update = KnownUpdate(19, np.zeros(DIM), 0.0, 2.0, np.zeros(DIM))
    known = dict.fromkeys("abc", update) | dict.fromkeys("de", update._replace(num_examples=3.0))
    join = MERGING._join(ROOT, tree.clusters["0.0"], tree.clusters["0.1"], known)
    assert join.common.model.trained == pytest.approx(np.full(DIM, 0.5))
    assert join.common.members == tuple("abcde")


@pytest.mark.parametrize("silent", ["", "de", "abcde"])
def test_leaves_of_which_nothing_is_known_are_not_weighed_against_others(silent: str) -> None:
    state = CFLState(tree_of("0.0", "0.1"))
    update = Weights(np.ones(DIM), np.zeros(0))
    replies = [Reply(c, update, DIM**0.5, 1.0, general=ROOT) for c in "abcde"]
    replies += [Reply(c, update, DIM**0.5, 1.0) for c in "abcde" if c not in silent]
    joins = MERGING.run_round(state, replies, server_round=20).joins
    assert list(joins) == ([] if silent else [ROOT])
    for join in joins.values():
        assert join.common.model.trained == pytest.approx(np.full(DIM, 1 + 2 / 5))


def test_the_only_two_leaves_are_their_parent_again_and_no_name_is_used_twice() -> None:
    tree = tree_of("0.0", "0.1")
    join = asked(tree)
    state, told = judged_joins(
        CFLState(tree), decisions(tree), join, answers(0.5, 0.5), MEASURES, 20
    )
    assert list(state.tree.clusters) == [ROOT]
    assert state.tree.root.undone[0].standing is Standing.UNDONE
    assert state.tree.next_child(ROOT) == "0.2"
    assert told[-1].outcome is Outcome.UNDONE
    assert "no longer tell 0.0 and 0.1 apart" in told[-1].reason
    assert not_again(state.tree.root.undone, MEMBERS.values(), 21) is None


def test_leaves_whose_members_are_served_better_stay_apart_and_nothing_changes() -> None:
    tree = tree_of("0.0", "0.1", "0.2")
    join = asked(tree)
    before = CFLState(tree)
    state, told = judged_joins(before, decisions(tree), join, answers(0.1, 0.5), MEASURES, 20)
    assert state is before
    assert "the clients are served better" in told[0].reason
    assert told[2].reason == "as ever"
