"""SR-FCA: Vardhan, Ghosh, Mazumdar, "An Improved Federated Clustering Algorithm with Model-based
Clustering", TMLR 2024 (ONE_SHOT and REFINE).

Every client trains alone. Two clients are near each other if the mean of each one's loss under the
other's model is at most λ. One client after the other makes a group of itself and all near it that
are still free; groups of one are given up. Then, twice: FedAvg with a trimmed mean within the
groups; every client, those of no group too, goes to the nearest group; and groups near each other
are merged, by the same rule.

After the authors' code (harshv834/sr-fca, commit a1b418f), in its form
``clustering/sr_fca_merge_refine.py``, in which a group begins with the mean of its members' models;
β = 0.15 and two refinements as for its rotated MNIST. Differences:

- The run's rounds are divided: a third alone, a third for each refinement.
- Clients make groups in their order; there in random order.
- If all groups are of one, they are kept; there the run ends with an error.
- As in the paper the trimmed mean leaves out as many of the largest as of the smallest values.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from scipy.stats import trim_mean

from peers.federation import Federation, Outcome, Vector

TRIMMED, REFINEMENTS = 0.15, 2
Group = tuple[str, ...]
Models = dict[Group, Vector]
Losses = dict[Group, dict[str, float]]
"""Of each group's model on every client's training examples."""


def run(federation: Federation, near: float) -> Outcome:
    """Groups by the clients' losses under each other's models.

    Parameters
    ----------
    federation : Federation
    near : float
        λ in nats.
    """
    parts = np.array_split(range(1, federation.rounds + 1), 1 + REFINEMENTS)
    own = alone(federation, parts[0])
    of_own = losses(federation, own)
    groups = merged(own, of_own, near)
    groups = {group: model for group, model in groups.items() if len(group) > 1} or groups
    for rounds in parts[1:]:
        groups = trained(federation, groups, rounds)
        of_groups = losses(federation, groups)
        left = reassigned(of_own, of_groups)
        groups = {new: groups[old] for new, old in left.items()}
        groups = merged(groups, {new: of_groups[old] for new, old in left.items()}, near)
    return Outcome(
        {name: model for group, model in groups.items() for name in group},
        {name: i for i, group in enumerate(groups) for name in group},
    )


def alone(federation: Federation, rounds: Sequence[int]) -> Models:
    """The clients' own models, each sent once, at the end."""
    own = dict.fromkeys(federation.clients, federation.initial)
    for server_round in map(int, rounds):
        for name in federation.participants(server_round):
            own[name] = federation.train(name, own[name], server_round)
    federation.send(len(own) * len(federation.initial))
    federation.receive(len(own) * len(federation.initial))
    return {(name,): model for name, model in own.items()}


def losses(federation: Federation, models: Models) -> Losses:
    """Every client is sent every model for this."""
    federation.send(len(federation.clients) * len(models) * len(federation.initial))
    federation.receive(len(federation.clients) * len(models))
    return {
        group: {name: federation.measure(name, model)["loss"] for name in federation.clients}
        for group, model in models.items()
    }


def gap(
    one: Group, of_one: Mapping[str, float], other: Group, of_other: Mapping[str, float]
) -> float:
    """The mean of the loss of each group under the other's model."""
    there, back = [of_one[name] for name in other], [of_other[name] for name in one]
    return float(np.mean(there) + np.mean(back)) / 2


def reassigned(of_own: Losses, of_groups: Losses) -> dict[Group, Group]:
    """Every client in the nearest group; for each new group that has clients, the old one."""
    members: dict[Group, Group] = dict.fromkeys(of_groups, ())
    for client, theirs in of_own.items():
        gaps = {group: gap(client, theirs, group, seen) for group, seen in of_groups.items()}
        members[min(gaps, key=gaps.__getitem__)] += client
    return {new: old for old, new in members.items() if new}


def merged(models: Models, seen: Losses, near: float) -> Models:
    """One after the other with all that are near it and still free; the means of their models."""
    free, found = list(models), {}
    while free:
        first = free[0]
        joined = [first] + [
            other for other in free[1:] if gap(first, seen[first], other, seen[other]) <= near
        ]
        free = [group for group in free if group not in joined]
        weights = [len(group) for group in joined]
        mean = np.average([models[group] for group in joined], axis=0, weights=weights)
        found[sum(joined, ())] = mean.astype(np.float32)
    return found


def trained(federation: Federation, groups: Models, rounds: Sequence[int]) -> Models:
    """FedAvg with a trimmed mean within each group."""
    for server_round in map(int, rounds):
        present = federation.participants(server_round)
        for group, model in groups.items():
            clients = [name for name in group if name in present]
            theirs = federation.train_all(clients, model, server_round)
            if theirs:
                mean = trim_mean(np.stack(list(theirs.values())), TRIMMED)
                groups = groups | {group: mean.astype(np.float32)}
    return groups
