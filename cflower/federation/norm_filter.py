"""Updates far longer than the others of their cluster: set aside, where that is asked for."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from statistics import median

import numpy as np

from cflower.algorithm.cfl_round import KnownUpdate
from cflower.algorithm.tree import ParameterTree
from cflower.federation.replies import TrainReply

ENOUGH = 3
"""Norms of other clients that must be known to judge a reply; until then it is held back."""


class NormFilter:
    """Lets the replies of one round pass whose updates are not out of line.

    An update is compared with the median norm of the last known updates of its cluster's other
    members, those of this round that have come before it included. Where too few are known yet,
    as in the first round, a few replies wait for one another. A client on its way down the tree
    (Algorithm 4) moves no model and is not compared, nor is one with fewer than two others.

    Parameters
    ----------
    tree : ParameterTree
        Before the round.
    known : mapping of str to KnownUpdate
    ratio : float
        An update longer than this times the median is set aside; 0: none, only updates whose
        norm is not even finite.
    """

    def __init__(self, tree: ParameterTree, known: Mapping[str, KnownUpdate], ratio: float) -> None:
        self._tree, self._ratio = tree, ratio
        self._norms = {
            leaf.name: {name: known[name].norm for name in leaf.members if name in known}
            for leaf in tree.leaves
        } | {name: {} for name, cluster in tree.clusters.items() if not cluster.is_leaf}

    def sift(
        self, answers: Iterable[TrainReply], set_aside: Callable[[str, str], None]
    ) -> Iterator[TrainReply]:
        """The answers in line; ``set_aside(client, problem)`` is told about the others."""
        waiting: dict[str, list[TrainReply]] = {}
        for answer in answers:
            general = self._tree.clusters.get(answer.general)
            start = general or self._tree.training_cluster(answer.client)
            length = answer.norm
            if not np.isfinite(length):
                set_aside(answer.client, "has an update too long for its norm to be finite")
            elif (
                not self._ratio or answer.client in self._tree.unassigned or len(start.members) < 3
            ):
                yield answer
            else:
                norms = self._norms[start.name]
                norms[answer.client] = length
                waiting.setdefault(start.name, []).append(answer)
                if len(norms) > min(ENOUGH, len(start.members) - 1):
                    yield from self._in_line(norms, waiting.pop(start.name), set_aside)
        for name, held in waiting.items():
            yield from self._in_line(self._norms[name], held, set_aside)

    def _in_line(
        self,
        norms: dict[str, float],
        held: Iterable[TrainReply],
        set_aside: Callable[[str, str], None],
    ) -> Iterator[TrainReply]:
        for answer in held:
            others = [norm for name, norm in norms.items() if name != answer.client]
            usual = median(others) if len(others) > 1 else 0.0
            length = norms[answer.client]
            if usual and length > self._ratio * usual:
                del norms[answer.client]
                problem = (
                    f"has an update of norm {length:.3g}, more than {self._ratio:g} times the "
                    f"{usual:.3g} that is usual in its cluster"
                )
                set_aside(answer.client, problem)
            else:
                yield answer
