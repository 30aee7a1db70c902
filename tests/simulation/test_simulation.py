"""`simulate`: any strategy, any ServerApp, any ClientApp in one process."""

import random

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import fixedclipping_mod
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, FedMedian, Result

import cflower
from cflower.errors import ConfigError
from cflower.simulation.inline_grid import InlineGrid

FIRST = ArrayRecord({"w": Array(np.zeros(2))})


def app_of() -> ClientApp:
    """Client i has i + 1 examples and goes half the way to (i, i)."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        client = int(context.node_config["partition-id"])
        arrays = ArrayRecord({"w": Array((message.content["arrays"]["w"].numpy() + client) / 2)})
        content = {"arrays": arrays, "metrics": MetricRecord({"num-examples": client + 1})}
        return Message(RecordDict(content), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        values = message.content["arrays"]["w"].numpy()
        client = int(context.node_config["partition-id"])
        metrics = {"num-examples": client + 1, "distance": float(np.abs(values - client).mean())}
        return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)

    return app


def test_flowers_own_strategies_run_in_it():
    result = cflower.simulate(app_of(), 3, strategy=FedAvg(), arrays=FIRST, num_rounds=2)
    assert isinstance(result, Result)
    # The weighted mean of 0, 1, 2 is 4/3; each round goes half the way there.
    np.testing.assert_allclose(result.arrays["w"].numpy(), [1.0, 1.0])
    assert result.evaluate_metrics_clientapp[2]["distance"] == pytest.approx((1 * 1 + 3 * 1) / 6)
    median = cflower.simulate(app_of(), 3, strategy=FedMedian(), arrays=FIRST, num_rounds=1)
    np.testing.assert_allclose(median.arrays["w"].numpy(), [0.5, 0.5])


def test_a_mod_that_answers_the_reply_instead_of_the_message_fails_at_once():
    app = ClientApp()

    @app.train(mods=[fixedclipping_mod])
    def train(message: Message, context: Context) -> Message:
        arrays = ArrayRecord(dict(reversed(message.content["arrays"].items())))
        return Message(RecordDict({"arrays": arrays}), reply_to=message)

    grid = InlineGrid(app, 1, {})
    two = ArrayRecord({"w": Array(np.zeros(2)), "b": Array(np.zeros(1))})
    content = RecordDict({"arrays": two, "config": ConfigRecord({"clipping_norm": 1.0})})
    (sent,) = grid.push_messages([Message(content, next(iter(grid.get_node_ids())), "train")])
    (reply,) = grid.pull_messages([sent])
    assert reply.metadata.reply_to_message_id == sent
    assert "answered another message: fixedclipping_mod expects the keys" in reply.error.reason


def test_further_arguments_reach_start_and_the_default_is_flowers_number_of_rounds():
    random.seed(0)
    first: list[float] = []

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        first.append(float(arrays["w"].numpy()[0]))
        return MetricRecord({"first": first[-1]})

    strategy = FedAvg(fraction_train=0.5)
    result = cflower.simulate(app_of(), 4, strategy=strategy, arrays=FIRST, evaluate_fn=evaluate)
    assert list(result.train_metrics_clientapp) == [1, 2, 3]
    assert (len(first), first[0]) == (4, 0.0)


def test_a_client_cannot_change_the_records_of_others():
    seen: list[dict[str, object]] = []

    def careless(message: Message, context: Context) -> Message:
        config = message.content["config"]
        seen.append({**config, **context.run_config})
        reply = app_of()(message, context)
        config["server-round"] = context.run_config["lr"] = -1
        message.content["arrays"]["w"] = Array(np.full(2, 99.0))
        return reply

    strategy, config = FedAvg(fraction_evaluate=0.0), {"lr": 0.5}
    cflower.simulate(careless, 3, strategy=strategy, arrays=FIRST, num_rounds=1, run_config=config)
    assert seen == [{"server-round": 1, "lr": 0.5}] * 3
    np.testing.assert_array_equal(FIRST["w"].numpy(), np.zeros(2))


def test_a_server_app_runs_and_a_function_in_its_place_returns_its_result():
    app, runs = ServerApp(), []

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        runs.append((sorted(node.node_id for node in grid.get_nodes()), context.run_config["a"]))
        FedAvg().start(grid, FIRST, num_rounds=1)

    assert cflower.simulate(app_of(), 2, server_app=app, run_config={"a": "b"}) is None
    assert runs == [([1000, 1001], "b")]
    assert cflower.simulate(app_of(), 2, server_app=lambda grid, _: list(grid.get_node_ids()))


@pytest.mark.parametrize("failure", [ValueError("boom"), SystemExit(0)])
def test_exceptions_of_clients_are_error_replies_and_those_of_the_server_are_raised(failure):
    def client(message: Message, context: Context) -> Message:
        if context.node_config["partition-id"] == 0:
            raise failure
        return app_of()(message, context)

    result = cflower.simulate(client, 3, strategy=FedAvg(), arrays=FIRST, num_rounds=1)
    np.testing.assert_allclose(result.arrays["w"].numpy(), [(2 * 1 + 3 * 2) / 5 / 2] * 2)

    def server(grid: Grid, context: Context) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        cflower.simulate(app_of(), 2, server_app=server)


@pytest.mark.parametrize(
    ("clients", "arguments", "problem"),
    [
        (0, {"strategy": FedAvg(), "arrays": FIRST}, "num_clients=0, but expected at least one"),
        (2, {}, "Got neither server_app nor strategy"),
        (2, {"strategy": FedAvg(), "server_app": ServerApp()}, "Got server_app, strategy, but"),
        (2, {"strategy": FedAvg()}, "Got strategy, but expected either strategy= with arrays="),
        (1, {"strategy": FedAvg(), "arrays": FIRST}, "waits for min_available_nodes=2"),
        (2, {"server_app": ServerApp(), "arrays": FIRST}, "Got server_app, arrays, but"),
        (2, {"server_app": ServerApp(), "evaluate_fn": print}, "Got server_app, evaluate_fn, but"),
    ],
)
def test_arguments_that_do_not_fit_together_are_refused(clients, arguments, problem):
    with pytest.raises(ConfigError, match=problem) as raised:
        cflower.simulate(app_of(), clients, **arguments)
    assert "\n" not in str(raised.value)


def test_the_traceback_of_a_clients_error_is_printed_once(capsys):
    def helper(config):
        return config["weihgts"]

    def client_app(message, context):
        if context.node_config["partition-id"] < 3:
            helper({})
        raise ConfigError("one sentence")

    arrays = ArrayRecord({"w": Array(np.zeros(1))})
    with pytest.raises(cflower.errors.FederationError):
        cflower.simulate(client_app, 4, strategy=cflower.ClusteredFL(), arrays=arrays)
    errors = capsys.readouterr().err
    assert errors.count("Client 0 failed:\nTraceback") == errors.count("Traceback") == 1
    assert 'return config["weihgts"]' in errors
