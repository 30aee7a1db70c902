"""Conventional federated learning and training alone: the two ends of every comparison."""

from peers.federation import Federation, Outcome


def federated(federation: Federation) -> Outcome:
    """FedAvg: McMahan et al., AISTATS 2017, arXiv 1602.05629."""
    everyone = dict.fromkeys(federation.clients, 0)
    rounds = range(1, federation.rounds + 1)
    model = federation.train_groups(everyone, {0: federation.initial}, rounds)[0]
    return Outcome(dict.fromkeys(federation.clients, model))


def isolated(federation: Federation) -> Outcome:
    """Every client by itself, in the rounds in which it takes part, from the common first model."""
    own = {client: client for client in federation.clients}
    first = dict.fromkeys(own, federation.initial)
    return Outcome(federation.train_groups(own, first, range(1, federation.rounds + 1)))
