import time
from logging import INFO

from flwr.app import Message, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st

from cflower.messages.exchange import HOLD, Exchange
from tests.strategy.scripted_grid import ScriptedGrid, echo

laws = settings(max_examples=40)


def messages_to(nodes):
    return [Message(RecordDict(), node, "train") for node in nodes]


def exchange_with(grid, nodes, timeout=10.0):
    return Exchange(grid, messages_to(nodes), timeout)


def senders(replies):
    return [reply.metadata.src_node_id for reply in replies]


@laws
@given(st.permutations(range(10, 18)), st.integers(1, 4))
def test_replies_come_in_the_order_of_the_messages_however_they_arrive(order, size):
    batches = [order[i : i + size] for i in range(0, len(order), size)]
    grid = ScriptedGrid(echo, order, batches)
    exchange = exchange_with(grid, range(10, 18))
    assert senders(exchange) == list(range(10, 18))
    assert exchange.silent == []


def test_a_reply_whose_turn_it_is_does_not_wait_for_later_ones():
    grid = ScriptedGrid(echo, [1, 2, 3], [[1], [3], [2]])
    replies = iter(exchange_with(grid, [1, 2, 3]))
    assert next(replies).metadata.src_node_id == 1
    assert grid.arrived == 1


def test_no_more_than_hold_replies_wait_for_a_slow_one():
    nodes = list(range(1, 2 * HOLD + 1))
    grid = ScriptedGrid(echo, nodes, [[node] for node in (*nodes[1:], nodes[0])])
    came, most = [], 0
    for reply in exchange_with(grid, nodes):
        came.append(reply.metadata.src_node_id)
        most = max(most, grid.arrived - len(came))
    assert most <= HOLD
    assert came[: HOLD - 1] == nodes[1:HOLD]
    assert sorted(came) == nodes


def test_long_exchanges_say_how_many_have_answered(monkeypatch, caplog):
    monkeypatch.setattr("cflower.messages.exchange.TELL", -1.0)
    caplog.set_level(INFO)
    list(exchange_with(ScriptedGrid(echo, [1, 2, 3], [[1], [3], [2]]), [1, 2, 3]))
    said = [r.getMessage().strip() for r in caplog.records if "have answered" in r.getMessage()]
    assert said[0] == "0 of 3 clients have answered"
    assert said[-1] == "2 of 3 clients have answered"


def test_nodes_that_stay_silent_are_told_after_the_timeout():
    grid = ScriptedGrid(echo, [1, 2, 3], [[3], [1]])
    exchange = exchange_with(grid, [1, 2, 3], timeout=0.15)
    assert senders(exchange) == [1, 3]
    assert exchange.silent == [2]


def test_nobody_is_late_because_the_server_takes_its_time_to_read():
    grid = ScriptedGrid(echo, [1, 2, 3], [[1], [2], [3]])
    exchange, came = exchange_with(grid, [1, 2, 3], timeout=0.15), []
    for reply in exchange:
        came.append(reply.metadata.src_node_id)
        time.sleep(0.2)
    assert (came, exchange.silent) == ([1, 2, 3], [])


def test_a_second_reply_or_one_to_another_round_is_a_stray():
    def answer(message):
        sent.append(message)
        return echo(message)

    class Babbling(ScriptedGrid):
        def pull_messages(self, message_ids):
            came = super().pull_messages(message_ids)
            return [*came, echo(sent[-1]), *([] if old is None else [echo(old)])]

    sent, old = [], None
    first = exchange_with(Babbling(answer, [1, 2], [[1], [2]]), [1, 2])
    assert senders(first) == [1, 2]
    old, sent = sent[0], []
    grid = Babbling(answer, [3, 4], [[3], [4]])
    grid.asked = [0] * 9  # message ids of its own
    second = exchange_with(grid, [3, 4])
    assert senders(second) == [3, 4]
    assert (first.strays, second.strays) == ([1, 2], [3, 1, 4, 1])


def test_nodes_that_left_before_the_message_are_silent_at_once():
    exchange = exchange_with(ScriptedGrid(echo, [1, 3]), [1, 2, 3])
    assert senders(exchange) == [1, 3]
    assert exchange.silent == [2]
    assert sorted(exchange.recipients.values()) == [1, 3]


def test_recipients_tell_who_was_asked():
    exchange = exchange_with(ScriptedGrid(echo, [7, 8]), [8, 7])
    nodes = [exchange.recipients[reply.metadata.reply_to_message_id] for reply in exchange]
    assert nodes == [8, 7]


def test_an_answer_that_was_not_asked_for_is_not_passed_on():
    first = messages_to([1])
    grid = ScriptedGrid(echo, [1, 2])
    list(Exchange(grid, first, 1.0))
    late = echo(first[0])
    grid.answer = lambda message: late if message.metadata.dst_node_id == 1 else echo(message)
    exchange = exchange_with(grid, [1, 2], timeout=0.1)
    assert senders(exchange) == [2]
    assert exchange.silent == [1]


def test_nobody_to_ask_is_no_exchange():
    assert list(exchange_with(ScriptedGrid(echo, []), [])) == []
