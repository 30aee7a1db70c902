"""Splits on trial: what it costs, what the clients judge, and what happens to the tree."""

from collections import Counter
from dataclasses import replace
from itertools import repeat

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cflower.algorithm.criteria import Decision, Evidence, NeverSplit, Outcome
from cflower.algorithm.state import DECIDE, CFLState, Reply, Role
from cflower.algorithm.tree import ROOT, Cluster, ParameterTree, Status, Trial
from cflower.auto.criterion import AutoCriterion
from cflower.changes import changes_of
from cflower.changes.splits import VOTERS, SplitTrials, voters
from cflower.seeding import generator
from tests.algorithm.planted import (
    DIM,
    Federation,
    cfl_of,
    clusters_of,
    ended,
    final,
    laws,
    run,
    vector,
)

two, four = Federation.dealt(3, 3), Federation.dealt(3, 3, 3, 3)
BETTER, WORSE, NEITHER = repeat(True), repeat(False), repeat(None)
JUDGED = Outcome.CONFIRMED, Outcome.UNDONE, Outcome.UNJUDGED


def judged(rounds, moving=False, **settings):
    """The algorithm with a trial of so many rounds."""
    return cfl_of(changes=changes_of(rounds, moving=moving), **settings)


def conventional(federation, num_rounds):
    """The model of federated learning without clusters."""
    return final(federation, cfl_of(NeverSplit()), num_rounds).tree.root.model.trained


def heard_when_due(federation, cfl, clients=None):
    """The state before the first round with questions, what was heard then, and the round."""
    state = federation.state()
    for server_round in range(1, 40):
        replies = federation.replies(cfl, state, server_round, clients)
        heard = cfl.heard(state, replies, server_round)
        if heard.asks:
            return state, heard, server_round
        state = heard.state
    pytest.fail("no split was judged")


def answered(cfl, heard, gains, server_round):
    """The end of a round in which each client gains this much accuracy over 0.5."""
    replies = []
    for ask in heard.asks:
        gain = gains[ask.client] if ask.role is Role.OWN else 0.0
        replies.append(Reply(ask, 36.0, {"accuracy": 0.5 + gain}))
    return cfl.heard(heard.state, replies, server_round)


@pytest.mark.parametrize("criterion", [None, AutoCriterion()])
@pytest.mark.parametrize("opinions", [BETTER, WORSE, NEITHER])
def test_a_proposal_costs_no_training(criterion, opinions):
    federation = replace(four, noise=0.01)
    given = (criterion,) if criterion else ()
    cfl = cfl_of(*given, changes=changes_of(1, moving=True))
    for server_round, (before, result) in enumerate(run(federation, cfl, 30, opinions=opinions), 1):
        asks = cfl.asks(before, server_round)
        assert [ask.client for ask in asks] == federation.clients
        assert {ask.role for ask in asks} == {Role.OWN}
        assert result.asks == ()
    assert result.state.tree.root.undone or result.state.tree.root.children


def test_the_questions_are_evaluations_one_of_the_own_model_and_one_of_each_candidate():
    cfl = judged(4)
    before, heard, server_round = heard_when_due(two, cfl)
    state = heard.state
    assert server_round == before.tree.root.trial.due == before.tree.root.split_round + 4
    expected = {(c, state.tree.leaf_of(c).name, Role.OWN) for c in two.clients}
    expected |= {(c, ROOT, Role.CANDIDATE) for c in two.clients}
    assert {(ask.client, ask.cluster, ask.role) for ask in heard.asks} == expected
    assert len(heard.asks) == len(expected)
    kinds = {(ask.server_round, ask.task, ask.part) for ask in heard.asks}
    assert kinds == {(server_round, "evaluate", DECIDE)}
    for ask in heard.asks:
        leaf = state.tree.leaf_of(ask.client).model
        candidate = ask.role is Role.CANDIDATE
        expected = state.tree.model_of(ROOT) if candidate else leaf
        np.testing.assert_array_equal(state.model_of(ask).trained, expected.trained)


