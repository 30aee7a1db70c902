"""PACFL: Vahidian, Morafah, Wang, Kungurtsev, Chen, Shah, Lin, "Efficient Distribution Similarity
Identification in Clustered Federated Learning via Principal Angles Between Client Data Subspaces",
AAAI 2023, arXiv 2209.10526.

Before any training every client sends, for each class, the first few left singular vectors of its
raw examples. Two clients are as far apart as the smallest angle between any two of their vectors.
Hierarchical clustering up to a threshold makes the groups, and FedAvg runs within each.

**What leaves the client:** raw data vectors. Images are not negative, so the first singular
vector of a class looks like its mean image: `n_basis` times the number of classes such pictures a
client.

**What it cannot see:** the labels. Clients with the same images under other names send the same
vectors, and groups that differ in labels only stay together.

As in the authors' code (MMorafah/PACFL, commit 7ef000d, ``main_pacfl.py`` and
``hierarchical_clustering.py``), where both differ from the paper:

- the distance is the smallest entry of arccos(UᵀV), not the first principal angle of the
  subspaces;
- "average" linkage is (a + b) / 2 whatever the sizes of the merged groups: WPGMA.

Difference from it: with Dirichlet partitions the code takes between 0 and `n_basis` vectors a
class by its share of the examples; here always `n_basis`, or as many as the class has examples.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform

from cflower.data.examples import Examples
from peers.federation import Federation, Outcome

Matrix = NDArray[np.floating]
N_BASIS = 3
"""Vectors a class: the authors' value on every data set."""


def run(federation: Federation, alpha: float, n_basis: int = N_BASIS) -> Outcome:
    """Group by the data, then FedAvg within each group.

    Parameters
    ----------
    federation : Federation
    alpha : float
        The threshold in degrees, for each data set another: PACFL must be given it.
    n_basis : int
        Singular vectors a class.
    """
    signatures = []
    for data in federation.clients.values():
        with federation.on_client():
            signatures.append(signature(data.train, n_basis))
        federation.receive(signatures[-1].size)
    groups = dict(zip(federation.clients, clustered(angles(signatures), alpha), strict=True))
    first = dict.fromkeys(groups.values(), federation.initial)
    models = federation.train_groups(groups, first, range(1, federation.rounds + 1))
    return Outcome({client: models[group] for client, group in groups.items()}, groups)


def signature(examples: Examples, n_basis: int) -> Matrix:
    """What a client sends of its data: shape (inputs, vectors)."""
    rows = examples.inputs.reshape(len(examples), -1)
    bases = [
        np.linalg.svd(rows[examples.labels == label].T, full_matrices=False)[0][:, :n_basis]
        for label in np.unique(examples.labels)
    ]
    return np.hstack(bases)


def angles(signatures: list[Matrix]) -> Matrix:
    """The distance of every two clients in degrees, shape (m, m)."""
    size = len(signatures)
    found = np.zeros((size, size))
    for i in range(size):
        for j in range(i):
            cosines = np.clip(signatures[i].T @ signatures[j], -1, 1)
            found[i, j] = found[j, i] = np.degrees(np.arccos(cosines.max()))
    return found


def clustered(distances: Matrix, threshold: float) -> list[int]:
    """Groups by the authors' average linkage, merged while they are at most `threshold` apart."""
    tree = linkage(squareform(distances, checks=False), "weighted")
    return [int(group) for group in fcluster(tree, threshold, "distance")]
