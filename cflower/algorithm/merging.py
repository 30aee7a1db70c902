"""Sibling leaves whose members keep apart no more are joined: a split taken back at any later time.

Not in the paper. The members of a split cluster train its model on now and then. As long as the
groups differ, their updates of it say so, as they did when it was split. Where they do not, for
two of its leaves, the clients are asked: would the mean of both models serve them as well as
their own do? It must by every metric, beside the test that judges a split on trial. Nothing is
learned for it, so a run in which they say no is the same as if they had not been asked.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from math import comb
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cflower.algorithm.criteria import Decision, Outcome
from cflower.algorithm.difference import Vector
from cflower.algorithm.moving import Move, add_to
from cflower.algorithm.state import CFLState
from cflower.algorithm.tree import Cluster, ParameterTree
from cflower.algorithm.trial import LIKELY, Comparison, Measure, Standing, Trial, judge
from cflower.seeding import generator

DEALS = 200
ENOUGH = 50
"""Members of a leaf that are looked at, at most."""
GOES_ON = ("model", "optimizer", "memory", "rounds")
"""What a cluster that is a leaf again has of its leaves."""


class Join(NamedTuple):
    """Two leaves below one cluster, which may be one."""

    leaves: tuple[str, str]
    """The first keeps its name if there are others beside them."""
    common: Cluster
    """The cluster that they would be, under the name of the one above them."""


def alike_leaves(
    tree: ParameterTree, updates: Mapping[str, Mapping[str, Vector]]
) -> dict[str, tuple[Cluster, Cluster]]:
    """The two leaves below each of these clusters that keep apart least, if they hardly do.

    The one with more members first, or the one whose name comes before.

    Parameters
    ----------
    tree : ParameterTree
        After the round.
    updates : mapping of str to mapping of str to ndarray, shape (k,)
        Of the models of split clusters, by cluster and client, of this round.
    """
    found = {}
    for name, by_client in updates.items():
        if tree.awaits_trial(name):
            continue
        heard = {}
        for child in tree.clusters[name].children:
            leaf = tree.clusters[child]
            there = [by_client[c] for c in leaf.members if c in by_client]
            rows = directions(there[:ENOUGH])
            # Of a leaf with company its company must be known.
            if leaf.is_leaf and len(rows) >= min(2, max(1, len(leaf.members))):
                heard[child] = rows
        chances = {
            pair: chance_apart(*(heard[child] for child in pair)) for pair in combinations(heard, 2)
        }
        if chances and max(chances.values()) > LIKELY:
            one, other = (tree.clusters[child] for child in max(chances, key=chances.__getitem__))
            larger = len(one.members) >= len(other.members)
            found[name] = (one, other) if larger else (other, one)
    return found


def directions(updates: Sequence[Vector]) -> NDArray[np.float64]:
    """Those of updates that have one, shape (m, k), with length 1."""
    found = [np.asarray(update, float) for update in updates]
    return np.array([update / np.linalg.norm(update) for update in found if update.any()])


def chance_apart(one: NDArray[np.floating], other: NDArray[np.floating]) -> float:
    """Probability that clients dealt into two leaves by chance lie as far apart as these.

    How far: by how much the mean cosine within the leaves is above that between them. All ways to
    deal them are tried, or `DEALS` drawn ones. Of fewer than four clients and of two pairs chance
    says nothing; they are apart if the cosine between them is below half of that within, or of 1.

    Parameters
    ----------
    one, other : ndarray, shape (m, k) and (n, k)
        Directions of the updates of the members of two leaves.

    Examples
    --------
    >>> up, right = np.array([0.0, 1.0]), np.array([1.0, 0.0])
    >>> chance_apart(np.stack([up, up, up]), np.stack([right]))
    0.25
    >>> chance_apart(np.stack([up, up]), np.stack([right]))
    0.0
    """
    cosines = np.concatenate([one, other]) @ np.concatenate([one, other]).T
    size, first = len(cosines), len(one)

    def means(chosen: Sequence[int]) -> tuple[float, float]:
        """The mean cosine within the leaves and between them, if these are one leaf."""
        here = np.isin(np.arange(size), chosen)
        same = here[:, None] == here
        pairs = same.sum() - size
        within = (cosines[same].sum() - np.trace(cosines)) / pairs if pairs else 1.0
        return float(within), float(cosines[~same].mean())

    within, between = means(range(first))
    if size < 4 or size == 2 * first == 4:
        return float(between > within / 2)
    deals: Iterable[Sequence[int]] = combinations(range(size), first)
    if comb(size, first) > DEALS:
        rng = generator(0, "deals")
        deals = [range(first), *(rng.permutation(size)[:first].tolist() for _ in range(DEALS))]
    gaps = [here - there for here, there in map(means, deals)]
    return float(np.mean(np.array(gaps) >= within - between - 1e-12))


def judged_joins(
    state: CFLState,
    decisions: Sequence[Decision],
    asked: Mapping[str, Join],
    compared: Mapping[str, Sequence[Comparison]],
    measures: Sequence[Measure],
    server_round: int,
) -> tuple[CFLState, tuple[Decision, ...]]:
    """State and decisions of a round after its clients have judged: leaves joined or kept apart.

    If there is no other leaf beside them, the cluster above is a leaf again. Else the members of
    the second move to the first, and the second stays as history: nobody walks there any more.

    Parameters
    ----------
    state : CFLState
    decisions : sequence of Decision
        Of the round.
    asked : mapping of str to Join
    compared : mapping of str to sequence of Comparison
        What the members found, by the cluster above.
    measures : sequence of Measure
        The metrics to go by, the leading one first.
    """
    told = list(decisions)
    for name, join in asked.items():
        finding = judge(compared[name], measures)
        (first, second), parent = join.leaves, state.tree.clusters[name]
        alike = f"the members' updates of {name} no longer tell {first} and {second} apart"
        reason = f"{alike}; with models of their own {finding.reason}"
        better = any(v > 0 for key, v in finding.figures.items() if key.endswith("_gain"))
        if finding.confirmed or better:
            for leaf in join.leaves:
                add_to(told, leaf, reason)
            continue
        beside = [c for c in parent.children if state.tree.clusters[c].members]
        if set(beside) == set(join.leaves):
            parts = tuple(state.tree.clusters[child].members for child in parent.children)
            # It is judged at once: began and ended in this round.
            trial = Trial(server_round, server_round, parts, Standing.UNDONE, reason)
            tree = state.tree.rejoined(name, server_round, trial)
            goes_on = {key: getattr(join.common, key) for key in GOES_ON}
            tree = tree.update(replace(tree.clusters[name], **goes_on))
            state = replace(state, tree=tree)
            lengths = [d for d in decisions if d.cluster in join.leaves]
            told.append(
                Decision(
                    name,
                    server_round,
                    Outcome.UNDONE,
                    reason,
                    max((d.mean_norm for d in lengths), default=0.0),
                    max((d.max_norm for d in lengths), default=0.0),
                    figures=finding.figures,
                )
            )
        else:
            clusters = state.tree.clusters
            moved = clusters[second].members
            stays = replace(clusters[first], members=join.common.members, model=join.common.model)
            closed = replace(clusters[second], members=(), edge={}, memory={})
            moves = [Move(server_round, client, second, first, reason) for client in moved]
            state = replace(
                state,
                tree=state.tree.update(stays, closed),
                known={c: update for c, update in state.known.items() if c not in moved},
                moves=(*state.moves, *moves),
            )
            add_to(told, second, f"it is joined to {first}")
    return state, tuple(told)