@pytest.mark.parametrize("weighting", ["examples", "uniform"])
def test_the_candidate_is_the_weighted_mean_of_the_leaves_below(weighting):
    examples = {client: 1.0 + 2 * i for i, client in enumerate(two.clients)}
    federation = replace(two, num_examples=examples)
    cfl = judged(3, weighting=weighting)
    _, heard, server_round = heard_when_due(federation, cfl)
    (candidate,) = {id(m): m for m in map(heard.state.model_of, heard.asks[-6:])}.values()
    weights = [
        sum(examples[c] if weighting == "examples" else 1.0 for c in leaf.members)
        for leaf in heard.state.tree.leaves
    ]
    leaves = [leaf.model.trained for leaf in heard.state.tree.leaves]
    np.testing.assert_allclose(candidate.trained, np.average(leaves, axis=0, weights=weights))
    # Of quadratic clients the mean of the leaves is what all would have learned together.
    plain = cfl_of(NeverSplit(), weighting=weighting)
    together = final(federation, plain, server_round).tree.root.model.trained
    np.testing.assert_allclose(candidate.trained, together, atol=1e-12)


def test_at_most_a_sample_of_each_leaf_votes_another_one_in_another_round():
    federation = Federation.dealt(VOTERS + 10, 8)
    _, heard, server_round = heard_when_due(federation, judged(1))
    tree = heard.state.tree
    asked = Counter(tree.leaf_of(ask.client).name for ask in heard.asks if ask.role is Role.OWN)
    assert sorted(asked.values()) == [8, VOTERS]
    now, later = (voters(tree, tree.leaves, server_round + i) for i in (0, 1))
    assert set(now) == {ask.client for ask in heard.asks}
    assert set(now) != set(later)
    assert now == voters(tree, tree.leaves, server_round)


def test_in_each_round_of_a_trial_the_mean_of_the_leaves_is_the_conventional_model():
    seen = 0
    for server_round, (_, result) in enumerate(run(two, judged(20), 30), 1):
        if result.state.tree.root.on_trial:
            model = result.state.tree.model_of(ROOT).trained
            np.testing.assert_allclose(model, conventional(two, server_round), atol=1e-12)
            seen += 1
    assert seen >= 16


def test_a_judgement_that_was_missed_is_made_in_the_next_round():
    cfl = judged(4)
    due = heard_when_due(two, cfl)[2]
    state = final(two, cfl, due - 1)
    assert state.tree.root.trial.due == due
    (undone,) = final(two, cfl, 1, state=state, done=due, opinions=WORSE).tree.root.undone
    assert (undone.status, undone.due) == (Status.UNDONE, due + 1)


def test_an_undone_split_leaves_the_mean_and_the_next_one_waits_and_has_new_names():
    names, outcomes, waited = set(), [], 0
    rounds = run(two, judged(3), 60, opinions=WORSE)
    for server_round, (before, result) in enumerate(rounds, 1):
        names |= set(result.state.tree.clusters)
        outcomes += [d.outcome for d in result.decisions if d.cluster == ROOT]
        waited += any(d.outcome is Outcome.PUT_OFF for d in result.decisions)
        if outcomes[-1] is Outcome.UNDONE and outcomes.count(Outcome.UNDONE) == 1:
            (root,) = result.state.tree.clusters.values()
            model = conventional(two, server_round)
            np.testing.assert_allclose(root.model.trained, model, atol=1e-12)
            assert root.is_leaf
            assert root.members == before.tree.root.members
            assert root.trial is None
            assert [trial.status for trial in root.undone] == [Status.UNDONE]
            assert root.rounds == server_round
    assert outcomes.count(Outcome.UNDONE) >= 2
    assert waited > 0
    assert names == {ROOT, *(f"0.{i}" for i in range(2 * outcomes.count(Outcome.SPLIT)))}


@pytest.mark.parametrize("opinions", [WORSE, NEITHER])
def test_a_split_that_shows_no_gain_is_undone_at_the_first_vote(opinions):
    lines = []
    for _, result in run(two, judged(3), 40, opinions=opinions):
        lines += [d for d in result.decisions if d.cluster == ROOT]
        if lines[-1].outcome in JUDGED:
            break
    began = next(line.server_round for line in lines if line.outcome is Outcome.SPLIT)
    assert (lines[-1].outcome, lines[-1].server_round) == (Outcome.UNDONE, began + 3)


