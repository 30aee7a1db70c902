"""`ChosenNumber`: as many clusters as the user asks for, whether or not they are significant."""

from dataclasses import dataclass
from math import ceil
from typing import ClassVar

import numpy as np

from cflower.algorithm.criteria import Decision, Evidence, Memory, Outcome, sampled, verdict
from cflower.algorithm.tree import ROOT
from cflower.auto.averages import Averages
from cflower.auto.clustering import ward_parts
from cflower.auto.criterion import AutoCriterion, reached_by, views
from cflower.ordering import counted, in_order
from cflower.settings import number


@dataclass(frozen=True)
class ChosenNumber(AutoCriterion):
    """Split once, into a number of clusters: Ward's tree of the average updates, cut at it.

    The split is made when most members have been in the same part for `min_stable_rounds`, and is
    final. Nothing is tested: the clusters may be chance.

    Parameters
    ----------
    clusters : int >= 2
        Their number. A newcomer that resembles none of them still begins one of its own.
    """

    name: ClassVar[str] = "chosen-number"
    trial_rounds: ClassVar[int] = 0
    moving: ClassVar[bool] = False

    clusters: int = number(2, least=2)

    def decide(self, evidence: Evidence, memory: Memory) -> tuple[Decision, Memory]:
        """Update the averages and cut their tree."""
        if evidence.cluster != ROOT:
            reason = f"it is one of the {self.clusters} clusters that were asked for"
            return verdict(evidence, Outcome.CONTENT, reason), memory
        known = Averages(**memory).updated(evidence)
        left_out = known.left_out(evidence.members, evidence.absent)
        ready = [i for i, client in enumerate(known.clients) if client not in left_out]
        enough = max(self.clusters, ceil(self.heard_share * len(evidence.members)))
        if len(ready) < enough:
            reason = f"{enough} members have to send enough updates, {len(ready)} have done so"
            return verdict(evidence, Outcome.TOO_FEW_HEARD, reason), vars(known)
        here = sampled(np.array(ready, dtype=np.intp), evidence.cluster)
        similarity = views(known, here)[0].similarity
        labels = ward_parts(similarity, self.clusters)
        known = known.with_cut(0, here, labels)
        steady = int(reached_by(known.streak[here, 0], ceil(self.heard_share * len(here))))
        clients = tuple(known.clients[i] for i in here)
        parts = [np.flatnonzero(labels == part) for part in range(labels.max() + 1)]
        sides = tuple(in_order(clients[i] for i in part) for part in parts)
        outcome, reason = Outcome.SPLIT, f"{len(sides)} clusters were asked for"
        if steady < self.min_stable_rounds or len(sides) < self.clusters:
            outcome = Outcome.UNSTEADY
            reason = f"the same {len(sides)} groups for {counted(steady, 'round')}"
            reason += f", {self.clusters} groups for {self.min_stable_rounds} needed"
        figures = {"clients": clients, "similarity": similarity, "sides": sides}
        return verdict(evidence, outcome, reason, **figures), vars(known)
