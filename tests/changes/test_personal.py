"""The personal step: what members train and evaluate, what they choose, and who can stop it."""

from dataclasses import replace
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cflower.algorithm.criteria import NeverSplit
from cflower.algorithm.state import DECIDE, CFLState, KnownUpdate, Reply, Role
from cflower.algorithm.tree import ROOT, ParameterTree
from cflower.algorithm.weights import Weights
from cflower.changes.personal import (
    DECIDING,
    KAPPA,
    LEAF,
    MIX,
    Leaf,
    PersonalStep,
    concluded,
    leaves_of,
    promising,
    votes_of,
)
from cflower.metric import Metric
from cflower.seeding import generator
from tests.algorithm.planted import DIM, Federation, cfl_of, laws, trained_reply, vector

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
    size, metrics = state.known[ask.client].num_examples, {DECIDING: 36.0}
    for number, share in ((LEAF, 0.0), (MIX, config["share"])):
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


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(("of_mix", "served"), [(0.9, ["client-3"]), (0.7, [])])
def test_a_member_whose_own_examples_show_a_gain_gets_its_mix_whatever_the_others_vote(
    stage, of_mix, served
):
    def measure(client, number, model):
        if client == "client-3":
            return {"accuracy": of_mix if number == MIX else 0.5}
        return {"accuracy": 0.88 if number == MIX else 0.9}

    step, _ = step_of(ALIKE, after(ALIKE), stage, measure)
    assert not step.accepted
    assert list(step.models) == list(step.shares) == served
    assert step.reason.endswith("as their own examples show: client-3") == bool(served)


def losses(federation, models):
    return [metrics_of(federation, c, model)["loss"] for c, model in models.items()]


@pytest.mark.parametrize("stage", STAGES)
def test_members_that_differ_get_models_of_their_own(stage):
    step, asked = step_of(DIFFERENT, after(DIFFERENT), stage)
    assert (step.accepted, step.kappa) == (True, 1.0)
    assert step.trainings == TRAININGS
    assert set(step.models) == set(DIFFERENT.clients)
    assert set(step.shares.values()) == {10 / 11}
    assert max(losses(DIFFERENT, step.models)) < 0.05 * min(
        losses(DIFFERENT, dict.fromkeys(DIFFERENT.clients, after(DIFFERENT).tree.root.model))
    )
    assert {ask.role for ask in asked} == {Role.PERSONAL}
    assert {ask.part for ask in asked} == {DECIDE}


def test_an_attempt_is_one_exchange_for_clients_that_do_the_step_by_themselves():
    _, asked = step_of(DIFFERENT, after(DIFFERENT), "adapt")
    assert [(ask.client, ask.task, ask.number) for ask in asked] == [
        (client, "adapt", more) for more in (1, TRAININGS - 1) for client in DIFFERENT.clients
    ]


@pytest.mark.parametrize("stage", STAGES)
def test_members_train_once_where_that_promises_nothing(stage):
    state = after(ALIKE, vector(ALIKE.centers[0]))
    step, asked = step_of(replace(ALIKE, noise=0.5), state, stage)
    trained = sum(ask.task in ("adapt", "train") for ask in asked)
    assert (step.accepted, step.trainings, trained) == (False, 1, len(ALIKE.clients))


def test_leaves_of_which_the_members_of_all_together_gain_all_go_on():
    sure, unsure = (
        votes_of(leaf, Metric("accuracy")) for leaf in (leaf_of("0.0", 10, 0), leaf_of("0.1", 1, 1))
    )
    assert promising({"0.1": unsure}) == []
    assert promising({"0.0": sure, "0.1": unsure}) == ["0.0", "0.1"]


def test_by_messages_trainings_and_evaluations_are_as_many_as_announced():
    step, asked = step_of(DIFFERENT, after(DIFFERENT))
    mine = [ask for ask in asked if ask.client == "client-0"]
    trained = [ask for ask in mine if ask.task == "train"]
    assert len(trained) == step.trainings == TRAININGS
    # Each attempt is judged by the leaf's model and the mix.
    assert [(ask.task, ask.number) for ask in mine if ask not in trained] == [
        ("evaluate", LEAF),
        ("evaluate", MIX),
    ] * 2
    # Each training has a round of its own, so that chance is not the same in all.
    assert [ask.server_round for ask in trained] == [LAST + 1 + i for i in range(TRAININGS)]


@pytest.mark.parametrize("stage", STAGES)
def test_members_that_are_alike_keep_the_leafs_model(stage):
    optimum = vector(ALIKE.centers[0])
    step, _ = step_of(replace(ALIKE, noise=0.5), after(ALIKE, optimum), stage)
    assert not step.accepted
    assert (step.kappa, step.models, step.shares) == (inf, {}, {})


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
    sizes = {client: 10.0 * (1 + i % 2) for i, client in enumerate(DIFFERENT.clients)}
    state = after(DIFFERENT, sizes=sizes)
    root = state.tree.root.model.trained
    step, _ = step_of(DIFFERENT, state, stage)
    assert (step.accepted, step.kappa) == (True, KAPPA * 15.0)  # of the median member
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
    assert f"serves {gaining} of 8 members better, {8 - gaining} worse" in step.reason


