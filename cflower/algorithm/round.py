"""One round of Clustered Federated Learning (Algorithm 5, server side): state in, state out.

Differences from the paper: after a split each child starts from the parent's model plus the
mean update of its own members, as the authors' code does (Algorithm 5 leaves it open); where
updates are only kept as projections, and for entries that are not trained, it starts from the
mean over the whole parent. Members may be absent, see `Evidence` for which updates count. The
model may follow the mean update by other rules than eq. 2, see `ServerOptimizer`; their momentum
is handed down at a split. A split may have to prove itself, see `cflower.algorithm.trial`, and
inner clusters may go on learning.
"""

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal, NamedTuple

import numpy as np

from cflower.algorithm.aggregation import WeightedMean
from cflower.algorithm.criteria import Criterion, Decision, Evidence, Outcome, verdict
from cflower.algorithm.difference import Update, Vector
from cflower.algorithm.merging import Join, alike_leaves
from cflower.algorithm.moving import Moves
from cflower.algorithm.optimizers import ServerOptimizer
from cflower.algorithm.projection import Projection, norm
from cflower.algorithm.splits_on_trial import (
    also_trained,
    learned_on,
    put_off,
    still_on_trial,
)
from cflower.algorithm.state import CFLState, KnownUpdate, is_fresh
from cflower.algorithm.tree import ROOT, Cluster, Fork, ParameterTree, Weights
from cflower.algorithm.trial import Trial
from cflower.ordering import in_order, natural_order

Weighting = Literal["examples", "uniform"]
WEIGHTINGS: tuple[Weighting, ...] = ("examples", "uniform")


class Reply(NamedTuple):
    """What came back from one client in this round."""

    client: str
    update: Weights | Update
    """Δ_i = θ_i − θ_c, θ_i after its local training."""
    norm: float
    """‖Δ_i‖ over all trained entries."""
    num_examples: float
    general: str = ""
    """The inner cluster whose model it trained, see `CFL.also_trains`; empty: its own model."""
    share: float = 1.0
    """How much of its weight counts."""
    probe: bool = False
    """Whether it trained a model above its own as that was when it was split, see `CFL.probes`."""
    kept: Vector | None = None
    """What is kept of Δ_i, see `Projection.keep`, if that is known already."""
    origin: Weights | None = None
    """Of a late one: the model that it trained, which its cluster's was some rounds ago."""


class RoundResult(NamedTuple):
    """The state after a round and what was decided in it."""

    state: CFLState
    decisions: tuple[Decision, ...]
    """One a leaf that there was at the start of the round, then one a split on trial."""
    forks: Mapping[str, Fork]
    """The step of each unassigned client (Algorithm 4)."""
    joins: Mapping[str, Join] = MappingProxyType({})
    """Leaves that may be one, by the cluster above: the clients are to be asked."""


