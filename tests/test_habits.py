"""Apps as Flower's guides have them: what clients of other people send, and what becomes of it."""

import logging

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod

from cflower import ClusteredFL, Recorder, assign, name_clients, simulate
from cflower.messages.client_names import adds_noise
from cflower.simulation.inline_grid import InlineGrid
from tests.strategy.quadratics import clusters_of

CLIENTS, FEATURES = 8, 6
HALVES = {frozenset(f"partition-{i}" for i in range(first, CLIENTS, 2)) for first in (0, 1)}
SCALED = {"w": np.zeros(FEATURES, np.float32), "norm.scale": np.ones(FEATURES, np.float32)}


def examples(client, part):
    """Even and odd clients have different weights, and each has units of its own."""
    rng = np.random.default_rng([client, part])
    inputs = rng.normal(size=(80, FEATURES))
    labels = inputs @ np.random.default_rng(client % 2).normal(size=FEATURES)
    units = np.random.default_rng(client).uniform(0.2, 5.0, FEATURES)
    return (inputs * units).astype(np.float32), labels.astype(np.float32)


def scaled_step(model, inputs, labels):
    """A step of a linear model; the scale of its features is never trained."""
    scaled = inputs * model["norm.scale"]
    gradient = scaled.T @ (scaled @ model["w"] - labels) / len(labels)
    return model | {"w": model["w"] - 0.1 * gradient}


def scaled_errors(model, inputs, labels):
    return inputs * model["norm.scale"] @ model["w"] - labels


def own_scale(client):
    return {"norm.scale": 1 / examples(client, 0)[0].std(axis=0)}


def rmse(errors):
    return {"rmse": float(np.sqrt(np.mean(errors**2)))}


