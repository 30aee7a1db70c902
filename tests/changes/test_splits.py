"""Splits are put to the clients before they are made: what it costs, and what comes of it."""

from collections import Counter
from dataclasses import replace
from itertools import repeat

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cflower.algorithm.change import Change
from cflower.algorithm.constants import FEW, LONG
from cflower.algorithm.criteria import Decision, Evidence, NeverSplit, Outcome
from cflower.algorithm.state import ALL_EXAMPLES, DECIDE, CFLState, Reply, Role
from cflower.algorithm.tree import ROOT, ParameterTree, Status
from cflower.auto.criterion import AutoCriterion
from cflower.changes import changes_of
from cflower.changes.norm_history import NormHistory
from cflower.changes.splits import NAME, VOTERS, SplitQuestions, voters
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


def asking(*criterion, moving=False, **settings):
    """The algorithm that asks the clients about every split."""
    return cfl_of(*criterion, changes=changes_of(1, moving=moving), **settings)


def conventional(federation, num_rounds, **settings):
    """The state of federated learning without clusters."""
    return final(federation, cfl_of(NeverSplit(), **settings), num_rounds)


def first_question(federation, cfl, clients=None):
    """The state before the first round with questions, that round without answers, its number."""
    state = federation.state()
    for server_round in range(1, 40):
        replies = federation.replies(cfl, state, server_round, clients)
        heard = cfl.heard(state, replies, server_round)
        if heard.asks:
            return state, heard, server_round
        state = heard.state
    pytest.fail("no split was proposed")


def answered(cfl, heard, gains):
    """The end of a round in which each client gains this much accuracy over 0.5 by the split."""
    replies = []
    for ask in heard.asks:
        gain = gains[ask.client] if ask.role is Role.CANDIDATE else 0.0
        replies.append(Reply(ask, 36.0, {"accuracy": 0.5 + gain}))
    return cfl.heard(heard.state, replies, heard.asks[0].server_round)


def outcomes_of(result):
    return [decision.outcome for decision in result.decisions]


@pytest.mark.parametrize("criterion", [None, AutoCriterion()])
@pytest.mark.parametrize("opinions", [BETTER, WORSE, NEITHER])
def test_a_question_costs_no_training(criterion, opinions):
    federation, asked = replace(four, noise=0.01), 0
    given = (criterion,) if criterion else ()
    cfl = cfl_of(*given, changes=changes_of(1, moving=True))
    for server_round, (before, result) in enumerate(run(federation, cfl, 30, opinions=opinions), 1):
        asks = cfl.asks(before, server_round)
        assert [ask.client for ask in asks] == federation.clients
        assert {ask.role for ask in asks} == {Role.OWN}
        assert result.asks == ()
        asked = result.state.asked
    assert asked > 0
    assert result.state.tree.root.is_leaf == (opinions is not BETTER)


def test_the_questions_are_evaluations_of_the_common_model_and_of_that_of_the_clients_part():
    before, heard, server_round = first_question(two, asking())
    assert outcomes_of(heard) == [Outcome.PROPOSED]
    (made,) = heard.decisions
    parts = {client: f"0.{i}" for i, side in enumerate(made.sides) for client in side}
    expected = [(c, ROOT, Role.OWN) for c in two.clients]
    expected += [(c, part, Role.CANDIDATE) for c, part in parts.items()]
    assert sorted((ask.client, ask.cluster, ask.role) for ask in heard.asks) == sorted(expected)
    kinds = {(ask.server_round, ask.task, ask.part) for ask in heard.asks}
    assert kinds == {(server_round, "evaluate", DECIDE)}
    common = conventional(two, server_round).tree.root.model.trained
    for ask in heard.asks:
        model = heard.state.model_of(ask).trained
        if ask.role is Role.OWN:
            np.testing.assert_array_equal(model, common)
        else:
            center = two.centers[two.groups[ask.client]]
            origin = before.tree.root.model.trained
            np.testing.assert_allclose(model, (origin + center) / 2, atol=1e-2)


