"""The settings of `ClusteredFL`, checked, and as plain values: for ``config.json`` and reports."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields, is_dataclass
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from cflower.algorithm.aggregation import Aggregation, Aggregator, TrimmedMean, aggregator_of
from cflower.algorithm.constants import MOST
from cflower.algorithm.criteria import Criterion
from cflower.algorithm.optimizers import ServerOptimizer
from cflower.algorithm.round import WEIGHTINGS, Weighting
from cflower.algorithm.tree import SELECTIONS, Selection
from cflower.auto.criterion import AutoCriterion
from cflower.messages.layout import UNTRAINED
from cflower.messages.messenger import MetricsAggregation
from cflower.messages.roll_call import RollCall
from cflower.metric import Metric
from cflower.ordering import without
from cflower.settings import (
    check_fields,
    check_influence,
    choice,
    has_methods,
    key_of,
    number,
    require,
    same,
)
from cflower.strategy.observers import Observer, Observers

Plain = (bool, int, float, str, type(None))
NESTED = {
    "criterion": "criterion",
    "optimizer": "server-optimizer",
    "aggregation": "aggregation",
}
"""Settings that may be objects with settings of their own, and their keys."""


class Rules(NamedTuple):
    """The settings with a default that depends on others, as a run uses them."""

    criterion: Criterion
    optimizer: ServerOptimizer
    aggregator: Aggregator
    trial_rounds: int
    moving: bool
    personal: bool
    higher_is_better: bool


@dataclass(eq=False, repr=False)
class Settings:
    """The settings of `ClusteredFL`, whose documentation explains each of them.

    They may be changed until a run starts.
    """

    criterion: Criterion | None = None
    _: KW_ONLY
    fraction_train: float = number(1.0, above=0, most=1)
    fraction_evaluate: float = number(1.0, least=0, most=1)
    min_train_nodes: int = number(2, least=0)
    min_evaluate_nodes: int = number(2, least=0)
    min_available_nodes: int = number(2, least=0)
    weighted_by_key: str = "num-examples"
    arrayrecord_key: str = "arrays"
    configrecord_key: str = "config"
    train_metrics_aggr_fn: MetricsAggregation | None = None
    evaluate_metrics_aggr_fn: MetricsAggregation | None = None
    optimizer: ServerOptimizer | None = None
    weighting: Weighting = choice("examples", WEIGHTINGS)
    aggregation: Aggregator | Aggregation = "fedavg"
    beta: float = same(TrimmedMean, "beta")
    similarity_layers: str = "*"
    projection_dim: int = number(16384, least=0)
    untrained: Sequence[str] = UNTRAINED
    max_influence: float = number(MOST, least=0)
    exclude_after: int = number(5, least=0)
    round_share: float = number(1.0, above=0, most=1)
    round_seconds: float = number(0.0, least=0)
    isolated: bool = False
    trial_rounds: int | None = number(None, least=0)
    moving: bool | None = None
    personal: bool | None = None
    selection: Selection = choice("leaf", SELECTIONS)
    seed: int = number(0, least=0)
    metric: str = "accuracy"
    higher_is_better: bool | None = None
    observers: Sequence[Observer] = ()
    roll_call: RollCall | None = None

    def __post_init__(self) -> None:
        self.check()

    @property
    def rules(self) -> Rules:
        """The criterion's values where no other is given, and the metric's direction."""
        criterion = self.criterion or AutoCriterion()
        defaults = {"trial_rounds": 0, "moving": False, "personal": False}
        given = {name: getattr(self, name) for name in defaults}
        for name, value in given.items():
            if value is None:
                given[name] = getattr(criterion, name, defaults[name])
        aggregator, higher = self.aggregation, self.leading.higher_is_better
        if isinstance(aggregator, str):
            aggregator = aggregator_of(aggregator, self.beta)
        optimizer = self.optimizer or ServerOptimizer()
        return Rules(criterion, optimizer, aggregator, **given, higher_is_better=higher)

    @property
    def leading(self) -> Metric:
        """The metric that leads, with its direction; `ConfigError` if that is not known."""
        return Metric.of(self.metric, self.higher_is_better)

    def check(self) -> None:
        """Refuse wrong settings with a ConfigError."""
        check_fields(self, attrgetter("name"))
        for name, example in ("observers", "Recorder()"), ("untrained", '"*running_mean"'):
            value = getattr(self, name)
            require(
                isinstance(value, Iterable) and not isinstance(value, str),
                f"Got {name}={value!r}, but expected a list, such as [{example}].",
            )
        check_influence("max_influence", self.max_influence)
        rules = self.rules
        for name, value, methods, kind, example in (
            ("criterion", rules.criterion, ["decide"], "Criterion", "AutoCriterion"),
            ("optimizer", rules.optimizer, ["step"], "ServerOptimizer", "ServerOptimizer"),
            ("aggregation", rules.aggregator, ["mean", "empty"], "Aggregator", "TrimmedMean"),
        ):
            require(
                has_methods(value, *methods),
                f"Got {name}={value!r}, but expected an object with the methods of {kind}, such "
                f"as {example}().",
            )
        Observers(self.observers)  # refuses what is none

    def as_plain(self) -> dict[str, Any]:
        """The settings under kebab-case keys: all that is needed to set up the same run.

        Callables, observers and the numbers of nodes to wait for are left out.
        """
        rules = self.rules
        method = "federated" if described(rules.criterion)["name"] == "never" else "clustered"
        settings: dict[str, Any] = {"method": "isolated" if self.isolated else method}
        settings["untrained"] = list(self.untrained)
        for spec in fields(self):
            value = getattr(rules, spec.name, getattr(self, spec.name))
            if spec.name in NESTED and not isinstance(value, str):
                settings[NESTED[spec.name]] = described(value)
            elif isinstance(value, Plain) and not spec.name.startswith(("min_", "roll_call")):
                settings[key_of(spec)] = value
        return settings


def described(thing: Any) -> dict[str, Any]:
    """A criterion, an optimizer or an aggregator: its name, and its fields by kebab-case keys.

    >>> from cflower.algorithm.criteria import NeverSplit
    >>> described(NeverSplit())
    {'name': 'never'}
    """
    name = getattr(thing, "name", type(thing).__name__)
    settings = {"name": name}
    if is_dataclass(thing):
        for spec in fields(thing):
            value = getattr(thing, spec.name)
            settings[key_of(spec)] = value if isinstance(value, Plain) else repr(value)
    return settings


def other_than_default(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of `Settings.as_plain` that differ from those of ``ClusteredFL()``."""
    usual = Settings().as_plain()
    return {key: value for key, value in settings.items() if value != usual.get(key)}


def settings_in_words(settings: Mapping[str, Any]) -> str:
    """Settings as one line of a log.

    >>> settings_in_words({"criterion": {"name": "norms", "eps1": 0.4, "eps2": 1.6}, "seed": 3})
    'criterion norms (eps1 0.4, eps2 1.6), seed 3'
    """
    texts = []
    for key, value in settings.items():
        text = str(value)
        if isinstance(value, Mapping):
            others = settings_in_words(without(value, ["name"]))
            text = f"{value['name']} ({others})" if others else value["name"]
        texts.append(f"{key} {text}")
    return ", ".join(texts)


def plain(config: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a ConfigRecord that JSON has too: all but bytes.

    >>> plain({"lr": 0.1, "layers": [1, 2], "key": b"secret"})
    {'lr': 0.1, 'layers': [1, 2]}
    """
    return {key: value for key, value in config.items() if np.asarray(value).dtype.kind != "S"}
