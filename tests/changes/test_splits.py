"""Splits on trial and joins: what the clients train and judge, and what happens to the tree."""

from dataclasses import replace
from itertools import repeat

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cflower.algorithm.criteria import Decision, NeverSplit, Outcome
from cflower.changes.vote import Measure
from cflower.changes.splits import measures_in, postponed, similar_leaves
from cflower.algorithm.state import Ask, CFLState, Reply, Role
from cflower.algorithm.tree import ROOT, Cluster, ParameterTree, Proposal, Status
from cflower.seeding import generator
from tests.algorithm.planted import (
    DIM,
    Federation,
    assert_partitions,
    cfl_of,
    clusters_of,
    ended,
    final,
    laws,
    run,
    trained_reply,
    vector,
)

two, four = Federation.dealt(3, 3), Federation.dealt(3, 3, 3, 3)


BETTER, WORSE, NEITHER = repeat(True), repeat(False), repeat(None)


def conventional(num_rounds):
    """The model of federated learning without clusters."""
    return final(two, cfl_of(NeverSplit()), num_rounds).tree.root.model.trained


def test_during_a_trial_the_common_model_learns_as_in_conventional_federated_learning():
    cfl, learned = cfl_of(trial_rounds=4), 0
    for server_round, (before, result) in enumerate(run(two, cfl, 12), 1):
        root = result.state.tree.root
        general = [ask for ask in cfl.asks(before, server_round) if ask.role is Role.GENERAL]
        assert len(general) == (len(two.clients) if before.tree.root.on_trial else 0)
        if general:
            model = conventional(server_round)
            np.testing.assert_allclose(root.grown.model.trained, model, atol=1e-12)
            learned += 1
    assert learned == 4
    assert root.trial.status is Status.CONFIRMED
    assert clusters_of(result.state) == two.planted


def test_every_client_judges_its_own_model_against_the_common_one():
    cfl = cfl_of(trial_rounds=4)
    for server_round, (before, _) in enumerate(run(two, cfl, 12), 1):
        heard = cfl.heard(before, two.replies(cfl, before, server_round), server_round)
        if heard.asks:
            break
    state, server_round = heard.state, before.tree.root.trial.due
    expected = {(c, state.tree.leaf_of(c).name, Role.OWN) for c in two.clients}
    expected |= {(c, ROOT, Role.COMMON) for c in two.clients}
    assert {(ask.client, ask.cluster, ask.role) for ask in heard.asks} == expected
    assert {(ask.server_round, ask.task) for ask in heard.asks} == {(server_round, "evaluate")}
    for ask in heard.asks:
        cluster = state.tree.clusters[ask.cluster]
        expected = cluster.general if ask.role is Role.COMMON else cluster.model
        assert state.model_of(ask) is expected


def test_a_judgement_that_was_missed_is_made_in_the_next_round():
    cfl = cfl_of(trial_rounds=4)
    state = final(two, cfl, 9)
    assert state.tree.root.trial.due == 10
    (undone,) = final(two, cfl, 1, state=state, done=10, opinions=WORSE).tree.root.undone
    assert (undone.status, undone.due) == (Status.UNDONE, 11)


def test_an_undone_split_leaves_the_common_model_and_the_next_one_waits_and_has_new_names():
    names, outcomes, waited = set(), [], 0
    rounds = run(two, cfl_of(trial_rounds=3), 40, opinions=WORSE)
    for server_round, (before, result) in enumerate(rounds, 1):
        names |= set(result.state.tree.clusters)
        outcomes += [d.outcome for d in result.decisions if d.cluster == ROOT]
        waited += any(d.outcome is Outcome.PUT_OFF for d in result.decisions)
        if outcomes[-1] is Outcome.UNDONE and outcomes.count(Outcome.UNDONE) == 1:
            (root,) = result.state.tree.clusters.values()
            np.testing.assert_allclose(root.model.trained, conventional(server_round), atol=1e-12)
            assert root.is_leaf
            assert root.members == before.tree.root.members
            assert root.general is root.trial is None
            assert [trial.status for trial in root.undone] == [Status.UNDONE]
    assert outcomes.count(Outcome.UNDONE) == 2
    assert waited > 0
    assert names == {"0", "0.0", "0.1", "0.2", "0.3"}


