"""FLUX: Fenoglio, Mohapatra, Dominici, Langheinrich et al., "FLUX: Efficient Descriptor-Driven
Clustered Federated Learning under Arbitrary Distribution Shifts", NeurIPS 2025.

FedAvg runs until its accuracy stops growing (in some round by less than `th_round`, not before
the third) or 80 % of the rounds are over. In the next round every client describes its examples:
their latent vectors under the common model, projected by a PCA of random points that all clients
share, as mean and standard deviation over all examples and over each class. The server scales the
descriptors, takes the knee of the sorted distances to the nearest neighbour as radius and groups
by DBSCAN; who is nobody's neighbour is a group of one. From this round on FedAvg runs within the
groups.

Written after the authors' code (dariofenoglio98/FLUX, commit 43aadbe, ``flux/server.py`` and
``ModelEvaluator`` in ``public/models.py``) with its defaults: descriptors ``Px_label_long`` with
standard deviations, as many principal components as classes, min-max scaling of every ten values,
clustering method 4, ``eps_scaling`` 1.0, ``th_round`` 0.06. As there, a class with fewer than two
examples is described by -1. Only the training under known association is here: no strangers.

Differences from it:

- The latent vectors are those before the last linear layer; its LeNet5 has two layers more.
- Accuracy and largest latent value are measured when a round's model arrives, not in an exchange
  of its own: those of round r are those of the model that round r - 1 made.
- Without a knee that code fails; here the radius is then the largest of the distances.
"""

import numpy as np
from kneed import KneeLocator
from numpy.typing import NDArray
from sklearn.cluster import DBSCAN
from sklearn.decomposition import PCA
from sklearn.neighbors import NearestNeighbors

from peers.federation import Federation, Outcome, Vector

Matrix = NDArray[np.floating]
TH_ROUND, EPS_SCALING, LATEST = 0.06, 1.0, 0.8
RANDOM_POINTS, FIRST_MAX = 200, 2.0


def run(federation: Federation) -> Outcome:
    """Conventional training, one clustering, training within the groups; nothing is given."""
    names, last = list(federation.clients), federation.rounds
    groups = dict.fromkeys(names, 0)
    models: dict[int, Vector] = {0: federation.initial}
    trend: list[float] = []
    largest = FIRST_MAX
    server_round = 0
    while server_round < last and not ready(trend, last):
        server_round += 1
        models = federation.train_groups(groups, models, [server_round])
        accuracy, largest = evaluated(federation, models[0])
        trend.append(accuracy)
    if server_round < last:
        described = []
        for client in names:
            latent, labels = federation.latent(client, models[0]), labels_of(federation, client)
            with federation.on_client():
                described.append(descriptor(latent, labels, largest, classes_of(federation)))
            federation.receive(described[-1].size)
        found = clustered(scaled(np.stack(described), classes_of(federation)))
        groups = dict(zip(names, found, strict=True))
        first = dict.fromkeys(found, models[0])
        models = federation.train_groups(groups, first, range(server_round + 1, last + 1))
    return Outcome({client: models[group] for client, group in groups.items()}, groups)


def labels_of(federation: Federation, client: str) -> NDArray[np.int64]:
    """Of a client's training examples."""
    return federation.clients[client].train.labels


def classes_of(federation: Federation) -> int:
    """How many classes there are."""
    return next(iter(federation.clients.values())).train.num_classes


def ready(trend: list[float], last: int) -> bool:
    """Whether the next round is the one that groups, after rounds of these accuracies."""
    if len(trend) < 3:
        return False
    return bool(np.any(np.diff(trend) < TH_ROUND)) or len(trend) >= LATEST * last


def evaluated(federation: Federation, model: Vector) -> tuple[float, float]:
    """The mean held-out accuracy, and 1.02 times the largest latent value of any client."""
    right, examples = 0.0, 0
    for client, data in federation.clients.items():
        accuracy = federation.measure(client, model, "decide")["accuracy"]
        right, examples = right + accuracy * len(data.decide), examples + len(data.decide)
        federation.receive(1)
    return right / examples, largest_latent(federation, model)


def largest_latent(federation: Federation, model: Vector) -> float:
    """1.02 times the largest latent value of any client's held-out examples."""
    federation.receive(len(federation.clients))
    largest = (federation.latent(c, model, "decide").max() for c in federation.clients)
    return 1.02 * float(max(largest))


def descriptor(latent: Matrix, labels: Matrix, largest: float, num_classes: int) -> Matrix:
    """One client's description: 2 * classes * (1 + classes) numbers."""
    points = np.random.default_rng(1).uniform(0, largest, (RANDOM_POINTS, latent.shape[1]))
    shared = PCA(n_components=num_classes).fit(points)
    seen = shared.transform(latent)
    parts = [seen[labels == label] for label in range(num_classes)]
    absent = np.full(num_classes, -1.0)
    means = [part.mean(axis=0) if len(part) > 1 else absent for part in parts]
    deviations = [part.std(axis=0) if len(part) > 1 else absent for part in parts]
    return np.concatenate([seen.mean(axis=0), seen.std(axis=0), *means, *deviations])


def scaled(descriptors: Matrix, length: int) -> Matrix:
    """Every block of so many columns to [0, 1] over all clients."""
    blocks = descriptors.reshape(len(descriptors), -1, length)
    low, high = blocks.min(axis=(0, 2), keepdims=True), blocks.max(axis=(0, 2), keepdims=True)
    spread = np.where(high > low, high - low, 1.0)
    return np.asarray((blocks - low) / spread).reshape(descriptors.shape)


def clustered(descriptors: Matrix) -> list[int]:
    """Groups by DBSCAN with the radius at the knee; noise in groups of one."""
    nearest, _ = NearestNeighbors(n_neighbors=2).fit(descriptors).kneighbors(descriptors)
    distances = np.sort(nearest[:, 1])
    knee = KneeLocator(range(len(distances)), distances, curve="convex", direction="increasing")
    radius = distances[-1 if knee.elbow is None else knee.elbow] * EPS_SCALING
    labels = DBSCAN(eps=max(radius, 1e-12), min_samples=2).fit_predict(descriptors).tolist()
    alone = iter(range(max(labels) + 1, max(labels) + 1 + len(labels)))
    return [next(alone) if label == -1 else label for label in labels]
