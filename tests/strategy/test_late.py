"""Replies that come some rounds later, and clients that disconnect, in whole runs."""

from logging import INFO

import numpy as np
import pytest

from cflower import ClusteredFL
from cflower.algorithm.criteria import NeverSplit
from cflower.auto.criterion import AutoCriterion
from cflower.recording.serialization import round_line
from cflower.seeding import generator
from cflower.strategy.observers import Checkpoint
from tests.strategy.chaos import ChaosGrid, Clock, Machines, Plan
from tests.strategy.quadratics import (
    CENTERS,
    CRITERION,
    Halves,
    Quadratics,
    Reports,
    clusters_of,
    initial_arrays,
)

GROUPS = (0, 1, 0, 1, 0, 1)


def run(clients, late, rounds, criterion=CRITERION, faults=None, away=None, timeout=20, **settings):
    """The strategy and the reports of a run with late replies, see `Plan`."""
    grid = ChaosGrid(clients, Plan(faults or {}, away or {}, late))
    reports = Clock(grid)
    strategy = ClusteredFL(criterion, observers=[reports], **{"round_share": 0.5, **settings})
    strategy.start(grid, initial_arrays(), rounds, timeout=timeout)
    return strategy, reports


def rounds_asked(clients, client, kind="train"):
    """The rounds in which a client received a message."""
    return [s.server_round for s in clients.seen if (s.kind, s.client) == (kind, client)]


def split_round(groups):
    """The round in which the groups are split if no reply is late."""
    return run(Quadratics(groups), {}, 12)[0].tree.root.split_round


def step(model, server_round, client):
    """Δ_i of a client of group 0, as `Quadratics` computes it."""
    noise = 1e-3 * generator(0, server_round, client).normal(size=16)
    return 0.5 * (CENTERS[0] - model) + noise


@pytest.mark.slow
def test_a_silent_client_is_waited_for_in_three_rounds_and_is_back_with_its_next_answer(caplog):
    clients, caplog.handler.level = Quadratics((0, 0, 0, 0)), INFO
    late = {(0, r): 99 for r in (1, 2, 3)} | {(0, 4): 3}
    strategy, reports = run(clients, late, 12, NeverSplit(), round_share=1.0, timeout=0.3)
    me = "partition-0"
    asked = [r for r in range(1, 13) if (0, r) not in late] + [4]
    assert set(rounds_asked(clients, 0)) == {4, *range(8, 13)} < set(asked)
    assert [r.server_round for r in reports if me in r.problems] == [1, 2, 3]
    assert [r.server_round for r in reports if r.late] == [7]
    assert [me in r.trained_on for r in reports] == [False] * 6 + [True] * 6
    assert strategy.failures.silent == ()
    logged = [r.getMessage() for r in caplog.records]
    assert f"Client(s) {me} did not answer in 3 rounds in a row" in " ".join(logged)
    assert f"Client(s) {me} answer again." in logged


def test_a_late_reply_counts_from_the_model_it_was_computed_from():
    clients = Quadratics((0, 0, 0))
    options = {"weighting": "uniform", "max_influence": 0.0}
    strategy, reports = run(clients, {(2, 1): 2}, 4, NeverSplit(), **options)
    models = [np.zeros(16)]
    for r in (1, 2):
        models.append(models[-1] + (step(models[-1], r, 0) + step(models[-1], r, 1)) / 2)
    late = step(models[0], 1, 2)
    staleness = np.linalg.norm(models[2] - models[0]) / np.linalg.norm(late)
    late /= 1 + staleness
    models.append(models[2] + (step(models[2], 3, 0) + step(models[2], 3, 1) + late) / 3)
    models.append(models[3] + sum(step(models[3], 4, client) for client in range(3)) / 3)
    for model, report in zip(models[1:], reports, strict=True):
        np.testing.assert_allclose(report.state.tree.root.model.trained, model, atol=1e-5)
    known = reports[2].state.known["partition-2"]
    np.testing.assert_allclose(known.origin, models[0], atol=1e-5)
    assert (known.server_round, known.staleness) == (3, pytest.approx(staleness, rel=1e-4))
    assert rounds_asked(clients, 2) == [1, 4]
    assert strategy.failures.problems == {}


def test_log_and_run_folder_name_the_clients_with_late_replies(caplog):
    caplog.set_level(INFO, "flwr")
    _, reports = run(Quadratics((0, 0, 0)), {(2, 1): 2}, 4, NeverSplit())
    lines = [round_line(report, report.decisions[0]) for report in reports]
    owed = {"partition-2": 1}
    assert [line.late for line in lines] == [{}, {}, owed, {}]
    assert [line.outstanding for line in lines] == [owed, owed, {}, {}]
    assert ["partition-2" in line.heard for line in lines] == [False, False, True, True]
    assert [line.problems for line in lines] == [{}] * 4
    assert sum("closed without partition-2 (round 1)" in text for text in caplog.messages) == 2
    assert (
        sum(
            "Late replies that count now: partition-2 (round 1)" in text for text in caplog.messages
        )
        == 1
    )


