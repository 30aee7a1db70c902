"""Seeded runs with failures; what should not matter does not, bit by bit."""

import logging
from dataclasses import replace

import pytest

from cflower.algorithm.optimizers import ServerOptimizer
from cflower.auto.criterion import AutoCriterion
from cflower.seeding import generator
from tests.run_content import content_of
from tests.strategy.chaos import BAD, HARMLESS, Plan, Scenario, picture
from tests.strategy.quadratics import CRITERION, Quadratics, clusters_of, without

ROUNDS = 8

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _quiet():
    """Without the long log of so many runs; `flower_as_usual` sets it back."""
    logging.getLogger("flwr").setLevel(logging.ERROR)


def scenario_of(rng, **settings):
    """A random federation: its groups, its criterion, its rules of averaging."""
    num_groups = int(rng.integers(2, 4))
    clients = int(rng.integers(2 * num_groups + 1, 8))
    groups = tuple(int(g) for g in rng.permutation([i % num_groups for i in range(clients)]))
    auto = rng.random() < 0.15
    drawn = {
        "criterion": AutoCriterion() if auto else CRITERION,
        "fraction_train": 1.0 if rng.random() < 0.7 else 0.6,
        "fraction_evaluate": float(rng.choice([0.0, 0.0, 0.5])),
        "weighting": str(rng.choice(["examples", "uniform"])),
        "optimizer": ServerOptimizer(str(rng.choice(["fedavg", "fedavg", "fedavgm"]))),
        "projection_dim": int(rng.choice([0, 12])),
        "exclude_after": 0,
        "seed": int(rng.integers(1000)),
    }
    return Scenario(groups, 2 * ROUNDS if auto else ROUNDS, {**drawn, **settings})


