"""FEROMA: Li, Fenoglio, Gjoreski, Langheinrich, "Federated Learning with Profile Mapping under
Distribution Shifts and Drifts", ICLR 2026, arXiv 2602.07671.

Five rounds of FedAvg; the model of the fifth describes data from then on. In every further round a
client trains the model that was made for it and describes a random half of its examples (three
draws) by the means and deviations of their latent vectors, over all and over each class, as FLUX
does. The server then makes a model for each client: the mean of all trained models, each weighted
by its number of examples and by 1 / the distance between this client's description and that
client's of the round before. A client is served with what it trained from its last model. There are
no groups.

Written after the authors' code (dariofenoglio98/FEROMA, commit 8109aca, ``feroma/server.py`` and
``public/models.py``) with its defaults: ``Px_label_long`` with deviations, Euclidean distance,
min-max scaling fixed by the first descriptions, no differential privacy.

Differences from it:

- Latent vectors and PCA are those of `flux`; the clients describe their training examples, there
  their held-out ones.
- Only the training under known association is here: no strangers, no drift at the end.
"""

import numpy as np
from numpy.typing import NDArray

from cflower.seeding import generator
from peers.federation import Federation, Outcome, Vector
from peers.flux import FIRST_MAX, classes_of, descriptor, labels_of, largest_latent

Matrix = NDArray[np.floating]
COMMON_ROUNDS, DRAWS = 5, 3


def run(federation: Federation) -> Outcome:
    """Conventional training, then a model for each client by its profile; nothing is given."""
    everyone = dict.fromkeys(federation.clients, 0)
    common, largest = federation.initial, FIRST_MAX
    first = min(COMMON_ROUNDS, federation.rounds)
    for server_round in range(1, first + 1):
        common = federation.train_groups(everyone, {0: common}, [server_round])[0]
        largest = largest_latent(federation, common)
    models = dict.fromkeys(federation.clients, common)
    served: dict[str, Vector] = dict(models)
    before: dict[str, Matrix] = {}
    scale = None
    for server_round in range(first + 1, federation.rounds + 1):
        trained: dict[str, Vector] = {}
        for client in federation.participants(server_round):
            federation.send(len(common))
            trained[client] = federation.train(client, models[client], server_round)
            federation.receive(len(common))
        served |= trained
        raw = {c: profile(federation, c, common, largest, server_round) for c in trained}
        scale = scale or Scale(np.stack(list(raw.values())), classes_of(federation))
        profiles = {client: scale(described) for client, described in raw.items()}
        models |= mapped(federation, trained, profiles, before)
        before |= profiles
    return Outcome(served)


def profile(
    federation: Federation, client: str, common: Vector, largest: float, server_round: int
) -> Matrix:
    """What a client sends of its examples: 2 * classes * (1 + classes) numbers."""
    latent, labels = federation.latent(client, common), labels_of(federation, client)
    rng = generator(federation.config.seed, "profile", server_round, client)
    half = max(1, len(labels) // 2)
    drawn = np.concatenate([rng.permutation(len(labels))[:half] for _ in range(DRAWS)])
    with federation.on_client():
        described = descriptor(latent[drawn], labels[drawn], largest, classes_of(federation))
    federation.receive(described.size)
    return described


class Scale:
    """Every block of so many columns to [0, 1], by the first descriptions that there are."""

    def __init__(self, first: Matrix, length: int) -> None:
        blocks = first.reshape(len(first), -1, length)
        self._low = blocks.min(axis=(0, 2))[:, None]
        spread = blocks.max(axis=(0, 2))[:, None] - self._low
        self._spread = np.where(spread > 0, spread, 1.0)
        self._length = length

    def __call__(self, described: Matrix) -> Matrix:
        return ((described.reshape(-1, self._length) - self._low) / self._spread).ravel()


def mapped(
    federation: Federation,
    trained: dict[str, Vector],
    profiles: dict[str, Matrix],
    before: dict[str, Matrix],
) -> dict[str, Vector]:
    """The model of each client: those that were trained, weighted by how near their data were.

    Before there are two rounds of descriptions, and for those that have none of the round before,
    all weights are alike.
    """
    names = [client for client in trained if client in before] or list(trained)
    models = np.stack([trained[name] for name in names])
    sizes = np.array([len(federation.clients[name].train) for name in names])
    made = {}
    for client, described in profiles.items():
        near = np.ones(len(names))
        if before:
            near = np.array([1 / (np.linalg.norm(described - before[n]) + 1e-8) for n in names])
        made[client] = np.average(models, axis=0, weights=sizes * near).astype(np.float32)
    return made
