"""The layers that leaves share: a split parts what disagrees.

Not in the paper, in which a split parts the whole model. Clients may want other answers for the
same inputs. Then one body, the layers below the output layer, serves all of them better than a body
for each group, because all of them train it. So a split parts the output layer alone if most of
what its parts disagree about is there. The body stays common as long as each part moves it where
the others do: a part that moves it against them uses its inputs in another way, or is hostile, and
has a body of its own from then on.

IFCA shares layers that are chosen by hand (Ghosh et al., arXiv 2006.04088), FedPer and FedRep all
but the output layer of each client (arXiv 1912.00818, 2102.07078).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache

import numpy as np

from cflower.algorithm.aggregation import WeightedMean
from cflower.algorithm.means import Mean
from cflower.algorithm.similarity import Matrix
from cflower.algorithm.tree import Cluster, ParameterTree, is_below
from cflower.algorithm.weights import Vector, Weights
from cflower.ordering import only, without

OUTPUT_SHARE = 0.5
"""Least share of the output layer in what parts disagree about, with which it parts alone: most."""
MOST_AGREEMENT = 1.0
"""Limit of the cumulative sum of cosines: a few rounds of opposition outweigh any history."""


def disagreement(parts: Sequence[Matrix]) -> float:
    """The scatter between the mean updates of parts, without that which chance brings.

    ``parts`` are their members' updates, shape (m, k) each: Σ_p s_p ‖m_p − m‖² less what it would
    be if all members had one mean, by the scatter within the parts; s_p is the share of a part in
    all members, m_p its mean update, and m the mean of all.

    >>> disagreement([np.array([[1.0], [3.0]]), np.array([[5.0], [7.0]])])
    3.5
    """
    sizes = np.array([len(part) for part in parts])
    shares, means = sizes / sizes.sum(), np.stack([part.mean(axis=0) for part in parts])
    between = float(shares @ np.sum((means - shares @ means) ** 2, axis=1))
    within = sum(float(np.sum((part - mean) ** 2)) for part, mean in zip(parts, means, strict=True))
    variance = within / max(1, int(sizes.sum()) - len(parts))
    return between - variance * float(np.sum(shares * (1 - shares) / sizes))


def parted_where_opposed(
    tree: ParameterTree, means: Mapping[str, Mean], body: int
) -> ParameterTree:
    """The tree in which clusters that move a common body against the others have their own.

    A cluster is compared with all other leaves that share its body, by the cosine of their mean
    updates of the first ``body`` entries. The cosines of all rounds are summed up (a CUSUM chart,
    Page 1954), because a single one is near 0 by chance where training has converged.
    """

    @cache
    def inner(one: str, other: str) -> float:
        first, second = (means[name] for name in (one, other))
        product = first.whole.trained[:body] @ second.whole.trained[:body]
        return float(product) * first.weight * second.weight

    def product(leaves: Sequence[str], others: Sequence[str]) -> float:
        return sum(inner(*sorted((one, other))) for one in leaves for other in others)

    for name, cluster in tree.clusters.items():
        if cluster.own_body:
            continue
        sharing = only(means, [leaf.name for leaf in tree.bodies.get(tree.body_of(name), ())])
        inside = [leaf for leaf in sharing if is_below(leaf, name)]
        others = [*without(sharing, inside)]
        lengths = product(inside, inside) * product(others, others)
        if lengths > 0:
            cosine = product(inside, others) / math.sqrt(lengths)
            agreement = min(cluster.agreement + cosine, MOST_AGREEMENT)
            tree = tree.update(replace(cluster, agreement=agreement, own_body=agreement < 0))
    return tree


def with_common_updates(
    tree: ParameterTree, means: Mapping[str, Mean], body: int
) -> dict[str, Mean]:
    """The leaves' mean updates, with that of the body over all leaves that share it (eq. 2).

    Entries that are not trained, such as BatchNorm's statistics, belong to the body.
    """
    updated = dict(means)
    for leaves in tree.bodies.values():
        there = only(means, [leaf.name for leaf in leaves])
        if len(there) > 1:
            together = WeightedMean()
            for mean in there.values():
                of_body = Weights(mean.whole.trained[:body], mean.whole.carried)
                together.add(of_body, mean.weight)
            common = together.mean()
            updated |= {name: mean._replace(common=common) for name, mean in there.items()}
    return updated


def with_body_of(cluster: Cluster, other: Cluster, body: int) -> Cluster:
    """The cluster with the body of another one, and with what the optimizer knows of it."""

    def joined(own: Vector, of_other: Vector) -> Vector:
        return np.concatenate([of_other[:body], own[body:]])

    trained = joined(cluster.model.trained, other.model.trained)
    optimizer = {
        key: joined(cluster.optimizer[key], state)
        for key, state in other.optimizer.items()
        if key in cluster.optimizer
    }
    return replace(cluster, model=Weights(trained, other.model.carried), optimizer=optimizer)


def with_common_bodies(tree: ParameterTree, means: Mapping[str, Mean], body: int) -> ParameterTree:
    """The tree in which leaves without a reply have the body that the other leaves moved."""
    behind = list[Cluster]()
    for leaves in tree.bodies.values():
        moved = [leaf for leaf in leaves if leaf.name in means]
        still = [leaf for leaf in leaves if leaf.name not in means]
        behind += [with_body_of(leaf, moved[0], body) for leaf in still if moved]
    return tree.update(*behind)
