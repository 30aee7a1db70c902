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
"""

import numpy as np

from peers.federation import Federation, Outcome, Vector


def run(federation: Federation, k: int) -> Outcome:
    """Alternate between choosing and training.

    Parameters
    ----------
    federation : Federation
    k : int
        The number of models: what IFCA must be told.
    """
    seed = federation.config.seed
    models = [federation.fresh_model(seed + 1_000 * j) for j in range(k)]  # the first: the run's
    for server_round in range(1, federation.rounds + 1):
        trained: list[dict[str, Vector]] = [{} for _ in models]
        for client in federation.participants(server_round):
            chosen = choice(federation, client, models)
            trained[chosen][client] = federation.train(client, models[chosen], server_round)
            federation.receive(len(models[chosen]) + 1)  # the model, and which it is
        models = [
            federation.mean(theirs, weighted=False) if theirs else model
            for model, theirs in zip(models, trained, strict=True)
        ]
    # Who was not drawn in the last round chooses too: part of the final evaluation.
    groups = {
        client: choice(federation, client, models, last=True) for client in federation.clients
    }
    return Outcome({client: models[j] for client, j in groups.items()}, groups)


def choice(federation: Federation, client: str, models: list[Vector], *, last: bool = False) -> int:
    """The model with the least loss on a client's training examples."""
    if not last:
        federation.send(len(models) * len(models[0]))
    return int(np.argmin([federation.measure(client, model)["loss"] for model in models]))