def leaf_with(name, measured):
    """A leaf with members that measured these metrics of its model and of their mixes."""
    members = {f"{name}-{i}": {LEAF: leaf, MIX: mix} for i, (leaf, mix) in enumerate(measured)}
    model = vector(np.zeros(DIM))
    sizes, own = dict.fromkeys(members, 10.0), dict.fromkeys(members, model)
    return Leaf(name, model, sizes, own, members)


def leaf_of(name, better, worse):
    """A leaf with members that their mix serves better by a tenth, and others worse."""
    after = [0.55] * better + [0.45] * worse
    return leaf_with(name, [({"accuracy": 0.5}, {"accuracy": a}) for a in after])


def judged(*leaves, metric="accuracy"):
    """The results of these leaves."""
    by_name = {leaf.name: leaf for leaf in leaves}
    votes = {leaf.name: votes_of(leaf, Metric(metric)) for leaf in leaves}
    return concluded(by_name, votes, 1, Metric(metric), lambda weights: weights)


@pytest.mark.parametrize(
    ("others", "better", "accepted"),
    [(10, 8, True), (10, 5, False), (10, 2, False), (0, 8, False), (0, 10, True)],
)
def test_members_of_other_leaves_help_to_show_a_likely_gain(others, better, accepted):
    rest = [leaf_of("0.1", others, 0)] if others else []
    over = judged(leaf_of("0.0", better, 10 - better), *rest)
    assert over["0.0"].accepted == accepted
    assert all(over[leaf.name].accepted for leaf in rest)
    assert ("chance" in over["0.0"].reason) == (better in (8,) and not accepted)


PAIRS = st.tuples(*[st.integers(0, 20)] * 2, *[st.floats(0, 2)] * 2)
"""Right examples of 20 and Brier score of a member: by the leaf's model, and by its mix."""


@settings(laws, max_examples=200)
@given(st.lists(st.lists(PAIRS, min_size=2, max_size=12), min_size=1, max_size=3))
def test_never_do_more_members_of_a_leaf_lose_than_gain_by_the_metric_that_leads(leaves):
    over = judged(
        *(
            leaf_with(
                f"0.{number}",
                [
                    ({"accuracy": a / 20, "brier": x}, {"accuracy": b / 20, "brier": y})
                    for a, b, x, y in pairs
                ],
            )
            for number, pairs in enumerate(leaves)
        )
    )
    for step, pairs in zip(over.values(), leaves, strict=True):
        gaining = sum(np.sign(b - a) for a, b, _, _ in pairs)
        assert not step.accepted or gaining >= 0
        assert step.accepted or not step.models


def scores(logits, labels):
    """Accuracy, Brier score and loss of predictions."""
    chances = np.exp(logits - logits.max(axis=1, keepdims=True))
    chances /= chances.sum(axis=1, keepdims=True)
    right = np.eye(logits.shape[1])[labels]
    loss = -np.log(np.maximum(chances[np.arange(len(labels)), labels], 1e-300)).mean()
    return {
        "accuracy": float((logits.argmax(axis=1) == labels).mean()),
        "brier": float(((chances - right) ** 2).sum(axis=1).mean()),
        "loss": float(loss),
    }


@settings(laws, max_examples=100)
@given(
    st.integers(0, 10_000),
    st.integers(2, 30),
    st.integers(1, 3),
    st.sampled_from([("accuracy", "brier", "loss"), ("accuracy", "loss"), ("accuracy",)]),
)
def test_a_model_that_is_three_times_surer_and_less_often_right_is_never_accepted(
    seed, members, fewer, sent
):
    """All logits times three, and some right answers of each member exchanged for a wrong one."""
    rng, measured = generator(seed, "confidence"), []
    for _ in range(members):
        logits, labels = rng.normal(size=(20, 5)), rng.integers(5, size=20)
        logits[np.arange(20), labels] += 1.5
        surer = 3 * logits
        for i in np.flatnonzero(logits.argmax(axis=1) == labels)[:fewer]:
            surer[i] = np.roll(surer[i], 1)
        pair = scores(logits, labels), scores(surer, labels)
        measured.append(tuple({name: one[name] for name in sent} for one in pair))
    assert not judged(leaf_with("0", measured))["0"].accepted


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


def test_leaves_of_one_member_have_nobody_to_choose_for_them():
    assert leaves_of(after(Federation.dealt(1))) == {}


def test_members_without_a_certain_place_or_a_known_update_take_no_part():
    state = after(ALIKE)
    tree = replace(state.tree, unassigned={"client-3": ROOT})
    known = {client: update for client, update in state.known.items() if client != "client-5"}
    (leaf,) = leaves_of(replace(state, tree=tree, known=known)).values()
    assert set(leaf.sizes) == set(ALIKE.clients) - {"client-3", "client-5"}
