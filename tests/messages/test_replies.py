import gc
import math
import weakref

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

from cflower.algorithm.projection import Projection
from cflower.algorithm.state import Ask, Role, Training
from cflower.algorithm.tree import Cluster, ParameterTree
from cflower.algorithm.weights import Weights
from cflower.messages.failures import BadReplyError
from cflower.messages.grouped_log import GroupedLog
from cflower.messages.layout import Layout
from cflower.messages.local_arrays import LocalArrays
from cflower.messages.metrics import ClientMetrics, plausible, weighted_mean
from cflower.messages.replies import cause_in, content_of, read_metrics, read_training, too_late


def arrays(value):
    return ArrayRecord({"w": Array(np.full(4, value, np.float32))})


LAYOUT = Layout.of(arrays(0.0))


def reply_of(content):
    request = Message(RecordDict(), 7, "train")
    request.metadata.__dict__["_message_id"] = "request"
    return Message(content, reply_to=request)


def metrics(**values):
    record = MetricRecord({k.replace("_", "-"): v for k, v in values.items()})
    return RecordDict({"metrics": record})


def test_the_weight_is_none_of_the_metrics():
    reply = reply_of(metrics(num_examples=4, loss=0.5, recall=[0.1, 0.2]))
    assert read_metrics(reply, "num-examples") == ({"loss": 0.5, "recall": [0.1, 0.2]}, 4.0)


def test_metrics_that_are_not_finite_are_implausible_and_the_reply_is_used():
    odd = {"loss": math.inf, "recall": [0.1, math.inf], "accuracy": 0.5}
    measured = read_metrics(reply_of(metrics(num_examples=4, **odd)), "num-examples")
    assert math.isnan(measured.metrics["loss"])
    assert math.isnan(measured.metrics["recall"])
    assert plausible({"a": measured}, GroupedLog()) == {"a": ({"accuracy": 0.5}, 4.0)}


def test_weight_and_record_may_have_other_names():
    content = RecordDict({"x": MetricRecord({"tokens": 2.5}), "facts": ConfigRecord({"a": 1})})
    assert read_metrics(reply_of(content), "tokens") == ({}, 2.5)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (Error(2, "boom"), "is an error: boom"),
        (Error(5), "is an error: no reason given"),
        (RecordDict(), "has 0 MetricRecords instead of one"),
        (
            RecordDict({"a": MetricRecord({"num-examples": 1}), "b": MetricRecord({})}),
            "has 2 MetricRecords instead of one",
        ),
        (metrics(loss=0.5), "lacks the metric 'num-examples'"),
        *(
            (metrics(num_examples=n), f"has num-examples={n}, not a number above 0 and up to 1e+12")
            for n in (0, -3, math.nan, math.inf, 2e12, [1, 2])
        ),
        (metrics(num_examples=1, **{"a\n": 1.0}), "has a metric with the invalid name 'a\\n'"),
        (metrics(num_examples=1, x=[0.5] * 1001), "has 1001 numbers as x, more than 1000"),
        (
            metrics(num_examples=1, **{f"m{i}": 0.5 for i in range(1000)}),
            "has 1001 metrics, more than 1000",
        ),
    ],
)
def test_a_reply_that_must_not_be_used_is_an_error_with_the_reason(content, problem):
    with pytest.raises(BadReplyError) as caught:
        read_metrics(reply_of(content), "num-examples")
    assert str(caught.value) == problem


def test_a_reply_may_be_as_large_as_the_limits():
    many = {f"m{i}": 0.5 for i in range(998)} | {"x": [0.5] * 1000}
    reply = reply_of(metrics(num_examples=1e12, **many))
    assert read_metrics(reply, "num-examples") == (many, 1e12)


def test_the_reason_of_an_error_is_one_line_the_last_of_a_traceback():
    traceback = "Traceback (most recent call last):\n  File x, line 1\n\nValueError: boom\n"
    assert cause_in(traceback) == "ValueError: boom"
    assert cause_in("RayTaskError\n  ... Traceback\n\n  OSError: full  ") == "OSError: full"
    assert cause_in("first\nsecond") == "first"
    assert cause_in("<class 'a.b.MyError'>:<'it broke.'>") == "MyError: it broke"
    assert cause_in("<class 'KeyError'>:<''x''>") == "KeyError: 'x'"
    assert cause_in("<class 'cflower.errors.DataError'>:<'No rows.'>") == "No rows"
    assert cause_in("no heartbeat in the interval.") == "no heartbeat in the interval"
    assert cause_in(" \n") == "no reason given"
    assert len(cause_in("x" * 1000)) == 300