@pytest.mark.parametrize(("gaining", "votes"), [(3, 1), (4, 2)])
def test_clients_of_whom_more_gain_than_lose_judge_once_more(gaining, votes):
    cfl, judgements = judged(3), []
    gains = {c: 0.1 if i < gaining else -0.1 for i, c in enumerate(two.clients)}
    state = two.state()
    for server_round in range(1, 40):
        heard = cfl.heard(state, two.replies(cfl, state, server_round), server_round)
        state = heard.state
        if heard.asks:
            result = answered(cfl, heard, gains, server_round)
            state = result.state
            judgements.append(result.decisions[-1])
            if judgements[-1].outcome in JUDGED:
                break
    *open_, end = judgements
    began = state.tree.root.undone[0].began
    assert [made.server_round - began for made in judgements] == [3, 6][:votes]
    assert all(made.outcome is Outcome.ON_TRIAL for made in open_)
    assert all("judge again" in made.reason for made in open_)
    assert end.outcome is Outcome.UNDONE


@pytest.mark.parametrize("budget", [0, 11, 12, 24])
def test_what_exceeds_the_budget_is_not_asked_and_the_last_round_says_so(budget):
    began = final(two, judged(1), 30, opinions=BETTER).tree.root.split_round
    cfl, asks, last = judged(1, budget=budget), [], began + 3
    state = two.state()
    for server_round in range(1, last + 1):
        replies = two.replies(cfl, state, server_round)
        heard = cfl.heard(state, replies, server_round, last=server_round == last)
        asks += heard.asks
        result = ended(two, cfl, heard, BETTER)
        state = result.state
    assert len(asks) == state.asked == (12 if budget >= 12 else 0)
    assert state.tree.root.on_trial == (budget < 12)
    outcomes = [d.outcome for d in result.decisions if d.cluster == ROOT]
    assert outcomes == ([Outcome.ON_TRIAL] if budget < 12 else [])
    assert clusters_of(state) == two.planted


@pytest.mark.parametrize("opinions", [WORSE, NEITHER])
def test_the_last_round_undoes_a_trial_and_refutes_only_a_split_that_serves_clients_worse(opinions):
    began = final(two, judged(3), 30, opinions=BETTER).tree.root.split_round
    cfl, last = judged(3), began + 1
    state = final(two, cfl, last, opinions=opinions, last=last)
    (trial,) = state.tree.root.undone
    assert (state.tree.root.is_leaf, trial.due) == (True, last)
    assert trial.status is (Status.UNDONE if opinions is WORSE else Status.OPEN)
    # The run goes on.
    results = run(two, cfl, 6 * began, state=state, done=last, opinions=BETTER)
    outcomes = {result.decisions[0].outcome for _, result in results}
    assert (Outcome.PUT_OFF in outcomes) == (opinions is WORSE)
    assert Outcome.SPLIT in outcomes


def test_a_split_in_the_last_round_itself_is_judged_there():
    began = final(two, judged(3), 30, opinions=BETTER).tree.root.split_round
    *_, (_, result) = run(two, judged(3), began, opinions=BETTER, last=began)
    assert [d.outcome for d in result.decisions] == [Outcome.SPLIT, Outcome.CONFIRMED]


def test_children_do_not_split_while_their_parents_split_is_on_trial():
    waits = 0
    for before, result in run(four, judged(12), 60, opinions=BETTER):
        if before.tree.root.on_trial:
            assert all(c.is_leaf for n, c in result.state.tree.clusters.items() if n != ROOT)
        waits += any("have not judged" in decision.reason for decision in result.decisions)
    assert waits > 0
    assert clusters_of(result.state) == four.planted


@settings(laws, max_examples=20)
@given(st.lists(st.integers(1, 4), min_size=2, max_size=4), st.integers(0, 99), st.booleans())
def test_clusters_partition_the_clients_and_no_name_is_used_twice_whatever_they_vote(
    sizes, seed, partial
):
    drawn = generator(seed, "opinions").integers(3, size=999)
    opinions = map([True, False, None].__getitem__, drawn)
    cfl = judged(1 + seed % 3, moving=True)
    federation = Federation.dealt(*sizes, seed=seed)
    times = Counter()
    # `run` asserts that the clusters partition the clients.
    for before, result in run(federation, cfl, 30, partial=partial, opinions=opinions, last=30):
        times.update(result.state.tree.clusters.keys() - before.tree.clusters.keys())
        assert result.state.pending is None
    assert set(times.values()) <= {1}
    assert not any(cluster.on_trial for cluster in result.state.tree.clusters.values())


