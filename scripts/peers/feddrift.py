"""FedDrift: Jothimurugesan, Hsieh, Wang, Joshi, Gibbons, "Federated Learning under Distributed
Concept Drift", AISTATS 2023.

Time goes in steps of several rounds. At the first every client trains a model of its own. At the
beginning of each later step every client goes to the model that is most accurate on its new
examples; if even that is worse by more than δ than its model was a step ago, it leaves with a
copy, which is not merged in this step. Models whose accuracies on each other's examples differ by
at most δ' are merged (complete linkage), their parameters averaged. Then FedAvg within each
group.

The authors' variant ``H_A_F_1_delta_0`` (microsoft/FedDrift, commit e4ac32f, the one its README
calls FedDrift): accuracies, complete linkage, one model a client at first, one step in isolation,
δ' = δ. Differences from that code:

- A model is trained on what its clients have in a step, not on what they had in earlier ones too.
  In the battery nothing drifts; then no client ever leaves, and the merging alone makes the groups.
- All first models have the same parameters (there each has its own), so that their mean is of use.
- As many models as are needed; there the oldest is overwritten above a limit.
- The accuracies are measured by the clients, as the paper describes; there on one machine that has
  all the data. So every model in use is sent to every client at each step.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform

from peers.federation import Federation, Outcome, Vector

Matrix = NDArray[np.floating]
Accuracies = Mapping[str, Mapping[str, float]]
"""Of each model on each client's training examples."""
STEPS = 4
"""Time steps of a run; the authors have 10, of 200 rounds each."""


def run(federation: Federation, delta: float, steps: int = STEPS) -> Outcome:
    """Choose, leave and merge at the beginning of every step, and train in between.

    Parameters
    ----------
    federation : Federation
    delta : float
        δ = δ' in accuracy, for each data set another: FedDrift must be given it.
    steps : int
        Time steps that the rounds are divided into.
    """
    models: dict[str, Vector] = dict.fromkeys(federation.clients, federation.initial)
    groups = {client: client for client in federation.clients}
    # How often each client's examples went into each model: the model's own data.
    shares = {name: Counter({name: 1}) for name in models}
    before: Mapping[str, float] = {}
    for step, rounds in enumerate(np.array_split(np.arange(1, federation.rounds + 1), steps)):
        federation.at(int(rounds[0]))
        if step:
            accuracy = accuracies(federation, models)
            groups, left, before = chosen(accuracy, before, delta)
            for client, name in groups.items():
                shares[name][client] += client not in left
            merged = merging(accuracy, shares, delta, sizes_of(federation))
            models, shares = fused(models, shares, merged)
            groups = {client: merged[name] for client, name in groups.items()}
            for client in left:
                copy = f"{client} since step {step}"
                models[copy], shares[copy] = models[groups[client]], Counter({client: 1})
                groups[client] = copy
        models = federation.train_groups(groups, models, rounds.tolist())
    return Outcome({client: models[name] for client, name in groups.items()}, groups)


def accuracies(federation: Federation, models: Mapping[str, Vector]) -> Accuracies:
    """Every model goes to every client, which answers with its accuracy."""
    federation.send(len(models) * len(federation.clients) * len(federation.initial))
    federation.receive(len(models) * len(federation.clients))
    return {
        name: {
            client: federation.measure(client, model)["accuracy"] for client in federation.clients
        }
        for name, model in models.items()
    }


def sizes_of(federation: Federation) -> dict[str, int]:
    """Every client's number of training examples."""
    return {client: len(data.train) for client, data in federation.clients.items()}


def chosen(
    accuracy: Accuracies, before: Mapping[str, float], delta: float
) -> tuple[dict[str, str], list[str], dict[str, float]]:
    """Every client's best model, the clients that leave it, and what it is worth to each."""
    clients = next(iter(accuracy.values()))
    best = {client: max(accuracy, key=lambda name: accuracy[name][client]) for client in clients}
    now = {client: accuracy[name][client] for client, name in best.items()}
    left = [client for client in clients if before.get(client, 0.0) - now[client] > delta]
    return best, left, now


def merging(
    accuracy: Accuracies,
    shares: Mapping[str, Mapping[str, int]],
    delta: float,
    sizes: Mapping[str, int],
) -> dict[str, str]:
    """The model that each model is merged into, by complete linkage up to `delta`."""
    names = list(accuracy)
    on = np.array([[pooled(accuracy[i], shares[j], sizes) for j in names] for i in names])
    loss = np.diag(on)[:, None] - on  # [i, j]: what model i loses on the data of model j
    distances = np.maximum(np.maximum(loss, loss.T), 0.0)
    if len(names) < 2:
        return {name: name for name in names}
    tree = linkage(squareform(distances, checks=False), "complete")
    labels = fcluster(tree, delta, "distance").tolist()
    return {name: names[labels.index(label)] for name, label in zip(names, labels, strict=True)}


def pooled(
    accuracy: Mapping[str, float], share: Mapping[str, int], sizes: Mapping[str, int]
) -> float:
    """A model's accuracy on the examples that went into another."""
    weights = [count * sizes[client] for client, count in share.items()]
    return float(np.average([accuracy[client] for client in share], weights=weights))


def fused(
    models: Mapping[str, Vector], shares: Mapping[str, Counter[str]], merged: Mapping[str, str]
) -> tuple[dict[str, Vector], dict[str, Counter[str]]]:
    """The merged models, weighted by how much went into each, and what went into them together."""
    new_models, new_shares = {}, {}
    for base in dict.fromkeys(merged.values()):
        parts: Sequence[str] = [name for name in models if merged[name] == base]
        weights = [shares[name].total() for name in parts]
        mean = np.average([models[name] for name in parts], axis=0, weights=weights)
        new_models[base] = mean.astype(np.float32)
        new_shares[base] = sum((shares[name] for name in parts), Counter[str]())
    return new_models, new_shares
