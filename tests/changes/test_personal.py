"""The personal step: what members train and evaluate, what they choose, and who can stop it."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cflower.algorithm.criteria import NeverSplit
from cflower.algorithm.state import DECIDE, CFLState, Role
from cflower.algorithm.tree import ROOT, ParameterTree
from cflower.changes.personal import MOST_TRAININGS, PATIENCE, choices_of_others
from tests.algorithm.planted import DIM, Federation, cfl_of, vector

CFL = cfl_of(NeverSplit(), personal=True)
LAST = 30
FIRST = vector(np.zeros(DIM))
DIFFERENT = Federation.dealt(*[1] * 8, noise=0.0)
ALIKE = Federation.dealt(8)


def after(federation, model=None):
    """The state after a run without splits: the mean of the optima, or this model."""
    centers = [federation.centers[group] for group in federation.groups.values()]
    root = vector(np.mean(centers, axis=0)) if model is None else model
    return CFLState(ParameterTree.initial(root, federation.clients), first=FIRST)


def step_of(federation, state, spoil=lambda ask, reply: reply, measures=True):
    """The personal step of the root, and all asks; training may measure the model first."""
    heard, asked = CFL.personalised(state, LAST), []
    while heard.asks:
        replies = []
        for ask in heard.asks:
            reply = federation.reply(CFL, heard.state, ask)
            if ask.task == "train" and measures:
                (loss,) = losses(federation, {ask.client: heard.state.model_of(ask)})
                reply = replace(reply, metrics={"loss": loss}, num_examples=10.0)
            replies.append(spoil(ask, reply))
        asked += heard.asks
        heard = CFL.heard(heard.state, filter(None, replies), LAST)
    assert heard.state.judging is None
    assert heard.state.tree is state.tree
    return heard.state.personal[ROOT], asked


def losses(federation, models):
    away = {c: federation.centers[federation.groups[c]] - m.trained for c, m in models.items()}
    return [float(a @ a) / 2 for a in away.values()]


def test_members_that_differ_get_models_of_their_own():
    state = after(DIFFERENT)
    step, asked = step_of(DIFFERENT, state)
    assert (step.accepted, step.kappa) == (True, 0.0)
    assert set(step.models) == set(DIFFERENT.clients)
    assert set(step.shares.values()) == {1.0}
    assert max(losses(DIFFERENT, step.models)) < 0.01
    assert {ask.role for ask in asked} == {Role.PERSONAL}
    assert {ask.part for ask in asked} == {DECIDE}
    by_client = [ask for ask in asked if ask.client == "client-0"]
    trained = [ask for ask in by_client if ask.task == "train"]
    assert len(trained) == step.trainings == 2 * MOST_TRAININGS
    assert len(by_client) - len(trained) == step.evaluations == 9
    # Each training has a round of its own, so that chance is not the same in all.
    assert [ask.server_round for ask in trained[:3]] == [LAST + 1, LAST + 2, LAST + 3]


def test_where_the_leafs_model_is_a_bad_place_to_start_members_start_from_the_first_one():
    state = after(DIFFERENT, vector(np.full(DIM, 1e3)))
    step, _ = step_of(replace(DIFFERENT, step=0.3), state)
    assert (step.accepted, step.start) == (True, 1)


def test_the_share_grows_with_the_members_examples():
    """Half of the way to each optimum is too far for all: half way back is right."""
    examples = {client: 10.0 * (1 + i % 2) for i, client in enumerate(DIFFERENT.clients)}

    def overshoot(ask, reply):
        if ask.task == "train" and ask.server_round > LAST + 1:
            return None
        if ask.task == "train":
            there = DIFFERENT.centers[DIFFERENT.groups[ask.client]]
            update = vector(3 * (there - state.tree.root.model.trained))
            return replace(reply, update=update, metrics={}, num_examples=examples[ask.client])
        return reply

    state = after(DIFFERENT)
    step, _ = step_of(DIFFERENT, state, overshoot)
    assert step.accepted
    assert step.kappa == pytest.approx(45.0)
    for client, share in step.shares.items():
        assert share == examples[client] / (examples[client] + step.kappa)
        model, leaf = step.models[client].trained, state.tree.root.model.trained
        there = DIFFERENT.centers[DIFFERENT.groups[client]]
        np.testing.assert_allclose(model, leaf + 3 * share * (there - leaf))


LIES = {"huge": 1e12, "none": 0.0, "negative": -1e12}


@pytest.mark.parametrize("federation", [DIFFERENT, ALIKE])
@pytest.mark.parametrize("lie", [*LIES, "alternating", "silent"])
def test_one_member_decides_nothing_for_the_others(federation, lie):
    def spoil(ask, reply):
        if ask.client != "client-0":
            return reply
        if lie == "silent":
            return None
        loss = LIES.get(lie, (-1) ** (ask.candidate + ask.server_round) * 1e6)
        return replace(reply, metrics={"loss": loss})

    honest, _ = step_of(federation, after(federation))
    step, _ = step_of(federation, after(federation), spoil)
    if federation is ALIKE:
        assert max(losses(ALIKE, step.models), default=0.0) < 0.01
    else:
        assert (step.accepted, step.kappa) == (True, honest.kappa)
        assert set(step.models) >= set(federation.clients[1:])


@pytest.mark.parametrize("accuracy", [None, 0.0])
def test_one_member_stops_no_small_gain_of_the_others(accuracy):
    """They gain ten points of accuracy; one does not reply, or has lost all."""

    def gains(ask, reply):
        ours = ask.candidate or (ask.task == "train" and ask.server_round > LAST + 1)
        if ours and ask.client == "client-0":
            return accuracy if accuracy is None else replace(reply, metrics={"accuracy": accuracy})
        return replace(reply, metrics={"accuracy": 0.9 if ours else 0.8}, num_examples=50.0)

    step, _ = step_of(DIFFERENT, after(DIFFERENT), gains)
    assert step.trainings == 2 * MOST_TRAININGS
    assert step.accepted == (accuracy is None)


@pytest.mark.parametrize(("examples", "shown"), [(9.0, False), (50.0, True)])
def test_a_member_that_its_leaf_serves_badly_goes_on_alone(examples, shown):
    """The others lose by training; enough examples of its own show that it gains."""

    def figures(ask, reply):
        ours = ask.candidate or (ask.task == "train" and ask.server_round > LAST + 1)
        leaf, own = (0.5, 0.9) if ask.client == "client-0" else (0.9, 0.8)
        return replace(reply, metrics={"accuracy": own if ours else leaf}, num_examples=examples)

    step, asked = step_of(ALIKE, after(ALIKE), figures)
    assert not step.accepted
    assert step.shares == ({"client-0": 1.0} if shown else {})
    assert step.reason.endswith("models of their own: client-0") == shown
    trainings = [ask.client for ask in asked if ask.task == "train"]
    others = 2 * (PATIENCE + 1)
    assert trainings.count("client-1") == others
    assert trainings.count("client-0") == (2 * MOST_TRAININGS if shown else others)


def test_a_member_that_loses_by_the_others_choice_keeps_the_leafs_model():
    def figures(ask, reply):
        ours = ask.candidate or (ask.task == "train" and ask.server_round > LAST + 1)
        leaf, own = (0.9, 0.5) if ask.client == "client-0" else (0.5, 0.9)
        return replace(reply, metrics={"accuracy": own if ours else leaf}, num_examples=50.0)

    step, _ = step_of(DIFFERENT, after(DIFFERENT), figures)
    assert step.accepted
    assert set(step.models) == set(DIFFERENT.clients[1:])


def test_an_app_that_measures_nothing_in_training_trains_as_long_as_it_may():
    step, _ = step_of(DIFFERENT, after(DIFFERENT), measures=False)
    assert (step.accepted, step.trainings, step.length) == (
        True,
        2 * MOST_TRAININGS,
        MOST_TRAININGS,
    )


def test_a_member_that_alone_measures_in_training_decides_nothing_for_the_others():
    def only_one_measures(ask, reply):
        if ask.task == "train" and ask.client != "client-0":
            return replace(reply, metrics={})
        return reply

    step, _ = step_of(DIFFERENT, after(DIFFERENT), only_one_measures)
    assert (step.accepted, step.trainings, step.length) == (
        True,
        2 * MOST_TRAININGS,
        MOST_TRAININGS,
    )


@pytest.mark.parametrize("members", [2, 3])
def test_few_members_that_differ_are_served_too(members):
    few = Federation.dealt(*[1] * members, noise=0.0)
    step, _ = step_of(few, after(few))
    assert (step.accepted, len(step.models)) == (True, members)


def test_too_few_held_out_examples_judge_no_model_of_ones_own():
    few = Federation.dealt(1, 1, noise=0.0)
    step, _ = step_of(few, after(few), lambda _, reply: replace(reply, num_examples=5.0))
    assert not step.accepted
    assert step.reason == "too few held-out examples to test models of their own"


def test_leaves_of_one_member_have_nobody_to_choose_for_them():
    alone = Federation.dealt(1)
    assert not CFL.personalised(after(alone), LAST).asks


# Whole numbers: their sums are exact, so that the law holds to the last bit.
@given(arrays(int, (5, 6), elements=st.integers(-9, 9)), st.integers(0, 5), st.data())
def test_no_member_has_a_part_in_the_choice_that_it_judges(gains, member, data):
    before = choices_of_others(gains)[member]
    gains[:, member] = data.draw(arrays(int, 5, elements=st.integers(-999, 999)))
    assert choices_of_others(gains)[member] == before