@pytest.mark.parametrize("seed", range(4))
def test_a_run_goes_on_from_any_round_as_if_it_had_not_stopped(seed):
    federation, cfl = Federation.dealt(4, 3, 2, seed=seed), judged(1, moving=True)
    states = [result.state for _, result in run(federation, cfl, 24)]
    for done in range(1, 24, 4):
        again = final(federation, cfl, 24 - done, state=states[done - 1], done=done)
        assert again.tree.clusters.keys() == states[-1].tree.clusters.keys()
        for name, cluster in again.tree.clusters.items():
            other = states[-1].tree.clusters[name]
            np.testing.assert_array_equal(cluster.model.trained, other.model.trained)
            assert (cluster.members, cluster.trial) == (other.members, other.trial)


def test_an_unassigned_client_trains_only_the_stationary_model_and_judges_nothing():
    cfl = judged(9)
    before, _, due = heard_when_due(two, cfl)
    state = final(two, cfl, due - 8)
    assert state.tree.root.on_trial
    state = replace(state, tree=state.tree.admit(["new"], due - 7))
    (ask,) = cfl.asks(state, due - 7, ["new"])
    assert (ask.cluster, ask.role) == (ROOT, Role.PLACE)
    assert state.model_of(ask) is state.tree.root.model is not state.tree.model_of(ROOT)
    assert [a.role for a in cfl.asks(state, due - 7, ["client-0"])] == [Role.OWN]
    before = replace(before, tree=before.tree.admit(["new"], due))
    heard = cfl.heard(before, two.replies(cfl, before, due, two.clients), due)
    assert {ask.client for ask in heard.asks} == set(two.clients)


def test_a_leaf_that_a_newcomer_gets_during_a_trial_does_not_give_its_name_away():
    federation = Federation.dealt(3, 3, 1)
    groups = {c: group for c, group in federation.groups.items() if group < 2}
    joined, before = replace(federation, groups=groups | {"new": 2}), replace(two, groups=groups)
    cfl = judged(9)
    due = heard_when_due(before, cfl)[2]
    state = final(before, cfl, due - 5)
    state = replace(state, tree=state.tree.admit(["new"], due - 4))
    state = final(joined, cfl, 1, state=state, done=due - 5)
    branch = state.tree.leaf_of("new")
    assert branch.members == ("new",)
    state = final(joined, cfl, 4, state=state, done=due - 4, opinions=WORSE)
    assert state.tree.root.is_leaf
    assert (branch.name, state.tree.root.next_child) == ("0.2", "0.3")


def test_a_member_that_first_trains_after_the_split_goes_to_the_nearest_child():
    federation, absent = Federation.dealt(4, 4, 1), "client-2"  # it resembles neither group
    others = [client for client in federation.clients if client != absent]
    cfl = judged(2)
    state = final(federation, cfl, 30, clients=others)
    assert state.tree.unassigned == {absent: ROOT}
    member = final(federation, cfl, 1, state=state, done=30, clients=[absent])
    assert member.tree.root.children == state.tree.root.children
    assert not member.tree.unassigned
    assert not member.placed[absent].familiar
    # As a newcomer it would begin one.
    groups = {**federation.groups, "new": federation.groups[absent]}
    state = replace(state, tree=state.tree.admit(["new"], 31))
    joined = replace(federation, groups=groups)
    newcomer = final(joined, cfl, 1, state=state, done=30, clients=["new"])
    assert newcomer.tree.leaf_of("new").members == ("new",)


@pytest.mark.parametrize(("opinions", "waits"), [(WORSE, 4), (NEITHER, 2)])
def test_after_a_split_that_clients_refute_a_cluster_waits_twice_as_long(opinions, waits):
    cfl = judged(1, budget=12)  # for one question: the next split stays open
    states = [result.state for _, result in run(two, cfl, 40, opinions=opinions)]
    (undone,) = states[-1].tree.root.undone
    unsplit = [state.tree.root.is_leaf for state in states[undone.due :]]
    assert unsplit.index(False) == waits * undone.due - undone.due - 1


