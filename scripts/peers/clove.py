"""CLoVE: Bhatia, Papadis, Kodialam, Lakshman, Chakrabarty, "CLoVE: Personalized Federated Learning
through Clustering of Loss Vector Embeddings", ICML 2026, arXiv 2506.22427.

The server keeps k models. In every round each participant gets all of them and sends its loss under
each on its training examples. The server groups these vectors by k-means, gives every group the
model under which the losses of the groups are smallest in sum (a matching), and the participants
train the model of their group. Once all participants of a round have had the same model in three
rounds the groups stay; a client that comes later takes the nearest centre.

Written after the authors' code (Nokia-Bell-Labs/Loss-Vector-based-Clustered-Federated-Learning,
commit b602090, ``clustered_federated_training_function`` in ``utils/algorithm_utils.py``) with its
defaults: different first models, losses as they are, `KMEANS`, matching by the whole cost, three
stable rounds. With k unknown (``run_without_k``), the k up to 15 with the largest silhouette of
Ward's clustering, a larger one only if it is a tenth better.

Differences from it:

- There the vectors of a newcomer's losses are of its *test* examples; here of its training ones.
- Adam with rate 0.001 there; here the run's SGD, as for all methods.
- Who took part in no round gets the model of the nearest centre, as part of the final evaluation.
"""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from sklearn.cluster import AgglomerativeClustering, KMeans
from sklearn.metrics import silhouette_score

from peers.federation import Federation, Outcome, Vector

Losses = NDArray[np.float64]
STABLE, MOST_MODELS, BETTER = 3, 15, 1.1


def run(federation: Federation, k: int) -> Outcome:
    """CLoVE with the number of models given."""
    return cluster(federation, int(k), lambda losses: int(k))


def run_without_k(federation: Federation) -> Outcome:
    """CLoVE with as many groups as the silhouette chooses in each round."""
    most = min(MOST_MODELS, len(federation.clients))
    return cluster(federation, most, best_number)


def cluster(federation: Federation, count: int, number: Callable[[Losses], int]) -> Outcome:
    """Rounds of grouping and training with so many models.

    Parameters
    ----------
    federation : Federation
    count : int
        The number of models, sent to every participant while groups may change.
    number : callable
        How many groups the loss vectors of a round, shape (clients, models), are put into.
    """
    seed = federation.config.seed
    models = [federation.fresh_model(seed + 1_000 * j) for j in range(count)]
    history: dict[str, list[int]] = {client: [] for client in federation.clients}
    for server_round in range(1, federation.rounds + 1):
        present = federation.participants(server_round)
        if not stable(history, present):
            losses = np.array([loss_vector(federation, client, models) for client in present])
            groups = KMeans(number(losses), random_state=seed, n_init="auto").fit(losses)
            centres, order = groups.cluster_centers_, matched(groups.labels_, losses)
            for client, group in zip(present, groups.labels_, strict=True):
                history[client].append(order[group])
        else:
            federation.send(len(present) * len(models[0]))  # its group's model alone
        here = {client: history[client][-1] for client in present}
        models = trained(federation, models, here, server_round)
    final = {}
    for client, past in history.items():  # who was never drawn: part of the final evaluation
        final[client] = past[-1] if past else order[nearest(federation, client, models, centres)]
    return Outcome({client: models[j] for client, j in final.items()}, final)


def stable(history: Mapping[str, list[int]], present: tuple[str, ...]) -> bool:
    """Whether each of these clients had the same model in the last three rounds that grouped it."""
    last = [history[client][-STABLE:] for client in present]
    return all(len(past) == STABLE and len(set(past)) == 1 for past in last)


def loss_vector(federation: Federation, client: str, models: list[Vector]) -> list[float]:
    """A participant's loss under every model, which it is sent for that."""
    federation.send(len(models) * len(models[0]))
    federation.receive(len(models))
    return [federation.measure(client, model)["loss"] for model in models]


def matched(groups: NDArray[np.int32], losses: Losses) -> list[int]:
    """The model of each group: the least sum of all clients' losses under their group's model."""
    costs = [losses[groups == group].sum(axis=0) for group in range(groups.max() + 1)]
    return list(map(int, linear_sum_assignment(np.array(costs))[1]))


def trained(
    federation: Federation, models: list[Vector], groups: Mapping[str, int], server_round: int
) -> list[Vector]:
    """FedAvg of one round, in which every participant has its group's model already."""
    replies: list[dict[str, Vector]] = [{} for _ in models]
    for client, j in groups.items():
        replies[j][client] = federation.train(client, models[j], server_round)
        federation.receive(len(models[j]))
    return [
        federation.mean(some) if some else model
        for model, some in zip(models, replies, strict=True)
    ]


def best_number(losses: Losses) -> int:
    """The number of groups with the largest silhouette, at least a tenth better than a smaller."""
    best, highest = 2, -1.0
    for k in range(2, min(len(losses) - 1, MOST_MODELS) + 1):
        score = silhouette_score(losses, AgglomerativeClustering(k).fit_predict(losses))
        if score > highest * BETTER:
            best, highest = k, score
    return best


def nearest(federation: Federation, client: str, models: list[Vector], centres: Losses) -> int:
    """The group with the nearest centre."""
    losses = np.array([federation.measure(client, model)["loss"] for model in models])
    return int(np.linalg.norm(centres - losses, axis=1).argmin())
