"""Settings as plain values: what goes into ``config.json`` and a report."""

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from logging import INFO
from operator import attrgetter
from typing import Any

import numpy as np
from flwr.supercore import log

from cflower.algorithm.aggregation import MEDIAN
from cflower.algorithm.round import CFL
from cflower.algorithm.state import ADAPT, Measure
from cflower.changes import changes_of
from cflower.changes.personal import KAPPAS, MOST_TRAININGS, PersonalStep, leaves_of
from cflower.changes.splits import SplitTrials
from cflower.messages.client_names import ADAPTS, COMMITMENT, EVALUATE, adds_noise, has_function
from cflower.messages.metrics import Metric
from cflower.settings import check_factor, check_fields, has_methods, key_of, require

Plain = (bool, int, float, str, type(None))
MODELS_KEPT, MOST_GIGABYTES = 3, 8.0
"""Models of each client that a personal step holds at most, and the memory that they may take."""
PERSONAL_SHARE = 0.3
"""Share of a run's trainings, and of its messages, that a personal step may add."""
EVALUATIONS = 3 + len(KAPPAS)
"""Of a member in a personal step by ordinary messages."""
BY_CRITERION = {"trial_rounds": 0, "moving": False, "personal": False}
"""Settings with a default of the criterion's, and their values if it has none."""
SETTINGS = {"criterion": "criterion", "optimizer": "server-optimizer"}
"""Settings with settings of their own, by the strategy's fields."""
NO_INNER_MODELS = (
    "clients no longer train models above their own, because the mean of the models below takes "
    "their place. Leave it out."
)
NOT_ALONE = (
    "Another `start` than that of ClusteredFL runs the rounds, of a wrapper or of the app: without "
    "trials, moves and the final evaluation, whose table is empty. An app's own loop is rarely "
    "needed: see evaluate_fn, observers and configure_train (docs/guide/own-app.md)."
)


def complete(strategy: Any) -> None:
    """Check a strategy's settings, and give it the criterion's defaults for those not given."""
    check_fields(strategy, attrgetter("name"))
    for name, method, kind, example in (
        ("criterion", "decide", "Criterion", "AutoCriterion"),
        ("optimizer", "step", "ServerOptimizer", "ServerOptimizer"),
    ):
        value = getattr(strategy, name)
        require(
            has_methods(value, method),
            f"Got {name}={value!r}, but expected an object with the methods of {kind}, such as "
            f"{example}().",
        )
    for name, example in ("observers", "Recorder()"), ("untrained", '"*running_mean"'):
        value = getattr(strategy, name)
        require(
            isinstance(value, Iterable) and not isinstance(value, str),
            f"Got {name}={value!r}, but expected a list, such as [{example}].",
        )
    for name in ("max_norm_ratio", "max_influence"):
        check_factor(name, getattr(strategy, name))
    for name, default in BY_CRITERION.items():
        if getattr(strategy, name) is None:
            setattr(strategy, name, getattr(strategy.criterion, name, default))


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


def trimmed_share(strategy: Any) -> float:
    """The share to trim of a strategy's ``aggregation``; see `CFL`."""
    return {"fedavg": 0.0, "fedmedian": MEDIAN}.get(strategy.aggregation, float(strategy.beta))


def personal_obstacle(strategy: Any, run: Any) -> str:
    """Why a run has no personal step; empty if it can have one."""
    if not run.alone or adds_noise(run.grid):
        return "every further training of a client would cost differential privacy"
    if not has_function(run.grid, EVALUATE, if_unknown=True):
        return "the ClientApp has no evaluate function"
    if strategy.selection != "leaf":
        return f"selection = {strategy.selection!r} chooses among the clusters' models"
    if personal_trainings(strategy, run)[0] < 1:
        rounds = strategy.fraction_train * run.num_rounds
        return f"a client trains in {rounds:g} rounds on average, too few for one"
    layout, clients = strategy.layout, strategy.roll_call.connected
    needed = MODELS_KEPT * clients * (layout.num_trained * layout.dtype.itemsize) / 1e9
    if needed > MOST_GIGABYTES:
        return f"the models of {clients} clients take {needed:.0f} GB at once"
    return ""


def personal_step(strategy: Any, run: Any) -> PersonalStep | None:
    """The personal step of a run; None without one."""
    leaves = leaves_of(strategy.state)
    if not strategy.personal or personal_obstacle(strategy, run) or not leaves:
        return None
    trainings, at_once = personal_trainings(strategy, run)
    return PersonalStep(run.num_rounds, leaves, trainings, ADAPT if at_once else "train")


def personal_trainings(strategy: Any, run: Any) -> tuple[int, bool]:
    """The trainings of a client in a personal step, and whether it does the step by itself.

    They, and where the step takes ordinary messages these, are at most `PERSONAL_SHARE` of those of
    the run, in which a client got two models and sent one in each round in which it took part.
    """
    share = PERSONAL_SHARE * run.num_rounds * strategy.fraction_train
    facts = strategy.roll_call.facts.values()
    at_once = bool(facts) and all(known.get(ADAPTS) for known in facts)
    # A training is two of the three models that a client gets or sends in a round.
    trainings = share if at_once else (3 * share / 2 - EVALUATIONS) / 2
    return min(MOST_TRAININGS, int(trainings + 1e-9)), at_once


def decides(cfl: CFL) -> bool:
    """Whether anything in a run is decided by held-out examples."""
    return any(isinstance(change, SplitTrials) for change in cfl.changes)


def algorithm_of(strategy: Any, run: Any) -> CFL:
    """The algorithm of a strategy in a run.

    A wrapper accounts for one model a client and round, and so does noise on the clients: then
    splits are final, and members do not move. Without an evaluate function in the ClientApp, splits
    are final too.
    """
    check_fields(strategy, attrgetter("name"))  # again: they can be changed before the start
    layout, trial_rounds = strategy.layout, strategy.trial_rounds
    alone = run.alone and not adds_noise(run.grid)
    if not run.alone:
        log(INFO, NOT_ALONE)
    if trial_rounds and not has_function(run.grid, EVALUATE, if_unknown=True):
        log(INFO, "The ClientApp has no evaluate function: splits are final, without a trial.")
        trial_rounds = 0
    if strategy.personal and (obstacle := personal_obstacle(strategy, run)):
        log(INFO, "There will be no personal step: %s.", obstacle)
    moving = strategy.moving and alone and not strategy.isolated
    # Where clients permute their weights, no array is what its shape shows.
    permuted = any(COMMITMENT in facts for facts in strategy.roll_call.facts.values())
    length, layers = strategy.projection_dim, strategy.similarity_layers
    return CFL(
        strategy.criterion,
        layout.projection(length, strategy.seed, layers, output=not permuted),
        strategy.optimizer,
        strategy.weighting,
        layout.as_sent,
        changes_of(trial_rounds if alone else 0, moving=moving),
        trim=trimmed_share(strategy),
        whole=layout.whole if strategy.max_influence else None,
        metric=measure_of(strategy.leading.now),
    )


def measure_of(metric: Metric) -> Measure:
    """The leading metric as the paired test takes it."""
    return Measure(metric.name, metric.higher_is_better, metric.share)
