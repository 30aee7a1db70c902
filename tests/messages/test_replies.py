import math

import pytest
from flwr.app import ConfigRecord, Error, Message, MetricRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st

from cflower.messages.replies import (
    BadReplyError,
    ClientMetrics,
    as_record,
    first_line,
    read_metrics,
    weighted_mean,
)

laws = settings(max_examples=40)


def reply_of(content):
    request = Message(RecordDict(), 7, "train")
    request.metadata.__dict__["_message_id"] = "request"
    return Message(content, reply_to=request)


def metrics(**values):
    return RecordDict(
        {"metrics": MetricRecord({k.replace("_", "-"): v for k, v in values.items()})}
    )


def test_metrics_and_weight_are_told_apart():
    reply = reply_of(metrics(num_examples=4, loss=0.5, recall=[0.1, 0.2]))
    assert read_metrics(reply, "num-examples") == ({"loss": 0.5, "recall": [0.1, 0.2]}, 4.0)


def test_metrics_that_are_not_finite_are_left_out_and_the_reply_is_used():
    odd = {"loss": math.nan, "recall": [0.1, math.inf], "accuracy": 0.5}
    reply = reply_of(metrics(num_examples=4, **odd))
    assert read_metrics(reply, "num-examples") == ({"accuracy": 0.5}, 4.0)


def test_the_weight_may_have_another_name_and_the_record_too():
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
        (metrics(loss=0.5), "says no 'num-examples'"),
        (metrics(num_examples=0), "says num-examples=0, not a finite number above 0"),
        (metrics(num_examples=-3), "says num-examples=-3, not a finite number above 0"),
        (metrics(num_examples=math.nan), "says num-examples=nan, not a finite number above 0"),
        (metrics(num_examples=math.inf), "says num-examples=inf, not a finite number above 0"),
        (metrics(num_examples=2e12), "says num-examples=2000000000000.0, more than 1e+12"),
        (metrics(num_examples=[1, 2]), "says num-examples=[1, 2], not a finite number above 0"),
        (metrics(num_examples=1, **{"a\n": 1.0}), "has a metric called 'a\\n', which is no name"),
        (metrics(num_examples=1, x=[0.5] * 1001), "has 1001 numbers as x, more than 1000"),
        (
            metrics(num_examples=1, **{f"m{i}": 0.5 for i in range(1000)}),
            "has 1001 metrics, more than 1000",
        ),
    ],
)
def test_a_reply_that_must_not_be_used_says_why(content, problem):
    with pytest.raises(BadReplyError) as caught:
        read_metrics(reply_of(content), "num-examples")
    assert str(caught.value) == problem


def test_a_reply_may_be_as_large_as_the_limits():
    many = {f"m{i}": 0.5 for i in range(998)} | {"x": [0.5] * 1000}
    reply = reply_of(metrics(num_examples=1e12, **many))
    assert read_metrics(reply, "num-examples") == (many, 1e12)


def test_of_a_traceback_the_last_line_is_told():
    traceback = "Traceback (most recent call last):\n  File x, line 1\n\nValueError: boom\n"
    assert first_line(traceback) == "ValueError: boom"
    assert first_line("RayTaskError\n  ... Traceback\n\n  OSError: full  ") == "OSError: full"
    assert first_line("first\nsecond") == "first"
    assert first_line("no heartbeat in the interval.") == "no heartbeat in the interval"
    assert first_line(" \n") == "no reason given"
    assert len(first_line("x" * 1000)) == 300


@laws
@given(st.lists(st.tuples(st.floats(-9, 9), st.integers(1, 9)), min_size=1, max_size=6))
def test_the_mean_lies_within_and_counts_examples(pairs):
    mean = weighted_mean(ClientMetrics({"loss": v}, n) for v, n in pairs)["loss"]
    repeated = [v for v, n in pairs for _ in range(n)]
    assert mean == pytest.approx(sum(repeated) / len(repeated), abs=1e-9)


def test_a_metric_is_averaged_over_those_who_report_it():
    measured = [ClientMetrics({"a": 1.0, "b": 2}, 1), ClientMetrics({"a": 3.0, "c": [1.0]}, 1)]
    assert weighted_mean(measured) == {"a": 2.0, "b": 2.0}
    assert weighted_mean([]) == {}


def test_metrics_make_flowers_record():
    assert dict(as_record({"loss": 0.5, "counts": [1.0, 2.0]})) == {
        "loss": 0.5,
        "counts": [1.0, 2.0],
    }
