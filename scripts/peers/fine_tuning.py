"""FedAvg with local fine-tuning; Ditto itself is a method of cflower's app (`peers.own`)."""

from dataclasses import replace

from peers.federation import Federation, Outcome


def run(federation: Federation, epochs: float) -> Outcome:
    """FedAvg, and then every client trains the last model on its own examples.

    Parameters
    ----------
    federation : Federation
    epochs : float
        Of this last training, a whole number, at the last round's learning rate.
    """
    everyone, last = dict.fromkeys(federation.clients, 0), federation.rounds
    models = federation.train_groups(everyone, {0: federation.initial}, range(1, last + 1))
    settings = replace(federation.training, local_epochs=int(epochs))
    return Outcome({c: federation.train(c, models[0], last, settings=settings) for c in everyone})
