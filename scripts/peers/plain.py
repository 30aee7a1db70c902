"""FedAvg in given groups: of all clients, of each client alone, or of the true groups.

FedAvg: McMahan et al., AISTATS 2017, arXiv 1602.05629.
"""

from collections.abc import Mapping
from typing import Any

from families.planted import truth_of

from peers.federation import Federation, Outcome, Vector


def federated(federation: Federation) -> Outcome:
    """Conventional federated learning: one model for all clients."""
    return Outcome(fed_avg(federation, dict.fromkeys(federation.clients, 0)))


def isolated(federation: Federation) -> Outcome:
    """Every client by itself, in the rounds in which it takes part."""
    return Outcome(fed_avg(federation, {client: client for client in federation.clients}))


def true_groups(federation: Federation) -> Outcome:
    """One model for each true group, which trains the clients that take part in a round.

    Unlike `oracle`, whose clients all take part in each round.
    """
    groups = truth_of(federation.config.as_keys())
    return Outcome(fed_avg(federation, groups), groups)


def fed_avg(federation: Federation, groups: Mapping[str, Any]) -> dict[str, Vector]:
    """The model of each client's group, trained from the common first model on."""
    first = dict.fromkeys(groups.values(), federation.initial)
    models = federation.train_groups(groups, first, range(1, federation.rounds + 1))
    return {client: models[group] for client, group in groups.items()}
