import time
from logging import INFO

import pytest
from flwr.app import Error, Message, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from cflower.messages.exchange import HOLD, Exchange, Quorum
from tests.algorithm.planted import laws
from tests.messages.scripted_grid import ScriptedGrid, echo


def exchange_with(grid, nodes, timeout=10.0, **settings):
    messages = [Message(RecordDict(), node, "train") for node in nodes]
    return Exchange(grid, messages, timeout, **settings)


def senders(replies):
    return [reply.metadata.src_node_id for reply in replies]


@laws
@given(st.permutations(range(10, 18)), st.integers(1, 4))
def test_replies_are_yielded_in_the_order_of_the_messages(order, size):
    batches = [order[i : i + size] for i in range(0, len(order), size)]
    grid = ScriptedGrid(echo, order, batches)
    exchange = exchange_with(grid, range(10, 18))
    assert senders(exchange) == list(range(10, 18))
    assert exchange.silent == []


def test_a_reply_does_not_wait_for_later_ones():
    grid = ScriptedGrid(echo, [1, 2, 3], [[1], [3], [2]])
    replies = iter(exchange_with(grid, [1, 2, 3]))
    assert next(replies).metadata.src_node_id == 1
    assert grid.arrived == 1


def test_at_most_hold_replies_wait_for_a_slow_one():
    nodes = list(range(1, 2 * HOLD + 1))
    grid = ScriptedGrid(echo, nodes, [[node] for node in (*nodes[1:], nodes[0])])
    came, most = [], 0
    for reply in exchange_with(grid, nodes):
        came.append(reply.metadata.src_node_id)
        most = max(most, grid.arrived - len(came))
    assert most <= HOLD
    assert came[: HOLD - 1] == nodes[1:HOLD]
    assert sorted(came) == nodes


def test_long_exchanges_log_their_progress(monkeypatch, caplog):
    monkeypatch.setattr("cflower.messages.exchange.LOG_INTERVAL", -1.0)
    caplog.set_level(INFO)
    list(exchange_with(ScriptedGrid(echo, [1, 2, 3], [[1], [3], [2]]), [1, 2, 3]))
    lines = [r.getMessage().strip() for r in caplog.records if " answers" in r.getMessage()]
    assert (lines[0][:6], lines[-1][:6]) == ("0 of 3", "2 of 3")


@pytest.mark.parametrize("settings", [{}, {"quorum": Quorum()}])
def test_nodes_without_a_reply_are_listed_after_the_timeout(settings):
    grid = ScriptedGrid(echo, [1, 2, 3], [[3], [1]])
    exchange = exchange_with(grid, [1, 2, 3], timeout=0.15, **settings)
    assert senders(exchange) == [1, 3]
    assert (exchange.silent, exchange.closed) == (["2"], False)


def test_time_in_which_the_server_reads_does_not_count():
    grid = ScriptedGrid(echo, [1, 2, 3], [[1], [2], [3]])
    exchange, came = exchange_with(grid, [1, 2, 3], timeout=0.15), []
    for reply in exchange:
        came.append(reply.metadata.src_node_id)
        time.sleep(0.2)
    assert (came, exchange.silent) == ([1, 2, 3], [])


def test_second_replies_and_those_to_other_messages_are_ignored():
    class Babbling(ScriptedGrid):
        def pull_messages(self, message_ids):
            came = super().pull_messages(message_ids)
            return [*came, *map(echo, (sent[-1], *old))]

    def answer(message):
        sent.append(message)
        return echo(message)

    sent, old = [], []
    assert senders(exchange_with(Babbling(answer, [1, 2], [[1], [2]]), [1, 2])) == [1, 2]
    old, sent = sent[:1], []
    grid = Babbling(answer, [3, 4], [[3], [4]])
    grid.asked = [0] * 9  # message ids of its own
    assert senders(exchange_with(grid, [3, 4])) == [3, 4]


def test_nodes_that_left_before_the_message_are_lost_at_once():
    exchange = exchange_with(ScriptedGrid(echo, [1, 3]), [3, 2, 1])
    nodes = [exchange.recipients[reply.metadata.reply_to_message_id] for reply in exchange]
    assert (nodes, exchange.lost, exchange.silent) == (["3", "1"], ["2"], [])


def test_unawaited_nodes_delay_nothing_and_their_replies_count_if_they_come():
    grid = ScriptedGrid(echo, [1, 2, 3], [[3], [1], []])
    exchange = exchange_with(grid, [1, 2, 3], unawaited={"2", "3"})
    assert senders(exchange) == [1, 3]
    assert len(exchange.outstanding) == 1
    assert exchange.silent == []


@pytest.mark.slow
def test_the_timeout_counts_from_the_last_reply():
    nodes = list(range(1, 10))
    pulls = [batch for node in nodes for batch in ([], [], [node])]  # a pause after each empty one
    exchange = exchange_with(ScriptedGrid(echo, [*nodes, 10], pulls), [*nodes, 10], timeout=0.5)
    assert senders(exchange) == nodes
    assert exchange.silent == ["10"]


def outstanding(exchange):
    """The clients that still owe a reply."""
    return [exchange.recipients[message_id] for message_id in exchange.outstanding]


def test_an_exchange_ends_when_its_share_has_replied():
    grid = ScriptedGrid(echo, range(1, 6), [[4], [], [2, 1], [3], [], [5]])
    exchange = exchange_with(grid, range(1, 6), quorum=Quorum(0.8))
    assert senders(exchange) == [1, 2, 3, 4]
    assert outstanding(exchange) == ["5"]
    assert exchange.silent == []


def test_an_exchange_ends_after_its_seconds_but_not_without_a_reply():
    grid = ScriptedGrid(echo, [1, 2], [[], [], [], [], [2]])
    exchange = exchange_with(grid, [1, 2], quorum=Quorum(seconds=0.01))
    assert senders(exchange) == [2]
    assert outstanding(exchange) == ["1"]


def test_clients_that_fail_at_once_do_not_count_for_the_share():
    def answer(message):
        failed = message.metadata.dst_node_id < 4
        return Message(Error(2, "boom"), reply_to=message) if failed else echo(message)

    grid = ScriptedGrid(answer, range(1, 7), [[1, 2, 3], [], [4], [], [5], []])
    assert senders(exchange_with(grid, range(1, 7), quorum=Quorum(0.5))) == [1, 2, 3, 4, 5]


def test_the_share_is_one_of_clients_not_of_messages():
    grid = ScriptedGrid(echo, [1, 2, 3], [[1], [2], [1], [2]])
    exchange = exchange_with(grid, [1, 2, 3, 1, 2, 3], quorum=Quorum(0.6))
    assert sorted(senders(exchange)) == [1, 1, 2, 2]
    assert outstanding(exchange) == ["3", "3"]


def test_an_exchange_does_not_wait_for_replies_to_earlier_messages_and_yields_them_last():
    grid = ScriptedGrid(echo, range(1, 5), [[1], []])
    first = exchange_with(grid, [3, 1], quorum=Quorum(0.5))
    assert senders(first) == [1]
    owed = {i: first.recipients[i] for i in first.outstanding}
    grid.arrivals = [[3], [2, 1]]
    second = exchange_with(grid, [1, 2], quorum=Quorum(0.9), earlier=owed)
    assert senders(second) == [1, 2, 3]
    assert second.outstanding == {}
    grid.arrivals = [[1], [2], []]
    third = exchange_with(grid, [1, 2, 4], quorum=Quorum(0.5), earlier={"never": "3"})
    assert senders(third) == [1, 2]
    assert outstanding(third) == ["4", "3"]
