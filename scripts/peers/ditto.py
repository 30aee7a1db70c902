"""Ditto: Li, Hu, Beirami, Smith, "Ditto: Fair and Robust Federated Learning Through
Personalization", ICML 2021, arXiv 2012.04221 (Algorithm 1); and FedAvg with local fine-tuning.

FedAvg trains one model w. Beside it every participant trains a model v of its own, pulled towards
the w that it received: in each step v ← v − η (∇F(v) + λ (v − w)). Nothing of v is ever sent.
There are no groups, and a client that has not trained has no model of its own.

Differences from the authors' code (litian96/ditto, commit 26d9b29, ``trainers_MTL/ditto.py``):

- v is trained as cflower trains everything, SGD with momentum, for as many local epochs as w, on
  the same batches; there it is plain SGD.
- λ is one number for all clients, tuned; there it may also be chosen by each client in every step
  (``dynamic_lam``) among the same candidates, 0.1, 1 and 2.
- w is averaged by numbers of examples, as everywhere here; there plainly.
"""

from dataclasses import replace

from peers.federation import Federation, Outcome, pulled


def run(federation: Federation, strength: float) -> Outcome:
    """FedAvg, and every client's own model beside it.

    Parameters
    ----------
    federation : Federation
    strength : float
        λ, how strongly a client's own model is pulled towards everyone's.
    """
    own = dict.fromkeys(federation.clients, federation.initial)
    model = federation.initial
    for server_round in range(1, federation.rounds + 1):
        trained = {}
        for client in federation.participants(server_round):
            federation.send(len(model))
            trained[client] = federation.train(client, model, server_round)
            federation.receive(len(model))
            pull = pulled(strength, towards=model)
            own[client] = federation.train(client, own[client], server_round, change=pull)
        model = federation.mean(trained)
    return Outcome(own)


def fine_tuned(federation: Federation, epochs: int) -> Outcome:
    """FedAvg, and then every client trains the last model on its own examples.

    Parameters
    ----------
    federation : Federation
    epochs : int
        Of this last training, at the last round's learning rate.
    """
    everyone, last = dict.fromkeys(federation.clients, 0), federation.rounds
    models = federation.train_groups(everyone, {0: federation.initial}, range(1, last + 1))
    settings = replace(federation.training, local_epochs=epochs)
    return Outcome({c: federation.train(c, models[0], last, settings=settings) for c in everyone})