@pytest.mark.parametrize(
    ("groups", "slow", "criterion"),
    [(GROUPS, 0, CRITERION), ((0, 1, 2, 0, 1, 2, 1, 0, 2), 5, AutoCriterion())],
)
def test_a_slow_client_changes_no_group_and_no_reply_is_lost(groups, slow, criterion):
    clients = Quadratics(groups)
    late = {(slow, server_round): 4 for server_round in range(1, 40)}
    strategy, reports = run(clients, late, 40, criterion, personal=False)
    assert clusters_of(strategy) == clients.planted
    asked = rounds_asked(clients, slow)
    assert sorted(set(asked)) == list(range(1, 40, 5))  # two models each for a question
    used = sum(len(report.late) for report in reports)
    assert used + sum(len(report.problems) for report in reports) == len(asked)
    assert strategy.failures.problems == {}


@pytest.mark.slow
def test_a_reply_to_a_cluster_that_was_split_meanwhile_is_set_aside():
    split = split_round(GROUPS)
    _, reports = run(Quadratics(GROUPS), {(5, split): 3}, split + 4)
    problem = reports[split + 2].problems["partition-5"]
    assert "too late: the client trains the model of 0.1 now" in problem
    trained = ["partition-5" in report.trained_on for report in reports[split + 2 : split + 4]]
    assert trained == [False, True]


@pytest.mark.parametrize(("kind", "words"), [("norm overflows", "not finite"), ("error", "error")])
def test_a_late_reply_that_cannot_be_used_is_set_aside(kind, words):
    strategy, reports = run(Quadratics((0, 0, 0)), {(2, 1): 1}, 3, faults={(2, 1): kind})
    assert words in reports[1].problems["partition-2"]
    assert strategy.failures.problems == {"partition-2": 1}
    assert "partition-2" in reports[2].measured


def test_a_resumed_run_sends_the_outstanding_asks_again():
    before, reports = run(Quadratics((0, 0, 0)), {(2, 1): 9}, 2, NeverSplit())
    (owed,) = reports[-1].outstanding
    gone = owed._replace(ask=owed.ask._replace(client="partition-7"))
    clients, after = Quadratics((0, 0, 0)), Reports()
    after.on_start = lambda run: Checkpoint(2, before.state, outstanding=(owed, gone))
    strategy = ClusteredFL(NeverSplit(), observers=[after])
    strategy.start(clients.grid(), initial_arrays(), 4)
    assert [report.late for report in after] == [{"partition-2": 1}, {}]
    assert after[0].problems == {}
    again = [seen for seen in clients.seen if seen.client == 2 and seen.kind == "train"]
    assert [(seen.server_round, seen.cluster) for seen in again] == [(1, "0"), (4, "0")]
    np.testing.assert_array_equal(again[0].vector, np.zeros(16))


def test_a_client_that_owes_a_reply_neither_evaluates_nor_judges():
    clients, settings = Quadratics((0,) * 5 + (1,) * 5), {"trial_rounds": 1, "metric": "loss"}
    _, reports = run(clients, {(9, 2): 50}, 8, Halves(), **settings)
    assert [d.outcome for d in reports[2].decisions] == ["split", "split confirmed"]
    # in the round, and both models to judge the split
    assert rounds_asked(clients, 8, "evaluate").count(3) == 3
    assert rounds_asked(clients, 9, "evaluate") == [
        1,
        8,
        8,
    ]  # at the end two models


@pytest.mark.parametrize(
    ("away", "rounds", "text"),
    [
        (range(3, 6), [1, 2, 6, 7], "Client partition-2 is back, at node"),
        (range(1, 3), [3, 4, 5, 6, 7], "New client(s): partition-2"),
    ],
)
def test_a_client_takes_part_while_it_is_connected(away, rounds, text, caplog):
    caplog.set_level(INFO, "flwr")
    clients = Machines((0, 0, 0))
    _, reports = run(clients, {}, 7, NeverSplit(), away={2: away})
    assert rounds_asked(clients, 2) == rounds
    first = rounds[0]
    number = [len(report.state.tree.clients) for report in reports]
    assert number == [2] * (first - 1) + [3] * (8 - first)
    assert sum(text in message for message in caplog.messages) == 1