@pytest.mark.parametrize(("looks", "last"), [(2, True), (3, True), (3, None)])
def test_clients_that_see_neither_gain_nor_loss_judge_again(looks, last):
    opinions = iter([None] * (looks - 1) + [last])
    lines = []
    for _, result in run(two, cfl_of(trial_rounds=3), 30, opinions=opinions):
        lines += [d for d in result.decisions if d.cluster == ROOT]
        if lines[-1].outcome in (Outcome.CONFIRMED, Outcome.UNDONE):
            break
    began = next(line.server_round for line in lines if line.outcome is Outcome.SPLIT)
    again = [line for line in lines if "judge again" in line.reason]
    assert [line.server_round - began for line in again] == [3, 6][: looks - 1]
    assert all(line.outcome is Outcome.ON_TRIAL for line in again)
    assert lines[-1].server_round == began + 3 * looks
    assert lines[-1].outcome is (Outcome.CONFIRMED if last else Outcome.UNDONE)


@pytest.mark.parametrize("opinions", [WORSE, NEITHER])
def test_the_last_round_undoes_a_trial_and_refutes_only_a_split_that_serves_clients_worse(opinions):
    began = final(two, cfl_of(trial_rounds=3), 30, opinions=BETTER).tree.root.split_round
    cfl, last = cfl_of(trial_rounds=3), began + 1
    state = final(two, cfl, last, opinions=opinions, last=last)
    (trial,) = state.tree.root.undone
    assert (state.tree.root.is_leaf, trial.due) == (True, last)
    # The run goes on.
    results = run(two, cfl, 4 * began, state=state, done=last, opinions=BETTER)
    outcomes = {result.decisions[0].outcome for _, result in results}
    assert (Outcome.PUT_OFF in outcomes) == (opinions is WORSE)
    assert Outcome.SPLIT in outcomes


def test_children_do_not_split_while_their_parents_split_is_on_trial():
    waits = 0
    for before, result in run(four, cfl_of(trial_rounds=12), 60, opinions=BETTER):
        if before.tree.root.on_trial:
            assert all(c.is_leaf for n, c in result.state.tree.clusters.items() if n != ROOT)
        waits += any("still on trial" in decision.reason for decision in result.decisions)
    assert waits > 0
    assert clusters_of(result.state) == four.planted


@laws
@given(st.lists(st.integers(1, 4), min_size=2, max_size=4), st.integers(0, 99), st.booleans())
def test_clusters_partition_the_clients_whatever_they_judge(sizes, seed, partial):
    opinions = map(bool, generator(seed, "opinions").integers(2, size=999))
    cfl = cfl_of(trial_rounds=2, inner_interval=3, moving=True)
    federation = Federation.dealt(*sizes, seed=seed)
    final(federation, cfl, 25, partial=partial, opinions=opinions)  # `run` asserts the law


def test_split_clusters_take_turns_and_learn():
    tree = final(four, cfl_of(inner_interval=5), 60).tree
    client = max(tree.clients, key=lambda name: tree.leaf_of(name).name.count("."))
    asks = [
        (server_round, ask.cluster)
        for server_round in range(1, 31)
        for ask in cfl_of(inner_interval=5).asks(CFLState(tree), server_round, [client])
        if ask.role is Role.GENERAL
    ]
    assert [server_round for server_round, _ in asks] == [5, 10, 15, 20, 25, 30]
    assert {name for _, name in asks} == {c.name for c in tree.path_of(client)[:-1]}
    assert len({name for _, name in asks}) > 1
    assert tree.root.general is not None


def test_an_unassigned_client_trains_only_the_stationary_model_during_a_trial():
    cfl = cfl_of(trial_rounds=9)
    state = final(two, cfl, 12)
    assert state.tree.root.on_trial
    state = replace(state, tree=state.tree.admit("new", 13))
    (ask,) = cfl.asks(state, 13, ["new"])
    assert (ask.cluster, ask.role) == (ROOT, Role.PLACE)
    assert state.model_of(ask) is state.tree.root.model is not state.tree.root.grown.model
    assert [a.role for a in cfl.asks(state, 13, ["client-0"])] == [Role.OWN, Role.GENERAL]


