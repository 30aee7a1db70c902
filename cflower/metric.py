"""A metric: its name shows whether higher values are better, and how its values are shown."""

import re
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from cflower.errors import ConfigError

SHARES = frozenset({"accuracy", "acc", "f1", "precision", "recall", "auc", "auroc"})
"""Words in the names of metrics that are shares of 1 (or of 100), shown as percentages."""
HIGHER_IS_BETTER = SHARES | {"r2"}
"""Words in the names of metrics that are better the higher they are, unless one of
`LOWER_IS_BETTER` is in the name too."""
LOWER_IS_BETTER = frozenset({"loss", "perplexity", "error", "rmse", "mse", "mae"})
"""Words in the names of metrics that are better the lower they are."""
TURNED = frozenset({"neg", "negative", "score"})
"""Words that turn an error into something that is better the higher it is, or may do so."""
ACCURACY = ({"accuracy", "acc"},)
LEADERS = (
    *ACCURACY,
    {"f1", "auc", "auroc"},
    {"precision", "recall"},
    {"loss", "perplexity"},
    {"rmse"},
    {"mse"},
    {"mae"},
    {"error"},
    {"r2"},
)
"""Words of the metrics that may lead where nobody chose one, the first choice first."""
TRAINING = frozenset({"train", "training"})
"""Words of metrics that are not of held-out examples."""
DIRECTION = (
    "Got metric={name!r}, but whether higher or lower values of it are better is not known: give "
    "higher_is_better=True or higher_is_better=False too."
)


class Metric(NamedTuple):
    """The metric that leads in tables, charts and comparisons of a run."""

    name: str = "accuracy"
    higher_is_better: bool = True
    above_one: bool = False
    """Whether clients send values above 1, such as per cent: then they are shown as they are."""

    @classmethod
    def of(cls, name: str, higher_is_better: bool | None = None) -> "Metric":
        """A metric by its name, which decides the direction if that is None.

        >>> Metric.of("val_rmse").in_full, Metric.of("answer_f1").in_full
        ('val_rmse (lower is better)', 'answer_f1')
        """
        if higher_is_better is None:
            higher_is_better = direction_of(name)
        if higher_is_better is None:
            raise ConfigError(DIRECTION.format(name=name))
        return cls(name, higher_is_better)

    def as_json(self) -> dict[str, Any]:
        return {"name": self.name, "higher_is_better": self.higher_is_better}

    @property
    def in_full(self) -> str:
        """The name, and the direction unless it is a share, such as accuracy."""
        if is_share(self.name):
            return self.name
        return f"{self.name} ({'higher' if self.higher_is_better else 'lower'} is better)"

    @property
    def title(self) -> str:
        return "Brier score" if self.name == BRIER.name else self.name

    @property
    def share(self) -> bool:
        """Whether values are shares of 1, shown as percentages."""
        return not self.above_one and is_share(self.name)

    def seen(self, values: Iterable[float]) -> "Metric":
        """The metric, no share any more if most of these values are above 1.

        >>> Metric().seen([93.5, 97.0, 0.5]).in_words(93.5), Metric().seen([0.5, 1.0]).share
        ('93.5', True)
        """
        values = list(values)
        above = 2 * sum(value > 1 for value in values) > len(values)
        return self._replace(above_one=self.above_one or above)

    def in_words(self, value: float | None) -> str:
        """A value as shown to users; a dash for None.

        >>> Metric().in_words(0.975), Metric("perplexity", False).in_words(26.6)
        ('97.5%', '26.6')
        """
        if value is None:
            return "-"
        return f"{value:.1%}" if self.share and value <= 1 else f"{value:.4g}"

    def best(self, values: Iterable[float]) -> float | None:
        return (max if self.higher_is_better else min)(values, default=None)

    def worst(self, values: Iterable[float]) -> float | None:
        return (min if self.higher_is_better else max)(values, default=None)


BRIER = Metric("brier", higher_is_better=False)
"""The mean squared error of the classes' probabilities (Brier 1950), from 0 to 2. It is a proper
score, as a loss is, but a few confident errors do not make most of it."""


def leader_among(names: Iterable[str], choices: Sequence[Collection[str]] = LEADERS) -> str:
    """The first choice to lead among the names of metrics; empty if there is none.

    Of several names with such a word the shortest leads.

    >>> leader_among(["train_acc", "top5_accuracy", "val_acc", "accuracy_loss"])
    'val_acc'
    >>> leader_among(["runtime", "mse", "val_loss"]), leader_among(["runtime"])
    ('val_loss', '')
    """
    places = {}
    for name in names:
        words = words_in(name)
        deciding = words & LOWER_IS_BETTER or words & HIGHER_IS_BETTER
        chosen = [not deciding.isdisjoint(choice) for choice in choices]
        if any(chosen) and not words & TRAINING and direction_of(name) is not None:
            places[name] = chosen.index(True), "top" in words, len(name), name
    return min(places, key=places.__getitem__, default="")


def direction_of(name: str) -> bool | None:
    """Whether higher values of a metric are better, by the words in its name; None if unknown.

    >>> direction_of("eval_acc"), direction_of("val_loss"), direction_of("my_metric")
    (True, False, None)
    >>> direction_of("neg_mean_squared_error")
    """
    words = words_in(name)
    if words & LOWER_IS_BETTER:
        return None if words & TURNED else False
    return True if words & HIGHER_IS_BETTER else None


def is_share(name: str) -> bool:
    words = words_in(name)
    return not words.isdisjoint(SHARES) and words.isdisjoint(LOWER_IS_BETTER)


@lru_cache(maxsize=2**12)  # the same names come from every client
def words_in(name: str) -> frozenset[str]:
    """The words of a metric's name in lower case, also without a final number or plural s.

    >>> sorted(words_in("valMAE/top5"))
    ['mae', 'top', 'top5', 'val']
    """
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", name)
    words = [word for word in re.split(r"[\W_]+", spaced.lower()) if word]
    return frozenset({*words, *(re.sub(r"s$|\d+$", "", word) for word in words)})
