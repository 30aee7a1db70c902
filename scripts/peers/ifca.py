"""IFCA: Ghosh, Chung, Yin, Ramchandran, "An Efficient Framework for Clustered Federated Learning",
NeurIPS 2020, arXiv 2006.04088; model averaging (Algorithm 1, option II).

The server keeps k models. In every round each participant gets all of them, takes the one with the
least loss on its own training examples and trains that; each model becomes the mean of what was
trained from it. A model that nobody took stays as it is.

Differences from the authors' code (jichan3751/ifca, commit 61e44b8, ``train_cluster_mnist.py``):

- There all clients take part in every MNIST round; here as many as the run config says.
- There a test client finds its model by the loss on its *test* labels; here each client is judged
  on its held-out examples under the model that its training examples chose.
- There a client's choice is made after the last aggregation and used in the next round; here at
  the beginning of that round, which is the same model and the same choice.

`cflower.strategy.ifca` gives every client the same where all take part in each round (a test
asserts it). Here a round's participants are drawn from all clients and choose then, there every
client chooses and each model's clients are drawn apart; and here are restarts, and the bytes that
IFCA itself would send. So the tables have this one.

The models begin at random, as there. Often one of them then begins better than the others for
every client and all take that one for ever; the paper's remedy is to start several times.
"""

import numpy as np

from peers.federation import Federation, Outcome, Vector


def run(federation: Federation, k: int, starts: int = 1) -> Outcome:
    """The best of several starts: that with the least training loss, as the mean over clients.

    Parameters
    ----------
    federation : Federation
    k : int
        The number of models: IFCA must be given it.
    starts : int
        Whole runs, each from other first models; the first from the run's.
    """
    begun = [begin(federation, k, start) for start in range(starts)]
    best = min(begun, key=lambda models: total_loss(federation, models)) if starts > 1 else begun[0]
    # Who was not drawn in the last round chooses too: part of the final evaluation.
    groups = {client: choice(federation, client, best) for client in federation.clients}
    return Outcome({client: best[j] for client, j in groups.items()}, groups)


def begin(federation: Federation, k: int, start: int) -> list[Vector]:
    """Alternate between choosing and training; the models after the last round."""
    seed = federation.config.seed + 100_000 * start
    models = [federation.fresh_model(seed + 1_000 * j) for j in range(int(k))]
    for server_round in range(1, federation.rounds + 1):
        trained: list[dict[str, Vector]] = [{} for _ in models]
        for client in federation.participants(server_round):
            federation.send(len(models) * len(models[0]))
            chosen = choice(federation, client, models)
            trained[chosen][client] = federation.train(client, models[chosen], server_round)
            federation.receive(len(models[chosen]) + 1)  # the model, and which it is
        models = [
            federation.mean(theirs, weighted=False) if theirs else model
            for model, theirs in zip(models, trained, strict=True)
        ]
    return models


def total_loss(federation: Federation, models: list[Vector]) -> float:
    """Every client's least loss under these models, which it is sent for that, in sum."""
    federation.send(len(federation.clients) * len(models) * len(models[0]))
    federation.receive(len(federation.clients))
    return sum(min(losses(federation, client, models)) for client in federation.clients)


def choice(federation: Federation, client: str, models: list[Vector]) -> int:
    """The model with the least loss on a client's training examples."""
    return int(np.argmin(losses(federation, client, models)))


def losses(federation: Federation, client: str, models: list[Vector]) -> list[float]:
    """Of each model on a client's training examples."""
    return [federation.measure(client, model)["loss"] for model in models]
