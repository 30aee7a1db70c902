import logging

from cflower.strategy.round_log import LASTING, WeightLog


def test_only_the_first_clients_that_count_for_less_for_long_are_warned_of(caplog):
    caplog.set_level(logging.INFO, "flwr")
    weight_log, clients = WeightLog(), ["a", "b", "c"]
    for _ in range(LASTING):
        weight_log.lowered({"a": 0.4}, clients, 3.0)
    for _ in range(LASTING):
        weight_log.lowered({"b": 0.4}, clients, 3.0)
    weight_log.lowered({"c": 0.01}, clients, 3.0)
    named = [r.getMessage().partition(" counts")[0] for r in caplog.records]
    weights = [("0.4", "a"), ("0.01", "c")]
    assert named == [f"Only {share} of the weight of client {name}" for share, name in weights]
