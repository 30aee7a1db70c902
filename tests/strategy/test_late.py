"""Rounds that do not wait: replies that come some rounds later, and what is made of them."""

import time
from concurrent.futures import ThreadPoolExecutor
from logging import INFO

import numpy as np
import pytest
from flwr.app import Error, Message, RecordDict

from cflower import ClusteredFL
from cflower.algorithm.auto.criterion import AutoCriterion
from cflower.algorithm.criteria import NeverSplit
from cflower.messages.exchange import Closing, Exchange
from cflower.recording.serialization import round_line
from cflower.seeding import generator
from cflower.simulation.inline_grid import FIRST_NODE_ID, InlineGrid
from tests.strategy.chaos import ChaosGrid, Machines, Plan
from tests.strategy.quadratics import (
    CENTERS,
    CRITERION,
    Quadratics,
    Reports,
    found,
    initial_arrays,
)
from tests.strategy.scripted_grid import ScriptedGrid, echo
from tests.strategy.test_trials import Halves


class Clock(Reports):
    """Tells the grid which round comes next."""

    def __init__(self, grid):
        self.grid = grid

    def on_round(self, report):
        super().on_round(report)
        self.grid.now = report.server_round + 1


def run(clients, late, num_rounds, criterion=CRITERION, faults=None, away=None, **settings):
    """Strategy and reports of a run in which some replies come so many rounds later."""
    grid = ChaosGrid(clients, Plan(faults or {}, away or {}, late), 1, lambda: None)
    reports = Clock(grid)
    settings = {"round_share": 0.5, **settings}
    strategy = ClusteredFL(criterion, observers=[reports], **settings)
    strategy.start(grid, initial_arrays(), num_rounds, timeout=20)
    return strategy, reports


def rounds_asked(clients, client, kind="train"):
    return [
        seen.server_round for seen in clients.seen if (seen.kind, seen.client) == (kind, client)
    ]


def split_of(groups):
    """The round in which they are split if nobody is late."""
    _, reports = run(Quadratics(groups), {}, 20)
    return next(r.server_round for r in reports if len(r.state.tree.clusters) > 1)


def step(model, server_round, client):
    """Δ_i of a client of group 0, as `Quadratics` computes it."""
    noise = 1e-3 * generator(0, server_round, client).normal(size=16)
    return 0.5 * (CENTERS[0] - model) + noise


def test_a_late_reply_counts_from_the_model_it_was_computed_from():
    clients = Quadratics((0, 0, 0))
    options = {"weighting": "uniform", "max_influence": 0.0}
    strategy, reports = run(clients, {(2, 1): 2}, 4, NeverSplit(), **options)
    models = [np.zeros(16)]
    models.append(models[0] + (step(models[0], 1, 0) + step(models[0], 1, 1)) / 2)
    models.append(models[1] + (step(models[1], 2, 0) + step(models[1], 2, 1)) / 2)
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


def test_rounds_tell_who_is_late_and_whose_late_reply_counts(caplog):
    caplog.set_level(INFO, "flwr")
    _, reports = run(Quadratics((0, 0, 0)), {(2, 1): 2}, 4, NeverSplit())
    lines = [round_line(report, report.decisions[0]) for report in reports]
    assert [line["late"] for line in lines] == [{}, {}, {"partition-2": 1}, {}]
    owed = {"partition-2": 1}
    assert [line["outstanding"] for line in lines] == [owed, owed, {}, {}]
    assert ["partition-2" in line["heard"] for line in lines] == [False, False, True, True]
    assert [line["problems"] for line in lines] == [{}] * 4
    told = [text for text in caplog.messages if "their replies may still come" in text]
    without = "The round is closed without partition-2 (round 1): their replies may still come."
    assert told == [without] * 2
    assert "Client partition-2 answers round 1 late: its reply counts now." in caplog.messages


