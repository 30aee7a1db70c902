"""The strategy, first model and configs that a ServerApp starts with, without training."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from copy import copy
from functools import partial
from inspect import signature
from typing import Any, NamedTuple
from unittest.mock import patch

from flwr.app import ArrayRecord, ConfigRecord, Context, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from cflower.errors import ConfigError
from cflower.simulation.inline_grid import SERVER_NODE_ID
from cflower.strategy.clustered_fl import ClusteredFL
from cflower.strategy.observers import Observer
from cflower.strategy.reports import FinalReport

TIMEOUT = 3600.0
"""Seconds; clients in this process are never late."""


class Start(NamedTuple):
    """The arguments of a strategy's ``start``."""

    strategy: Strategy
    arrays: ArrayRecord
    num_rounds: int
    train_config: ConfigRecord | None = None
    evaluate_config: ConfigRecord | None = None

    def train(
        self,
        grid: Grid,
        strategy: ClusteredFL,
        observers: Sequence[Observer],
        num_rounds: int,
    ) -> tuple[FinalReport, ArrayRecord]:
        """Start this or another strategy; its final report and the common model."""
        strategy = with_settings(strategy, observers=observers)
        configs = self.train_config, self.evaluate_config
        result = strategy.start(grid, self.arrays, num_rounds, TIMEOUT, *configs)
        return result.report, result.arrays


def with_settings(strategy: ClusteredFL, **settings: Any) -> ClusteredFL:
    """A copy of a strategy with other settings.

    A subclass may have an ``__init__`` of its own, so ``dataclasses.replace`` cannot make it. The
    settings are checked when it starts.
    """
    other = copy(strategy)
    vars(other).update(settings)
    return other


class _Started(BaseException):
    """Ends a ServerApp when it starts a strategy; no ``except Exception`` of the app stops it."""

    def __init__(self, start: Start) -> None:
        self.start = start


def start_of(
    server_app: Callable[[Grid, Context], Any], grid: Grid, config: Mapping[str, Any]
) -> Start:
    """Run a ServerApp up to the first ``start`` of a strategy, and return what that was given.

    The app may ask its clients before; what it does after the run is left out.
    """
    names = "self", "initial_arrays", "num_rounds", "train_config", "evaluate_config"
    parameters = signature(Strategy.start)

    def listen(*given: Any, **named: Any) -> None:
        call = parameters.bind(*given, **named)
        call.apply_defaults()
        raise _Started(Start(*(call.arguments[name] for name in names)))

    try:
        with ExitStack() as patches:
            for kind in kinds(Strategy):
                if "start" in vars(kind):
                    patches.enter_context(patch.object(kind, "start", listen))
            server_app(grid, Context(1, SERVER_NODE_ID, {}, RecordDict(), dict(config)))
    except _Started as started:
        return started.start
    raise ConfigError(
        "The ServerApp calls no `start` of a Flower strategy, so its first model is not known: let "
        "it train with strategy.start(grid, arrays, num_rounds)."
    )


def own_start(grid: Grid, config: Mapping[str, Any]) -> Start:
    """What cflower's own ServerApp starts with a config, without its lines about the data.

    `CFlowerError` if the method does not go with the model.
    """
    from cflower.server_app import run

    return start_of(partial(run, say=None), grid, config)


def kinds(kind: type[Any]) -> Iterator[type[Any]]:
    yield kind
    for below in kind.__subclasses__():
        yield from kinds(below)
