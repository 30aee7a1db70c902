"""The personal step: what members train and evaluate, what they choose, and who can stop it."""

from dataclasses import replace
from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cflower.algorithm.criteria import NeverSplit
from cflower.algorithm.state import DECIDE, CFLState, KnownUpdate, Reply, Role
from cflower.algorithm.tree import ROOT, ParameterTree
from cflower.algorithm.weights import Weights
from cflower.changes.personal import (
    HELD_OUT,
    KAPPAS,
    Leaf,
    PersonalStep,
    choices_of_others,
    concluded,
    leaves_of,
)
from cflower.metric import Metric
from tests.algorithm.planted import DIM, Federation, cfl_of, trained_reply, vector

CFL = cfl_of(NeverSplit())
LAST, TRAININGS = 30, 4
STAGES = "adapt", "train"
DIFFERENT = Federation.dealt(*[1] * 8, noise=0.0)
ALIKE = Federation.dealt(8)


def after(federation, model=None, sizes=None):
    """The state after a run without splits: the mean of the optima, or this model."""
    centers = [federation.centers[group] for group in federation.groups.values()]
    root = vector(np.mean(centers, axis=0)) if model is None else model
    known = {
        client: KnownUpdate(LAST, np.zeros(DIM), 1.0, (sizes or {}).get(client, 10.0), root.trained)
        for client in federation.clients
    }
    return CFLState(ParameterTree.initial(root, federation.clients), known)


def metrics_of(federation, client, model):
    """The loss of a model on a client's data."""
    away = federation.centers[federation.groups[client]] - model.trained
    return {"loss": float(away @ away) / 2}


def adapted(federation, state, ask, measure):
    """The reply of a client that does the whole step by itself."""
    leaf, model = state.model_of(ask), state.model_of(ask)
    config = state.settings_of(ask)
    for training in range(config["trainings"]):
        again = ask._replace(task="train", server_round=LAST + 1 + training)
        here = replace(state, pending=Fixed(model))
        update = federation.reply(CFL, here, again).update
        model = Weights(*(w + u for w, u in zip(model, update, strict=True)))
    size, metrics = state.known[ask.client].num_examples, {HELD_OUT: 36.0}
    for number, share in enumerate([0.0, *(size / (size + kappa) for kappa in config["kappas"])]):
        mix = Weights(*(w + share * (v - w) for w, v in zip(leaf, model, strict=True)))
        metrics |= {f"{k}.{number}": v for k, v in measure(ask.client, number, mix).items()}
    update = Weights(*(v - w for w, v in zip(leaf, model, strict=True)))
    return replace(trained_reply(CFL, ask, update, size), metrics=metrics)


class Fixed:
    """Answers for a state of which only one model is asked."""

    def __init__(self, model):
        self.model_of = lambda ask: model


def step_of(federation, state, stage="train", measure=None, spoil=lambda ask, reply: reply):
    """The personal step of the root, and all asks; ``measure`` gives a model's metrics."""
    measure = measure or (lambda client, number, model: metrics_of(federation, client, model))
    step = PersonalStep(LAST, leaves_of(state), TRAININGS, stage)
    state, asks, asked = replace(state, pending=step), step.asks, []
    while asks:
        replies = []
        for ask in asks:
            if ask.task == "adapt":
                reply = adapted(federation, state, ask, measure)
            elif ask.task == "train":
                reply = federation.reply(CFL, state, ask)
            else:
                figures = measure(ask.client, ask.number, state.model_of(ask))
                reply = Reply(ask, 36.0, figures)
            replies.append(spoil(ask, reply))
        asked += asks
        heard = CFL.heard(state, filter(None, replies), LAST)
        tree, (state, _, asks) = state.tree, heard
        assert state.tree is tree
    assert state.pending is None
    return state.personal.get(ROOT), asked


def losses(federation, models):
    return [metrics_of(federation, c, model)["loss"] for c, model in models.items()]


@pytest.mark.parametrize("stage", STAGES)
def test_members_that_differ_get_models_of_their_own(stage):
    step, asked = step_of(DIFFERENT, after(DIFFERENT), stage)
    assert (step.accepted, step.kappa, step.trainings) == (True, 0.0, TRAININGS)
    assert set(step.models) == set(DIFFERENT.clients)
    assert set(step.shares.values()) == {1.0}
    assert max(losses(DIFFERENT, step.models)) < 0.01 * min(
        losses(DIFFERENT, dict.fromkeys(DIFFERENT.clients, after(DIFFERENT).tree.root.model))
    )
    assert {ask.role for ask in asked} == {Role.PERSONAL}
    assert {ask.part for ask in asked} == {DECIDE}


def test_one_exchange_is_enough_for_clients_that_do_the_step_by_themselves():
    _, asked = step_of(DIFFERENT, after(DIFFERENT), "adapt")
    assert [(ask.client, ask.task) for ask in asked] == [(c, "adapt") for c in DIFFERENT.clients]