def test_a_leaf_that_a_newcomer_gets_during_a_trial_does_not_give_its_name_away():
    federation = Federation.dealt(3, 3, 1)
    groups = {c: group for c, group in federation.groups.items() if group < 2}
    joined = replace(federation, groups=groups | {"new": 2})
    cfl = cfl_of(trial_rounds=9)
    state = final(replace(federation, groups=groups), cfl, 12)
    state = replace(state, tree=state.tree.admit("new", 13))
    state = final(joined, cfl, 1, state=state, done=12)
    branch = state.tree.leaf_of("new")
    assert branch.members == ("new",)
    state = final(joined, cfl, 8, state=state, done=13, opinions=WORSE)
    assert state.tree.root.is_leaf
    assert (branch.name, state.tree.root.next_child) == ("0.2", "0.3")


def test_a_member_that_first_trains_after_the_split_goes_to_the_nearest_child():
    federation, absent = Federation.dealt(4, 4, 1), "client-2"  # it resembles neither group
    others = [client for client in federation.clients if client != absent]
    cfl = cfl_of(trial_rounds=2)
    state = final(federation, cfl, 30, clients=others)
    assert state.tree.unassigned == {absent: ROOT}
    member = final(federation, cfl, 1, state=state, done=30, clients=[absent])
    assert member.tree.root.children == state.tree.root.children
    assert not member.tree.unassigned
    assert not member.placed[absent].familiar
    # As a newcomer it would begin one.
    groups = {**federation.groups, "new": federation.groups[absent]}
    state = replace(state, tree=state.tree.admit("new", 31))
    joined = replace(federation, groups=groups)
    newcomer = final(joined, cfl, 1, state=state, done=30, clients=["new"])
    assert newcomer.tree.leaf_of("new").members == ("new",)


SIDES = ("a", "b"), ("c", "d")


@pytest.mark.parametrize("sides", [SIDES, (("a", "c"), ("b", "d"))])
def test_after_an_undone_split_the_cluster_waits_until_the_rounds_have_doubled(sides):
    undone, again = Proposal(ROOT, 46, 50, SIDES, Status.UNDONE), 100
    leaf = Cluster(ROOT, tuple("abcd"), vector([0.0]), undone=(undone,))
    for server_round, outcome in ((again - 1, Outcome.PUT_OFF), (again, Outcome.SPLIT)):
        decision = Decision(ROOT, server_round, Outcome.SPLIT, "", 0.0, 0.0, sides=sides)
        decision = postponed(decision, leaf, ParameterTree({ROOT: leaf}))
        assert decision.outcome is outcome
        assert (str(again) in decision.reason) == (outcome is Outcome.PUT_OFF)
        assert decision.sides == (sides if outcome is Outcome.SPLIT else ())


MEMBERS = {"0.0": tuple("abc"), "0.1": tuple("de"), "0.2": tuple("fgh")}
JOINING = cfl_of(NeverSplit(), moving=True, trial_rounds=4)
NOW = 20


def updates(seed, axes):
    """The updates of clients a to h, each along one of the axes, with as much noise."""
    noise = generator(seed, "updates").normal(size=(8, DIM)) / np.sqrt(DIM)
    return dict(zip("abcdefgh", np.eye(DIM)[list(axes)] + noise, strict=True))


def tree_of(*names):
    """A root that was split into these leaves, each with its number as its model."""
    leaves = {
        name: Cluster(
            name,
            MEMBERS[name],
            vector(np.full(DIM, float(name[-1]))),
            edge={client: np.eye(DIM)[int(name[-1])] for client in MEMBERS[name]},
        )
        for name in names
    }
    members = tuple(client for name in names for client in MEMBERS[name])
    root = Cluster(ROOT, members, vector(np.zeros(DIM)), children=names, split_round=4)
    return ParameterTree({ROOT: root, **leaves})


def judged(*names, weights=None, opinions=BETTER, silent=""):
    """The end of a round in which all clients' updates of the root are the same."""
    weights = dict.fromkeys("abcdefgh", 1.0) | (weights or {})
    tree, ones = tree_of(*names), vector(np.ones(DIM))
    asks = [Ask(c, ROOT, Role.GENERAL, NOW) for c in tree.clients]
    asks += [Ask(c, tree.leaf_of(c).name, Role.OWN, NOW) for c in tree.clients if c not in silent]
    replies = [trained_reply(JOINING, ask, ones, weights[ask.client]) for ask in asks]
    heard = JOINING.heard(CFLState(tree), replies, NOW)
    federation = replace(two, groups=dict.fromkeys(tree.clients, 0))
    return heard, ended(federation, JOINING, heard, opinions)