def test_a_metric_is_averaged_over_the_clients_that_report_it():
    measured = [ClientMetrics({"a": 1.0, "b": 2}, 1), ClientMetrics({"a": 3.0, "c": [1.0]}, 1)]
    assert weighted_mean(measured) == {"a": 2.0, "b": 2.0, "c": [1.0]}
    assert weighted_mean([]) == {}


@pytest.mark.parametrize("role", list(Role))
def test_a_reply_to_training_has_the_update_of_the_model_that_was_sent(role):
    ask, origin = Ask("a", "0.1", role, 3), LAYOUT.weights(arrays(2.0))
    content = metrics(num_examples=4, loss=0.5)
    content["arrays"] = arrays(5.0)
    reply = read_training(reply_of(content), ask, origin, LAYOUT, Projection(4), "num-examples")
    assert (reply.ask, reply.num_examples, reply.metrics) == (ask, 4.0, {"loss": 0.5})
    np.testing.assert_array_equal(reply.update.trained, np.full(4, 3.0))
    np.testing.assert_array_equal(reply.kept, reply.update.trained)
    assert reply.norm == 6.0


def test_a_reply_that_was_read_is_not_kept_in_memory():
    made, sent = [], Ask("a", "0", Role.OWN, 1)

    def replies():
        for _ in range(3):
            reply = reply_of(RecordDict({"arrays": arrays(1.0), **metrics(num_examples=4)}))
            made.append(weakref.ref(reply.content))
            yield reply
            del reply

    gc.collect()
    gc.disable()  # nobody waits for it: a round's replies may be larger than the memory
    try:
        for reply in LocalArrays(LAYOUT).after_most(replies()):
            model = LAYOUT.weights(arrays(0.0))
            read_training(reply, sent, model, LAYOUT, Projection(4), "num-examples")
            assert sum(one() is not None for one in made) == 1
    finally:
        gc.enable()


@pytest.mark.parametrize("key", ["fitins.parameters", "evaluateins.parameters"])
def test_an_app_with_a_client_fn_that_the_server_cannot_see_is_named(key):
    """As `flwr.simulation.run_simulation` answers, without a bundle."""
    reason = f"<class 'ray.exceptions.RayTaskError'>:<'ray::run()\n  File ...\nKeyError: '{key}''>"
    with pytest.raises(BadReplyError, match="has a client_fn, and the ServerApp"):
        content_of(reply_of(Error(2, reason)))


def late(cluster, *, origin=0.0, asked=3):
    """A late reply of client a: it trained a model so far from 0 with an update of length 1."""
    start = Weights(np.array([origin]), np.zeros(0))
    ask, update = Ask("a", cluster, Role.OWN, asked), Weights(np.ones(1), np.zeros(0))
    return Training(ask, 1.0, update=update, norm=1.0, kept=update.trained, origin=start)


@pytest.mark.parametrize(
    ("reply", "at", "problem"),
    [
        (late("0.0"), "0.0", ""),
        (late("0"), "0.0", "trains the model of 0.0 now, not that of 0"),
        (late("0.1"), "0.0", "cluster 0.1 was joined again"),
        (late("0.0", asked=2), "0.0", "cluster 0.0 was split and joined again"),
        (late("0", origin=0.9), "0", ""),
        (late("0", origin=1.1), "0", "the model of 0 had moved on before it was split"),
    ],
)
def test_a_late_reply_counts_if_its_client_still_trains_that_model(reply, at, problem):
    model = Weights(np.zeros(1), np.zeros(0))
    root = Cluster("0", ("a",), model, children=("0.0",), split_round=2)
    clusters = {"0": root, "0.0": Cluster("0.0", ("a",), model, born=2)}
    tree = ParameterTree(clusters, {} if at == "0.0" else {"a": at})
    assert problem in too_late(tree, reply)
    assert bool(problem) == bool(too_late(tree, reply))
