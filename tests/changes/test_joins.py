"""Leaves that are one again: which are asked about, when, and what a join leaves."""

from dataclasses import replace
from itertools import repeat
from math import inf, isfinite

import numpy as np
import pytest

from cflower.algorithm.change import Answer
from cflower.algorithm.criteria import NeverSplit, Outcome
from cflower.algorithm.state import Ask, CFLState, Reply, Role
from cflower.algorithm.tree import ROOT, Cluster, ParameterTree, Status, Trial
from cflower.changes import changes_of
from cflower.changes.joins import Joins
from cflower.metric import Metric
from tests.algorithm.planted import (
    DIM,
    Federation,
    assert_partitions,
    cfl_of,
    clusters_of,
    ended,
    final,
    run,
    trained_reply,
    vector,
)

two = Federation.dealt(3, 3)
BETTER, WORSE, NEITHER = repeat(True), repeat(False), repeat(None)
MEMBERS = {"0.0": tuple("abc"), "0.1": tuple("de"), "0.2": tuple("fgh"), "0.3": tuple("i")}
JOINING = cfl_of(NeverSplit(), changes=changes_of(1, moving=True))
NOW = 20


def tree_of(*names, status=Status.CONFIRMED, judged=5, born=0, at=(0.0, 1.0, 3.0, 9.0)):
    """A root that was split into these leaves, with models at these distances."""
    leaves = {
        name: Cluster(
            name,
            MEMBERS[name],
            vector(np.full(DIM, at[int(name[-1])])),
            born,
            edge={client: np.eye(DIM)[int(name[-1])] for client in MEMBERS[name]},
        )
        for name in names
    }
    members = tuple(client for name in names for client in MEMBERS[name])
    trial = status and Trial(4, judged, tuple(MEMBERS[name] for name in names), status)
    root = Cluster(ROOT, members, vector(np.zeros(DIM)), children=names, split_round=4, trial=trial)
    return ParameterTree({ROOT: root, **leaves})


def asked(tree, server_round=NOW, last=False):
    """The leaves that clients are asked about, by proposal."""
    proposals = Joins().proposed(CFLState(tree), server_round, last=last)
    return [proposal.leaves for proposal in proposals]


def round_of(tree, opinions, *, weights=None, silent="", last=False, server_round=NOW):
    """A round in which the clients of these leaves send the same updates, and its end."""
    replies = [
        trained_reply(JOINING, ask, vector(np.ones(DIM)), (weights or {}).get(ask.client, 1.0))
        for ask in JOINING.asks(CFLState(tree), server_round)
        if ask.client not in silent
    ]
    heard = JOINING.heard(CFLState(tree), replies, server_round, last=last)
    federation = replace(two, groups=dict.fromkeys(tree.clients, 0))
    return heard, ended(federation, JOINING, heard, opinions, last=last)


def answered(heard, gains, server_round=NOW):
    """The end of a round in which each client gains this much over each candidate."""
    replies = []
    for ask in heard.asks:
        gain = gains[ask.client] if ask.role is Role.OWN else 0.0
        replies.append(Reply(ask, 36.0, {"accuracy": 0.5 + gain}))
    return JOINING.heard(heard.state, replies, server_round)


def test_the_two_leaves_with_the_nearest_models_are_compared_the_larger_one_first():
    assert asked(tree_of("0.0", "0.1", "0.2")) == [("0.0", "0.1")]
    assert asked(tree_of("0.1", "0.2", at=(0, 1, 3, 9))) == [("0.2", "0.1")]
    assert asked(tree_of("0.0", "0.2", "0.3", at=(9, 0, 1, 2))) == [("0.2", "0.3")]
    assert asked(ParameterTree.initial(vector(np.zeros(DIM)), "abc")) == []


def test_the_pair_is_asked_about_with_growing_gaps_or_after_a_change():
    rounds = [r for r in range(1, 400) if asked(tree_of("0.0", "0.1", judged=-99, born=-99), r)]
    assert rounds == [10, 20, 40, 80, 160, 320]
    changed = [r for r in range(1, 100) if asked(tree_of("0.0", "0.1", judged=33, born=43), r)]
    assert changed == [50, 80]
    # What was just judged holds for a while.
    assert asked(tree_of("0.0", "0.1", judged=NOW - 9)) == []
    assert asked(tree_of("0.0", "0.1", judged=NOW - 10)) == [("0.0", "0.1")]