@pytest.mark.parametrize("weighting", ["examples", "uniform"])
def test_the_model_of_a_part_is_moved_by_the_weighted_mean_of_its_members_updates(weighting):
    examples = {client: 1.0 + 2 * i for i, client in enumerate(two.clients)}
    federation = replace(two, num_examples=examples)
    cfl = asking(weighting=weighting)
    before, heard, server_round = first_question(federation, cfl)
    updates = {
        reply.client: reply.update.trained
        for reply in federation.replies(cfl, before, server_round)
    }
    models = {a.cluster: heard.state.model_of(a) for a in heard.asks if a.role is Role.CANDIDATE}
    for name, side in zip(("0.0", "0.1"), heard.decisions[0].sides, strict=True):
        weights = [examples[c] if weighting == "examples" else 1.0 for c in side]
        mean = np.average([updates[c] for c in side], axis=0, weights=weights)
        expected = before.tree.root.model.trained + mean
        np.testing.assert_allclose(models[name].trained, expected, atol=1e-12)


def test_a_split_that_is_made_gives_each_part_the_model_that_it_judged():
    _, heard, server_round = first_question(two, asking())
    models = {a.cluster: heard.state.model_of(a) for a in heard.asks if a.role is Role.CANDIDATE}
    result = answered(asking(), heard, dict.fromkeys(two.clients, 0.1))
    assert outcomes_of(result) == [Outcome.SPLIT, Outcome.CONFIRMED]
    assert result.decisions[0].children == ("0.0", "0.1")
    assert clusters_of(result.state) == two.planted
    root = result.state.tree.root
    assert (root.split_round, root.trial.status) == (server_round, Status.CONFIRMED)
    assert (root.trial.began, root.trial.judged) == (server_round, server_round)
    for leaf in result.state.tree.leaves:
        np.testing.assert_array_equal(leaf.model.trained, models[leaf.name].trained)
        assert leaf.born == server_round


def test_at_most_a_sample_of_each_part_votes_another_one_in_another_round():
    federation = Federation.dealt(VOTERS + 10, 8)
    _, heard, server_round = first_question(federation, asking())
    asked = Counter(ask.cluster for ask in heard.asks if ask.role is Role.CANDIDATE)
    assert sorted(asked.values()) == [8, VOTERS]
    state = answered(asking(), heard, dict.fromkeys(federation.clients, 0.1)).state
    large = max(state.tree.leaves, key=lambda leaf: len(leaf.members))
    now, later = (voters(state, large, server_round + i) for i in (0, 1))
    assert {a.client for a in heard.asks if a.cluster == large.name} == set(now)
    assert set(now) != set(later)
    assert now == voters(state, large, server_round)


def test_where_few_take_part_no_more_answer_than_trained_in_the_round():
    federation, few = Federation.dealt(40, 40), 12
    draw = generator(0, "participants")
    cfl, state = asking(AutoCriterion()), federation.state()
    for server_round in range(1, 80):
        clients = sorted(draw.choice(federation.clients, few, replace=False))
        heard = cfl.heard(
            state, federation.replies(cfl, state, server_round, clients), server_round
        )
        if heard.asks:
            break
        state = heard.state
    asked = Counter(ask.cluster for ask in heard.asks if ask.role is Role.CANDIDATE)
    assert [*asked.values()] == [few, few]


@pytest.mark.parametrize("suspected", [FEW - 1, FEW])
def test_a_part_is_asked_alone_only_if_the_data_of_all_its_members_have_changed(suspected):
    _, heard, now = first_question(two, asking(moving=True))
    division = heard.state.pending.proposals[0].division
    part = division.children[0]
    norms = dict.fromkeys(part.members, NormHistory(ROOT, 9, suspected=suspected, factor=LONG))
    state = replace(heard.state, divisions={ROOT: division}, memory={"moves": norms})
    (proposal,) = SplitQuestions().proposed(state, now, last=False)
    asked = {client for question in proposal.questions for client in question.clients}
    assert asked == set(part.members if suspected == FEW else two.clients)


