"""What the messenger logs about clients that count for less than their claim."""

import logging

import numpy as np

from cflower.messages.failures import FailureRecord
from cflower.messages.layout import Layout
from cflower.messages.messenger import LASTING, ClientMessenger
from cflower.messages.roll_call import RollCall
from tests.messages.scripted_grid import ScriptedGrid


def test_only_the_first_clients_that_count_for_less_for_long_are_warned_of(caplog):
    caplog.set_level(logging.INFO, "flwr")
    layout, grid = Layout((), np.dtype("f4")), ScriptedGrid(None, [])
    keys = "num-examples", "arrays", "config"
    messenger = ClientMessenger(grid, 60.0, RollCall(), layout, FailureRecord(), *keys)
    clients = ["a", "b", "c"]
    for _ in range(LASTING):
        messenger.log_lowered({"a": 0.4}, clients, 3.0)
    for _ in range(LASTING):
        messenger.log_lowered({"b": 0.4}, clients, 3.0)
    messenger.log_lowered({"c": 0.01}, clients, 3.0)
    lines = [(r.levelname, r.getMessage().partition(" count")[0]) for r in caplog.records]
    level = {"a": ["INFO", "WARNING"], "b": ["INFO"], "c": ["WARNING"]}
    assert lines == [(name, f"Client(s) {c}") for c, names in level.items() for name in names]
