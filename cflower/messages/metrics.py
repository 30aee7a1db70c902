"""Metrics of clients: their direction, their plausible range, and their mean over clients.

A client may report any value. An implausible one must not change the mean over all clients.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from logging import INFO, WARNING
from typing import Any, NamedTuple

import numpy as np
from flwr.supercore import log

from cflower.algorithm.state import Reply
from cflower.ordering import without
from cflower.robust.robust_mean import limited

Metrics = dict[str, int | float | list[int] | list[float]]

LOWER_IS_BETTER = {
    *("loss", "losses", "logloss", "nll", "perplexity", "ppl", "error", "errors", "err"),
    *("mae", "mse", "rmse", "nrmse", "rmsle", "mape", "smape", "bpc", "bpb", "wer", "cer"),
}
"""Words in the names of metrics that are better the lower they are."""
SHARES = {"accuracy", "acc", "precision", "recall", "f1", "auc", "auroc", "iou", "dice"}
"""Words in the names of metrics that are shares of 1 (or of 100), shown as percentages."""
ACCURACY, OTHERS = {"accuracy", "acc"}, {"train", "training"} | LOWER_IS_BETTER
"""Words in the names of metrics that mean accuracy, unless one of the others is in it too."""
CHOOSE = "choose another with ClusteredFL(metric=...), or later with `cflower report --metric`."
LEADS = f"Most clients send no metric accuracy: %s leads instead; {CHOOSE}"
NOT_SENT = f"No client sent the metric %r (they sent %s): {CHOOSE}"
IMPLAUSIBLE_RATIO = 1000.0
"""Times the median size (at least 1) beyond which a metric that is no share is dropped."""


class Metric(NamedTuple):
    """The metric that leads in tables, charts and comparisons of a run."""

    name: str = "accuracy"
    higher_is_better: bool = True

    @classmethod
    def of(cls, name: str, higher_is_better: bool | None = None) -> "Metric":
        """A metric by its name, which decides the direction if that is None.

        >>> Metric.of("val_rmse"), Metric.of("answer_f1").higher_is_better
        (Metric(name='val_rmse', higher_is_better=False), True)
        """
        if higher_is_better is None:
            higher_is_better = LOWER_IS_BETTER.isdisjoint(words_in(name))
        return cls(name, higher_is_better)

    @property
    def share(self) -> bool:
        """Whether values are shares of 1, shown as percentages."""
        return not SHARES.isdisjoint(words_in(self.name))

    def in_words(self, value: float | None) -> str:
        """A value as shown to users; a dash for None.

        >>> Metric().in_words(0.975), Metric("perplexity", False).in_words(26.6)
        ('97.5%', '26.6')
        """
        if value is None:
            return "-"
        return f"{value:.1%}" if self.share else f"{value:.4g}"

    def best(self, values: Iterable[float]) -> float | None:
        """The best value; None if there are no values."""
        return (max if self.higher_is_better else min)(values, default=None)

    def worst(self, values: Iterable[float]) -> float | None:
        """The worst value; None if there are no values."""
        return (min if self.higher_is_better else max)(values, default=None)


class ClientMetrics(NamedTuple):
    """The metrics of one client and the number of examples they were measured on."""

    metrics: Metrics
    num_examples: float

    @classmethod
    def of(cls, reply: Reply) -> "ClientMetrics":
        """The metrics in a reply."""
        return cls(dict(reply.metrics), reply.num_examples)

    @property
    def scalars(self) -> dict[str, float]:
        """The metrics that are single numbers."""
        scalars = {k: v for k, v in self.metrics.items() if not isinstance(v, list)}
        return {key: float(value) for key, value in scalars.items()}


class LeadingMetric:
    """The metric that leads: the ``asked`` one, or one that clients send in its place."""

    def __init__(self, asked: Metric) -> None:
        self.asked = self.now = asked
        self._logged = False

    def among(self, sent: Collection[Mapping[str, Any]]) -> Metric:
        """The one that leads from now on, given all clients' metrics of an evaluation.

        Logs once which one, or that no client sends it. Every evaluation decides anew, so that the
        final one, of all clients, has the last word.
        """
        names, leads = sorted(set().union(*sent)), leading_among(self.asked, sent)
        self.now = leads if leads.name in names else self.now
        if sent and not self._logged:
            self._logged = True
            if self.now.name not in names:
                log(WARNING, NOT_SENT, self.now.name, ", ".join(names) or "none")
            elif self.now != self.asked:
                log(INFO, LEADS, self.now.name)
        return self.now


def leading_among(asked: Metric, sent: Collection[Mapping[str, Any]]) -> Metric:
    """The asked metric, unless that is ``accuracy`` and most clients send it under another name.

    >>> leading_among(Metric(), 3 * [{"eval_loss": 0.5, "eval_acc": 0.9, "train_acc": 1.0}])
    Metric(name='eval_acc', higher_is_better=True)
    """
    counts = Counter(name for one in sent for name, value in one.items() if np.ndim(value) == 0)
    common = [name for name, count in counts.items() if 2 * count > len(sent)]
    if asked.name != "accuracy" or asked.name in common:
        return asked
    return Metric(accuracy_among(common) or asked.name)


def accuracy_among(names: Iterable[str]) -> str:
    """The shortest of the names of metrics that mean accuracy; empty if none does.

    >>> accuracy_among(["train_acc", "top5_accuracy", "val_acc", "accuracy_loss"])
    'val_acc'
    """
    meant = [n for n in names if words_in(n) & ACCURACY and not words_in(n) & OTHERS]
    return min(meant, key=lambda name: (len(name), name), default="")


def words_in(name: str) -> set[str]:
    """The words of a metric's name in lower case, such as val, mae and f1 of ``valMAE/f1``."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", name)
    return set(re.split(r"[\W_]+", spaced.lower()))