def test_by_messages_trainings_and_evaluations_are_as_many_as_announced():
    step, asked = step_of(DIFFERENT, after(DIFFERENT))
    mine = [ask for ask in asked if ask.client == "client-0"]
    trained = [ask for ask in mine if ask.task == "train"]
    assert len(trained) == step.trainings == TRAININGS
    # A look at two models after the first training, and the judgement of all.
    assert len(mine) - len(trained) == 2 + 1 + len(KAPPAS)
    # Each training has a round of its own, so that chance is not the same in all.
    assert [ask.server_round for ask in trained] == [LAST + 1 + i for i in range(TRAININGS)]


def test_the_step_is_over_after_one_training_that_is_better_for_nobody():
    optimum = vector(ALIKE.centers[0])
    step, asked = step_of(replace(ALIKE, noise=0.5), after(ALIKE, optimum))
    assert not step.accepted
    assert (step.trainings, step.models) == (1, {})
    assert len(asked) == 8 * 3


def way_of(client, state, model):
    """How far a model is on the way from the leaf's to the optimum of a member."""
    leaf = state.tree.root.model.trained
    there = DIFFERENT.centers[DIFFERENT.groups[client]] - leaf
    return float((model.trained - leaf) @ there / (there @ there))


@pytest.mark.parametrize("sizes", [None, {"client-0": 1.0, "client-1": 99.0}])
def test_both_ways_end_with_the_same_models(sizes):
    def measure(client, number, model):
        return {"loss": abs(way_of(client, state, model) - 0.45)}

    state = after(DIFFERENT, sizes=sizes)
    one, other = (step_of(DIFFERENT, state, stage, measure)[0] for stage in STAGES)
    assert (one.kappa, one.shares, one.reason) == (other.kappa, other.shares, other.reason)
    assert one.models.keys() == other.models.keys()
    for client, model in one.models.items():
        np.testing.assert_allclose(model.trained, other.models[client].trained, atol=1e-9)


@pytest.mark.parametrize("stage", STAGES)
def test_the_share_grows_with_the_members_examples(stage):
    """The way to each one's own model is twice too long: half of it is right for all."""
    sizes = {client: 10.0 * (1 + i % 2) for i, client in enumerate(DIFFERENT.clients)}
    state = after(DIFFERENT, sizes=sizes)
    root = state.tree.root.model.trained

    def measure(client, number, model):
        return {"loss": abs(way_of(client, state, model) - 0.5)}

    step, _ = step_of(DIFFERENT, state, stage, measure)
    assert (step.accepted, step.kappa) == (True, 15.0)  # as many as the median member's examples
    for client, share in step.shares.items():
        assert share == sizes[client] / (sizes[client] + step.kappa)
        there = DIFFERENT.centers[DIFFERENT.groups[client]]
        own = root + (1 - 0.5**TRAININGS) * (there - root)
        np.testing.assert_allclose(step.models[client].trained, root + share * (own - root))


LIES = {"huge": 1e12, "none": 0.0, "negative": -1e12}


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("federation", [DIFFERENT, ALIKE])
@pytest.mark.parametrize("lie", [*LIES, "alternating", "silent"])
def test_one_member_decides_nothing_for_the_others(federation, lie, stage):
    def measure(client, number, model):
        if client != "client-0":
            return metrics_of(federation, client, model)
        return {"loss": LIES.get(lie, (-1) ** number * 1e6)}

    def spoil(ask, reply):
        return None if ask.client == "client-0" and lie == "silent" else reply

    honest, _ = step_of(federation, after(federation), stage)
    step, _ = step_of(federation, after(federation), stage, measure, spoil)
    if federation is ALIKE:
        assert max(losses(ALIKE, step.models), default=0.0) < 0.01
    else:
        assert (step.accepted, step.kappa) == (True, honest.kappa)
        assert set(step.models) >= set(federation.clients[1:])


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(("gaining", "accepted"), [(8, True), (7, False), (0, False)])
def test_a_choice_takes_a_significant_vote(gaining, accepted, stage):
    def measure(client, number, model):
        gains = int(client[-1]) < gaining
        return {"accuracy": 0.8 + (0.01 if gains else -0.01) * (number > 0)}

    step, _ = step_of(DIFFERENT, after(DIFFERENT), stage, measure)
    assert step.accepted == accepted
    assert (step.kappa < inf) == accepted
    votes = f"serve {gaining} of 8 members better, {8 - gaining} worse"
    assert votes in step.reason or stage == "train"


def leaf_of(name, better, worse):
    """A leaf with members that each candidate serves better by a tenth, and others worse."""
    members = [f"{name}-{i}" for i in range(better + worse)]
    after = [0.55] * better + [0.45] * worse
    measured = {
        c: ({"accuracy": 0.5}, *[{"accuracy": a}] * len(KAPPAS))
        for c, a in zip(members, after, strict=True)
    }
    model, ones = vector(np.zeros(DIM)), dict.fromkeys(members, 10.0)
    return Leaf(name, model, ones, dict.fromkeys(members, model), measured, ones)