@pytest.mark.parametrize("opinions", [WORSE, NEITHER])
def test_a_refused_split_leaves_tree_and_models_exactly_as_if_nobody_had_been_asked(opinions):
    asked, num_rounds = [], 60
    plain = run(two, cfl_of(NeverSplit()), num_rounds)
    for (_, result), (_, other) in zip(
        run(two, asking(), num_rounds, opinions=opinions), plain, strict=True
    ):
        asked += [d.server_round for d in result.decisions if d.outcome is Outcome.REFUSED]
        (root,), (same) = result.state.tree.clusters.values(), other.state.tree.root
        np.testing.assert_array_equal(root.model.trained, same.model.trained)
        assert (root.children, root.trial, root.undone, root.split_round) == ((), None, (), None)
        assert (root.members, root.rounds, root.weight) == (same.members, same.rounds, same.weight)
        assert result.state.known.keys() == other.state.known.keys()
        assert (result.state.moves, result.state.divisions) == ((), {})
    first = asked[0]
    assert asked == [first * 2**i for i in range(len(asked))]
    assert len(asked) > 2


def test_the_models_of_a_run_are_the_conventional_ones_up_to_the_split():
    cfl, last = asking(), first_question(two, asking())[2]
    for server_round, (before, _) in enumerate(run(two, cfl, last, opinions=BETTER)):
        expected = conventional(two, server_round) if server_round else two.state()
        np.testing.assert_array_equal(
            before.tree.root.model.trained, expected.tree.root.model.trained
        )


@pytest.mark.parametrize("gaining", range(7))
def test_a_split_takes_a_likely_gain_or_gains_that_add_up_to_one(gaining):
    """Of six, four must gain: the loss of the other two is smaller and not likely."""
    cfl = asking()
    _, heard, server_round = first_question(two, cfl)
    gains = {c: 0.1 if i < gaining else -0.1 for i, c in enumerate(two.clients)}
    result = answered(cfl, heard, gains)
    if gaining >= 4:
        assert outcomes_of(result) == [Outcome.SPLIT, Outcome.CONFIRMED]
        return
    assert outcomes_of(result) == [Outcome.REFUSED]
    assert f"again from round {2 * server_round} on" in result.decisions[0].reason
    assert result.decisions[0].figures["better"] == gaining
    assert result.decisions[0].sides == ()
    assert result.state.tree is heard.state.tree
    assert result.state.memory[NAME] == {ROOT: server_round}


def test_a_part_that_all_members_of_another_outvote_keeps_the_common_model():
    """The others gain, so the split is made; the part likely loses by its own model."""
    federation = Federation.dealt(20, 6)
    cfl = asking()
    _, heard, _ = first_question(federation, cfl)
    gains = {c: (0.1, -0.2)[group] for c, group in federation.groups.items()}
    result = answered(cfl, heard, gains)
    decision, tree = result.decisions[-1], result.state.tree
    assert decision.outcome is Outcome.CONFIRMED
    worse = next(leaf for leaf in tree.leaves if len(leaf.members) == 6)
    better = next(leaf for leaf in tree.leaves if len(leaf.members) == 20)
    common = heard.state.tree.root.model.trained
    np.testing.assert_array_equal(worse.model.trained, common)
    assert not np.array_equal(better.model.trained, common)
    assert f"the common model serves {worse.name} better" in decision.reason
    assert f"serves {better.name}" not in decision.reason


@pytest.mark.parametrize("loss", [0.02, 0.1, 0.3])
def test_a_small_gain_of_14_never_costs_a_part_of_six_a_lot(loss):
    federation = Federation.dealt(14, 6)
    cfl = asking()
    _, heard, _ = first_question(federation, cfl)
    losing = [c for c, group in federation.groups.items() if group == 1]
    noise = generator(0, "gains").normal(0, 0.002, size=20)
    gains = {
        c: (-loss if c in losing else 0.01) + e
        for c, e in zip(federation.clients, noise, strict=True)
    }
    result = answered(cfl, heard, gains)
    for client in losing:
        model = result.state.tree.leaf_of(client).model.trained
        np.testing.assert_array_equal(model, heard.state.tree.root.model.trained)