def plausible(measured: Sequence[ClientMetrics]) -> list[ClientMetrics]:
    """The clients' metrics without NaN and numbers far from those of the others; lists are kept.

    >>> clients = [ClientMetrics({"accuracy": a}, 1) for a in (0.9, 0.8, -1e9, np.nan)]
    >>> [one.metrics for one in plausible(clients)]
    [{'accuracy': 0.9}, {'accuracy': 0.8}, {}, {}]
    """
    sizes: dict[str, list[float]] = defaultdict(list)
    for one in measured:
        for key, value in one.scalars.items():
            sizes[key].append(abs(value))
    medians = {key: float(np.median(np.nan_to_num(size))) for key, size in sizes.items()}
    bounds = {key: bounds_of(key, median) for key, median in medians.items()}
    kept = []
    for one in measured:
        odd = {k for k, v in one.scalars.items() if not bounds[k][0] <= v <= bounds[k][1]}
        kept.append(one._replace(metrics=without(one.metrics, odd)))
    return kept


def bounds_of(name: str, median_size: float) -> tuple[float, float]:
    """Least and largest plausible value of a metric, given the median of its absolute values."""
    if Metric(name).share and median_size <= 100:
        return 0.0, 1.0 if median_size <= 1 else 100.0
    largest = IMPLAUSIBLE_RATIO * max(1.0, median_size)
    return -largest, largest


def weighted_mean(measured: Iterable[ClientMetrics]) -> Metrics:
    """Mean of each metric over the clients that report it, weighted by examples.

    Lists are averaged number by number; those of another length than most are left out.

    >>> weighted_mean([ClientMetrics({"accuracy": 1.0}, 1), ClientMetrics({"accuracy": 0.5}, 3)])
    {'accuracy': 0.625}
    >>> weighted_mean([ClientMetrics({"f1": [1, 0]}, 1), ClientMetrics({"f1": [0, 0]}, 3)])
    {'f1': [0.25, 0.0]}
    """
    reported = defaultdict[str, list[tuple[Any, float]]](list)
    for one in measured:
        for key, value in one.metrics.items():
            reported[key].append((np.asarray(value, dtype=float), one.num_examples))
    means: Metrics = {}
    for key, pairs in reported.items():
        usual = Counter(value.shape for value, _ in pairs).most_common(1)[0][0]
        total = sum(value * weight for value, weight in pairs if value.shape == usual)
        means[key] = (total / sum(w for value, w in pairs if value.shape == usual)).tolist()
    return means


def mean_over_clients(measured: Iterable[ClientMetrics]) -> Metrics:
    """Weighted mean with weights limited by `limited`."""
    measured = list(measured)
    weights = limited(one.num_examples for one in measured).tolist()
    return weighted_mean(map(ClientMetrics, [one.metrics for one in measured], weights))
