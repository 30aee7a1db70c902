"""What clients send back, checked before anything else sees it."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import isfinite
from typing import NamedTuple, TypeVar

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

from cflower.algorithm.difference import Update, Vector
from cflower.algorithm.projection import Projection
from cflower.algorithm.tree import Weights
from cflower.errors import FederationError
from cflower.messages.claims import is_name, line
from cflower.messages.layout import BadArraysError, Layout

Record = TypeVar("Record", ArrayRecord, MetricRecord)
Metrics = dict[str, int | float | list[int] | list[float]]

MOST_METRICS = 1000
LONGEST_REASON = 100_000
MOST_EXAMPLES = 1e12
"""More than any client has; a larger number would silence all others of its cluster."""


class BadReplyError(FederationError):
    """A reply that must not be used; its text completes "the reply of client x ..."."""


class TooLateError(BadReplyError):
    """A late reply that says nothing about any model that is in training now."""


class ClientMetrics(NamedTuple):
    """The metrics of one client and the number of examples they were measured on."""

    metrics: Metrics
    num_examples: float


class TrainReply(NamedTuple):
    """A client's whole reply to training."""

    client: str
    update: Weights | Update
    """Δ_i = θ_i − θ_c."""
    norm: float
    """‖Δ_i‖ over all trained entries."""
    measured: ClientMetrics
    general: str = ""
    """The inner cluster whose model it trained beside its own; empty: its own."""
    probe: bool = False
    """Whether that was only to see where it belongs."""
    kept: Vector | None = None
    """What is kept of Δ_i, see `Projection.keep`; None: not known."""
    origin: Weights | None = None
    """Of a late one: the model that was sent."""


class Answer(NamedTuple):
    """A client's reply to training, read but not yet measured."""

    client: str
    message: Message
    arrays: ArrayRecord
    update: Update
    measured: ClientMetrics
    general: str = ""
    probe: bool = False


def read_answer(
    client: str, message: Message, layout: Layout, weighted_by: str, origin: Weights
) -> Answer:
    """The update of ``origin``, the model that was sent, and the metrics in a reply to training.

    Raises
    ------
    BadReplyError
        As `read_metrics`, and for arrays that do not fit the layout.
    """
    measured = read_metrics(message, weighted_by)
    arrays = only(ArrayRecord, message.content)
    try:
        return Answer(client, message, arrays, layout.update(arrays, origin), measured)
    except BadArraysError as problem:
        raise BadReplyError(str(problem)) from None


def measured_replies(
    answers: Sequence[Answer],
    layout: Layout,
    projection: Projection,
    weight: Callable[[float], float] = float,
) -> Iterator[TrainReply | tuple[Answer, BadReplyError]]:
    """The replies of clients that trained one model, or why one cannot be used.

    Parameters
    ----------
    answers : sequence of Answer
        Looked at together, see `Projection.measure`.
    layout : Layout
    projection : Projection
    weight : callable
        w_i before normalisation, from a number of examples.
    """
    updates = [answer.update.trained for answer in answers]
    weights = [weight(answer.measured.num_examples) for answer in answers]
    found = projection.measure(updates, weights)
    for answer, (norm, kept) in zip(answers, found, strict=True):
        client, _, arrays, update, measured, general, probe = answer
        try:
            if not np.isfinite(norm):
                layout.check(arrays)
            yield TrainReply(client, update, norm, measured, general, probe, kept)
        except BadArraysError as problem:
            yield answer, BadReplyError(str(problem))


def read_train_reply(
    message: Message, layout: Layout, projection: Projection, weighted_by: str, origin: Weights
) -> TrainReply:
    """A reply to training, alone.

    Raises
    ------
    BadReplyError
        As `read_answer`.
    """
    answer = read_answer("", message, layout, weighted_by, origin)
    (reply,) = measured_replies([answer], layout, projection)
    if isinstance(reply, TrainReply):
        return reply
    raise reply[1]


def read_metrics(message: Message, weighted_by: str) -> ClientMetrics:
    """The metrics and the weight in a reply; metrics that are not finite are left out.

    Raises
    ------
    BadReplyError
        For an error message, not exactly one MetricRecord, or a weight that is no number
        above zero, or more than `MOST_EXAMPLES`.
    """
    if message.has_error():
        raise BadReplyError(f"is an error: {first_line(message.error.reason)}")
    return read_record(only(MetricRecord, message.content), weighted_by)


def only(kind: type[Record], content: RecordDict) -> Record:
    """The one record of this kind; `BadReplyError` for none or several."""
    records = [record for record in content.values() if isinstance(record, kind)]
    if len(records) != 1:
        raise BadReplyError(f"has {len(records)} {kind.__name__}s instead of one")
    return records[0]


def read_record(record: MetricRecord, weighted_by: str) -> ClientMetrics:
    """The metrics and the weight in one record, as `read_metrics`."""
    if len(record) > MOST_METRICS:
        raise BadReplyError(f"has {len(record)} metrics, more than {MOST_METRICS}")
    for key, value in record.items():
        if not is_name(key):
            raise BadReplyError(f"has a metric called {line(repr(key), 60)}, which is no name")
        if isinstance(value, list) and len(value) > MOST_METRICS:
            raise BadReplyError(f"has {len(value)} numbers as {key}, more than {MOST_METRICS}")
    metrics = {
        key: value for key, value in record.items() if key != weighted_by and is_finite(value)
    }
    weight = record.get(weighted_by)
    if weight is None:
        raise BadReplyError(f"says no {weighted_by!r}")
    if isinstance(weight, list) or not is_finite(weight) or weight <= 0:
        raise BadReplyError(f"says {weighted_by}={weight!r}, not a finite number above 0")
    if weight > MOST_EXAMPLES:
        raise BadReplyError(f"says {weighted_by}={weight!r}, more than {MOST_EXAMPLES:g}")
    return ClientMetrics(metrics, float(weight))


def is_finite(value: float | list[int] | list[float]) -> bool:
    """Whether a metric's numbers are finite ones that a float can hold."""
    try:
        if isinstance(value, list):
            return bool(np.isfinite(np.asarray(value, dtype=float)).all())
        return isfinite(value)
    except OverflowError:
        return False


def first_line(reason: str | None) -> str:
    """The line of a client's error that says what happened: the last one of a traceback."""
    text = reason or ""
    traced = "Traceback" in text
    # What a client sends may be long.
    text = text[-LONGEST_REASON:] if traced else text[:LONGEST_REASON]
    lines = [one.strip() for one in text.splitlines() if one.strip()] or ["no reason given"]
    return line(lines[-1 if traced else 0])[:300].rstrip(".")


def weighted_mean(measured: Iterable[ClientMetrics]) -> Metrics:
    """Each scalar metric's mean, weighted by examples, over the clients that report it.

    >>> weighted_mean([ClientMetrics({"accuracy": 1.0}, 1), ClientMetrics({"accuracy": 0.5}, 3)])
    {'accuracy': 0.625}
    """
    sums: dict[str, tuple[float, float]] = {}
    for metrics, num_examples in measured:
        for key, value in metrics.items():
            if not isinstance(value, list):
                total, weight = sums.get(key, (0.0, 0.0))
                sums[key] = (total + num_examples * float(value), weight + num_examples)
    return {key: total / weight for key, (total, weight) in sums.items()}


def as_record(metrics: Mapping[str, int | float | list[int] | list[float]]) -> MetricRecord:
    """Metrics as Flower's record."""
    return MetricRecord(dict(metrics))
