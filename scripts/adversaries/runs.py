"""Runs with adversaries, as far as the honest clients are concerned."""

import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import numpy as np
import torch
from flwr.serverapp import strategy as flower
from safetensors.numpy import load_file

from adversaries.attacks import ATTACKS, with_trigger
from adversaries.federation import Client, Federation, staying_away
from cflower import server_app, simulate
from cflower.algorithm.weights import Vector
from cflower.config import RunConfig
from cflower.data.client_data import load_client_data
from cflower.data.settings import DataSettings
from cflower.learning.models import arrays_of, build_model
from cflower.learning.training import evaluate, predict
from cflower.messages.arrays import record_of

AWAY = "away"
"""In place of an attack: the adversaries take no part."""


class Outcome(NamedTuple):
    """A run, as far as the honest clients are concerned."""

    summary: dict[str, Any]
    """Of cflower's run; empty for a strategy of Flower's."""
    accuracy: float
    """Mean over the honest clients, on their held-out examples."""
    success: float
    """Share of their examples of other classes that a trigger turns into class 0."""


def cflowers_run(keys: Mapping[str, Any], clients: int, honest: int, behave: Client) -> Outcome:
    """A run in this process."""
    with tempfile.TemporaryDirectory() as folder:
        config = RunConfig.read({**keys, "output-dir": folder})
        server = partial(server_app.run, say=lambda text: None)
        found = simulate(behave, clients, server_app=server, run_config=config.as_keys())
        (run,) = Path(folder).iterdir()
        places = [found["clients"][f"partition-{i}"]["cluster"] for i in range(honest)]
        models = {p: load_file(run / f"models/{p}.safetensors") for p in set(places)}
    served = [found["clients"][f"partition-{i}"]["accuracy"] for i in range(honest)]
    _, success = evaluated(config, clients, [models[place] for place in places])
    return Outcome(found, mean(served), success)


def flowers_run(
    rule: str, keys: Mapping[str, Any], clients: int, honest: int, behave: Client
) -> Outcome:
    """A run with one of Flower's own strategies."""
    config, settings = RunConfig.read(dict(keys)), {"fraction_evaluate": 0.0}
    if rule in ("Krum", "MultiKrum", "Bulyan"):
        settings["num_malicious_nodes"] = clients - honest
    if rule == "MultiKrum":
        settings["num_nodes_to_select"] = honest
    data = load_client_data(config.part(DataSettings), 0, clients, None)
    shape, num_classes = data.train.input_shape, data.train.num_classes
    first = record_of(arrays_of(build_model(config.model, shape, num_classes, config.seed)))
    result = simulate(
        behave,
        clients,
        strategy=getattr(flower, rule)(min_available_nodes=clients, **settings),
        arrays=first,
        num_rounds=config.num_server_rounds,
        run_config=config.as_keys(),
    )
    model = {key: array.numpy() for key, array in result.arrays.items()}
    return Outcome({}, *evaluated(config, clients, [model] * honest))


def evaluated(config: RunConfig, clients: int, models: list[dict[str, Any]]) -> tuple[float, float]:
    """Mean accuracy of the honest clients' models, and the success of a backdoor."""
    accuracies, turned = [], list[Vector]()
    for client, arrays in enumerate(models):
        data = load_client_data(config.part(DataSettings), client, clients, None).report
        model = build_model(config.model, data.input_shape, data.num_classes, config.seed)
        model.load_state_dict({key: torch.tensor(value) for key, value in arrays.items()})
        accuracies.append(evaluate(model, data)["accuracy"])
        turned.append(predict(model, with_trigger(data)).argmax(axis=1)[data.labels != 0] == 0)
    return mean(accuracies), float(np.concatenate(turned).mean())


def is_cflowers(rule: str) -> bool:
    """Whether a rule is an aggregation of cflower; Flower's strategies begin with a capital."""
    return rule[0].islower()


def attacked(attack: str, clients: int, adversaries: int, keys: Mapping[str, Any]) -> Outcome:
    """A run in which the last clients are adversaries; its rule is the key ``aggregation``."""
    honest, hostile = clients - adversaries, range(clients - adversaries, clients)
    if attack == AWAY:
        keys = {**keys, "min-available-nodes": honest}
        return cflowers_run(keys, clients, honest, staying_away(hostile))
    keys = {**keys, "min-available-nodes": clients}
    federation, rule = Federation(ATTACKS[attack], hostile), keys.get("aggregation", "fedavg")
    if is_cflowers(rule):
        return cflowers_run(keys, clients, honest, federation)
    return flowers_run(rule, {**keys, "aggregation": "fedavg"}, clients, honest, federation)


def shift_of(group_sizes: str) -> dict[str, Any]:
    """What makes the honest clients differ: nothing, or other names for the classes."""
    if not group_sizes:
        return {"shift": "none"}
    groups = {"num-groups": len(group_sizes.split(",")), "group-sizes": group_sizes}
    return {"shift": "label-permutation", **groups}
