"""What the battery measures: the families, the data, the criteria, and what counts as right."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from cflower.algorithm.criteria import Decision, Evidence, Memory, Outcome, verdict
from cflower.auto.criterion import AutoCriterion
from cflower.config import CRITERIA as CONFIG_CRITERIA
from cflower.config import RunConfig

Keys = dict[str, Any]
"""Run-config keys with their values."""


def run_of(data: str, clients: int, rounds: int, seed: int, keys: Keys) -> Keys:
    """The whole run config of clients with small models and 100 examples each, or all digits."""
    own = {
        "dataset": data,
        "dataset-size": 0 if data == "digits" else 100 * clients,
        "model": "mlp",
        "min-available-nodes": clients,
        "num-server-rounds": rounds,
        "seed": seed,
    }
    return RunConfig.read(own | keys).as_keys()


@dataclass(frozen=True)
class Family:
    """One kind of federation; what is not said is the run config's default."""

    reason: str
    clients: int
    keys: Keys
    rounds: int = 40


FLAT: Keys = {"shift": "none"}
TURNED: Keys = {"shift": "rotation", "num-groups": 2}
HALF: Keys = {"validation-fraction": 0.5, "decide-fraction": 0.2}
SLOW: Keys = HALF | {"learning-rate": 0.02, "dataset-size": 2_000}
FEW: Keys = HALF | {"dataset-size": 1_200}

FAMILIES = {
    # Nothing to find: every split is a false one.
    "no-groups-iid": Family("clients alike in everything", 10, FLAT),
    "no-groups-dirichlet-1": Family(
        "labels unevenly spread, as in any real federation",
        10,
        FLAT | {"partitioner": "dirichlet", "dirichlet-alpha": 1.0},
    ),
    "no-groups-dirichlet-0.5": Family(
        "so unevenly that updates look like groups",
        20,
        FLAT | {"partitioner": "dirichlet", "dirichlet-alpha": 0.5},
    ),
    "no-groups-epochs-1": Family("small updates", 10, FLAT | {"local-epochs": 1}, 80),
    "no-groups-epochs-5": Family("clients drift apart", 10, FLAT | {"local-epochs": 5}),
    "no-groups-rate-0.03": Family("small updates", 10, FLAT | {"learning-rate": 0.03}, 70),
    # Groups of equal size.
    "rotation-2": Family("the lab; 3 local epochs, learning rate 0.1", 10, TURNED),
    "rotation-4": Family("two levels of splits", 20, TURNED | {"num-groups": 4}),
    "label-swap-4": Family(
        "the paper, VI: groups differ in two labels each",
        20,
        {"shift": "label-swap", "num-groups": 4},
    ),
    "label-permutation-4": Family(
        "the paper, VI-C: groups agree on nothing",
        20,
        {"shift": "label-permutation", "num-groups": 4},
    ),
    # Models that have learned little at the end: is a client served with one that only overfits?
    "no-groups-slow": Family("unsure models", 20, FLAT | SLOW, 20),
    "permutation-slow": Family(
        "unsure models of groups", 20, SLOW | {"shift": "label-permutation", "num-groups": 4}, 20
    ),
    "no-groups-few": Family("30 examples to train on, 6 that decide", 20, FLAT | FEW, 20),
    "label-swap-few": Family(
        "so few examples that one model is better for both groups",
        20,
        FEW | {"shift": "label-swap", "num-groups": 2},
        20,
    ),
    # Groups that are harder to see.
    "uneven-rotation": Family(
        "the majority nearly has its way", 10, TURNED | {"group-sizes": "8,2"}
    ),
    "dirichlet-rotation": Family(
        "uneven labels hide the groups",
        10,
        TURNED | {"partitioner": "dirichlet", "dirichlet-alpha": 1.0},
    ),
    "three-groups": Family(
        "an odd number, uneven", 12, TURNED | {"num-groups": 3, "group-sizes": "6,4,2"}
    ),
    "nested": Family(
        "two groups far apart, each of two near ones", 20, {"shift": "nested", "num-groups": 4}
    ),
    "adversaries": Family(
        "3 of 20 with random labels",
        20,
        {"shift": "label-noise", "num-groups": 2, "group-sizes": "17,3"},
    ),
    # Other ways to train: norms change, groups do not. rotation-2 is the middle of each.
    "half-per-round": Family("updates of different rounds", 20, TURNED | {"fraction-train": 0.5}),
    "epochs-1": Family("small updates", 10, TURNED | {"local-epochs": 1}, 80),
    "epochs-5": Family("large updates", 10, TURNED | {"local-epochs": 5}),
    "rate-0.03": Family("small updates", 10, TURNED | {"learning-rate": 0.03}, 70),
    "hundred-clients": Family(
        "many small clients: on digits 18 examples each",
        100,
        {"shift": "label-permutation", "num-groups": 5},
    ),
}