def test_with_every_split_that_is_undone_the_next_one_waits_twice_as_long():
    undone = [Trial(n, n, SIDES, Status.UNDONE) for n in (5, 10, 40)]
    leaf = Cluster(ROOT, tuple("abcd"), vector([0.0]))
    nothing = Evidence(ROOT, 0, (), (), (), np.zeros(0), np.zeros(0), 0.0, np.zeros(0, int))
    for refused, again in ((1, 10), (2, 40), (3, 320)):
        tree = ParameterTree({ROOT: replace(leaf, undone=tuple(undone[:refused]))})
        for server_round in (again - 1, again):
            decision = Decision(ROOT, server_round, Outcome.SPLIT, "", 0.0, 0.0, sides=SIDES)
            decision = SplitTrials().revised(CFLState(tree), nothing, decision)
            assert (decision.outcome is Outcome.SPLIT) == (server_round == again)


SIDES = ("a", "b"), ("c", "d")


def test_a_leaf_waits_for_its_parents_judgement_until_that_is_due_and_is_judged_after_it():
    root = Cluster(ROOT, tuple("abcd"), vector([0.0]), children=("0.0", "0.1"), split_round=3)
    leaves = [Cluster(f"0.{i}", side, vector([0.0])) for i, side in enumerate(SIDES)]
    tree = ParameterTree({c.name: c for c in (replace(root, trial=Trial(3, 5, SIDES)), *leaves)})
    nothing = Evidence("0.0", 0, (), (), (), np.zeros(0), np.zeros(0), 0.0, np.zeros(0, int))
    for server_round, outcome in ((5, Outcome.PUT_OFF), (6, Outcome.SPLIT)):
        sides = ("a",), ("b",)
        decision = Decision("0.0", server_round, Outcome.SPLIT, "", 0.0, 0.0, sides=sides)
        assert SplitTrials().revised(CFLState(tree), nothing, decision).outcome is outcome
    below = [Cluster(f"0.0.{i}", (c,), vector([0.0])) for i, c in enumerate("ab")]
    split = replace(leaves[0], children=("0.0.0", "0.0.1"), trial=Trial(6, 7, (("a",), ("b",))))
    tree = ParameterTree({c.name: c for c in (*tree.clusters.values(), split, *below)})
    (proposal,) = SplitTrials().proposed(CFLState(tree), 9, last=True)
    assert [question.cluster for question in proposal.questions] == [ROOT]


@pytest.mark.parametrize("sides", [SIDES, (("a", "c"), ("b", "d"))])
@pytest.mark.parametrize("status", [Status.UNDONE, Status.OPEN, Status.JOINED])
def test_after_an_undone_split_the_cluster_waits_until_the_rounds_have_doubled(sides, status):
    undone, waits = Trial(46, 50, SIDES, status), status is Status.UNDONE
    earlier = Trial(3, 4, SIDES, Status.OPEN)
    leaf = Cluster(ROOT, tuple("abcd"), vector([0.0]), undone=(earlier, undone))
    state, revised = CFLState(ParameterTree({ROOT: leaf})), SplitTrials().revised
    nothing = Evidence(ROOT, 0, (), (), (), np.zeros(0), np.zeros(0), 0.0, np.zeros(0, int))
    for server_round, put_off in ((51, waits), (99, waits), (100, False)):
        decision = Decision(ROOT, server_round, Outcome.SPLIT, "", 0.0, 0.0, sides=sides)
        decision = revised(state, nothing, decision)
        assert decision.outcome is (Outcome.PUT_OFF if put_off else Outcome.SPLIT)
        assert ("100" in decision.reason) == put_off
        assert decision.sides == (() if put_off else sides)


def test_a_split_that_nobody_evaluates_is_unjudged_and_final():
    cfl = judged(2, moving=True)
    state, heard, server_round = heard_when_due(two, cfl)
    result = cfl.heard(heard.state, [], server_round)
    root, decision = result.state.tree.root, result.decisions[-1]
    assert (decision.cluster, decision.outcome) == (ROOT, Outcome.UNJUDGED)
    assert "no client evaluated both models" in decision.reason
    assert root.trial is None
    assert root.children == state.tree.root.children
    assert result.state.tree.model_of(ROOT) is root.model
    # So the end of the run asks nobody about it again.
    end = cfl.heard(result.state, two.replies(cfl, result.state, 40), 40, last=True)
    assert end.asks == ()
    assert clusters_of(end.state) == two.planted