def test_nobody_is_asked_about_a_join_in_the_last_round_or_beyond_the_budget():
    tree = tree_of("0.0", "0.1")
    assert asked(tree) == [("0.0", "0.1")]
    assert asked(tree, last=True) == []
    # Five clients measure their own model and the mean, two of them the first leaf's too.
    for budget, expected in ((11, 0), (12, 12)):
        cfl = replace(JOINING, budget=budget)
        assert len(cfl.heard(CFLState(tree), [], NOW).asks) == expected


def test_every_client_of_both_leaves_is_asked_and_the_second_leafs_about_the_first_too():
    heard, _ = round_of(tree_of("0.0", "0.1", "0.2"), NEITHER)
    by_number = {0: set(), 1: set()}
    for ask in heard.asks:
        if ask.role is Role.CANDIDATE:
            by_number[ask.number].add(ask.client)
    assert by_number == {0: {*"abcde"}, 1: {*"de"}}
    own = [ask.client for ask in heard.asks if ask.role is Role.OWN]
    assert sorted(own) == sorted("abcde")  # one evaluation of it for both questions


def test_the_second_of_three_leaves_is_joined_to_the_first_and_closed():
    _, result = round_of(tree_of("0.0", "0.1", "0.2"), WORSE)
    tree = result.state.tree
    assert_partitions(tree, "abcdefgh")
    assert [leaf.name for leaf in tree.leaves] == ["0.0", "0.2"]
    assert tree.clusters["0.0"].members == tuple("abcde")
    assert tree.clusters["0.1"].edge == {}
    assert tree.root.next_child == "0.3"
    moved = [(move.client, move.origin, move.target) for move in result.state.moves]
    assert moved == [("d", "0.1", "0.0"), ("e", "0.1", "0.0")]
    assert not {"d", "e"} & result.state.known.keys()
    reasons = {d.cluster: d.reason for d in result.decisions}
    assert ["are one again" in reasons[n] for n in ("0.0", "0.1", "0.2")] == [True, True, False]


def test_a_branch_whose_last_leaf_is_joined_elsewhere_attracts_no_newcomer():
    tree = tree_of("0.0", "0.1", "0.2")
    trial = Trial(4, 5, (("d",), ("e",)), Status.CONFIRMED)
    below = {
        name: Cluster(name, (client,), vector(np.full(DIM, at)), edge={client: np.eye(DIM)[axis]})
        for name, client, axis, at in (("0.1.0", "d", 4, 0.1), ("0.1.1", "e", 5, 0.3))
    }
    split = replace(tree.clusters["0.1"], children=("0.1.0", "0.1.1"), split_round=4, trial=trial)
    tree = tree.update(split, *below.values())
    for now in (20, 40):  # one leaf after the other is the nearest to 0.0
        _, result = round_of(tree, WORSE, server_round=now)
        tree = result.state.tree
    assert [leaf.name for leaf in tree.leaves] == ["0.0", "0.2"]
    assert tree.clusters["0.1"].edge == {}
    tree = tree.admit(["new"], 31)
    like_d = vector(np.eye(DIM)[1])
    for now in (31, 32):
        replies = [trained_reply(JOINING, ask, like_d) for ask in JOINING.asks(CFLState(tree), now)]
        tree = JOINING.heard(CFLState(tree), replies, now).state.tree
    assert tree.leaf_of("new").members == ("new",)
    assert tree.unassigned == {}


def test_leaves_with_members_that_are_served_better_stay():
    heard, result = round_of(tree_of("0.0", "0.1", "0.2"), BETTER)
    assert heard.asks
    assert result.state.tree.leaves == heard.state.tree.leaves
    assert (result.state.known, result.state.moves) == (heard.state.known, ())
    assert ["stay apart" in d.reason for d in result.decisions] == [True, False, False]  # once


def test_without_an_answer_leaves_stay():
    heard, _ = round_of(tree_of("0.0", "0.1"), NEITHER)
    result = JOINING.heard(heard.state, [], NOW)
    assert result.state.tree is heard.state.tree


def test_the_joined_model_is_the_mean_of_both_by_weight():
    heard, result = round_of(tree_of("0.0", "0.1"), WORSE, weights=dict.fromkeys("de", 3.0))
    # The leaves' models after this round are 1 and 2, with weights 3 and 6.
    candidates = {ask.number: heard.state.model_of(ask) for ask in heard.asks[5:]}
    np.testing.assert_allclose(candidates[0].trained, np.full(DIM, 1 + 6 / 9))
    np.testing.assert_allclose(candidates[1].trained, np.full(DIM, 1.0))
    (root,) = result.state.tree.clusters.values()
    np.testing.assert_allclose(root.model.trained, candidates[0].trained)
    (past,) = root.undone
    assert (past.status, past.judged, root.next_child) == (Status.JOINED, NOW, "0.2")
    assert [len(part) for part in past.parts] == [3, 2]
    made = result.decisions[-1]
    assert (made.cluster, made.outcome) == (ROOT, Outcome.UNDONE)
    # Of equal weights where nothing is known of a leaf.
    heard, _ = round_of(tree_of("0.0", "0.1"), NEITHER, silent="abcde")
    mean = heard.state.model_of(heard.asks[-3]).trained
    np.testing.assert_allclose(mean, np.full(DIM, 2 / 5))