MODELS = {
    "digits": "cnn",
    # A step of the convolutional models costs two cores 8 to 40 times as much.
    "mnist": "mlp",
    "fashion-mnist": "mlp",
    "cifar10": "mlp",
}
"""Data sets by name, and the model each is measured with; ``--set model=...`` for another."""
SLOWER = {"cifar10": 0.1}
"""Factor to every family's learning rate: at 0.1 the mlp does not learn CIFAR-10 at all."""

BASELINES: dict[str, Keys] = {
    # With the criterion `Oracle` below. Everyone trains in every round, or the groups known from
    # the start would be those of half of the clients, and the others left to Algorithm 4.
    # Neither has the guard against clients that count for much, which plain FedAvg has not.
    "oracle": {"method": "federated", "fraction-train": 1.0, "max-influence": 0.0},
    "federated": {"method": "federated", "max-influence": 0.0},
}
CRITERIA: dict[str, Keys] = {
    **{name: {"split-criterion": name} for name in CONFIG_CRITERIA},
    "auto-one-view": {"split-criterion": "auto"},  # `OneView`
    "norms-complete": {"split-criterion": "norms", "linkage": "complete"},
    # What everyone copies from the authors' code, without the tests that we added.
    "norms-0.4-1.6": {
        "split-criterion": "norms",
        "eps1": 0.4,
        "eps2": 1.6,
        "gamma-max": 0.0,
        "min-cluster-size": 1,
    },
    **BASELINES,
}


def run_config(data: str, folder: str, family: str, criterion: str, seed: int, more: Keys) -> Keys:
    """The whole run config of one run; ``more`` has the last word.

    ``folder`` is where the data lie; empty for the embedded digits.
    """
    spec = FAMILIES[family]
    keys: Keys = {
        "dataset": folder or data,
        # As many examples for each client in every family, up to 20 clients.
        "dataset-size": 0 if data == "digits" else min(200 * spec.clients, 10_000),
        "model": MODELS[data],
        "num-server-rounds": spec.rounds,
        "min-available-nodes": spec.clients,
        "seed": seed,
    }
    config = RunConfig.read(keys | spec.keys | CRITERIA[criterion]).as_keys()
    config["learning-rate"] *= SLOWER.get(data, 1.0)
    return RunConfig.read(config | more).as_keys()


def truth_of(config: Mapping[str, Any]) -> dict[str, int]:
    """The true group of every client by its name."""
    from cflower.data.shifts import groups_of  # loads much that `--table` need not wait for

    flat = config["shift"] == "none" and not config["group-column"]
    num_groups = 1 if flat else config["num-groups"]
    groups = groups_of(config["min-available-nodes"], num_groups, config["group-sizes"])
    return {f"partition-{i}": group for i, group in enumerate(groups)}


class OneView(AutoCriterion):
    """`auto` without the class-matched view of the output layer."""

    def decide(self, evidence: Evidence, memory: Memory) -> tuple[Decision, Memory]:
        """By the clients' whole updates alone."""
        return super().decide(replace(evidence, outputs=()), memory)


@dataclass(frozen=True)
class Oracle:
    """A criterion that knows the groups: it splits by them in the first round."""

    truth: Mapping[str, int]

    def decide(self, evidence: Evidence, memory: Memory) -> tuple[Decision, Memory]:
        """One child for each group of which a client has replied."""
        groups = np.array([self.truth[client] for client in evidence.clients])
        if len(set(groups)) < 2:
            return verdict(evidence, Outcome.NEVER, "one true group"), memory
        names = np.array(evidence.clients)
        sides = tuple(tuple(names[groups == group].tolist()) for group in np.unique(groups))
        across = evidence.similarity[groups[:, None] != groups].max()
        seen = {"sides": sides, "alpha_cross": float(across)}
        return verdict(evidence, Outcome.SPLIT, "the true groups", **seen), memory

    def inherit(self, memory: Memory) -> Memory:
        """Nothing."""
        return {}