@laws
@given(st.lists(st.floats(-0.4, 0.4), min_size=6, max_size=6))
def test_a_split_gives_no_part_a_model_that_it_likely_loses_by(gains):
    cfl = asking()
    _, heard, _ = first_question(two, cfl)
    by_client = dict(zip(two.clients, gains, strict=True))
    result = answered(cfl, heard, by_client)
    common = heard.state.tree.root.model.trained
    for leaf in result.state.tree.leaves:
        if all(by_client[client] < -1e-9 for client in leaf.members):
            np.testing.assert_array_equal(leaf.model.trained, common)
    if min(gains) > 1e-9:
        assert outcomes_of(result) == [Outcome.SPLIT, Outcome.CONFIRMED]
    if max(gains) < -1e-9:
        assert outcomes_of(result) == [Outcome.REFUSED]


@pytest.mark.parametrize("budget", [0, 11, 12])
def test_a_split_that_the_budget_leaves_no_question_for_is_put_off(budget):
    cfl, asks, outcomes, state = asking(budget=budget), [], [], two.state()
    began = first_question(two, asking())[2]
    for server_round in range(1, began + 1):
        replies = two.replies(cfl, state, server_round)
        heard = cfl.heard(state, replies, server_round, last=server_round == began)
        asks += heard.asks
        result = ended(two, cfl, heard, BETTER)
        state, outcomes = result.state, outcomes_of(result)
    assert len(asks) == state.asked == (12 if budget >= 12 else 0)
    if budget >= 12:
        assert outcomes == [Outcome.SPLIT, Outcome.CONFIRMED]
        assert clusters_of(state) == two.planted
    else:
        assert outcomes == [Outcome.PUT_OFF]
        assert "used up" in result.decisions[0].reason
        assert state.tree.root.is_leaf


@pytest.mark.parametrize(
    ("opinions", "outcomes"),
    [(BETTER, [Outcome.SPLIT, Outcome.CONFIRMED]), (WORSE, [Outcome.REFUSED])],
)
def test_a_question_is_asked_in_the_last_round_too(opinions, outcomes):
    last = first_question(two, asking())[2]
    *_, (_, result) = run(two, asking(), last, opinions=opinions, last=last)
    assert outcomes_of(result) == outcomes


def test_groups_that_train_in_turns_are_asked_although_they_never_train_in_one_round():
    cfl, state = asking(AutoCriterion()), two.state()
    for server_round in range(1, 21):
        chosen = [c for c, group in two.groups.items() if group == server_round % 2]
        replies = two.replies(cfl, state, server_round, chosen)
        state = ended(two, cfl, cfl.heard(state, replies, server_round)).state
    assert clusters_of(state) == two.planted


def test_a_split_found_while_all_examples_train_is_asked_about_one_round_later():
    """The round after it holds out the examples that decide, so that they can."""
    began = first_question(two, asking())[2]
    states, outcomes = [], []
    for before, result in run(two, asking(all_train_after=began - 2), began + 2, opinions=BETTER):
        states.append(before)
        outcomes.append(outcomes_of(result))
    (_, put_off, made) = outcomes[began - 2 : began + 1]
    assert (put_off, made) == ([Outcome.PUT_OFF], [Outcome.SPLIT, Outcome.CONFIRMED])
    # By round, from the first on: not before `all_train_after`, nor in the round of the question.
    assert [state.all_train for state in states] == [
        *[False] * (began - 2), True, True, False, True
    ]  # fmt: skip


def test_all_examples_train_in_no_round_after_which_leaves_are_compared():
    cfl = asking(moving=True, all_train_after=12, last_round=40)
    flags = [before.all_train for before, _ in run(two, cfl, 40, opinions=BETTER)]
    held_out = {number for number, all_train in enumerate(flags, 1) if not all_train}
    assert held_out == {*range(1, 13), 20, 30}  # not 40, which is the last


def test_a_message_to_train_says_that_all_examples_train_and_no_other_does():
    state = final(two, asking(), 1)
    ask = asking().asks(state, 2)[0]
    said = replace(state, all_train=True).settings_of
    assert (state.settings_of(ask), said(ask)) == ({}, {ALL_EXAMPLES: True})
    assert said(ask._replace(role=Role.PLACE)) == {ALL_EXAMPLES: True}
    assert said(ask._replace(role=Role.PERSONAL)) == said(ask._replace(task="evaluate")) == {}


