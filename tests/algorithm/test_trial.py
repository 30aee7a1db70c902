"""The law of a trial, and what becomes of a split that is confirmed or taken back."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cflower.algorithm.criteria import NeverSplit, Outcome
from cflower.algorithm.round import Reply
from cflower.algorithm.splits_on_trial import judged
from cflower.algorithm.tree import Weights
from cflower.algorithm.trial import (
    CHANCE,
    LIKELY,
    Comparison,
    Measure,
    Standing,
    Trial,
    judge,
    not_again,
    paired,
)
from cflower.seeding import generator
from tests.algorithm.planted import Federation, assert_partitions, cfl_of, final, found, laws

ACCURACY, LOSS = Measure(), Measure("loss", higher_is_better=False)
two = Federation.dealt(3, 3)
gains = st.lists(
    st.tuples(st.integers(0, 20), st.integers(0, 20), st.integers(1, 50), st.booleans()),
    min_size=4,
    max_size=12,
)


def of(own, common, examples=36, child="0.0", name="accuracy"):
    """One client's comparison by one metric."""
    return Comparison(child, {name: own}, {name: common}, examples)


def many(own, common, **settings):
    """Clients with these values, in two children by turns."""
    pairs = enumerate(zip(own, common, strict=True))
    return [of(a, b, child=f"0.{i % 2}", **settings) for i, (a, b) in pairs]


# ------------------------------------------------------------------------------ the test


def test_a_clear_gain_confirms_and_the_sentence_has_the_figures():
    found = judge(many([0.95, 0.97, 0.94, 0.96], [0.7, 0.75, 0.72, 0.69]), [ACCURACY])
    assert found.confirmed
    assert "accuracy 0.955 with the children's models and 0.715 with the common one" in found.reason
    assert "4 of 4 clients better, 0 worse" in found.reason
    assert found.figures["accuracy_gain"] == pytest.approx(0.24)


def test_no_difference_and_a_loss_do_not():
    assert not judge(many([0.9, 0.8, 0.7, 0.9], [0.9, 0.8, 0.7, 0.9]), [ACCURACY]).confirmed
    found = judge(many([0.7, 0.75, 0.72, 0.69], [0.95, 0.97, 0.94, 0.96]), [ACCURACY])
    assert not found.confirmed
    assert "served worse" in found.reason


def test_of_a_loss_the_lower_is_better():
    lower = many([0.2, 0.1, 0.3, 0.2], [0.6, 0.5, 0.8, 0.5], name="loss")
    assert judge(lower, [LOSS]).confirmed
    assert not judge(lower, [Measure("loss")]).confirmed


def test_the_loss_confirms_what_accuracy_is_too_coarse_for_unless_accuracy_falls():
    def both(accuracy):
        losses = zip([0.2, 0.1, 0.3, 0.2], [0.6, 0.5, 0.8, 0.5], strict=True)
        return [
            Comparison("0.0", {"accuracy": a, "loss": x}, {"accuracy": 0.9, "loss": y}, 36)
            for a, (x, y) in zip(accuracy, losses, strict=True)
        ]

    assert judge(both([0.9, 0.91, 0.9, 0.89]), [ACCURACY, LOSS]).confirmed
    assert not judge(both([0.9, 0.91, 0.9, 0.89]), [ACCURACY]).confirmed
    assert not judge(both([0.5, 0.51, 0.5, 0.49]), [ACCURACY, LOSS]).confirmed


def test_it_is_the_t_test_of_one_sample_where_there_is_one_child():
    from scipy.stats import ttest_1samp

    values = generator(0, "t").normal(0.1, 0.2, 9)
    found = paired([of(v, 0.0) for v in values], ACCURACY)
    expected = ttest_1samp(values, 0.0, alternative="greater")
    assert found.gain / found.error == pytest.approx(expected.statistic)
    assert found.chance == pytest.approx(expected.pvalue)


def test_what_one_group_gains_more_than_the_other_is_no_scatter():
    own = [0.72, 0.92, 0.70, 0.90, 0.71, 0.91]
    found = paired(many(own, [0.7] * 6), ACCURACY)
    assert found.error == pytest.approx(0.01 / np.sqrt(6), rel=1e-6)
    alone = paired([of(v, 0.7) for v in own], ACCURACY)
    assert alone.error > 8 * found.error