@dataclass(frozen=True)
class CFL:
    """The fixed parts of the algorithm; `run_round` is its step."""

    criterion: Criterion
    projection: Projection
    optimizer: ServerOptimizer = field(default_factory=ServerOptimizer)
    weighting: Weighting = "examples"
    """w_i: |D_i|/|D_c| (eq. 2) or 1/|c| (Algorithm 5)."""
    as_sent: Callable[[Weights], Weights] = lambda weights: weights
    """Rounds a new model to what clients can be sent (integers, half precision)."""
    trial_rounds: int = 0
    """Rounds after a split in which it is on trial; 0: splits are final."""
    moving: bool = False
    """Whether a member whose data change moves to another leaf, see `cflower.algorithm.moving`."""
    inner_interval: int = 0
    """Inner models are trained on in every so many-th round; 0: they are not."""

    @property
    def merging(self) -> bool:
        """Whether leaves that keep apart no more are joined, see `cflower.algorithm.merging`."""
        return self.moving and self.trial_rounds > 0

    def also_trains(self, tree: ParameterTree, client: str, server_round: int) -> Cluster | None:
        """The inner cluster whose model a client trains in this round beside its own, if any.

        That of a split on trial; else, in every `inner_interval`-th round, those on its path take
        turns, so that a client never trains more than two models in a round.
        """
        return also_trained(tree, client, server_round, self.inner_interval)

    def probes(self, state: CFLState, client: str) -> Cluster | None:
        """The split cluster whose θ*_v a client that stands out trains beside its own model.

        It comes before an inner model that is to learn on, but not before one on trial.
        """
        habit, tree = state.habits.get(client), state.tree
        if not habit or not habit.probing or client in tree.unassigned:
            return None
        leaf = tree.leaf_of(client).name
        if habit.leaf != leaf or tree.awaits_trial(leaf):
            return None
        return tree.clusters.get(habit.probing)

    def run_round(
        self,
        state: CFLState,
        replies: Iterable[Reply],
        *,
        server_round: int,
        excluded: Container[str] = (),
    ) -> RoundResult:
        """Aggregate, decide and split, cluster by cluster.

        Parameters
        ----------
        state : CFLState
        replies : iterable of Reply
            At most one a client and model, in an order that does not depend on chance. Each is
            the result of training on ``state.tree.training_cluster(client)``, or on what
            `also_trains` names; a late one of what the former's model was some rounds ago.
        server_round : int
            Counted from 1.
        excluded : container of str
            Members that are never heard from again: no split waits for them.
        """
        tree, known, forks = state.tree, dict(state.known), {}
        away: dict[str, Vector] = {}
        above: dict[str, dict[str, Vector]] = {}
        walking = {move.client for move in state.moves}
        means = WeightedMean({name: c.grown.model for name, c in tree.clusters.items()})
        lengths: dict[str, list[float]] = {}
        origins = {name: self.projection.keep(c.model.trained) for name, c in tree.clusters.items()}
        for reply in replies:
            if reply.probe:
                away[reply.client] = self.projection.seen(self._kept(reply))
                continue
            if reply.general:
                means.add(reply.general, reply.update, self._weight(reply))
                lengths.setdefault(reply.general, []).append(reply.norm)
                if self.merging and not tree.clusters[reply.general].on_trial:
                    seen = self.projection.seen(self._kept(reply))
                    above.setdefault(reply.general, {})[reply.client] = seen
                continue
            start, sent = tree.training_cluster(reply.client), reply.origin
            moved = 0.0 if sent is None else norm(start.model.trained - sent.trained)
            heard = KnownUpdate(
                server_round,
                self._kept(reply),
                reply.norm,
                reply.num_examples,
                origins[start.name] if sent is None else self.projection.keep(sent.trained),
                reply.share,
                moved / (reply.norm or 1.0),
            )
            if reply.client in tree.unassigned:
                if reply.client in walking:
                    away[reply.client] = self._seen(heard)
                else:
                    tree, forks[reply.client] = tree.assign_step(reply.client, self._seen(heard))
            else:
                known[reply.client] = heard
                # Staleness and its price as in AsyncFedED (Wang et al., arXiv 2205.13797).
                scale = 1 / (1 + heard.staleness)
                means.add(start.name, reply.update, self._weight(heard), scale)
        decisions = []
        for leaf in (tree.clusters[before.name] for before in state.tree.leaves):
            settled = [
                name
                for name in leaf.members
                if name not in tree.unassigned and name not in excluded
            ]
            fresh = {
                name: known[name]
                for name in settled
                if is_fresh(known.get(name), leaf.born, origins[leaf.name])
            }
            decision, clusters = self._advance(
                leaf, state.tree, settled, known, fresh, means.mean(leaf.name), server_round
            )
            decisions.append(decision)
            placed = {name for side in decision.sides for name in side}
            unplaced = set(settled) - placed if decision.sides else ()
            unassigned = {**dict.fromkeys(in_order(unplaced), leaf.name), **tree.unassigned}
            tree = tree.update(*clusters, unassigned=unassigned)
        for name in lengths:
            learned = self._follow(tree.clusters[name].grown, means.mean(name))
            tree = tree.update(learned_on(tree.clusters[name], learned))
        for cluster in state.tree.clusters.values():
            if cluster.on_trial:
                length = norm(means.mean(cluster.name).trained)
                longest = max(lengths.get(cluster.name, [0.0]))
                decisions.append(still_on_trial(cluster, server_round, length, longest))
        after = CFLState(tree, known)
        if self.moving:
            after = self._moved(state, after, away, decisions, server_round)
        joins = {
            name: self._join(name, *leaves, after.known)
            for name, leaves in alike_leaves(after.tree, above).items()
            # What is known of their members says what each model weighs.
            if not any(after.known.keys().isdisjoint(leaf.members) for leaf in leaves)
        }
        return RoundResult(after, tuple(decisions), forks, joins)

    def _advance(
        self,
        leaf: Cluster,
        tree: ParameterTree,
        settled: list[str],
        known: Mapping[str, KnownUpdate],
        fresh: Mapping[str, KnownUpdate],
        mean: Weights,
        server_round: int,
    ) -> tuple[Decision, list[Cluster]]:
        """The verdict on a leaf, and the leaf after this round or its split and its children."""
        # At rest is a model that those who train it leave where it is; late replies were to others.
        timely = {name: update for name, update in fresh.items() if not update.staleness} or fresh
        heard_all = len(timely) == len(fresh) and all(
            update.server_round == server_round for update in timely.values()
        )
        evidence = Evidence(
            cluster=leaf.name,
            server_round=server_round,
            num_members=len(settled),
            clients=tuple(fresh),
            vectors=tuple(self._seen(update) for update in fresh.values()),
            norms=np.array([update.norm for update in fresh.values()]),
            weights=self._weights(fresh),
            mean_norm=norm(mean.trained if heard_all else self._mean(timely)),
            rounds=np.array([update.server_round for update in fresh.values()], dtype=int),
        )
        if not len(mean.trained):
            reason = "no member was heard from in this round"
            return verdict(evidence, Outcome.TOO_FEW_HEARD, reason), [leaf]
        decision, memory = self.criterion.decide(evidence, leaf.memory)
        if decision.outcome is Outcome.SPLIT:
            decision = put_off(decision, leaf, tree)
        if decision.outcome is not Outcome.SPLIT:
            return decision, [replace(self._follow(leaf, mean), memory=memory)]
        children = []
        for i, side in enumerate(sorted(decision.sides, key=first_in_order)):
            theirs = {name: fresh[name] for name in side if name in fresh}
            # Of a projected update only what it looks like is left, not what to add: then
            # the children start from the mean over the whole cluster.
            own = self.projection.keeps_all and theirs
            step = mean._replace(trained=self._mean(theirs)) if own else mean
            children.append(
                replace(
                    self._follow(leaf, step),
                    name=f"{leaf.name}.{leaf.num_children_before + i}",
                    members=side,
                    born=server_round,
                    edge={name: self._seen(known[name]) for name in side},
                    memory=self.criterion.inherit(memory),
                    undone=(),
                )
            )
        # Members without a fresh update are on no side. They join the largest child for now, and
        # are placed by Algorithm 4, from this split on, when they are next heard from.
        placed = {name for side in decision.sides for name in side}
        silent = [name for name in leaf.members if name not in placed]
        home = max(range(len(children)), key=lambda i: len(children[i].members))
        everyone = in_order((*children[home].members, *silent))
        children[home] = replace(children[home], members=everyone)
        names = tuple(child.name for child in children)
        parent = replace(leaf, children=names, split_round=server_round, memory={})
        if self.trial_rounds:
            until = server_round + self.trial_rounds
            parent = replace(
                learned_on(parent, self._follow(leaf, mean)),
                memory=self.criterion.inherit(memory),
                trial=Trial(server_round, until, decision.sides),
            )
            decision = replace(decision, reason=f"{decision.reason}; on trial until round {until}")
        return replace(decision, children=names), [parent, *children]

    def _moved(
        self,
        before: CFLState,
        after: CFLState,
        away: Mapping[str, Vector],
        decisions: list[Decision],
        server_round: int,
    ) -> CFLState:
        """The state after members that changed have left and walked, see `Moves`.

        Parameters
        ----------
        away : mapping of str to ndarray, shape (k,)
            Updates, as similarity sees them, of models above the clients' own leaves.
        decisions : list of Decision
            Those about leaves that clients leave say so; that about the root changes if it is
            split by a member that changed.
        """
        known = dict(after.known)
        heard = {
            leaf.name: {
                name: known[name]
                for name in leaf.members
                if name not in before.tree.unassigned
                and name in known
                and known[name].server_round == server_round
                and not known[name].staleness  # updates of older models are of another length
            }
            for leaf in before.tree.leaves
        }
        moves = Moves(after.tree, dict(before.habits), list(before.moves), server_round)
        for leaf, updates in heard.items():
            moves.watch(leaf, {client: update.norm for client, update in updates.items()})
        if after.tree.root.is_leaf:
            new = {name for name, habit in moves.habits.items() if habit.held == 1}
            last = {name: self._seen(before.known[name]) for name in new & before.known.keys()}
            now = {client: self._seen(update) for client, update in heard[ROOT].items()}
            moves.part(before.tree.root, last, now, decisions)
        else:
            moves.walk(away, before.habits)
        forget = getattr(self.criterion, "without", lambda memory, client: memory)
        for client in moves.leave(decisions, forget):
            known.pop(client, None)  # an update of a model that is not its own any more
        return CFLState(moves.tree, known, moves.habits, tuple(moves.made))

    def _join(
        self, name: str, first: Cluster, second: Cluster, known: Mapping[str, KnownUpdate]
    ) -> Join:
        """Both leaves as one, with the mean of their models."""
        mean = WeightedMean({name: first.model})
        for leaf in (first, second):
            weight = sum(self._weight(known[c]) for c in leaf.members if c in known)
            mean.add(name, leaf.model, weight)
        common = replace(
            first,
            name=name,
            members=in_order((*first.members, *second.members)),
            model=self.as_sent(mean.mean(name)),
            memory=self.criterion.inherit(first.memory),
        )
        return Join((first.name, second.name), common)

    def _follow(self, cluster: Cluster, mean: Weights) -> Cluster:
        """The cluster with its model moved by a mean update."""
        trained, optimizer = self.optimizer.step(
            cluster.model.trained, mean.trained, cluster.optimizer
        )
        model = Weights(trained, cluster.model.carried + mean.carried)
        rounds = cluster.rounds + 1
        return replace(cluster, model=self.as_sent(model), optimizer=optimizer, rounds=rounds)

    def _mean(self, updates: Mapping[str, KnownUpdate]) -> Vector:
        """Σ w_i Δ_i over these clients, of what is kept of their updates."""
        total = np.zeros(len(next(iter(updates.values())).vector))
        for weight, known in zip(self._weights(updates), updates.values(), strict=True):
            total += weight * known.vector
        return total

    def _weights(self, updates: Mapping[str, KnownUpdate]) -> Vector:
        """w_i of these clients, shape (m,), summing to 1."""
        weights = np.array([self._weight(known) for known in updates.values()])
        return np.asarray(weights / weights.sum())

    def _weight(self, update: KnownUpdate | Reply) -> float:
        """w_i before normalisation."""
        return self.weight_of(update.num_examples) * update.share

    def weight_of(self, num_examples: float) -> float:
        """What a client with so many examples would weigh if all of it counted."""
        return num_examples if self.weighting == "examples" else 1.0

    def _seen(self, known: KnownUpdate) -> Vector:
        """The part of an update that similarity sees, shape (k,)."""
        return self.projection.seen(known.vector)

    def _kept(self, reply: Reply) -> Vector:
        if reply.kept is not None:
            return reply.kept
        return self.projection.keep(np.asarray(reply.update.trained))


def first_in_order(side: tuple[str, ...]) -> tuple[tuple[int, int, str], ...]:
    """Sort key of a side: its first client, so that children's names do not depend on chance."""
    return min(natural_order(name) for name in side)