def test_a_part_that_loses_by_its_own_model_goes_on_from_the_mean_if_the_other_gains():
    heard, _ = round_of(tree_of("0.0", "0.1"), NEITHER)
    gains = dict.fromkeys("abc", 0.2) | dict.fromkeys("de", -0.2)
    heard = heard._replace(asks=tuple(a for a in heard.asks if a.number == 0))
    result = answered(heard, gains)
    before, after = heard.state.tree, result.state.tree
    assert [leaf.name for leaf in after.leaves] == ["0.0", "0.1"]
    assert after.clusters["0.0"].model is before.clusters["0.0"].model
    mean = before.model_of(ROOT).trained
    np.testing.assert_array_equal(after.clusters["0.1"].model.trained, mean)


@pytest.mark.parametrize(("gain", "stays"), [(0.05, True), (0.0, False), (-0.05, False)])
def test_the_leaf_of_a_single_client_stays_while_its_own_model_serves_it_better(gain, stays):
    tree = tree_of("0.0", "0.3", at=(0, 0, 0, 1))
    heard, _ = round_of(tree, NEITHER)
    gains = dict.fromkeys("abc", -0.01) | {"i": gain}
    result = answered(heard, gains)
    leaves = [leaf.members for leaf in result.state.tree.leaves]
    assert leaves == ([tuple("abc"), ("i",)] if stays else [tuple("abci")])


def votes_on(size, others, *, loss, gain):
    """Replies to both questions: the first leaf loses so much by the mean, the other one gains."""
    first = tuple(f"client-{i}" for i in range(size))
    second = tuple(f"other-{i}" for i in range(others))
    tree = tree_of("0.0", "0.1")
    leaves = {"0.0": first, "0.1": second}
    tree = tree.update(*(replace(tree.clusters[n], members=m) for n, m in leaves.items()))
    tree = tree.update(replace(tree.root, members=first + second))
    (join,) = Joins().proposed(CFLState(tree), NOW, last=False)
    answers = []
    for question in join.questions:
        pairs = []
        for client in question.clients:
            ask = Ask(client, "0.0" if client in first else "0.1", Role.OWN, NOW, "evaluate")
            change = -loss if client in first else gain
            own, other = {"accuracy": 0.5}, {"accuracy": 0.5 + change} if isfinite(change) else {}
            pairs.append((Reply(ask, 36.0, own), Reply(ask, 36.0, other)))
        answers.append(Answer(tuple(pairs), Metric()))
    state, _ = join.concluded(CFLState(tree), (), answers)
    return len(state.tree.leaves)


@pytest.mark.parametrize("size", [1, 2, 3, 6, 7, 16])
@pytest.mark.parametrize("gain", [0.01, 0.5])
def test_a_leaf_with_members_that_vote_for_their_own_model_is_not_joined_whatever_the_others_say(
    size, gain
):
    """Seven members show it (p < .01); of fewer, as of those without a loss, the sum decides."""
    for others in range(1, size + 1):
        assert votes_on(size, others, loss=0.0, gain=gain) == 1
        if size >= 7:
            assert votes_on(size, others, loss=0.4, gain=gain) == 2
            assert votes_on(size, others, loss=inf, gain=gain) == 2, "a mean that gives NaN"


@pytest.mark.parametrize("last", [0, 60])
def test_a_run_without_any_gain_from_separate_models_ends_in_one_leaf(last):
    centers = np.repeat(two.centers[:1], 2, axis=0)
    tree, alike = final(two, cfl_of(), 30).tree, replace(two, centers=centers)
    state = final(alike, JOINING, 30, state=CFLState(tree), done=30, last=last)
    assert len(state.tree.leaves) == 1
    state = final(two, JOINING, 30, state=CFLState(tree), done=30, last=last)
    assert clusters_of(state) == two.planted


def test_groups_that_differ_are_never_joined():
    four = Federation.dealt(3, 2, 1, 4)
    cfl = cfl_of(changes=changes_of(1, moving=True))
    for server_round, (_, result) in enumerate(run(four, cfl, 90, last=90), 1):
        if server_round > 45:
            assert clusters_of(result.state) == four.planted
