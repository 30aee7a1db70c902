"""Whether what clients measured can be true: judged by a metric's range and by the other clients.

A client may tell any figure of itself. What no honest one would tell must not become everyone's.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cflower.algorithm.robust_mean import MOST
from cflower.messages.replies import ClientMetrics, Metrics, weighted_mean

SHARES = ("accuracy", "acc", "precision", "recall", "f1", "auc", "iou", "dice")
"""Words in the names of metrics that are shares, of 1 or of 100."""
FAR = 1000.0
"""Times the median size (or 1, if that is less) beyond which a metric of another kind is set aside;
times the median number of examples beyond which a claim to have more is not believed at all."""


@dataclass(frozen=True)
class Range:
    """What values of each metric are plausible in one exchange."""

    most: Mapping[str, float]
    least: Mapping[str, float]

    @classmethod
    def of(cls, measured: Iterable[ClientMetrics]) -> "Range":
        """The ranges that these clients' metrics suggest.

        >>> told = [ClientMetrics({"accuracy": a}, 1) for a in (0.9, 0.8, -1e9)]
        >>> [Range.of(told).sifted(one.metrics) for one in told]
        [{'accuracy': 0.9}, {'accuracy': 0.8}, {}]
        """
        values: dict[str, list[float]] = {}
        for one in measured:
            for key, value in one.metrics.items():
                if not isinstance(value, list):
                    values.setdefault(key, []).append(abs(float(value)))
        most, least = {}, {}
        for key, sizes in values.items():
            usual = float(np.median(sizes))
            if is_share(key) and usual <= 100:
                most[key], least[key] = 1.0 if usual <= 1 else 100.0, 0.0
            else:
                most[key] = FAR * max(1.0, usual)
                least[key] = -most[key]
        return cls(most, least)

    def sifted(self, metrics: Mapping[str, int | float | list[int] | list[float]]) -> Metrics:
        """The metrics that are in range; lists are not judged."""
        return {
            key: value
            for key, value in metrics.items()
            if isinstance(value, list) or self.least[key] <= value <= self.most[key]
        }


def is_share(metric: str) -> bool:
    """Whether a metric of this name is a share.

    >>> is_share("val_acc"), is_share("balanced-accuracy"), is_share("pace"), is_share("loss")
    (True, True, False, False)
    """
    return not set(SHARES).isdisjoint(metric.lower().replace("-", "_").split("_"))


def mean_over_clients(measured: Iterable[ClientMetrics]) -> Metrics:
    """As `weighted_mean`, but nobody weighs more than a few usual clients; see `counted`.

    >>> told = [ClientMetrics({"accuracy": 0.9}, 100)] * 9 + [ClientMetrics({"accuracy": 0}, 1e12)]
    >>> round(mean_over_clients(told)["accuracy"], 2)
    0.81
    """
    measured = list(measured)
    weights = counted(one.num_examples for one in measured)
    return weighted_mean(
        one._replace(num_examples=float(weight))
        for one, weight in zip(measured, weights, strict=True)
    )


def counted(examples: Iterable[float]) -> NDArray[np.floating]:
    """What clients' numbers of examples count for in a mean of their metrics, shape (m,).

    At most `MOST` times the median; what is `FAR` beyond it is not believed and counts as usual. Of
    fewer than three nobody can tell what is usual.

    >>> counted([100, 100, 100, 1000, 1e12])
    array([100., 100., 100., 300., 100.])
    """
    claimed = np.array(list(examples), dtype=float)
    if len(claimed) < 3:
        return claimed
    usual = float(np.median(claimed))
    believed: NDArray[np.floating] = np.minimum(claimed, MOST * usual)
    believed[claimed > FAR * usual] = usual
    return believed