@pytest.mark.parametrize(
    ("others", "better", "accepted"),
    [(10, 8, True), (10, 5, False), (10, 2, False), (0, 8, False), (0, 10, True)],
)
def test_members_of_other_leaves_help_to_show_a_likely_gain(others, better, accepted):
    leaves = {"0.0": leaf_of("0.0", better, 10 - better)}
    if others:
        leaves["0.1"] = leaf_of("0.1", others, 0)
    over = concluded(leaves, 1, Metric("accuracy"), lambda weights: weights)
    assert over["0.0"].accepted == accepted
    assert all(over[name].accepted for name in leaves if name != "0.0")
    assert ("chance" in over["0.0"].reason) == (better in (8,) and not accepted)


@pytest.mark.parametrize("stage", STAGES)
def test_a_member_that_its_leaf_serves_badly_goes_on_alone(stage):
    """The others lose by training; enough examples of its own show that it gains."""

    def measure(client, number, model):
        leaf, own = (0.3, 0.9) if client == "client-0" else (0.9, 0.8)
        return {"accuracy": own if number else leaf}

    step, _ = step_of(ALIKE, after(ALIKE), stage, measure)
    assert not step.accepted
    assert step.shares == {"client-0": 1.0}
    assert step.reason.endswith("far better served otherwise: client-0")
    few, _ = step_of(ALIKE, after(ALIKE), stage, measure, with_examples(5.0))
    assert few.shares == {}


def with_examples(number):
    """All clients claim so many held-out examples."""

    def spoil(ask, reply):
        if ask.task == "evaluate":
            return replace(reply, num_examples=number)
        return replace(reply, metrics={**reply.metrics, HELD_OUT: number})

    return spoil


@pytest.mark.parametrize("stage", STAGES)
def test_a_member_that_loses_by_the_others_choice_keeps_the_leafs_model(stage):
    def measure(client, number, model):
        leaf, own = (0.9, 0.3) if client == "client-0" else (0.5, 0.9)
        return {"accuracy": own if number else leaf}

    ten = Federation.dealt(*[1] * 10, noise=0.0)
    step, _ = step_of(ten, after(ten), stage, measure)
    assert step.accepted
    assert set(step.models) == set(ten.clients[1:])


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("members", [2, 3])
def test_few_members_that_differ_are_served_too(members, stage):
    few = Federation.dealt(*[1] * members, noise=0.0)
    step, _ = step_of(few, after(few), stage)
    assert (step.accepted, len(step.models)) == (True, members)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("lost", ["all", "all but one", "after the first"])
def test_members_that_fall_silent_keep_the_leafs_model(lost, stage):
    def spoil(ask, reply):
        first = ask.server_round == LAST + 1
        if lost == "all" or (lost == "all but one" and ask.client != "client-0"):
            return None
        return None if lost == "after the first" and not first else reply

    step, _ = step_of(DIFFERENT, after(DIFFERENT), stage, spoil=spoil)
    assert step is None or set(step.models) <= {"client-0"}


@pytest.mark.parametrize("claim", [0.0, -1.0, 1e300])
def test_a_claim_about_ones_held_out_examples_ends_no_run(claim):
    def spoil(ask, reply):
        return with_examples(claim)(ask, reply) if ask.client == "client-0" else reply

    def measure(client, number, model):
        return {"accuracy": 0.9 if bool(number) is not (client == "client-0") else 0.7}

    ten = Federation.dealt(*[1] * 10, noise=0.0)
    step, _ = step_of(ten, after(ten), "adapt", measure, spoil)
    assert set(step.models) >= set(ten.clients[1:])


def test_leaves_of_one_member_have_nobody_to_choose_for_them():
    assert leaves_of(after(Federation.dealt(1))) == {}


def test_members_without_a_certain_place_or_a_known_update_take_no_part():
    state = after(ALIKE)
    tree = replace(state.tree, unassigned={"client-3": ROOT})
    known = {client: update for client, update in state.known.items() if client != "client-5"}
    (leaf,) = leaves_of(replace(state, tree=tree, known=known)).values()
    assert set(leaf.sizes) == set(ALIKE.clients) - {"client-3", "client-5"}


# Whole numbers: their sums are exact, so that the law holds to the last bit.
@given(arrays(int, (5, 6), elements=st.integers(-9, 9)), st.integers(0, 5), st.data())
def test_no_member_has_a_part_in_the_choice_that_it_judges(gains, member, data):
    gains = gains.T.copy()
    before = choices_of_others(gains)[member]
    gains[member] = data.draw(arrays(int, 5, elements=st.integers(-999, 999)))
    assert choices_of_others(gains)[member] == before