@laws
@given(gains)
def test_order_and_scale_do_not_matter_and_sides_change_places(drawn):
    compared = [of(a, b, n, f"0.{int(c)}") for a, b, n, c in drawn]
    first = paired(compared, ACCURACY)
    again = paired(compared[::-1], ACCURACY)
    larger = paired([of(4 * a, 4 * b, n, f"0.{int(c)}") for a, b, n, c in drawn], ACCURACY)
    turned = paired([of(b, a, n, f"0.{int(c)}") for a, b, n, c in drawn], ACCURACY)
    assert turned.gain == pytest.approx(-first.gain)
    for other in (again, larger):
        assert other.chance == pytest.approx(first.chance, abs=1e-9)
    if first.chance is not None:
        assert turned.chance == pytest.approx(1 - first.chance, abs=1e-9)


def test_chance_confirms_no_more_often_than_it_says():
    runs, sure, stand = 4000, 0, 0
    for seed in range(runs):
        rng = generator(seed, "chance")
        own, common = rng.normal(0.8, 0.05, (2, 10))
        found = judge(many(own, common), [ACCURACY])
        sure += "the clients are served better" in found.reason
        stand += bool(found.confirmed)
    for count, share in ((sure, CHANCE), (stand, LIKELY)):
        assert abs(count / runs - share) < 4 * np.sqrt(share * (1 - share) / runs)


def test_a_likely_gain_lets_a_split_stand_unless_a_loss_is_as_likely():
    def both(gain, drop):
        values = [0.7, 0.8, 0.75, 0.72, 0.78, 0.74]
        shifts = [gain + 0.05, gain - 0.05, gain, gain + 0.03, gain - 0.03, gain]
        return [
            Comparison("0.0", {"accuracy": v + s, "loss": v + drop}, {"accuracy": v, "loss": v}, 36)
            for v, s in zip(values, shifts, strict=True)
        ]

    found = judge(both(0.02, 0.0), [ACCURACY])
    assert found.confirmed
    assert "a gain is likely, not sure" in found.reason
    assert not judge(both(0.005, 0.0), [ACCURACY]).confirmed
    assert not judge(both(0.02, 0.1), [ACCURACY, LOSS]).confirmed


def test_with_few_examples_the_better_mean_decides_and_it_is_said():
    better = judge(many([1.0, 0.5, 1.0], [0.5, 0.5, 0.5], examples=2), [ACCURACY])
    assert better.confirmed
    assert "6 held-out examples of 3 client(s) say little, so the mean decides" in better.reason
    assert not judge(many([0.5, 0.5], [0.5, 0.5], examples=2), [ACCURACY]).confirmed
    assert not judge([of(0.4, 0.5), of(0.6, 0.7, child="0.1")], [ACCURACY]).confirmed


def test_where_nobody_can_say_the_split_stands():
    for compared in ([], [of(1.0, 0.0, name="f1")]):
        found = judge(compared, [ACCURACY, LOSS])
        assert found.confirmed
        assert "unjudged: no client told its accuracy or loss" in found.reason


# --------------------------------------------------------------------- a split on trial


def replies(federation, cfl, state, server_round, clients=None):
    """Own models' and general models' updates, with the same chance in both."""
    for client in federation.clients if clients is None else clients:
        yield federation.reply(state, client, server_round)
        if general := cfl.also_trains(state.tree, client, server_round):
            model = general.grown.model.trained
            rng = generator(0, "noise", server_round, client)
            step = federation.step * (federation.centers[federation.groups[client]] - model)
            update = step + federation.noise * rng.normal(size=len(model))
            length = float(np.linalg.norm(update))
            yield Reply(client, Weights(update, np.zeros(0)), length, 1.0, general.name)


def history(federation, cfl, num_rounds, *, better=True, partial=False):
    """Each round's state before it and its result; ``better``: what the clients judge.

    None: by their distance from their group's optimum.
    """
    state = federation.state()
    for server_round in range(1, num_rounds + 1):
        chosen = federation.half(state, server_round) if partial else None
        answers = replies(federation, cfl, state, server_round, chosen)
        result = cfl.run_round(state, answers, server_round=server_round)
        due = result.state.tree.trials_due(server_round)
        compared = {name: opinions(result.state.tree, name, better) for name in due}
        tree, decisions = judged(
            result.state.tree, result.decisions, compared, [ACCURACY], cfl.trial_rounds
        )
        result = result._replace(state=replace(result.state, tree=tree), decisions=decisions)
        yield state, result
        state = result.state


def opinions(tree, name, better):
    verdicts = {True: (0.9, 0.5), False: (0.5, 0.9), None: (0.7, 0.7)}
    if callable(better):
        better = better(name)
    members = [c for c in tree.clusters[name].members if c not in tree.unassigned]
    return [of(*verdicts[better], child=tree.leaf_of(c).name) for c in members]