def test_leaves_are_similar_if_all_their_updates_are():
    tree = tree_of("0.0", "0.1", "0.2")
    names = [
        (first.name, second.name)
        for seed in range(20)
        for first, second in similar_leaves(tree, {ROOT: updates(seed, [0, 0, 0, 0, 0, 5, 5, 5])})
    ]
    assert len(names) > 10
    assert set(names) == {("0.0", "0.1")}
    for seed in range(20):
        different = updates(seed, [0, 0, 0, 5, 5, 6, 6, 6])
        assert list(similar_leaves(tree, {ROOT: different})) == []


def test_no_leaves_are_joined_during_a_trial_or_with_one_of_several_members_known():
    tree, same = tree_of("0.0", "0.1"), dict.fromkeys("abcde", np.ones(DIM))
    trial = Proposal(ROOT, 4, 8, ())
    assert list(similar_leaves(tree, {ROOT: same}))
    assert not list(similar_leaves(tree.update(replace(tree.root, trial=trial)), {ROOT: same}))
    del same["d"]
    assert not list(similar_leaves(tree, {ROOT: same}))


def test_the_second_of_three_leaves_is_joined_to_the_first_and_closed():
    heard, result = judged("0.0", "0.1", "0.2", opinions=NEITHER)
    joined, tree = heard.state.judging.proposals[0].leaves, result.state.tree
    assert_partitions(tree, "abcdefgh")
    assert joined == ("0.0", "0.1")
    assert [leaf.name for leaf in tree.leaves] == ["0.0", "0.2"]
    assert tree.clusters["0.0"].members == tuple("abcde")
    assert tree.clusters["0.1"].edge == {}
    assert tree.root.next_child == "0.3"
    moved = [(move.client, move.origin, move.target) for move in result.state.moves]
    assert moved == [("d", "0.1", "0.0"), ("e", "0.1", "0.0")]
    assert not {"d", "e"} & result.state.known.keys()
    (reason,) = [d.reason for d in result.decisions if d.cluster == "0.1"]
    assert "it is joined to 0.0" in reason


def test_leaves_with_members_that_are_served_better_stay():
    heard, result = judged("0.0", "0.1", "0.2")
    assert heard.asks
    assert result.state.tree is heard.state.tree
    assert (result.state.known, result.state.moves) == (heard.state.known, ())
    served = ["the clients are served better" in d.reason for d in result.decisions]
    assert served == [True, True, False]


def test_the_joined_model_is_the_mean_of_both_by_weight():
    heard, result = judged("0.0", "0.1", weights=dict.fromkeys("de", 3.0), opinions=NEITHER)
    (proposal,) = heard.state.judging.proposals
    # The leaves' models after this round are 1 and 2, with weights 3 and 6.
    np.testing.assert_allclose(proposal.common.trained, np.full(DIM, 1 + 6 / 9))
    np.testing.assert_allclose(result.state.tree.root.model.trained, proposal.common.trained)
    common = [ask for ask in heard.asks if ask.role is Role.COMMON]
    assert {ask.client for ask in common} == {*"abcde"}
    assert all(heard.state.model_of(ask) is proposal.common for ask in common)
    for silent in ("de", "abcde"):  # without a known update, a model has no weight
        assert judged("0.0", "0.1", silent=silent)[0].asks == ()


def test_a_run_without_any_gain_from_separate_models_ends_in_one_leaf():
    centers = np.repeat(two.centers[:1], 2, axis=0)
    cfl = cfl_of(NeverSplit(), moving=True, trial_rounds=4, inner_interval=5)
    tree = final(two, cfl_of(), 30).tree
    state = final(replace(two, centers=centers), cfl, 30, state=CFLState(tree), done=30)
    assert len(state.tree.leaves) == 1
    assert len(final(two, cfl, 30, state=CFLState(tree), done=30).tree.leaves) == 2


def test_a_loss_that_one_client_invents_is_no_measure() -> None:
    metrics: list[dict[str, float]] = [{"accuracy": 0.9, "loss": 0.1} for _ in range(3)]
    metrics[0]["a-loss"] = 0.0
    replies = [Reply(Ask(f"client-{i}", "0", Role.OWN, 1), 10.0, m) for i, m in enumerate(metrics)]
    names = [measure.name for measure in measures_in(replies, Measure("accuracy"))]
    assert names == ["accuracy", "loss"]