def test_a_model_that_has_not_moved_makes_no_reply_stale():
    clients = Quadratics((0, 0))
    _, reports = run(clients, {(1, 1): 2}, 3, NeverSplit(), isolated=True)
    assert reports[2].state.known["partition-1"].staleness == 0
    model = reports[2].state.tree.leaf_of("partition-1").model.trained
    np.testing.assert_allclose(model, step(np.zeros(16), 1, 1), atol=1e-5)


@pytest.mark.parametrize("criterion", [CRITERION, AutoCriterion()], ids=["norms", "auto"])
@pytest.mark.parametrize("groups", [(0, 1, 0, 1, 0, 1), (0, 1, 2, 0, 1, 2, 1, 0, 2)])
@pytest.mark.parametrize("slow", [0, 5])
def test_the_groups_are_those_of_a_run_in_which_nobody_is_late(groups, slow, criterion):
    clients = Quadratics(groups)
    late = {(slow, server_round): 4 for server_round in range(1, 40)}
    strategy, reports = run(clients, late, 40, criterion)
    assert found(strategy) == clients.planted
    asked = rounds_asked(clients, slow)
    assert sorted(set(asked)) == list(range(1, 40, 5))  # two models each in a trial
    answered = [r for report in reports for r in report.late.values()]
    told = [text for report in reports for text in report.problems.values()]
    assert len(answered) + len(told) == len(asked)  # nothing is lost
    assert strategy.failures.problems == {}


def test_a_reply_to_a_cluster_that_was_split_meanwhile_is_set_aside_with_a_reason():
    groups = (0, 1, 0, 1, 0, 1)
    split = split_of(groups)
    _, reports = run(Quadratics(groups), {(5, split): 3}, 20)
    told = reports[split + 2].problems["partition-5"]
    assert told == (
        f"to round {split} is too late: cluster 0, whose model it trained, is not the one that it "
        "trains now, 0.1"
    )
    assert "partition-5" not in reports[split + 2].trained_on
    assert "partition-5" in reports[split + 3].trained_on


@pytest.mark.parametrize(
    ("asked", "cluster", "ended"),
    [(3, "0", "was split and joined again"), (4, "0.1", "was joined again")],
)
def test_a_reply_to_a_cluster_that_was_joined_meanwhile_is_set_aside(asked, cluster, ended):
    settings = {"criterion": Halves(), "trial_rounds": 3, "metric": "loss"}
    _, reports = run(Quadratics((0,) * 6), {(5, asked): 7 - asked}, 8, **settings)
    told = f"to round {asked} is too late: cluster {cluster}, whose model it trained, {ended}"
    assert reports[6].problems == {"partition-5": told}
    assert "partition-5" in reports[7].trained_on


def test_who_came_while_a_cluster_was_split_answers_it_too_late_once_it_is_joined():
    settings = {"criterion": Halves(), "trial_rounds": 3, "metric": "loss"}
    clients, away = Machines((0,) * 7), {6: range(1, 6)}
    _, reports = run(clients, {(6, 6): 1}, 8, away=away, **settings)
    assert len(reports[5].state.tree.leaves) == 1
    told = "to round 6 is too late: cluster 0, whose model it trained, was split and joined again"
    assert reports[6].problems == {"partition-6": told}
    assert "partition-6" in reports[7].trained_on


def test_a_reply_to_a_model_far_from_the_one_that_was_split_tells_no_way():
    groups = (2, 1, 2, 2, 2, 1)
    split, clients = split_of(groups), Quadratics(groups)
    strategy, reports = run(clients, {(0, 1): split}, split + 3)
    told = "to round 1 is too late: cluster 0, whose model it trained, had moved on before it"
    assert reports[split].problems == {"partition-0": f"{told} was split"}
    assert [dict(r.state.tree.unassigned) for r in reports[split - 1 :]] == [
        {"partition-0": "0"},
        {"partition-0": "0"},
        {},
        {},
    ]
    assert found(strategy) == clients.planted


def test_a_late_reply_that_cannot_be_used_is_set_aside():
    _, reports = run(Quadratics((0, 0, 0)), {(2, 1): 1}, 3, faults={(2, 1): "norm overflows"})
    assert "too long for its norm" in reports[1].problems["partition-2"]
    assert "partition-2" in reports[2].measured