@pytest.mark.parametrize("lost", ["own", "candidate"])
def test_who_evaluates_only_one_of_both_models_has_no_voice(lost):
    cfl = judged(2)
    heard, server_round = heard_when_due(two, cfl)[1:]
    role = {"own": Role.OWN, "candidate": Role.CANDIDATE}[lost]
    kept = [ask for ask in heard.asks if ask.client != "client-0" or ask.role is not role]
    result = answered(
        cfl, heard._replace(asks=tuple(kept)), dict.fromkeys(two.clients, 0.2), server_round
    )
    assert result.decisions[-1].figures["voters"] == 5
    assert result.decisions[-1].outcome is Outcome.CONFIRMED


def test_a_part_that_is_served_worse_goes_on_from_the_common_model_of_a_confirmed_split():
    federation = Federation.dealt(20, 6)
    cfl = judged(1)
    _, heard, server_round = heard_when_due(federation, cfl)
    gains = {c: (0.1, -0.2)[group] for c, group in federation.groups.items()}
    result = answered(cfl, heard, gains, server_round)
    decision, tree = result.decisions[-1], result.state.tree
    assert decision.outcome is Outcome.CONFIRMED
    assert tree.root.trial.status is Status.CONFIRMED
    worse = next(leaf for leaf in tree.leaves if len(leaf.members) == 6)
    better = next(leaf for leaf in tree.leaves if len(leaf.members) == 20)
    mean = heard.state.tree.model_of(ROOT)
    np.testing.assert_array_equal(worse.model.trained, mean.trained)
    assert better.model is heard.state.tree.clusters[better.name].model
    assert f"the common model serves {worse.name} better" in decision.reason
    assert f"serves {better.name}" not in decision.reason


@pytest.mark.parametrize("loss", [0.02, 0.1, 0.3])
@pytest.mark.parametrize("mixed", [False, True])
def test_a_small_gain_of_14_never_costs_six_others_a_lot(loss, mixed):
    """They are a part of their own, or spread over both."""
    federation = Federation.dealt(14, 6)
    cfl = judged(1)
    _, heard, server_round = heard_when_due(federation, cfl)
    losing = federation.clients[:6]
    if not mixed:
        losing = [c for c, group in federation.groups.items() if group == 1]
    noise = generator(0, "gains").normal(0, 0.002, size=20)
    gains = {
        c: (-loss if c in losing else 0.01) + e
        for c, e in zip(federation.clients, noise, strict=True)
    }
    result = answered(cfl, heard, gains, server_round)
    outcome, mean = result.decisions[-1].outcome, heard.state.tree.model_of(ROOT).trained
    if outcome is Outcome.CONFIRMED:
        for client in losing:
            model = result.state.tree.leaf_of(client).model.trained
            np.testing.assert_array_equal(model, mean)
    if mixed:
        assert outcome is not Outcome.CONFIRMED


@laws
@given(st.lists(st.floats(-0.4, 0.4), min_size=6, max_size=6))
def test_a_confirmed_split_leaves_no_part_with_a_model_that_it_likely_loses_by(gains):
    cfl = judged(1)
    _, heard, server_round = heard_when_due(two, cfl)
    by_client = dict(zip(two.clients, gains, strict=True))
    result = answered(cfl, heard, by_client, server_round)
    mean = heard.state.tree.model_of(ROOT).trained
    for leaf in result.state.tree.leaves:
        all_lose = all(by_client[client] < -1e-9 for client in leaf.members)
        if result.decisions[-1].outcome is Outcome.CONFIRMED and all_lose:
            np.testing.assert_array_equal(leaf.model.trained, mean)
    outcome = result.decisions[-1].outcome
    if min(gains) > 1e-9:
        assert outcome is Outcome.CONFIRMED
    if max(gains) < -1e-9:
        assert outcome is Outcome.UNDONE


def test_without_a_trial_the_clients_are_asked_nothing_and_the_split_is_final():
    for _, result in run(two, judged(0, moving=True), 30, last=30):
        assert result.asks == ()
    assert clusters_of(result.state) == two.planted
    assert result.state.tree.root.trial is None
    assert np.shape(result.state.tree.model_of(ROOT).trained) == (DIM,)
