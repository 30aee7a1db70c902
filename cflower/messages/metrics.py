"""Metrics of clients: which one leads, their plausible range, and their mean over clients.

A client may report any value. An implausible one must not change the mean over all clients.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from itertools import chain, starmap
from logging import INFO, WARNING
from operator import mul
from typing import Any, NamedTuple, TypeVar

import numpy as np
from flwr.app import Message, MetricRecord
from flwr.supercore import log

from cflower.algorithm.state import Reply
from cflower.messages.grouped_log import GroupedLog
from cflower.metric import Metric, is_share, leader_among
from cflower.ordering import listed, without
from cflower.pooled import COUNTS, POOLED
from cflower.robust.robust_mean import limited

Key = TypeVar("Key", bound=str | tuple[Any, ...])
Metrics = dict[str, int | float | list[int] | list[float]]

CHOOSE = "choose another with ClusteredFL(metric=...), or later with `cflower report --metric`."
LEADS = f"Most clients send no metric %s: %s leads instead; {CHOOSE}"
NOT_SENT = (
    "No client sent the metric %r (they sent %s), so by it nothing is compared. Name the one that "
    "leads: ClusteredFL(metric=..., higher_is_better=...)."
)
ONE_CLASS = (
    "Too few clients have held-out examples of two classes to measure %s: it decides nothing in "
    "this round, and the figure of all clients' examples together comes at the end. A larger "
    "validation-fraction helps."
)
LONE = "Metrics that no other client sends are ignored: {cause}, sent by {clients}."
IMPLAUSIBLE = "Implausible metrics are ignored: {cause}, sent by {clients}."
IMPLAUSIBLE_RATIO = 1000.0
"""Times the median size (at least 1) beyond which a metric that is no share is dropped."""


class ClientMetrics(NamedTuple):
    """The metrics of one client and the number of examples they were measured on."""

    metrics: Metrics
    num_examples: float

    @classmethod
    def of(cls, reply: Reply) -> "ClientMetrics":
        return cls(dict(reply.metrics), reply.num_examples)

    @property
    def scalars(self) -> dict[str, float]:
        scalars = {k: v for k, v in self.metrics.items() if not isinstance(v, list)}
        return {key: float(value) for key, value in scalars.items()}


class Leader:
    """The metric that leads: the ``asked`` one, or one that clients send in its place."""

    def __init__(self, asked: Metric) -> None:
        self.asked = self.now = asked
        self._logged = False

    def among(self, sent: Collection[Mapping[str, float]]) -> Metric:
        """The one that leads from now on, given all clients' scalar metrics of an evaluation.

        Logs once which one, or that no client sends it. Every evaluation decides anew, so that the
        final one, of all clients, has the last word.
        """
        leads = leading_among(self.asked, sent)
        if values := [one[leads.name] for one in sent if leads.name in one]:
            before = self.now if leads.name == self.now.name else leads
            self.now = before.seen(values)
        if sent and not self._logged:
            self._logged = True
            names = set().union(*sent)
            if not values and self.asked.name in POOLED and "accuracy" in names:
                log(WARNING, ONE_CLASS, self.asked.name)
            elif not values:
                log(WARNING, NOT_SENT, self.now.name, listed(sorted(names)))
            elif self.now.name != self.asked.name:
                log(INFO, LEADS, self.asked.name, self.now.in_full)
        return self.now


def leading_among(asked: Metric, sent: Collection[Mapping[str, float]]) -> Metric:
    """The asked metric, unless that is ``accuracy`` and most clients send another known one only.

    >>> leading_among(Metric(), 3 * [{"eval_loss": 0.5, "eval_acc": 0.9, "train_acc": 1.0}]).name
    'eval_acc'
    """
    counts = Counter(chain.from_iterable(sent))
    common = [name for name, count in counts.items() if 2 * count > len(sent)]
    if asked.name != "accuracy" or asked.name in common:
        return asked
    leader = leader_among(common)
    return Metric.of(leader) if leader else asked


def metrics_size(reply: Message) -> int:
    size = 0
    for record in reply.content.values() if reply.has_content() else ():
        if isinstance(record, MetricRecord):
            lengths = (len(value) if isinstance(value, list) else 1 for value in record.values())
            size += sum(map(len, record)) + 8 * sum(lengths)
    return size


def plausible(measured: Mapping[Key, ClientMetrics], notes: GroupedLog) -> dict[Key, ClientMetrics]:
    """The metrics without those of one client only, NaN, and numbers far from those of the others.

    A key is a client's name, or a tuple that begins with it. What a single one of three clients or
    more sends is no figure of a federation, and new names in every reply would fill the server's
    memory. Lists are kept. What is left out is logged once.
    """
    senders = {key: key if isinstance(key, str) else key[0] for key in measured}
    named, sizes = defaultdict[str, set[str]](set), defaultdict[str, list[float]](list)
    for key, one in measured.items():
        for name in one.metrics:
            named[name].add(senders[key])
        for name, value in one.scalars.items():
            sizes[name].append(abs(value))
    few = len(set(senders.values())) < 3
    lone = {name for name, clients in named.items() if len(clients) == 1 and not few}
    bounds = {k: bounds_of(k, float(np.median(np.nan_to_num(s)))) for k, s in sizes.items()}
    kept = dict[Key, ClientMetrics]()
    for key, one in measured.items():
        scalars = without(one.scalars, lone)
        odd = {k: v for k, v in scalars.items() if not bounds[k][0] <= v <= bounds[k][1]}
        kept[key] = one._replace(metrics=without(one.metrics, {*lone, *odd}))
        # A client alone may have held-out examples of two classes.
        if alone := sorted(lone.intersection(one.metrics).difference(POOLED)):
            notes.note(WARNING, LONE, senders[key], listed(alone, 3))
        if odd:
            figures = ", ".join(f"{name} = {odd[name]:.4g}" for name in sorted(odd)[:5])
            notes.note(WARNING, IMPLAUSIBLE, senders[key], figures)
    notes.flush()
    return kept


def bounds_of(name: str, median_size: float) -> tuple[float, float]:
    """Least and largest plausible value of a metric, given the median of its absolute values."""
    if is_share(name) and median_size <= 100:
        return 0.0, 1.0 if median_size <= 1 else 100.0
    largest = IMPLAUSIBLE_RATIO * max(1.0, median_size)
    return -largest, largest


def weighted_mean(measured: Iterable[ClientMetrics]) -> Metrics:
    """Mean of each metric over the clients that report it, weighted by examples.

    Lists are averaged number by number, except `COUNTS`, which are added up elsewhere; those of
    another length than most are left out.

    >>> weighted_mean([ClientMetrics({"accuracy": 1.0}, 1), ClientMetrics({"accuracy": 0.5}, 3)])
    {'accuracy': 0.625}
    >>> weighted_mean([ClientMetrics({"f1": [1, 0]}, 1), ClientMetrics({"f1": [0, 0]}, 3)])
    {'f1': [0.25, 0.0]}
    """
    reported = defaultdict[str, list[tuple[Any, float]]](list)
    for one in measured:
        for key, value in without(one.metrics, COUNTS).items():
            number = np.array(value, float) if isinstance(value, list) else np.float64(value)
            reported[key].append((number, one.num_examples))
    means: Metrics = {}
    for key, pairs in reported.items():
        usual = Counter(value.shape for value, _ in pairs).most_common(1)[0][0]
        pairs = [pair for pair in pairs if pair[0].shape == usual]
        means[key] = (sum(starmap(mul, pairs)) / sum(weight for _, weight in pairs)).tolist()
    return means


def mean_over_clients(measured: Iterable[ClientMetrics]) -> Metrics:
    measured = list(measured)
    weights = limited(one.num_examples for one in measured).tolist()
    return weighted_mean(map(ClientMetrics, [one.metrics for one in measured], weights))
