"""OCFL: Zuziak, Pellungrini, Rinzivillo, "One-Shot Clustering for Federated Learning", 2025, arXiv
2503.04231.

FedAvg runs until the temperature of the clients' updates rises for the first time: the Frobenius
norm of the matrix of their cosine distances, divided by the largest that it can be. In that round
the clients are grouped, once and for all, by HDBSCAN on these distances. From then on FedAvg runs
within the groups.

Differences from the authors' code (MKZuziak/Clustered-Federated-Learning, commit bbe5eca,
``Simulation.energy_oneshot``), of which ``demos/ocfl_hdb_script.py`` has the parameters:

- There all clients take part in every round. Here, where they do not, the temperature is that of
  the participants, and in the round that groups the others train too.
- Models are averaged by numbers of examples, as everywhere here; there plainly.

As there, all clients that are noise to HDBSCAN make one group.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import HDBSCAN
from sklearn.metrics.pairwise import cosine_distances

from peers.federation import Federation, Outcome, Vector

SMALLEST = 3
"""Clients that make a group; fewer are noise."""


def run(federation: Federation) -> Outcome:
    """FedAvg, one clustering, FedAvg within the groups; nothing is given."""
    names, last = list(federation.clients), federation.rounds
    groups = dict.fromkeys(names, 0)
    models: dict[int, Vector] = {0: federation.initial}
    temperature, grouped = np.inf, False
    for server_round in range(1, last + 1):
        if grouped:
            models = federation.train_groups(groups, models, [server_round])
            continue
        model = models[0]
        trained = federation.train_all(federation.participants(server_round), model, server_round)
        before, temperature = temperature, temperature_of(distances(trained, model))
        grouped = temperature > before
        if grouped:
            others = [name for name in names if name not in trained]
            trained |= federation.train_all(others, model, server_round)
            groups = dict(zip(trained, clustered(distances(trained, model)), strict=True))
        models = {
            group: federation.mean(
                {name: trained[name] for name in trained if groups[name] == group}
            )
            for group in set(groups.values())
        }
    return Outcome({name: models[groups[name]] for name in names}, groups)


def distances(trained: Mapping[str, Vector], model: Vector) -> NDArray[np.floating]:
    """Between the directions of the clients' updates, in [0, 2]."""
    return np.asarray(cosine_distances(np.stack(list(trained.values())) - model))


def temperature_of(gaps: NDArray[np.floating]) -> float:
    """In [0, 1]: 0 if all updates agree."""
    count = len(gaps)
    return float(np.linalg.norm(gaps) / np.sqrt(4 * count * (count - 1)))


def clustered(gaps: NDArray[np.floating]) -> list[int]:
    """Groups by HDBSCAN; -1: those that are noise."""
    labels = HDBSCAN(min_cluster_size=SMALLEST, metric="precomputed", copy=True).fit_predict(gaps)
    return list(map(int, labels))