def client_app(data, step, errors, first_local, leaves_out=None, measures=rmse):
    """Clients that keep arrays in their context and do not send them.

    ``leaves_out(client, local)`` are the names of what a client leaves out, if not these.
    """
    app = ClientApp()

    def client_and_model(message, context):
        client = int(context.node_config["partition-id"])
        if "local" not in context.state:
            arrays = {key: Array(values) for key, values in first_local(client).items()}
            context.state["local"] = ArrayRecord(arrays)
        arrays = dict(message.content["arrays"]) | dict(context.state["local"])
        return client, {key: array.numpy() for key, array in arrays.items()}

    @app.train()
    def train(message, context):
        client, model = client_and_model(message, context)
        for _ in range(5):
            model = step(model, *data(client, 0))
        arrays = {key: Array(values.astype(np.float32)) for key, values in model.items()}
        local = {*context.state["local"]}
        context.state["local"] = ArrayRecord({key: arrays[key] for key in local})
        left_out = leaves_out(client, local) if leaves_out else local
        content = ArrayRecord({key: arrays[key] for key in arrays if key not in left_out})
        metrics = MetricRecord({"num-examples": 80})
        return Message(RecordDict({"arrays": content, "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message, context):
        client, model = client_and_model(message, context)
        measured = measures(errors(model, *data(client, 1)))
        metrics = MetricRecord({**measured, "num-examples": 80})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return name_clients(app)


def fedbn_app(leaves_out=None, measures=rmse):
    return client_app(examples, scaled_step, scaled_errors, own_scale, leaves_out, measures)


def run(app, first=SCALED, rounds=12, observers=(), **start):
    strategy = ClusteredFL(observers=observers)
    arrays = ArrayRecord({key: Array(np.asarray(values)) for key, values in first.items()})
    start |= {"strategy": strategy, "arrays": arrays, "num_rounds": rounds}
    result = simulate(app, CLIENTS, **start)
    return strategy, result


def warnings(caplog):
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


def worst(result):
    return max(figures["rmse"] for figures in result.served_metrics.values())


def test_arrays_that_all_clients_leave_out_stay_on_them(tmp_path, caplog):
    caplog.set_level(logging.INFO, "flwr")
    recorder = Recorder(tmp_path)
    strategy, result = run(fedbn_app(), observers=[recorder])
    assert set(clusters_of(strategy)) == HALVES
    assert worst(result) < 0.3
    for model in strategy.models.values():
        np.testing.assert_array_equal(model["norm.scale"].numpy(), SCALED["norm.scale"])
    (said,) = [text for text in caplog.messages if "lack the array(s)" in text]
    assert said.startswith("Most replies lack the array(s) norm.scale: these stay on the clients")
    assert not warnings(caplog)
    newcomer = assign(recorder.path, app=fedbn_app(), node_config={"partition-id": 21})
    assert newcomer.cluster == strategy.cluster_of("partition-1")


@pytest.mark.slow
def test_heads_that_stay_on_the_clients_need_no_clusters(caplog):
    """FedPer: each client's head knows what its outputs mean; the body before it is everyone's."""
    width, outputs = 3, 2
    body = np.random.default_rng(0).normal(size=(FEATURES, width))

    def data(client, part):
        inputs = np.random.default_rng([client, part]).normal(size=(80, FEATURES))
        head = np.random.default_rng(100 + client).normal(size=(width, outputs))
        return inputs, inputs @ body @ head

    def errors(model, inputs, labels):
        return inputs @ model["body"] @ model["head.weight"].T + model["head.bias"] - labels

    def step(model, inputs, labels):
        wrong = errors(model, inputs, labels) / len(labels)
        hidden = inputs @ model["body"]
        return {
            "body": model["body"] - 0.1 * inputs.T @ wrong @ model["head.weight"],
            "head.weight": model["head.weight"] - 0.1 * wrong.T @ hidden,
            "head.bias": model["head.bias"] - 0.1 * wrong.sum(axis=0),
        }

    def head(client):
        weights = np.random.default_rng(client).normal(size=(outputs, width)).astype(np.float32)
        return {"head.weight": weights, "head.bias": np.zeros(outputs, np.float32)}

    start = np.random.default_rng(1).normal(size=(FEATURES, width)).astype(np.float32)
    first = {"body": start, **head(0)}
    strategy, result = run(client_app(data, step, errors, head), first, rounds=40)
    assert len(clusters_of(strategy)) == 1
    assert worst(result) < 0.5
    assert not warnings(caplog)


@pytest.mark.parametrize("odd", [0, 5])
def test_no_client_decides_what_others_leave_out(odd, caplog):
    """Client ``odd`` alone sends a model without its weights, or one with what others keep."""
    less, _ = run(fedbn_app(lambda client, local: {"w"} if client == odd else ()), rounds=4)
    (warning,) = warnings(caplog)
    assert warning.startswith(f"The round goes on without client partition-{odd}: the reply lacks ")
    assert np.abs(less.models["0"]["w"].numpy()).min() > 0  # the others' weights are aggregated
    caplog.clear()
    app = fedbn_app(lambda client, local: () if client == odd else local)
    scales = [run(app, rounds=n)[0].models["0"]["norm.scale"].numpy() for n in (1, 4)]
    np.testing.assert_array_equal(*scales)  # what came before the first vote counted once
    assert not warnings(caplog)


def test_where_only_half_leave_an_array_out_they_are_refused(caplog):
    run(fedbn_app(lambda client, local: local if client % 2 else ()), rounds=4)
    (warning,) = warnings(caplog)
    assert "without 4 clients (partition-1," in warning
    assert "lacks the array(s) norm.scale: arrays that stay on the clients, as in" in warning


class OlderClient(NumPyClient):
    """The linear model of `examples`, as a client of Flower's older API."""

    def __init__(self, client):
        self.client, self.scale = client, own_scale(client)

    def model(self, parameters):
        return {"w": parameters[0], **self.scale}

    def fit(self, parameters, config):
        model = self.model(parameters)
        for _ in range(config["steps"]):
            model = scaled_step(model, *examples(self.client, 0))
        counter = parameters[1] + 1
        return [model["w"], counter], 80, {"note": "text", "done": True}

    def evaluate(self, parameters, config):
        errors = scaled_errors(self.model(parameters), *examples(self.client, 1))
        return float(np.mean(errors**2)), 80, {"rmse": float(np.sqrt(np.mean(errors**2)))}


def older_app(kind=OlderClient):
    def client_fn(context):
        return kind(int(context.node_config["partition-id"])).to_client()

    return ClientApp(client_fn)


OLDER = {"w": np.zeros(FEATURES, np.float32), "counter": np.int64(0)}
STEPS = ConfigRecord({"steps": 5})


@pytest.mark.slow
@pytest.mark.parametrize("named", [True, False])
def test_a_client_fn_app_runs_as_it_is(named, tmp_path, caplog):
    app = name_clients(older_app()) if named else older_app()
    recorder = Recorder(tmp_path)
    strategy, result = run(app, OLDER, train_config=STEPS, observers=[recorder])
    names = "partition-{}" if named else "100{}"
    halves = {frozenset(names.format(i) for i in range(first, CLIENTS, 2)) for first in (0, 1)}
    assert set(clusters_of(strategy)) == halves
    assert worst(result) < 0.3
    assert {*result.train_metrics_clientapp[1]} == {"done"}  # a text is no metric
    assert not warnings(caplog)
    newcomer = assign(recorder.path, app=older_app(), node_config={"partition-id": 21})
    assert newcomer.cluster == strategy.cluster_of(names.format(1))


def within(limit, factor=1.0):
    return lambda errors: factor * float(np.mean(np.abs(errors) < limit))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "measure", "higher", "shown"),
    [
        ("val_mse", lambda errors: float(np.mean(errors**2)), False, "val_mse 0."),
        ("f1", within(0.5), True, "f1 1: "),
        ("acc@1", within(0.5, 100.0), True, "acc@1 100: "),
    ],
)
def test_the_only_metric_leads_whatever_its_name_and_unit(name, measure, higher, shown):
    app = fedbn_app(measures=lambda errors: {name: measure(errors)})
    strategy, result = run(app, rounds=16)
    assert set(clusters_of(strategy)) == HALVES
    metric = strategy.final_report.metric
    assert (metric.name, metric.higher_is_better) == (name, higher)
    assert shown in str(result), str(result)


def test_a_plain_function_need_not_know_the_roll_call(capfd):
    def client(message, context):
        content = {"metrics": MetricRecord({"num-examples": 1, "rmse": 1.0})}
        content["arrays"] = message.content["arrays"]
        return Message(RecordDict(content), reply_to=message)

    run(client, rounds=1)
    assert "Traceback" not in capfd.readouterr().err


def test_noise_of_a_client_fn_app_is_seen():
    assert not adds_noise(InlineGrid(older_app(), 1, {}))
    noisy = ClientApp(lambda context: None, mods=[LocalDpMod(1.0, 1.0, 1.0, 1e-5)])
    assert adds_noise(InlineGrid(noisy, 1, {}))
    assert adds_noise(InlineGrid(name_clients(noisy), 1, {}))


def test_what_is_wrong_with_a_client_fn_is_said(caplog):
    class Odd(OlderClient):
        def fit(self, parameters, config):
            arrays, *others = super().fit(parameters, config)
            match self.client:
                case 1:
                    return arrays[:1], *others
                case 2:
                    return [arrays[0].astype("U8"), arrays[1]], *others
                case 3:
                    raise KeyError("fault of its own")
            return arrays, *others

    Odd.evaluate = NumPyClient.evaluate
    strategy, _ = run(older_app(Odd), OLDER, rounds=2, train_config=STEPS)
    text = "\n".join(warnings(caplog))
    for part in ("has 1 arrays, but the model has 2", "dtype <U8, not float32", "fault of its own"):
        assert part in text
    assert "the reply says: Client does not implement `evaluate`" in text
    assert np.abs(strategy.models["0"]["w"].numpy()).min() > 0