@settings(laws, max_examples=20)
@given(st.lists(st.integers(1, 4), min_size=2, max_size=4), st.integers(0, 99), st.booleans())
def test_whatever_clients_vote_each_is_in_one_leaf_every_split_is_judged_and_no_name_comes_twice(
    sizes, seed, partial
):
    drawn = generator(seed, "opinions").integers(3, size=999)
    opinions = map([True, False, None].__getitem__, drawn)
    federation = Federation.dealt(*sizes, seed=seed)
    times = Counter()
    # `run` asserts that the clusters partition the clients.
    for before, result in run(
        federation, asking(moving=True), 30, partial=partial, opinions=opinions, last=30
    ):
        tree = result.state.tree
        times.update(tree.clusters.keys() - before.tree.clusters.keys())
        assert (result.state.pending, result.state.divisions) == (None, {})
        assert Outcome.PROPOSED not in outcomes_of(result)
        assert all(cluster.trial for cluster in tree.clusters.values() if cluster.children)
    assert set(times.values()) <= {1}


@pytest.mark.parametrize("seed", range(4))
def test_a_run_goes_on_from_any_round_as_if_it_had_not_stopped(seed):
    federation, cfl = Federation.dealt(4, 3, 2, seed=seed), asking(moving=True)
    states = [result.state for _, result in run(federation, cfl, 24)]
    for done in range(1, 24, 4):
        again = final(federation, cfl, 24 - done, state=states[done - 1], done=done)
        assert again.tree.clusters.keys() == states[-1].tree.clusters.keys()
        assert again.memory[NAME] == states[-1].memory[NAME] if NAME in again.memory else True
        for name, cluster in again.tree.clusters.items():
            other = states[-1].tree.clusters[name]
            np.testing.assert_array_equal(cluster.model.trained, other.model.trained)
            assert (cluster.members, cluster.trial) == (other.members, other.trial)


def test_a_member_without_a_part_has_no_vote_and_algorithm_4_places_it():
    federation, late = Federation.dealt(4, 4, 1), "client-2"  # it resembles neither group
    others = [client for client in federation.clients if client != late]
    cfl = asking()
    _, heard, _ = first_question(federation, cfl, others)
    assert {ask.client for ask in heard.asks} == set(others)
    state = final(federation, cfl, 30, clients=others)
    assert state.tree.unassigned == {late: ROOT}
    member = final(federation, cfl, 1, state=state, done=30, clients=[late])
    assert member.tree.root.children == state.tree.root.children
    assert not member.tree.unassigned
    assert not member.placed[late].familiar
    # As a newcomer it would begin one.
    groups = {**federation.groups, "new": federation.groups[late]}
    state = replace(state, tree=state.tree.admit(["new"], 31))
    joined = replace(federation, groups=groups)
    newcomer = final(joined, cfl, 1, state=state, done=30, clients=["new"])
    assert newcomer.tree.leaf_of("new").members == ("new",)


def test_absent_members_are_not_asked():
    cfl = asking()
    state, _, due = first_question(two, cfl)
    state = replace(state, absent=("client-0", "client-1"))
    here = [client for client in two.clients if client not in state.absent]
    heard = cfl.heard(state, two.replies(cfl, state, due, here), due)
    assert {ask.client for ask in heard.asks} == set(here)


class SplitsOff(Change):
    """Splits the first member off, whatever the criterion decides."""

    def revised(self, state, evidence, decision):
        """Into the first client and the others."""
        first, *others = evidence.clients
        return replace(decision, outcome=Outcome.SPLIT, sides=((first,), tuple(others)))


