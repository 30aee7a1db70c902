"""What the messenger logs about clients: one line for one cause."""

import logging

import numpy as np

from cflower.messages.failures import FailureRecord, Fault
from cflower.messages.layout import Layout
from cflower.messages.messenger import ClientMessenger
from cflower.messages.roll_call import RollCall
from tests.messages.scripted_grid import ScriptedGrid


def new_messenger() -> ClientMessenger:
    grid = ScriptedGrid(None, [])
    layout, keys = Layout((), np.dtype("f4")), ("num-examples", "arrays", "config")
    return ClientMessenger(grid, 60.0, RollCall(), layout, None, FailureRecord(), *keys)


def test_a_thousand_clients_with_one_fault_are_one_line_once(caplog):
    messenger = new_messenger()
    for _ in range(5):  # rounds
        for i in range(1000):
            messenger.set_aside(f"partition-{i}", f"is an error: no file client-{i}.csv")
        assert len(messenger.drain_problems()) == 1000
    (line,) = caplog.messages
    assert line.startswith("The round goes on without 1,000 clients (partition-0, partition-1,")
    assert line.endswith("988 more): the reply is an error: no file client-0.csv (or alike).")
    messenger.set_aside("partition-1000", "is an error: no file client-1000.csv")
    messenger.drain_problems()
    assert "client partition-1000: the reply is an error" in caplog.messages[-1]


def test_many_different_faults_are_three_lines_at_most(caplog):
    messenger = new_messenger()
    for i, word in enumerate(["once", "twice", "twice", "late", "odd", "even"]):
        messenger.set_aside(f"client-{i}", f"came {word}")
    messenger.drain_problems()
    assert caplog.messages == [
        "The round goes on without 2 clients (client-1, client-2): the reply came twice.",
        "The round goes on without client client-0: the reply came once.",
        "3 clients (client-3, client-4, client-5) had other problems with their replies, of 3 "
        "kinds, such as client-3: came late.",
    ]


def test_a_client_without_held_out_examples_is_no_problem(caplog):
    caplog.set_level(logging.INFO, "flwr")
    messenger = new_messenger()
    for client in ("a", "b"):
        messenger.set_aside(client, "has num-examples=0", Fault.EMPTY, "evaluate")
    assert messenger.drain_problems() == {}
    ((level, line),) = [(r.levelname, r.getMessage()) for r in caplog.records]
    assert level == "INFO" and line.startswith("Without held-out examples: 2 clients (a, b).")
    messenger.set_aside("a", "has num-examples=0", Fault.EMPTY)
    assert messenger.drain_problems()["a"].fault is Fault.CLIENT