def judge(summary: Mapping[str, Any], tree: Mapping[str, Any], config: Keys) -> dict[str, Any]:
    """How right a run was: the figures of its record.

    Among adversaries it is right when the honest clients are one cluster that holds no adversary,
    however the adversaries themselves are divided.
    """
    from sklearn.metrics import adjusted_rand_score

    truth, judged = truth_of(config), honest(config)
    found = {name: client["cluster"] for name, client in summary["clients"].items()}
    with_honest = {found[name] for name in judged}
    parts = [found[name] if found[name] in with_honest else "" for name in truth]
    index = adjusted_rand_score(list(truth.values()), parts)
    splits = [split for split in summary["splits"] if split.get("trial") != "undone"]
    clients = pd.DataFrame([summary["clients"][name] for name in judged])
    # A client that was never placed in a leaf has not reported its number of examples.
    known = clients["num_examples"].astype(float).replace(0, np.nan)
    weights = known.fillna(known.mean())
    leaves = clients.get("leaf_accuracy", clients["accuracy"]).fillna(clients["accuracy"])
    return {
        "exact": bool(index == 1.0),
        "adjusted_rand_index": float(index),
        "groups": len(set(truth.values())),
        "clusters": len(summary["clusters"]),
        "splits": len(splits),
        "undone": len(summary["splits"]) - len(splits),
        "moves": len(summary.get("moves", ())),
        "false_splits": sum(separates(split, tree, truth, judged) for split in splits),
        "last_split": max((s["round"] for s in splits), default=None),
        "accuracy": float(np.average(clients["accuracy"], weights=weights)),
        "leaf_accuracy": float(np.average(leaves, weights=weights)),
        **(against_alone(summary, judged, weights) if config.get("baselines") else {}),
    }


def found_in(summary: Mapping[str, Any], truth: Mapping[str, int]) -> dict[str, Any]:
    """Whether these clients' groups are the clusters, and each one's accuracy.

    ``leaves`` are the accuracies without the personal step.
    """
    from sklearn.metrics import adjusted_rand_score

    clients = [summary["clients"][name] for name in truth]
    found = [client["cluster"] for client in clients]
    return {
        "exact": adjusted_rand_score(list(truth.values()), found) == 1.0,
        "clusters": len(set(found)),
        "accuracies": [client["accuracy"] for client in clients],
        "leaves": [client.get("leaf_accuracy", client["accuracy"]) for client in clients],
    }


def honest(config: Mapping[str, Any]) -> list[str]:
    """The clients that are judged: of ``label-noise`` all but the last group, the adversaries."""
    adversaries = config["num-groups"] - 1 if config["shift"] == "label-noise" else None
    return [name for name, group in truth_of(config).items() if group != adversaries]


def against_alone(
    summary: Mapping[str, Any], judged: Sequence[str], weights: Sequence[float]
) -> dict[str, Any]:
    """The judged clients' accuracy alone, and how many are served worse."""
    alone = np.array([summary["baselines"]["isolated"]["clients"][name] for name in judged])
    clients = [summary["clients"][name] for name in judged]
    own, held_out = (np.array([c[key] for c in clients]) for key in ("accuracy", "held_out"))
    return {
        "alone": float(np.average(alone, weights=weights)),
        "worse_than_alone": int(are_worse(own, alone, held_out).sum()),
        "judged": len(clients),
    }


def are_worse(
    own: NDArray[np.floating], alone: NDArray[np.floating], held_out: NDArray[np.integer]
) -> NDArray[np.bool]:
    """Which clients are served worse than alone by more than two standard errors, shape (m,).

    The errors are those of a difference of two shares of the client's own reported examples.
    """
    error = np.sqrt((own * (1 - own) + alone * (1 - alone)) / held_out)
    return alone - own > 2 * error


def separates(
    split: Mapping[str, Any],
    tree: Mapping[str, Any],
    truth: Mapping[str, int],
    judged: Sequence[str],
) -> bool:
    """Whether a split puts two judged clients of one true group on different sides."""
    sides = [tree["clusters"][child]["edge_clients"] for child in split["children"]]
    groups = [{truth[name] for name in side if name in judged} for side in sides]
    return sum(map(len, groups)) > len(set().union(*groups))
