"""The "CFL" of other people's tables: Sattler's rule with the defects of published code.

Each `Rule` is what one repository does, rebuilt from its source; without a defect it is the rule
with fixed thresholds done right. All use complete linkage, as the authors' own code does.

| rule | code | papers that report its CFL |
| --- | --- | --- |
| `fedem` | omarfoq/FedEM, 996fadd, ``ClusteredAggregator`` | FedEM (NeurIPS 2021) |
| `fedrc` | LINs-lab/FedRC, ce79229 | FedRC (ICML 2024), FLUX (NeurIPS 2025), FEROMA (ICLR 2026) |
| `pacfl` | MMorafah/PACFL, 7ef000d, ``main_cfl.py`` | PACFL (AAAI 2023) |
| `sr-fca` | harshv834/sr-fca, a1b418f, ``cfl.py`` | SR-FCA |
| `feddrift` | microsoft/FedDrift, e4ac32f, ``cluster_cfl`` | FedDrift (AISTATS 2023) |
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import cut_tree, linkage
from scipy.spatial.distance import squareform

from cflower.algorithm.similarity import cosine_similarity
from peers.federation import Federation, Outcome

Matrix = NDArray[np.floating]
Clusters = list[NDArray[np.intp]]


@dataclass(frozen=True)
class Rule:
    """When and how a cluster is split; the flags are defects.

    Attributes
    ----------
    eps1, eps2 : float
        ε1 and ε2 of eqs. 32 and 33.
    coordinate : bool
        Updates are kept as (clients, learners = 1, parameters) and their norms taken over axis 1:
        what is compared with ε2 is the largest single coordinate of any update.
    local_indices : bool
        The parts are positions within the cluster, taken for client numbers from then on.
    stale : bool
        Who does not take part has its old update added again, in every round.
    always : int
        The condition ends in ``or True``: splits up to so many clusters; 0: the condition counts.
    relative : bool
        ε1 and ε2 are a tenth and six tenths of the largest mean norm of the run so far, and γ_max
        is 0.1. Not a defect, but with it comes the next.
    fresh_start : bool
        At a split both models start anew from random parameters.
    first_round : int
        No split before this round.
    """

    eps1: float = 0.4
    eps2: float = 1.6
    coordinate: bool = False
    local_indices: bool = False
    stale: bool = False
    always: int = 0
    relative: bool = False
    fresh_start: bool = False
    first_round: int = 1

    def wants_split(self, updates: Matrix, num_clusters: int, reference: float) -> bool:
        """The condition, for the updates of one cluster's members."""
        if self.always:
            return len(updates) > 1 and num_clusters < self.always
        mean_norm, longest = float(np.linalg.norm(updates.mean(axis=0))), self.longest(updates)
        if self.relative:
            calm = mean_norm < 0.1 * reference and longest > 0.6 * reference
            return calm and len(updates) > 1
        return mean_norm < self.eps1 and longest > self.eps2 and len(updates) > 2

    def longest(self, updates: Matrix) -> float:
        """What the rule takes for the largest update norm."""
        return float(
            np.linalg.norm(updates[:, None, :] if self.coordinate else updates, axis=1).max()
        )

    def split(self, updates: Matrix, members: NDArray[np.intp]) -> Clusters:
        """The two parts of a cluster."""
        distances = 1.0 - cosine_similarity(updates[members])
        tree = linkage(squareform(distances, checks=False), "complete")
        sides = cut_tree(tree, 2).ravel()
        positions = [np.flatnonzero(sides == side) for side in (0, 1)]
        return positions if self.local_indices else [members[places] for places in positions]

    def step(
        self, updates: Matrix, clusters: Clusters, server_round: int = 1, reference: float = 0.0
    ) -> Clusters:
        """The clusters after a round."""
        after: Clusters = []
        for place, members in enumerate(clusters):
            still = len(after) + len(clusters) - place
            ready = len(members) and server_round >= self.first_round
            if ready and self.wants_split(updates[members], still, reference):
                after += self.split(updates, members)
            else:
                after.append(members)
        return after


RULES = {
    "repaired": Rule(),
    "fedem": Rule(coordinate=True, local_indices=True),
    "fedrc": Rule(eps2=0.6, coordinate=True, local_indices=True),
    "pacfl": Rule(local_indices=True, stale=True, first_round=22),
    "sr-fca": Rule(always=4),  # there after the full training of every cluster, not each round
    "feddrift": Rule(relative=True, fresh_start=True),
}
"""`repaired`: the thresholds that everyone copies, without the defects."""


def lost(clusters: Clusters, num_clients: int) -> tuple[list[int], list[int]]:
    """The clients in no cluster, and those in more than one."""
    count = np.bincount(np.concatenate(clusters), minlength=num_clients)
    return np.flatnonzero(count == 0).tolist(), np.flatnonzero(count > 1).tolist()


def run(federation: Federation, rule: Rule) -> Outcome:
    """A whole run; who is in no cluster goes on alone, with stale updates not at all."""
    names = list(federation.clients)
    weights = np.array([len(data.train) for data in federation.clients.values()])
    own = np.tile(federation.initial, (len(names), 1))
    updates, clusters, reference = np.zeros_like(own), [np.arange(len(names))], 0.0
    for server_round in range(1, federation.rounds + 1):
        if not rule.stale:
            updates = np.zeros_like(own)
        drawn = [names.index(name) for name in federation.participants(server_round)]
        for i in drawn:
            federation.send(own.shape[1])
            updates[i] = federation.train(names[i], own[i], server_round) - own[i]
            federation.receive(own.shape[1])
        before, trained = clusters, own + updates
        means = [float(np.linalg.norm(updates[c].mean(axis=0))) for c in clusters if len(c)]
        reference = max([reference, *means])
        clusters = rule.step(updates, clusters, server_round, reference)
        if rule.fresh_start and len(clusters) > len(before):
            for number, members in enumerate(
                clusters
            ):  # and what the others learned is thrown away
                if not any(np.array_equal(members, old) for old in before):
                    own[members] = federation.fresh_model(1_000 * server_round + number)
            continue
        if not rule.stale:
            own = trained.copy()
        for members in clusters:
            there = [i for i in members if rule.stale or i in drawn]
            if there and rule.stale:  # added to what its members have, also if that is not the same
                own[members] += np.average(updates[there], axis=0, weights=weights[there])
            elif there:
                own[members] = np.average(trained[there], axis=0, weights=weights[there])
    of = {i: number for number, members in enumerate(clusters) for i in members.tolist()}
    groups = {name: of.get(i, f"{name} is lost") for i, name in enumerate(names)}
    return Outcome(dict(zip(names, own, strict=True)), groups)
