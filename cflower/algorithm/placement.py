"""Algorithm 4: the place of a client in the parameter tree, by its update of a split cluster.

Sattler, Müller, Samek, arXiv 1910.01991, section V-C. A newcomer during a run, one after it, and a
member with changed data get the same answer: the child with the most similar updates, and whether
the client resembles it at all. The latter is not in the paper, where every newcomer reaches a leaf.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np

from cflower.algorithm.similarity import cosine_similarity, cosines_to
from cflower.algorithm.tree import Cluster, ParameterTree
from cflower.algorithm.weights import Vector
from cflower.ordering import without

Edges = Mapping[str, list[Vector]]
"""The updates of each child's clients, shape (k,) each (eq. 47)."""
MOST_COMPARED = 200
"""Clients of a branch that show what is usual there, a limit of work: more change a median by
little."""


class Placement(NamedTuple):
    """One step of Algorithm 4."""

    cluster: str
    """The split cluster with the model that the client trained."""
    child: str
    """The child with the most similar updates."""
    similarities: Mapping[str, float]
    """α of each child: the largest cosine to any update on its edge (lines 6 to 12)."""
    bar: float
    """The cosine above which a client resembles a child."""

    @property
    def similarity(self) -> float:
        """α of the child."""
        return self.similarities[self.child]

    @property
    def familiar(self) -> bool:
        """Whether the client resembles the child."""
        return self.similarity > self.bar

    @property
    def margin(self) -> float:
        """Difference to the next child's similarity, or to -1 if there is no other child.

        >>> Placement("0", "0.1", {"0.0": 0.25, "0.1": 0.75}, bar=0.5).margin
        0.5
        """
        *_, second, best = sorted([-1.0, *self.similarities.values()])
        return best - second

    def __str__(self) -> str:
        cosine = f"cosine {self.similarity:.2f}, {self.bar:.2f} needed"
        if self.familiar:
            return f"its update fits {self.child} ({cosine})"
        return f"its update fits no cluster below {self.cluster}, {self.child} best ({cosine})"


@dataclass(frozen=True)
class Branches:
    """The children of a split cluster, with the updates on their edges."""

    cluster: str
    edges: Edges
    bar: float
    """The cosine above which a client resembles a child, by `usual_similarity`."""

    @classmethod
    def of(cls, tree: ParameterTree, name: str, besides: str = "") -> "Branches":
        """The children of the named cluster that have updates, those of one client left out."""
        children = [tree.clusters[child] for child in tree.clusters[name].children]
        kept = {child.name: without(child.edge, [besides]) for child in children}
        edges = {child: list(edge.values()) for child, edge in kept.items() if edge}
        return cls(name, edges, usual_similarity(edges))

    def place(self, update: Vector) -> Placement:
        """Algorithm 4, lines 6 to 12.

        ``update`` is the client's update of the cluster's stationary model as similarity sees it,
        shape (k,).
        """
        similarities = {c: float(cosines_to(update, edge).max()) for c, edge in self.edges.items()}
        nearest = max(similarities, key=similarities.__getitem__)
        return Placement(self.cluster, nearest, similarities, self.bar)


def descend(tree: ParameterTree, update_of: Callable[[Cluster], Vector]) -> Iterator[Placement]:
    """Algorithm 4: the steps from the root to a leaf, always to the most similar child.

    ``update_of`` returns the client's update of a cluster's stationary model as similarity sees it,
    shape (k,), and is called at each step.
    """
    cluster = tree.root
    while not cluster.is_leaf:
        step = Branches.of(tree, cluster.name).place(update_of(cluster))
        yield step
        cluster = tree.clusters[step.child]


def usual_similarity(edges: Edges) -> float:
    """The cosine above which a client resembles a branch rather than none.

    Halfway between the medians, over the clients, of the largest cosine to another client of the
    same branch and to one of another branch, where the latter counts as at least 0.

    >>> up, right = np.array([0.0, 1.0]), np.array([1.0, 0.0])
    >>> usual_similarity({"0.0": [up, up], "0.1": [right]})
    0.5
    """
    some = [edge[:MOST_COMPARED] for edge in edges.values()]
    branch = np.repeat(np.arange(len(some)), list(map(len, some)))
    cosines = cosine_similarity(np.stack([*chain.from_iterable(some)]))
    np.fill_diagonal(cosines, -np.inf)
    same = branch[:, None] == branch
    across = max(0.0, float(np.median(np.where(same, -np.inf, cosines).max(axis=1))))
    within = np.where(same, cosines, -np.inf).max(axis=1)
    within = within[np.isfinite(within)]  # without those that are alone in their branch
    return (float(np.median(within) if within.size else across) + across) / 2
