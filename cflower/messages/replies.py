"""Checks of the clients' replies; nothing else reads an unchecked one."""

import math
import re
from collections.abc import Set

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

from cflower.algorithm.projection import Projection
from cflower.algorithm.state import Ask, Training
from cflower.algorithm.tree import ParameterTree
from cflower.algorithm.weights import Weights, norm
from cflower.messages.arrays import RecordKind
from cflower.messages.client_names import is_name
from cflower.messages.failures import FAULTS, BadReplyError, Fault
from cflower.messages.layout import Layout
from cflower.messages.metrics import ClientMetrics
from cflower.ordering import line

MOST_METRICS = 1000
MOST_METRIC_NUMBERS = 10_000
"""In the metrics of a reply, lists included."""
LONGEST_REASON = 100_000
EXCEPTION = re.compile(r"<class '(?:cflower\.errors\.\w+|(?:[\w.]*\.)?(\w+))'>:<['\"]?(.*?)'?>?")
"""How Flower writes a ClientApp's exception; cflower's own errors are sentences without a name."""
CLIENT_FN = (
    "its ClientApp has a client_fn, and the ServerApp cannot load that app to see it; start both "
    "with `flwr run`, from a folder whose pyproject.toml names them, or with cflower.simulate"
)
MOST_EXAMPLES = 1e12
"""A larger number would outweigh all other clients of the cluster."""


def read_training(
    message: Message,
    ask: Ask,
    model: Weights,
    layout: Layout,
    projection: Projection,
    weighted_by: str,
    local: Set[str] = frozenset(),
) -> Training:
    """The metrics in the reply to a training, and the client's update of ``model``.

    ``weighted_by`` is the metric with the number of examples, and ``local`` arrays stay on the
    clients. `BadReplyError` as in `read_metrics`, and for arrays that do not fit the layout or are
    not finite.
    """
    metrics, num_examples = read_metrics(message, weighted_by)
    arrays = the_one(ArrayRecord, message.content)
    update = layout.update(arrays, model, local)
    length, kept = projection.measured(update.trained)
    if not math.isfinite(length):
        layout.weights(arrays, local)
    return Training(ask, num_examples, metrics, update=update, norm=length, kept=kept)


def too_late(tree: ParameterTree, reply: Training) -> str:
    """Why a late reply to a training cannot be used; empty if it can.

    It can if its client still trains that cluster's model. It can also place a client that the
    cluster's split left out, as long as the model it trained was near θ*.
    """
    client, name, _, asked, *_ = reply.ask
    if name not in tree.clusters:
        return f"cluster {name} was joined again"
    here = tree.training_cluster(client)
    if name != here.name:
        return f"the client trains the model of {here.name} now, not that of {name}"
    if here.is_leaf and here.born >= asked:
        return f"cluster {name} was split and joined again"
    sent = reply.origin
    if sent and not here.is_leaf and norm(sent.trained - here.model.trained) > reply.norm:
        return f"the model of {name} had moved on before it was split"
    return ""


def read_metrics(message: Message, weighted_by: str) -> ClientMetrics:
    """The metrics and the weight in a reply; a metric that is not finite becomes NaN.

    `BadReplyError` for an error message, not exactly one MetricRecord, or a weight that is no
    number above zero, or more than `MOST_EXAMPLES`.
    """
    return metrics_in(the_one(MetricRecord, content_of(message)), weighted_by)


def content_of(message: Message) -> RecordDict:
    """The content of a reply; `BadReplyError` for an error message."""
    if message.has_error():
        reason = message.error.reason
        older = re.search(r"\b(fit|evaluate)ins\.parameters", reason or "")
        problem = f"is an error: {CLIENT_FN if older else cause_in(reason)}"
        raise BadReplyError(problem, FAULTS.get(message.error.code, Fault.CLIENT))
    return message.content


def the_one(kind: type[RecordKind], content: RecordDict) -> RecordKind:
    """The one record of this kind; `BadReplyError` for none or several."""
    records = [record for record in content.values() if isinstance(record, kind)]
    if len(records) != 1:
        raise BadReplyError(f"has {len(records)} {kind.__name__}s instead of one")
    return records[0]


def metrics_in(record: MetricRecord, weighted_by: str) -> ClientMetrics:
    """The metrics and the weight in one record, as `read_metrics`."""
    if len(record) > MOST_METRICS:
        raise BadReplyError(f"has {len(record)} metrics, more than {MOST_METRICS}")
    if weighted_by not in record:
        raise BadReplyError(f"lacks the metric {weighted_by!r}")
    metrics, numbers = {}, 0
    for key, value in record.items():
        if not is_name(key):
            raise BadReplyError(f"has a metric with the invalid name {line(repr(key), 60)}")
        size = len(value) if isinstance(value, list) else 1
        numbers += size
        if size > MOST_METRICS:
            raise BadReplyError(f"has {size} numbers as {key}, more than {MOST_METRICS}")
        if numbers > MOST_METRIC_NUMBERS:
            raise BadReplyError(f"has more than {MOST_METRIC_NUMBERS:,} numbers in its metrics")
        metrics[key] = value if is_finite(value) else math.nan
    weight = metrics.pop(weighted_by, math.nan)
    if isinstance(weight, list) or not 0 < weight <= MOST_EXAMPLES:
        raise BadReplyError(
            f"has {weighted_by}={record[weighted_by]!r}, not a number above 0 and up to "
            f"{MOST_EXAMPLES:g}",
            Fault.EMPTY if weight == 0 else Fault.CLIENT,
        )
    return ClientMetrics(metrics, float(weight))


def is_finite(value: int | float | list[int] | list[float]) -> bool:
    """Whether a metric's numbers are finite ones that a float can hold."""
    try:
        return bool(np.isfinite(np.asarray(value, dtype=float)).all())
    except OverflowError:
        return False


def cause_in(reason: str | None) -> str:
    """The line of a client's error with its cause: the last one of a traceback, else the first."""
    text = reason or ""
    place = -1 if "Traceback" in text else 0
    # A client may send a long text.
    text = text[-LONGEST_REASON:] if place else text[:LONGEST_REASON]
    lines = re.findall(r"\S.*", text) or ["no reason given"]
    text = lines[place].strip()
    if raised := EXCEPTION.fullmatch(text):
        text = ": ".join(filter(None, raised.groups()))
    return line(text)[:300].rstrip(".")
