"""Settings as plain values: what goes into ``config.json`` and a report."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from logging import INFO
from typing import Any

import numpy as np
from flwr.serverapp import Grid
from flwr.supercore import log

from cflower.algorithm.paired_comparison import Measure
from cflower.algorithm.round import CFL
from cflower.messages.claims import COMMITMENT
from cflower.messages.client_names import EVALUATE, adds_noise, has_function
from cflower.settings import key_of

Plain = (bool, int, float, str, type(None))
MODELS_KEPT, MOST_GIGABYTES = 6, 8.0
"""Models of each client that a personal step holds at most, and the memory that they may take."""
SETTINGS = {"criterion": "criterion", "optimizer": "server-optimizer"}
"""Settings with settings of their own, by the strategy's fields."""


def described(thing: Any) -> dict[str, Any]:
    """A criterion or optimizer under its name, with its fields under kebab-case keys.

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


def plain(config: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a ConfigRecord that JSON has too: all but bytes.

    >>> plain({"lr": 0.1, "layers": [1, 2], "key": b"secret"})
    {'lr': 0.1, 'layers': [1, 2]}
    """
    return {key: value for key, value in config.items() if np.asarray(value).dtype.kind != "S"}


def settings_of(strategy: Any) -> dict[str, Any]:
    """A strategy's fields under kebab-case keys: all that is needed to set up the same run.

    Callables, observers and the numbers of nodes to wait for are left out.
    """
    method = "federated" if described(strategy.criterion)["name"] == "never" else "clustered"
    settings: dict[str, Any] = {"method": "isolated" if strategy.isolated else method}
    settings["untrained"] = list(strategy.untrained)
    for spec in fields(strategy):
        value = getattr(strategy, spec.name)
        if spec.name in SETTINGS:
            settings[SETTINGS[spec.name]] = described(value)
        elif isinstance(value, Plain) and not spec.name.startswith("min_"):
            settings[key_of(spec)] = value
    return settings


def personal_obstacle(strategy: Any, grid: Grid, *, alone: bool) -> str:
    """Why a run has no personal step; empty if it can have one."""
    if not alone or adds_noise(grid):
        return "every further training of a client would cost differential privacy"
    if not has_function(grid, EVALUATE, if_unknown=True):
        return "the ClientApp has no evaluate function"
    if strategy.selection != "leaf":
        return f"selection = {strategy.selection!r} chooses among the clusters' models"
    layout, clients = strategy.layout, len(strategy.roll_call.clients)
    needed = MODELS_KEPT * clients * (layout.num_trained * layout.dtype.itemsize) / 1e9
    if needed > MOST_GIGABYTES:
        return f"the models of {clients} clients take {needed:.0f} GB at once"
    return ""


def algorithm_of(strategy: Any, grid: Grid, *, alone: bool) -> CFL:
    """The algorithm of a strategy, which runs ``alone`` if it is not wrapped.

    A wrapper accounts for one model a client and round: then splits are final, and members do not
    move. Without an evaluate function in the ClientApp, splits are final too.
    """
    trial_rounds = strategy.trial_rounds
    if trial_rounds and not has_function(grid, EVALUATE, if_unknown=True):
        log(INFO, "The ClientApp has no evaluate function: splits are final, without a trial.")
        trial_rounds = 0
    obstacle = personal_obstacle(strategy, grid, alone=alone) if strategy.personal else ""
    if obstacle:
        log(INFO, "There will be no personal step: %s.", obstacle)
    layout, metric = strategy.layout, strategy.leading
    # Where clients permute their weights, no array is what its shape shows.
    permuted = any(COMMITMENT in facts for facts in strategy.roll_call.facts.values())
    return CFL(
        strategy.criterion,
        layout.projection(
            strategy.projection_dim,
            strategy.seed,
            strategy.similarity_layers,
            output=not permuted,
        ),
        strategy.optimizer,
        strategy.weighting,
        layout.as_sent,
        trial_rounds=trial_rounds if alone else 0,
        moving=strategy.moving and alone,
        inner_interval=strategy.inner_interval if alone else 0,
        personal=strategy.personal and not obstacle,
        metric=Measure(metric.name, metric.higher_is_better, metric.share),
    )