def test_a_split_by_a_change_is_asked_about_one_round_later_where_only_projections_are_kept():
    """The criterion has no groups of its own; the change's have models after one more round."""
    changes = SplitsOff(), *changes_of(1, moving=False)
    cfl, state = cfl_of(NeverSplit(), length=DIM // 2, changes=changes), two.state()
    for server_round, expected in enumerate((Outcome.PUT_OFF, Outcome.PROPOSED), 1):
        before = state
        heard = cfl.heard(state, two.replies(cfl, state, server_round), server_round)
        assert outcomes_of(heard) == [expected]
        state = heard.state
    origin, (proposal,) = before.tree.root.model.trained, state.pending.proposals
    alone = proposal.division.models[0].trained - origin
    update = two.centers[two.groups[two.clients[0]]] - origin
    np.testing.assert_allclose(alone, update / 2, atol=1e-2)


def test_a_split_that_serves_its_clients_is_made_also_where_only_projections_are_kept():
    assert clusters_of(final(two, asking(length=8), 30)) == two.planted


SIDES = ("a", "b"), ("c", "d")


def revised(server_round, *, refused=None, trained="abcd", born=0):
    """The decision on a split into `SIDES`, after these members trained in the round."""
    tree = ParameterTree.initial(vector([0.0]), "abcd")
    state = CFLState(tree.update(replace(tree.root, born=born)))
    state = replace(state, memory={NAME: {ROOT: refused}} if refused else {})
    rounds = np.array([server_round if c in trained else 1 for c in "abcd"])
    updates = tuple(np.eye(4)), np.ones(4), np.ones(4) / 4, 0.5, rounds
    evidence = Evidence(ROOT, server_round, tuple("abcd"), tuple("abcd"), *updates)
    decision = Decision(ROOT, server_round, Outcome.SPLIT, "why", 0.0, 0.0, sides=SIDES)
    return SplitQuestions().revised(state, evidence, decision)


@pytest.mark.parametrize(("born", "refused", "again"), [(0, 5, 10), (0, 50, 100), (40, 50, 60)])
def test_after_a_refused_split_the_next_question_waits_until_the_rounds_have_doubled(
    born, refused, again
):
    """Those of the cluster: what its members were asked before they were in it does not count."""
    for server_round in (refused + 1, again - 1):
        decision = revised(server_round, refused=refused, born=born)
        assert (decision.outcome, decision.sides) == (Outcome.PUT_OFF, ())
        assert f"until round {again}" in decision.reason
    assert revised(again, refused=refused, born=born).outcome is Outcome.PROPOSED
    assert revised(born + 1, born=born).outcome is Outcome.PROPOSED


def test_a_split_waits_until_somebody_of_each_part_trains():
    assert revised(9, trained="ac").outcome is Outcome.PROPOSED
    waits = revised(9, trained="ab")
    assert (waits.outcome, waits.sides) == (Outcome.PUT_OFF, ())
    assert "c, d" in waits.reason


def test_a_split_that_nobody_evaluates_is_not_judged_and_final():
    cfl = asking(moving=True)
    _, heard, server_round = first_question(two, cfl)
    result = cfl.heard(heard.state, [], server_round)
    root, decision = result.state.tree.root, result.decisions[-1]
    assert outcomes_of(result) == [Outcome.SPLIT, Outcome.UNJUDGED]
    assert "no client evaluated both models" in decision.reason
    assert root.trial is None
    assert result.state.tree.model_of(ROOT) is root.model
    # So nobody is asked about it again.
    end = cfl.heard(result.state, two.replies(cfl, result.state, 40), 40, last=True)
    assert end.asks == ()
    assert clusters_of(end.state) == two.planted


@pytest.mark.parametrize("lost", [Role.OWN, Role.CANDIDATE])
def test_who_evaluates_only_one_of_both_models_has_no_voice(lost):
    cfl = asking()
    heard = first_question(two, cfl)[1]
    kept = [ask for ask in heard.asks if ask.client != "client-0" or ask.role is not lost]
    result = answered(cfl, heard._replace(asks=tuple(kept)), dict.fromkeys(two.clients, 0.2))
    assert result.decisions[-1].figures["voters"] == 5
    assert result.decisions[-1].outcome is Outcome.CONFIRMED


def test_without_questions_a_split_is_made_at_once_and_final():
    cfl = cfl_of(changes=changes_of(0, moving=True))
    for _, result in run(two, cfl, 30, last=30):
        assert result.asks == ()
    assert clusters_of(result.state) == two.planted
    assert result.state.tree.root.trial is None
    assert np.shape(result.state.tree.model_of(ROOT).trained) == (DIM,)
