"""StoCFL: Zeng, Hu, Liu, Yu, Wang, Xu, "Stochastic Clustered Federated Learning", 2023, arXiv
2303.00897 (Algorithm 1).

Every client is first a group of its own. When it is drawn for the first time, the server keeps its
first update of the first model as a description of its data. Of every round's participants, groups
whose descriptions (the means over their participants) have a cosine of τ or more become one, the
most similar first; the larger of two keeps its model. Then each participant trains its group's
model θ, pulled towards everyone's model ω by λ/2 ‖θ − ω‖², and ω itself.

Differences from the authors' code (dunzeng/StoCFL, commit bd6d031, ``StoCFL-FCC+CFL.py``):

- A description is the update of one round's local training; there of a number of epochs (1, 10 or
  20) at a batch size of its own.
- Of two groups of the same size the first one keeps its model, as there, but if it has none it gets
  the other's; a group that has no model begins with ω, as there.
- Models are averaged by numbers of examples, as everywhere here; there plainly.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import combinations

import numpy as np
from sklearn.metrics.pairwise import cosine_similarity

from peers.federation import Federation, Outcome, Vector, pulled


def run(federation: Federation, tau: float, strength: float) -> Outcome:
    """Merging groups, and a model for each beside everyone's.

    Parameters
    ----------
    federation : Federation
    tau : float
        τ, the cosine from which on groups are merged.
    strength : float
        λ, how strongly a group's model is pulled towards everyone's.
    """
    groups = {name: i for i, name in enumerate(federation.clients)}
    everyone = federation.initial
    models: dict[int, Vector] = {}
    described: dict[str, Vector] = {}
    for server_round in range(1, federation.rounds + 1):
        names = federation.participants(server_round)
        for name in names:
            if name not in described:
                federation.send(len(everyone))
                described[name] = federation.train(name, federation.initial, 1) - federation.initial
                federation.receive(len(everyone))
        merge(groups, models, names, described, tau)
        trained: dict[int, dict[str, Vector]] = {}
        common = {}
        for name in names:
            federation.send(2 * len(everyone))
            start, pull = models.get(groups[name], everyone), pulled(strength, everyone)
            theirs = federation.train(name, start, server_round, change=pull)
            trained.setdefault(groups[name], {})[name] = theirs
            common[name] = federation.train(name, everyone, server_round)
            federation.receive(2 * len(everyone))
        everyone = federation.mean(common)
        models |= {group: federation.mean(theirs) for group, theirs in trained.items()}
    return Outcome({name: models.get(groups[name], everyone) for name in groups}, groups)


def merge(
    groups: dict[str, int],
    models: dict[int, Vector],
    names: Sequence[str],
    described: dict[str, Vector],
    tau: float,
) -> None:
    """Merge the groups of these clients that are similar; changes `groups` and `models`."""
    members: dict[int, list[str]] = {}
    for name in names:
        members.setdefault(groups[name], []).append(name)
    present = sorted(members)
    means = [np.mean([described[n] for n in members[group]], axis=0) for group in present]
    cosines = cosine_similarity(np.stack(means))
    pairs = sorted(combinations(range(len(present)), 2), key=lambda pair: -cosines[pair])
    for pair in pairs:
        if cosines[pair] < tau:
            break
        one, other = sorted(groups[members[present[i]][0]] for i in pair)  # as they are by now
        if one != other:
            join(groups, models, one, other)


def join(groups: dict[str, int], models: dict[int, Vector], one: int, other: int) -> None:
    """Make one group of two, with the model of the larger one; changes `groups` and `models`."""
    sizes, theirs = Counter(groups.values()), models.pop(other, None)
    if theirs is not None and (sizes[other] > sizes[one] or one not in models):
        models[one] = theirs
    groups |= {name: one for name, group in groups.items() if group == other}