def test_the_common_model_learns_as_conventional_federated_learning_does():
    cfl = cfl_of(trial_rounds=4)
    plain = cfl_of(NeverSplit())
    trained = 0
    for before, result in history(two, cfl, 12):
        root, server_round = result.state.tree.root, result.decisions[0].server_round
        if before.tree.root.on_trial:
            conventional = final(two, plain, server_round).tree.root.model
            np.testing.assert_allclose(root.grown.model.trained, conventional.trained, atol=1e-12)
            trained += 1
    assert trained == 4
    assert root.trial.standing is Standing.CONFIRMED
    assert found(result.state) == two.planted


def test_a_trial_costs_one_more_model_a_client_and_round_and_no_more():
    cfl = cfl_of(trial_rounds=4)
    extra = sum(
        cfl.also_trains(before.tree, client, result.decisions[0].server_round) is not None
        for before, result in history(two, cfl, 30)
        for client in two.clients
    )
    assert extra == 4 * len(two.clients)


def test_a_split_that_is_taken_back_leaves_the_common_model_and_new_names():
    cfl = cfl_of(trial_rounds=3)
    names, outcomes, waited = set(), [], 0
    for before, result in history(two, cfl, 40, better=False):
        names |= set(result.state.tree.clusters)
        outcomes += [d.outcome for d in result.decisions if d.cluster == "0"]
        waited += any(d.outcome is Outcome.PUT_OFF for d in result.decisions)
        if result.decisions[-1].outcome is Outcome.UNDONE and outcomes.count(Outcome.UNDONE) == 1:
            (root,) = result.state.tree.clusters.values()
            server_round = result.decisions[0].server_round
            conventional = final(two, cfl_of(NeverSplit()), server_round).tree.root.model
            np.testing.assert_allclose(root.model.trained, conventional.trained, atol=1e-12)
            assert root.is_leaf
            assert root.members == before.tree.root.members
            assert root.general is root.trial is None
            assert [trial.standing for trial in root.undone] == [Standing.UNDONE]
    assert outcomes.count(Outcome.UNDONE) == 2
    assert waited > 0
    assert names == {"0", "0.0", "0.1", "0.2", "0.3"}


@pytest.mark.parametrize("decided_in", [2, 3, None])
def test_clients_that_find_neither_gain_nor_loss_judge_again(decided_in):
    cfl = cfl_of(trial_rounds=3)
    answers = iter([None] * (decided_in - 1) + [True] if decided_in else [None] * 3)
    lines = []
    for _, result in history(two, cfl, 30, better=lambda _: next(answers)):
        lines += [d for d in result.decisions if d.cluster == "0"]
        if lines[-1].outcome in (Outcome.CONFIRMED, Outcome.UNDONE):
            break
    began = next(line.server_round for line in lines if line.outcome is Outcome.SPLIT)
    again = [line for line in lines if "the clients judge again in round" in line.reason]
    looks = decided_in or 3
    assert [line.server_round - began for line in again] == [3, 6][: looks - 1]
    assert all(line.outcome is Outcome.ON_TRIAL for line in again)
    assert lines[-1].server_round == began + 3 * looks
    assert lines[-1].outcome is (Outcome.CONFIRMED if decided_in else Outcome.UNDONE)


def test_children_do_not_split_while_the_split_that_made_them_is_on_trial():
    federation = Federation.dealt(3, 3, 3, 3)
    held = 0
    for before, result in history(federation, cfl_of(trial_rounds=12), 60):
        if before.tree.root.on_trial:
            assert all(c.is_leaf for n, c in result.state.tree.clusters.items() if n != "0")
        held += any("still on trial" in decision.reason for decision in result.decisions)
    assert held > 0
    assert found(result.state) == federation.planted


@laws
@given(st.lists(st.integers(1, 4), min_size=2, max_size=4), st.integers(0, 99), st.booleans())
def test_whatever_the_clients_say_the_clusters_partition_them(sizes, seed, partial):
    federation = Federation.dealt(*sizes, seed=seed)
    rng = generator(seed, "opinions")
    cfl = cfl_of(trial_rounds=2, inner_interval=3)
    says = {"better": lambda _: bool(rng.random() < 0.5), "partial": partial}
    for _, result in history(federation, cfl, 25, **says):
        assert_partitions(result.state.tree, federation.clients)
        inner = {n for n, c in result.state.tree.clusters.items() if not c.is_leaf}
        assert set(result.state.tree.unassigned.values()) <= inner


