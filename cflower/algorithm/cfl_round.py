"""One round of Clustered Federated Learning (Algorithm 5, server side): state in, state out.

Differences from the paper: after a split each child starts from the parent's model plus the
mean update of its own members, as the authors' code does (Algorithm 5 leaves it open); members
may be absent, see `Evidence` for which updates count; the model may follow the mean update by
other rules than eq. 2, see `ServerOptimizer`.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import numpy as np

from cflower.algorithm.criteria import Criterion, Decision, Evidence, Outcome
from cflower.algorithm.optimizers import ServerOptimizer
from cflower.algorithm.tree import (
    Cluster,
    Fork,
    ParameterTree,
    Vector,
    Weights,
    in_order,
    natural_order,
)

Weighting = Literal["examples", "uniform"]
WEIGHTINGS: tuple[Weighting, ...] = ("examples", "uniform")


class KnownUpdate(NamedTuple):
    """The last update heard from a client."""

    server_round: int
    update: Weights
    """Δ_i = θ_i − θ_c."""
    norm: float
    """‖Δ_i‖ over the trained entries."""
    num_examples: float
    origin: Vector
    """The trained part of the θ_c it started from, shape (d,); shared, not copied."""


class Reply(NamedTuple):
    """What one client sent back in this round."""

    client: str
    weights: Weights
    """θ_i after its local training."""
    num_examples: float


@dataclass(frozen=True)
class CFLState:
    """Everything the algorithm carries from one round to the next."""

    tree: ParameterTree
    known: Mapping[str, KnownUpdate] = field(default_factory=dict)


class RoundResult(NamedTuple):
    """The state after a round and what was decided in it."""

    state: CFLState
    decisions: tuple[Decision, ...]
    """One a leaf that there was at the start of the round."""
    forks: Mapping[str, Fork]
    """The step of each walking client (Algorithm 4)."""


@dataclass(frozen=True)
class CFL:
    """The fixed parts of the algorithm; `run_round` is its step."""

    criterion: Criterion
    optimizer: ServerOptimizer = field(default_factory=ServerOptimizer)
    weighting: Weighting = "examples"
    """w_i: |D_i|/|D_c| (eq. 2) or 1/|c| (Algorithm 5)."""
    similarity_mask: np.ndarray | None = None
    """Which trained entries similarity sees, bool of shape (d,); None: all."""
    as_sent: Callable[[Weights], Weights] = lambda weights: weights
    """Rounds a new model to what clients can be sent (integers, half precision)."""

    def run_round(
        self, state: CFLState, replies: Iterable[Reply], *, server_round: int
    ) -> RoundResult:
        """Aggregate, decide and split, cluster by cluster.

        Parameters
        ----------
        state : CFLState
        replies : iterable of Reply
            At most one a client, in an order that does not depend on chance. Each is the
            result of training on ``state.tree.trains_on(client)``.
        server_round : int
            Counted from 1.
        """
        tree, known, forks = state.tree, dict(state.known), {}
        for reply in replies:
            start = tree.trains_on(reply.client)
            update = self._known_update(reply, start.model, server_round)
            if reply.client in tree.walking:
                tree, forks[reply.client] = tree.walk(reply.client, self._seen(update))
            else:
                known[reply.client] = update
        decisions = []
        for leaf in tree.leaves:
            settled = [name for name in leaf.members if name not in tree.walking]
            decision, clusters = self._advance(leaf, settled, known, server_round)
            decisions.append(decision)
            placed = {name for side in decision.sides for name in side}
            unplaced = set(settled) - placed if decision.sides else ()
            walking = {**dict.fromkeys(unplaced, leaf.name), **tree.walking}
            tree = tree.update(*clusters, walking=walking)
        return RoundResult(CFLState(tree, known), tuple(decisions), forks)

    def _advance(
        self,
        leaf: Cluster,
        settled: list[str],
        known: Mapping[str, KnownUpdate],
        server_round: int,
    ) -> tuple[Decision, list[Cluster]]:
        """The verdict on a leaf, and the leaf after this round or its split and its children."""
        fresh = {name: known[name] for name in settled if is_fresh(known.get(name), leaf)}
        heard = {name: k for name, k in fresh.items() if k.server_round == server_round}
        mean = self._mean(fresh)
        evidence = Evidence(
            cluster=leaf.name,
            server_round=server_round,
            num_members=len(settled),
            clients=tuple(fresh),
            vectors=tuple(self._seen(update) for update in fresh.values()),
            norms=np.array([update.norm for update in fresh.values()]),
            weights=self._weights(fresh),
            mean_norm=float(np.linalg.norm(mean.trained)),
        )
        decision, memory = self.criterion.decide(evidence, leaf.memory)
        if decision.outcome is not Outcome.SPLIT:
            step = mean if len(heard) == len(fresh) else self._mean(heard)
            return decision, [replace(self._follow(leaf, step), memory=memory)]
        children = []
        for i, side in enumerate(sorted(decision.sides, key=first_in_order)):
            theirs = {name: fresh[name] for name in side}
            children.append(
                replace(
                    self._follow(leaf, self._mean(theirs)),
                    name=f"{leaf.name}.{i}",
                    members=side,
                    born=server_round,
                    edge={name: self._seen(update) for name, update in theirs.items()},
                    memory={},
                )
            )
        # Who has no fresh update said nothing about this split: such members join the largest
        # child for the time being, and walk from here when they are next heard from.
        silent = [name for name in leaf.members if name not in fresh]
        home = max(range(len(children)), key=lambda i: len(children[i].members))
        everyone = in_order((*children[home].members, *silent))
        children[home] = replace(children[home], members=everyone)
        names = tuple(child.name for child in children)
        parent = replace(leaf, children=names, split_round=server_round, memory={})
        return decision, [parent, *children]

    def _follow(self, cluster: Cluster, mean: Weights) -> Cluster:
        """The cluster with its model moved by a mean update; an empty one moves nothing."""
        if not len(mean.trained):
            return cluster
        trained, optimizer = self.optimizer.step(
            cluster.model.trained, mean.trained, cluster.optimizer
        )
        model = Weights(trained, cluster.model.carried + mean.carried)
        return replace(cluster, model=self.as_sent(model), optimizer=optimizer)

    def _mean(self, updates: Mapping[str, KnownUpdate]) -> Weights:
        """Σ w_i Δ_i over these clients; empty vectors when there are none."""
        weights = self._weights(updates)
        return Weights(
            weighted_sum(weights, [known.update.trained for known in updates.values()]),
            weighted_sum(weights, [known.update.carried for known in updates.values()]),
        )

    def _weights(self, updates: Mapping[str, KnownUpdate]) -> Vector:
        """w_i of these clients, shape (m,), summing to 1."""
        counts = np.array([known.num_examples for known in updates.values()], dtype=float)
        if self.weighting == "uniform":
            counts = np.ones_like(counts)
        return counts / counts.sum() if len(counts) else counts

    def _known_update(self, reply: Reply, model: Weights, server_round: int) -> KnownUpdate:
        trained = reply.weights.trained - model.trained
        update = Weights(trained, reply.weights.carried - model.carried)
        norm = float(np.linalg.norm(trained))
        return KnownUpdate(server_round, update, norm, reply.num_examples, model.trained)

    def _seen(self, known: KnownUpdate) -> Vector:
        """The part of an update that similarity sees, shape (k,)."""
        trained = known.update.trained
        return trained if self.similarity_mask is None else trained[self.similarity_mask]


def first_in_order(side: tuple[str, ...]) -> tuple[tuple[int, int, str], ...]:
    """Sort key of a side: its first client, so that children's names do not depend on chance."""
    return min(natural_order(name) for name in side)


def is_fresh(known: KnownUpdate | None, cluster: Cluster) -> bool:
    """Whether a member's last known update still speaks about the cluster's model.

    It does when it was computed after the cluster was born, and the model has since moved by
    no more than the update's own length. This is what "heard from since the model last moved
    far" means; it has no unit, so it needs no setting.
    """
    if known is None or known.server_round <= cluster.born:
        return False
    if known.origin is cluster.model.trained:
        return True
    return float(np.linalg.norm(cluster.model.trained - known.origin)) <= known.norm


def weighted_sum(weights: Vector, vectors: list[Vector]) -> Vector:
    """Σ w_i v_i, summed in float64 in the order given; shape (d,), the vectors' dtype.

    >>> weighted_sum(np.array([0.25, 0.75]), [np.array([4.0, 0.0]), np.array([0.0, 4.0])])
    array([1., 3.])
    """
    if not vectors:
        return np.zeros(0)
    total = np.zeros(len(vectors[0]))
    for weight, vector in zip(weights, vectors, strict=True):
        total += weight * vector.astype(np.float64, copy=False)
    return total.astype(vectors[0].dtype)