def bad_replies(rng, scenario, kinds=BAD):
    """Bad replies of up to a third of the clients, in about half of the rounds."""
    clients = rng.permutation(len(scenario.groups))[: max(1, len(scenario.groups) // 3)]
    return {
        (int(client), r): str(rng.choice(list(kinds)))
        for client in clients
        for r in range(1, scenario.num_rounds + 1)
        if rng.random() < 0.5
    }


def absences(rng, scenario):
    """Absences of up to three clients, for some rounds."""
    clients = rng.permutation(len(scenario.groups))[: int(rng.integers(1, 4))]
    starts = rng.integers(2, scenario.num_rounds, size=len(clients))
    pairs = zip(clients, starts, strict=True)
    return {int(c): range(int(s), int(s + rng.integers(1, 6))) for c, s in pairs}


@pytest.mark.parametrize("seed", range(30))
def test_a_bad_reply_has_the_effect_of_none(seed):
    rng = generator(seed, "bad")
    scenario = scenario_of(rng)
    plan = Plan(bad_replies(rng, scenario))
    spoiled, silent = scenario.play(plan), scenario.play(plan.silenced())
    assert picture(spoiled) == picture(silent)
    assert silent.failures.problems == {}
    asked = {f"partition-{client}" for client, _ in plan.faults}
    assert set(spoiled.failures.problems) <= asked


@pytest.mark.parametrize("seed", range(12))
def test_oddities_change_nothing(seed):
    rng = generator(seed, "odd")
    scenario = scenario_of(rng)
    plan = Plan(bad_replies(rng, scenario, HARMLESS))
    assert picture(scenario.play(plan)) == picture(scenario.play(Plan()))


@pytest.mark.parametrize("seed", range(20))
def test_a_node_that_returns_soon_under_another_id_was_only_silent(seed):
    """A longer one has left as far as one can tell, and then counts for nothing."""
    rng = generator(seed, "away")
    # Without trials: a client that is silent in training may still judge, an absent one cannot.
    scenario = scenario_of(rng, fraction_train=1.0, trial_rounds=0)
    starts = {client: max(rounds.start, 3) for client, rounds in absences(rng, scenario).items()}
    soon = {client: range(first, first + min(2, first - 2)) for client, first in starts.items()}
    plan = Plan(bad_replies(rng, scenario), soon)
    assert picture(scenario.play(plan)) == picture(scenario.play(plan.silenced()))


def without_seconds(failures):
    """The record without what differs from run to run: how long replies took."""
    clients = {
        name: standing._replace(reading=0.0, waiting=0.0)
        for name, standing in failures.clients.items()
    }
    return replace(failures, clients=clients)


def assert_survives_kills(scenario, plan, rng, folder):
    """A run that is killed three times and resumed ends as an uninterrupted one."""
    whole = scenario.play(plan, folder / "whole")
    kills = [int(steps) for steps in rng.integers(1, 400, size=3)]
    killed = scenario.play(plan, folder / "killed", kills)
    assert picture(killed) == picture(whole)
    assert without_seconds(killed.failures) == without_seconds(whole.failures)
    assert content_of(folder / "killed") == content_of(folder / "whole")


@pytest.mark.parametrize("seed", range(24))
def test_a_run_that_was_killed_ends_as_an_uninterrupted_one(seed, tmp_path):
    rng = generator(seed, "killed")
    scenario = scenario_of(rng, exclude_after=int(rng.choice([0, 3])))
    plan = Plan(bad_replies(rng, scenario), absences(rng, scenario))
    assert_survives_kills(scenario, plan, rng, tmp_path)


@pytest.mark.parametrize("seed", range(12))
def test_late_replies_keep_the_laws_and_survive_kills(seed, tmp_path):
    rng = generator(seed, "late")
    scenario = scenario_of(rng, fraction_train=1.0, round_share=0.1)
    number, rounds = len(scenario.groups), range(1, scenario.num_rounds + 1)
    slow = [int(c) for c in rng.permutation(number)[: max(1, number // 3)]]
    late = {(c, r): int(rng.integers(0, 6)) for c in slow for r in rounds}
    # An absent node cannot be sent its message again.
    gone = {c: r for c, r in absences(rng, scenario).items() if c not in slow}
    plan = Plan(bad_replies(rng, scenario), gone, late)
    assert_survives_kills(scenario, plan, rng, tmp_path)


@pytest.mark.parametrize("seed", range(6))
def test_a_quorum_changes_nothing_if_no_reply_is_late(seed):
    rng = generator(seed, "in time")
    scenario = scenario_of(rng)
    hasty = replace(scenario, settings={**scenario.settings, "round_share": 0.5})
    plan = Plan(bad_replies(rng, scenario), absences(rng, scenario))
    assert picture(hasty.play(plan)) == picture(scenario.play(plan))


@pytest.mark.parametrize("seed", range(15))
def test_a_client_with_bad_replies_only_is_excluded_and_the_other_groups_are_detected(seed):
    rng = generator(seed, "excluded")
    settings = {"criterion": CRITERION, "optimizer": ServerOptimizer(), "projection_dim": 0}
    settings["max_influence"] = 0.0  # the criterion's thresholds are those of plain means (eq. 2)
    scenario = scenario_of(rng, exclude_after=3, fraction_train=1.0, **settings)
    scenario = replace(scenario, num_rounds=12)
    bad = int(rng.integers(len(scenario.groups)))
    rounds = range(1, scenario.num_rounds + 1)
    strategy = scenario.play(Plan({(bad, r): str(rng.choice(list(BAD))) for r in rounds}))
    alike = scenario.play(Plan({(bad, r): "error" for r in rounds}))
    assert picture(strategy) == picture(alike)
    name = f"partition-{bad}"
    assert strategy.failures.problems == {name: 4}  # in rounds 1 to 3, and after a pause in 9
    assert set(strategy.failures.excluded) == {name}
    assert strategy.final_report is not None
    assert name not in strategy.final_report.clients
    planted = Quadratics(scenario.groups).planted
    assert without(clusters_of(strategy), name) == without(planted, name)