def test_who_owed_a_reply_is_asked_the_same_again_by_a_resumed_run():
    before, reports = run(Quadratics((0, 0, 0)), {(2, 1): 9}, 2, NeverSplit())
    (owed,) = reports[-1].outstanding
    gone = owed._replace(client="partition-7")
    clients, told = Quadratics((0, 0, 0)), Reports()
    strategy = ClusteredFL(NeverSplit(), observers=[told])
    strategy.resume(before.state, 2, outstanding=[owed, gone])
    strategy.start(clients.grid(), initial_arrays(), 4)
    assert [report.late for report in told] == [{"partition-2": 1}, {}]
    assert told[0].problems == {}
    again = [seen for seen in clients.seen if seen.client == 2 and seen.kind == "train"]
    assert [(seen.server_round, seen.cluster) for seen in again] == [(1, "0"), (4, "0")]
    np.testing.assert_array_equal(again[0].vector, np.zeros(16))


def test_a_late_error_is_an_error_as_any_other():
    strategy, reports = run(Quadratics((0, 0, 0)), {(2, 1): 1}, 3, faults={(2, 1): "error"})
    assert "partition-2" in reports[1].problems
    assert strategy.failures.problems == {"partition-2": 1}
    assert "partition-2" in reports[2].measured


def test_who_owes_a_reply_neither_evaluates_nor_judges():
    groups = (0, 1, 0, 1, 0, 1, 0, 1, 0, 1)
    split, clients = split_of(groups), Quadratics(groups)
    _, reports = run(clients, {(9, split + 1): 50}, split + 4, trial_rounds=2, metric="loss")
    outcomes = [decision.outcome for decision in reports[split + 1].decisions]
    assert "split confirmed" in outcomes
    # in the round, and both models to judge the split
    assert rounds_asked(clients, 8, "evaluate").count(split + 2) == 3
    asked = [*range(1, split + 1), *[split + 4] * 2]  # with its leaf's model, and the root's
    assert rounds_asked(clients, 9, "evaluate") == asked


# ------------------------------------------------------------------------ nodes come and go


def test_who_goes_is_not_asked_and_who_comes_back_goes_on_at_another_node(caplog):
    caplog.set_level(INFO, "flwr")
    clients = Machines((0, 0, 0))
    _, reports = run(clients, {}, 7, NeverSplit(), away={2: range(3, 6)})
    assert rounds_asked(clients, 2) == [1, 2, 6, 7]
    assert {len(report.state.tree.clients) for report in reports} == {3}
    assert sum("Client partition-2 is back, at node" in text for text in caplog.messages) == 1


def test_who_comes_later_is_a_client_from_then_on(caplog):
    caplog.set_level(INFO, "flwr")
    clients = Machines((0, 0, 0))
    _, reports = run(clients, {}, 4, NeverSplit(), away={2: range(1, 3)})
    assert rounds_asked(clients, 2) == [3, 4]
    assert [len(report.state.tree.clients) for report in reports] == [2, 2, 3, 3]
    assert caplog.messages.count("New client(s): partition-2") == 1


# ------------------------------------------------------------------------------ by the clock


class Sleepers(InlineGrid):
    """Clients that take time, all at once; the last of ten takes five times as long."""

    def __init__(self, clients, slowness):
        super().__init__(clients.app(), len(clients.groups), {})
        self._slowness, self._threads = slowness, ThreadPoolExecutor(len(clients.groups))
        self._at_work = {}

    def push_messages(self, messages):
        ids = list(super().push_messages(messages))
        self._at_work |= {i: self._threads.submit(self._work, self._pending.pop(i)) for i in ids}
        return ids

    def pull_messages(self, message_ids):
        done = [i for i in message_ids if i in self._at_work and self._at_work[i].done()]
        return [self._at_work.pop(i).result() for i in done]

    def _work(self, message):
        last = message.metadata.dst_node_id == FIRST_NODE_ID + len(self._contexts) - 1
        if message.metadata.message_type == "train":
            time.sleep(0.4 * (self._slowness if last else 1))
        return self._answer(message)


