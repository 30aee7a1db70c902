"""Algorithm 4 for a client that was not there: all the way down the parameter tree at once.

Sattler, Müller, Samek, arXiv 1910.01991, section V-C. A newcomer during the run takes the same
forks, one a round, see `ParameterTree.assign_step`. That it may resemble nobody is not in the
paper: there every newcomer arrives at some leaf.
"""

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from cflower.algorithm.difference import Vector
from cflower.algorithm.similarity import cosine_similarity
from cflower.algorithm.tree import Cluster, Fork, ParameterTree


class TypicalSimilarity(NamedTuple):
    """What is usual at a branch: medians over clients of their largest cosine to its updates."""

    members: float | None
    """Over its own clients, to the others of them; None if there is only one."""
    others: float
    """Over the clients of all other branches of the same fork."""

    @property
    def bar(self) -> float:
        """A client whose similarity is not above this is nearer to the others than to members.

        >>> TypicalSimilarity(members=0.75, others=-0.25).bar
        0.25
        """
        return self.others if self.members is None else (self.members + self.others) / 2


class Step(NamedTuple):
    """One fork on the way down."""

    cluster: str
    """The inner cluster whose model the newcomer trained."""
    fork: Fork
    typical: TypicalSimilarity
    """At the branch taken."""

    @property
    def similarity(self) -> float:
        """α of the branch taken."""
        return self.fork.similarities[self.fork.child]

    @property
    def familiar(self) -> bool:
        """Whether the newcomer resembles that branch, rather than nobody."""
        return self.similarity > self.typical.bar


def descend(tree: ParameterTree, update_of: Callable[[Cluster], Vector]) -> tuple[Step, ...]:
    """Algorithm 4: from the root to a leaf, always into the branch that is most alike.

    Parameters
    ----------
    tree : ParameterTree
    update_of : callable
        The newcomer's update of a cluster's stationary model as similarity sees it, shape (k,).
        Called once for every inner cluster on the way.

    Returns
    -------
    tuple of Step
        Empty if the root was never split; else the last one's ``fork.child`` is the leaf.
    """
    cluster, steps = tree.root, []
    while not cluster.is_leaf:
        steps.append(step_from(tree, cluster, update_of(cluster)))
        cluster = tree.clusters[steps[-1].fork.child]
    return tuple(steps)


def step_from(tree: ParameterTree, cluster: Cluster, update: Vector) -> Step:
    """Where an update of an inner cluster's model, shape (k,), leads from there."""
    fork = tree.fork(cluster.name, update)
    branches = {child: tree.clusters[child].edge for child in cluster.children}
    return Step(cluster.name, fork, typical_similarity(branches, fork.child))


def confirms(tree: ParameterTree, leaf: str, update_of: Callable[[Cluster], Vector]) -> bool:
    """Whether Algorithm 4 comes to a leaf, and finds it familiar, at every fork on the way.

    Parameters
    ----------
    tree : ParameterTree
    leaf : str
    update_of : callable
        As for `descend`; not called beyond the first fork that leads elsewhere.
    """
    path = tree.path(leaf)
    for cluster, below in pairwise(path):
        step = step_from(tree, cluster, update_of(cluster))
        if step.fork.child != below.name or not step.familiar:
            return False
    return True


def typical_similarity(
    branches: Mapping[str, Mapping[str, Vector]], branch: str
) -> TypicalSimilarity:
    """How similar the clients of a fork are to one of its branches.

    Parameters
    ----------
    branches : mapping of str to mapping of str to ndarray, shape (k,)
        Δ_e of every branch of the fork, at least two (eq. 47).
    branch : str
        One of them.

    Examples
    --------
    >>> east = {"a": np.array([1.0, 0.0]), "b": np.array([1.0, 0.0])}
    >>> typical_similarity({"0.0": east, "0.1": {"c": np.array([0.0, 1.0])}}, "0.0")
    TypicalSimilarity(members=1.0, others=0.0)
    """
    belongs = np.array([name == branch for name, edge in branches.items() for _ in edge])
    updates = np.stack([update for edge in branches.values() for update in edge.values()])
    similarity = cosine_similarity(updates)
    np.fill_diagonal(similarity, -np.inf)  # nobody is a neighbour of its own
    nearest = similarity[:, belongs].max(axis=1)  # shape: (m,)
    members = float(np.median(nearest[belongs])) if belongs.sum() > 1 else None
    return TypicalSimilarity(members, float(np.median(nearest[~belongs])))