def test_inner_models_take_turns_and_learn():
    federation = Federation.dealt(3, 3, 3, 3)
    cfl = cfl_of(inner_interval=5)
    trained = {}
    *_, (_, result) = history(federation, cfl, 60)
    tree = result.state.tree
    client = max(tree.clients, key=lambda name: tree.leaf_of(name).name.count("."))
    for server_round in range(1, 31):
        if general := cfl.also_trains(tree, client, server_round):
            trained.setdefault(general.name, []).append(server_round)
    assert sorted(r for rounds in trained.values() for r in rounds) == [5, 10, 15, 20, 25, 30]
    assert set(trained) == {c.name for c in tree.path_of(client)[:-1]}
    assert len(trained) > 1
    assert tree.root.general is not None
    assert cfl_of().also_trains(tree, client, 5) is None


def test_who_walks_trains_only_the_model_that_tells_its_place():
    cfl = cfl_of(trial_rounds=9)
    *_, (_, result) = history(two, cfl, 12)
    tree = result.state.tree
    assert tree.root.on_trial
    newcomer = tree.admit("new", 13)
    assert cfl.also_trains(newcomer, "new", 13) is None
    assert cfl.also_trains(newcomer, "client-0", 13).name == "0"
    np.testing.assert_array_equal(
        newcomer.training_cluster("new").model.trained, tree.root.model.trained
    )


# ------------------------------------------------------------------------------ not again

TRIAL = Trial(4, 8, (("a", "b"), ("c", "d")), Standing.UNDONE)


def test_after_a_trial_that_failed_the_cluster_waits():
    other = [["a", "c"], ["b", "d"]]
    assert "round 24" in not_again([TRIAL], other, 23)
    assert not_again([TRIAL], other, 24) is None


def test_the_same_parts_wait_until_there_were_twice_as_many_rounds():
    late = TRIAL._replace(began=46, until=50)
    assert "round 100" in not_again([late], [["d", "c"], ["b", "a"]], 99)
    assert not_again([late], [["d", "c"], ["b", "a"]], 100) is None
    assert not_again([late], [["d", "c", "new"], ["b", "a"]], 66) is None
    assert "round 66" in not_again([late], [["d", "c", "new"], ["b", "a"]], 65)


# ------------------------------------------------------------------------- who has a say


def parted(*children):
    """Comparisons of several children, each a list of gains over 0.5."""
    return [
        of(0.5 + gain, 0.5, child=f"0.{i}") for i, child in enumerate(children) for gain in child
    ]


def test_who_spoils_a_model_does_not_get_a_split_from_it_taken_back():
    gain = [0.2, 0.21, 0.19, 0.2]
    for alone in (-0.5, -0.001):
        assert judge(parted(gain, [alone]), [ACCURACY]).confirmed
    assert judge(parted(gain * 4, [-0.5, -0.4, -0.5, -0.5]), [ACCURACY]).confirmed
    assert judge(parted(gain * 3, [-0.5] * 2, [-0.4] * 2), [ACCURACY]).confirmed


def test_without_their_say_the_gain_of_the_others_must_still_be_sure():
    assert not judge(parted([0.0, 0.01, -0.01, 0.0], [-0.5]), [ACCURACY]).confirmed
    assert not judge(parted([0.1, -0.1, 0.2, -0.15], [-0.5]), [ACCURACY]).confirmed


def test_more_than_a_third_of_the_clients_always_have_a_say():
    gain = [0.2, 0.21, 0.19, 0.2]
    assert not judge(parted(gain, [-0.5, -0.5, -0.4]), [ACCURACY]).confirmed
    assert not judge(parted(gain, [-0.5], [-0.5], [-0.5, -0.4]), [ACCURACY]).confirmed


def test_a_small_child_that_gains_is_heard():
    found = judge(parted([0.01, 0.02, 0.01, 0.02], [0.4, 0.42]), [ACCURACY])
    assert found.confirmed and "6 of 6 clients better" in found.reason


def test_the_measure_that_says_it_loudest_counts():
    both = [Comparison("0.0", {"accuracy": 0.7, "loss": 0.5}, {"accuracy": 0.5, "loss": 0.6}, 36)]
    odd = Comparison("0.1", {"accuracy": 0.5, "loss": 900.0}, {"accuracy": 0.5, "loss": 0.6}, 36)
    noise = [both[0]._replace(own={"accuracy": 0.7 + i / 100, "loss": 0.5}) for i in range(5)]
    assert judge([*noise, odd], [ACCURACY, LOSS]).confirmed