@pytest.mark.slow
def test_one_slow_client_of_ten_costs_a_fifth_of_the_time_at_most():
    seconds, groups = [], []
    for slowness, share in ((1, 1.0), (5, 0.9)):
        clients, strategy = Quadratics((0, 1) * 5), ClusteredFL(CRITERION, round_share=share)
        began = time.monotonic()
        strategy.start(Sleepers(clients, slowness), initial_arrays(), 30)
        seconds.append(time.monotonic() - began)
        groups.append(found(strategy))
    print(seconds)
    assert groups == [clients.planted] * 2
    assert seconds[1] < 1.2 * seconds[0]


# ----------------------------------------------------------------------------- the exchange


def exchange_with(grid, nodes, closing, earlier=None, timeout=10.0):
    messages = [Message(RecordDict(), node, "train") for node in nodes]
    return Exchange(grid, messages, timeout, closing, earlier)


def senders(replies):
    return [reply.metadata.src_node_id for reply in replies]


def test_an_exchange_closes_when_its_share_is_in():
    grid = ScriptedGrid(echo, range(1, 6), [[4], [], [2, 1], [3], [], [5]])
    exchange = exchange_with(grid, range(1, 6), Closing(0.8))
    assert senders(exchange) == [1, 2, 3, 4]
    assert [exchange.recipients[i] for i in exchange.unanswered] == [5]
    assert exchange.silent == []


def test_an_exchange_closes_when_its_seconds_are_over_but_not_without_a_reply():
    grid = ScriptedGrid(echo, [1, 2], [[], [], [], [], [2]])
    exchange = exchange_with(grid, [1, 2], Closing(seconds=0.01))
    assert senders(exchange) == [2]
    assert [exchange.recipients[i] for i in exchange.unanswered] == [1]


def test_who_fails_at_once_does_not_make_up_the_share():
    def answer(message):
        failed = message.metadata.dst_node_id < 4
        return Message(Error(2, "boom"), reply_to=message) if failed else echo(message)

    grid = ScriptedGrid(answer, range(1, 7), [[1, 2, 3], [], [4], [], [5], []])
    exchange = exchange_with(grid, range(1, 7), Closing(0.5))
    assert senders(exchange) == [1, 2, 3, 4, 5]


def test_the_share_is_one_of_clients_however_many_messages_they_owe():
    grid = ScriptedGrid(echo, [1, 2, 3], [[1], [2], [1], [2]])
    exchange = exchange_with(grid, [1, 2, 3, 1, 2, 3], Closing(0.6))
    assert sorted(senders(exchange)) == [1, 1, 2, 2]
    assert [exchange.recipients[i] for i in exchange.unanswered] == [3, 3]


def test_replies_to_earlier_messages_come_last_and_nobody_waits_for_them():
    grid = ScriptedGrid(echo, range(1, 5), [[1], []])
    first = exchange_with(grid, [3, 1], Closing(0.5))
    assert senders(first) == [1]
    owed = {i: first.recipients[i] for i in first.unanswered}
    grid.arrivals = [[3], [2, 1]]
    second = exchange_with(grid, [1, 2], Closing(0.9), owed)
    assert senders(second) == [1, 2, 3]
    assert second.unanswered == ()
    grid.arrivals = [[1], [2], []]
    third = exchange_with(grid, [1, 2, 4], Closing(0.5), {"never": 3})
    assert senders(third) == [1, 2]
    assert [third.recipients[i] for i in third.unanswered] == [4, 3]


def test_past_the_timeout_nobody_is_waited_for_any_more():
    exchange = exchange_with(ScriptedGrid(echo, [1, 2], [[1]]), [1, 2], Closing(), timeout=0.1)
    assert senders(exchange) == [1]
    assert (exchange.silent, exchange.unanswered) == ([2], ())
