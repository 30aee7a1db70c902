"""One round of Clustered Federated Learning (Algorithm 5, server side): state in, state out.

Differences from the paper: after a split each child starts from the parent's model plus the
mean update of its own members, as the authors' code does (Algorithm 5 leaves it open); where
updates are only kept as projections, and for entries that are not trained, it starts from the
mean over the whole parent. Members may be absent, see `Evidence` for which updates count. The
model may follow the mean update by other rules than eq. 2, see `ServerOptimizer`; their momentum
is handed down at a split. A split may have to prove itself, see `cflower.algorithm.trial`, and
inner clusters may go on learning.
"""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import numpy as np

from cflower.algorithm.aggregation import WeightedMean
from cflower.algorithm.criteria import Criterion, Decision, Evidence, Outcome, verdict
from cflower.algorithm.moving import Habit, Move, resembles, watch
from cflower.algorithm.optimizers import ServerOptimizer
from cflower.algorithm.projection import Projection
from cflower.algorithm.tree import ROOT, Cluster, Fork, ParameterTree, Vector, Weights
from cflower.algorithm.trial import Comparison, Measure, Standing, Trial, judge, not_again
from cflower.ordering import in_order, natural_order

Weighting = Literal["examples", "uniform"]
WEIGHTINGS: tuple[Weighting, ...] = ("examples", "uniform")


class KnownUpdate(NamedTuple):
    """The last update heard from a client."""

    server_round: int
    vector: Vector
    """What is kept of Δ_i = θ_i − θ_c, see `Projection.keep`."""
    norm: float
    """‖Δ_i‖ over all trained entries."""
    num_examples: float
    origin: Vector
    """What is kept of the θ_c it started from; one array for all clients of a round."""


class Reply(NamedTuple):
    """What one client sent back in this round."""

    client: str
    update: Weights
    """Δ_i = θ_i − θ_c, θ_i after its local training."""
    norm: float
    """‖Δ_i‖ over all trained entries."""
    num_examples: float
    general: str = ""
    """The inner cluster whose model it trained, see `CFL.also_trains`; empty: its own model."""


@dataclass(frozen=True)
class CFLState:
    """Everything the algorithm carries from one round to the next."""

    tree: ParameterTree
    known: Mapping[str, KnownUpdate] = field(default_factory=dict)
    habits: Mapping[str, Habit] = field(default_factory=dict)
    """How long each member's updates usually are."""
    moves: tuple[Move, ...] = ()
    """All that there were."""


class RoundResult(NamedTuple):
    """The state after a round and what was decided in it."""

    state: CFLState
    decisions: tuple[Decision, ...]
    """One a leaf that there was at the start of the round, then one a split on trial."""
    forks: Mapping[str, Fork]
    """The step of each unassigned client (Algorithm 4)."""


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

    def also_trains(self, tree: ParameterTree, client: str, server_round: int) -> Cluster | None:
        """The inner cluster whose model a client trains in this round beside its own, if any.

        That of a split on trial; else, in every `inner_interval`-th round, those on its path take
        turns, so that a client never trains more than two models in a round.
        """
        if client in tree.unassigned:
            return None
        above = tree.path(tree.leaf_of(client).name)[:-1]
        if on_trial := [cluster for cluster in above if cluster.on_trial]:
            return on_trial[0]
        split = [cluster for cluster in above if cluster.split_round is not None]
        if not split or not self.inner_interval or server_round % self.inner_interval:
            return None
        return split[server_round // self.inner_interval % len(split)]

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
            `also_trains` names.
        server_round : int
            Counted from 1.
        excluded : container of str
            Members that are never heard from again: no split waits for them.
        """
        tree, known, forks = state.tree, dict(state.known), {}
        habits, moves = dict(state.habits), list(state.moves)
        means = WeightedMean({name: c.grown.model for name, c in tree.clusters.items()})
        lengths: dict[str, list[float]] = {}
        origins = {name: self.projection.keep(c.model.trained) for name, c in tree.clusters.items()}
        for reply in replies:
            if reply.general:
                means.add(reply.general, reply.update, self._weight(reply))
                lengths.setdefault(reply.general, []).append(reply.norm)
                continue
            start = tree.training_cluster(reply.client)
            heard = KnownUpdate(
                server_round,
                self.projection.keep(reply.update.trained),
                reply.norm,
                reply.num_examples,
                origins[start.name],
            )
            if reply.client in tree.unassigned:
                if is_moving(reply.client, tree, moves):
                    tree = self._walk(tree, reply.client, self._seen(heard), server_round, moves)
                else:
                    tree, forks[reply.client] = tree.assign_step(reply.client, self._seen(heard))
            else:
                known[reply.client] = heard
                means.add(start.name, reply.update, self._weight(heard))
        if self.moving:
            tree = self._call_back(state.tree, tree, known, habits, moves, server_round)
        decisions = []
        for leaf in tree.leaves:
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
            if leaf.name == ROOT and tree.root.is_leaf and ROOT in unassigned.values():
                tree, decisions[-1] = self._open_root(
                    leaf, tree, known, fresh, habits, decision, server_round, moves
                )
        for name in lengths:
            learned = self._follow(tree.clusters[name].grown, means.mean(name))
            tree = tree.update(learned_on(tree.clusters[name], learned))
        for name in in_order(state.tree.clusters):
            cluster = state.tree.clusters[name]
            if cluster.trial is None or not cluster.on_trial:
                continue
            reason = (
                f"its model learns on beside {' and '.join(cluster.children)}; the clients judge "
                f"in round {cluster.trial.until}"
            )
            mean_norm, longest = norm(means.mean(name).trained), max(lengths.get(name, [0.0]))
            decisions.append(
                Decision(name, server_round, Outcome.ON_TRIAL, reason, mean_norm, longest)
            )
        for client in tree.unassigned:
            if is_moving(client, tree, moves):
                known.pop(client, None)  # of a model that is not its own any more
        return RoundResult(CFLState(tree, known, habits, tuple(moves)), tuple(decisions), forks)

    def judged(
        self,
        result: RoundResult,
        compared: Mapping[str, Sequence[Comparison]],
        measures: Sequence[Measure],
    ) -> RoundResult:
        """The round after its clients have judged splits: these are confirmed or taken back.

        Parameters
        ----------
        result : RoundResult
            Of `run_round`.
        compared : mapping of str to sequence of Comparison
            What the clients of each split cluster found.
        measures : sequence of Measure
            The metrics to go by, the leading one first.
        """
        tree, decisions = result.state.tree, list(result.decisions)
        for i, decision in enumerate(decisions):
            cluster = tree.clusters.get(decision.cluster)
            if decision.cluster not in compared or cluster is None or cluster.trial is None:
                continue
            finding = judge(compared[decision.cluster], measures)
            trial = cluster.trial._replace(
                until=decision.server_round,
                standing=Standing.CONFIRMED if finding.confirmed else Standing.UNDONE,
                reason=finding.reason,
            )
            tree = (
                tree.update(replace(cluster, trial=trial, memory={}))
                if finding.confirmed
                else tree.rejoined(cluster.name, decision.server_round, trial)
            )
            decisions[i] = replace(
                decision,
                outcome=Outcome.CONFIRMED if finding.confirmed else Outcome.UNDONE,
                reason=finding.reason,
                figures=finding.figures,
            )
        return result._replace(state=replace(result.state, tree=tree), decisions=tuple(decisions))

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
        heard_all = all(update.server_round == server_round for update in fresh.values())
        evidence = Evidence(
            cluster=leaf.name,
            server_round=server_round,
            num_members=len(settled),
            clients=tuple(fresh),
            vectors=tuple(self._seen(update) for update in fresh.values()),
            norms=np.array([update.norm for update in fresh.values()]),
            weights=self._weights(fresh),
            mean_norm=norm(mean.trained if heard_all else self._mean(fresh)),
            rounds=np.array([update.server_round for update in fresh.values()], dtype=int),
        )
        if not len(mean.trained):
            reason = "no member was heard from in this round"
            return verdict(evidence, Outcome.TOO_FEW_HEARD, reason), [leaf]
        decision, memory = self.criterion.decide(evidence, leaf.memory)
        if decision.outcome is Outcome.SPLIT:
            decision = self._held(decision, leaf, tree)
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

    def _call_back(
        self,
        before: ParameterTree,
        tree: ParameterTree,
        known: Mapping[str, KnownUpdate],
        habits: dict[str, Habit],
        moves: list[Move],
        server_round: int,
    ) -> ParameterTree:
        """The members that have changed go back to the root, to walk down from there."""
        for leaf in before.leaves:
            norms = {
                name: known[name].norm
                for name in leaf.members
                if name not in before.unassigned
                and name in known
                and known[name].server_round == server_round
            }
            after, changed = watch(habits, leaf.name, norms)
            habits.update(after)
            for client, reason in changed.items():
                del habits[client]
                tree = tree.called_back(client)
                home = tree.clusters[leaf.name]
                if forget := getattr(self.criterion, "without", None):
                    tree = tree.update(replace(home, memory=forget(home.memory, client)))
                moves.append(Move(server_round, client, leaf.name, ROOT, reason))
        return tree

    def _walk(
        self,
        tree: ParameterTree,
        client: str,
        vector: Vector,
        server_round: int,
        moves: list[Move],
    ) -> ParameterTree:
        """Algorithm 4 for a client that changed: one step down, or a branch of its own."""
        where, left = tree.unassigned[client], tree.leaf_of(client)
        if tree.clusters[where].on_trial:
            return tree
        edges = {child: tree.clusters[child].edge for child in tree.clusters[where].children}
        fork = tree.fork(where, vector)
        bar = resembles(edges)
        told = f"its similarity to {fork.child} is {fork.similarities[fork.child]:.2f}"
        if fork.similarities[fork.child] > bar:
            tree, _ = tree.assign_step(client, vector)
            name = tree.unassigned.get(client, fork.child)
            back = "it belongs where it was" if name == left.name else "it belongs there now"
            reason = f"{told}, above {bar:.2f}: {back}"
        else:
            name = tree.next_child(where)
            branch = replace(
                left,
                name=name,
                members=(),
                born=server_round,
                edge={client: vector},
                memory={},
                undone=(),
            )
            tree = tree.branched(client, branch)
            reason = f"{told}, not above {bar:.2f}: it resembles nobody, and goes on alone"
        moves.append(Move(server_round, client, left.name, name, reason))
        return tree

    def _open_root(
        self,
        leaf: Cluster,
        tree: ParameterTree,
        known: Mapping[str, KnownUpdate],
        fresh: Mapping[str, KnownUpdate],
        habits: dict[str, Habit],
        decision: Decision,
        server_round: int,
        moves: list[Move],
    ) -> tuple[ParameterTree, Decision]:
        """The first that changed, where the root is the only leaf: it and the others part."""
        name = tree.next_child(ROOT)
        stay = replace(
            tree.root,
            name=name,
            edge={client: self._seen(update) for client, update in fresh.items()},
            undone=(),
        )
        root = replace(
            leaf, members=tree.root.members, children=(name,), split_round=server_round, memory={}
        )
        tree = tree.update(root, stay)
        for client, habit in habits.items():
            habits[client] = habit._replace(leaf=name)
        for client in tree.unassigned:
            tree = self._walk(tree, client, self._seen(known[client]), server_round, moves)
        children = tree.root.children
        sides = tuple(tree.clusters[child].members for child in children)
        reason = f"changed: {' and '.join(c for side in sides[1:] for c in side)}"
        return tree, replace(
            decision, outcome=Outcome.SPLIT, sides=sides, children=children, reason=reason
        )

    @staticmethod
    def _held(decision: Decision, leaf: Cluster, tree: ParameterTree) -> Decision:
        """A split that the criterion wants, put off where it cannot be made now."""
        parent = tree.parent(leaf.name)
        if parent is not None and parent.on_trial:
            reason = f"would split, but {parent.name}, which it comes from, is still on trial"
            return replace(decision, outcome=Outcome.PUT_OFF, reason=reason, sides=())
        if why := not_again(leaf.undone, decision.sides, decision.server_round):
            return replace(decision, outcome=Outcome.PUT_OFF, reason=why, sides=())
        return decision

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
        if not updates:
            return np.zeros(0)
        total = np.zeros(len(next(iter(updates.values())).vector))
        for weight, known in zip(self._weights(updates), updates.values(), strict=True):
            total += weight * known.vector
        return total

    def _weights(self, updates: Mapping[str, KnownUpdate]) -> Vector:
        """w_i of these clients, shape (m,), summing to 1."""
        weights = np.array([self._weight(known) for known in updates.values()])
        return weights / weights.sum() if len(weights) else weights

    def _weight(self, update: KnownUpdate | Reply) -> float:
        """w_i before normalisation."""
        return update.num_examples if self.weighting == "examples" else 1.0

    def _seen(self, known: KnownUpdate) -> Vector:
        """The part of an update that similarity sees, shape (k,)."""
        return self.projection.seen(known.vector)


def is_moving(client: str, tree: ParameterTree, moves: Iterable[Move]) -> bool:
    """Whether a client on its way down the tree once had a place, and was called back."""
    last = [move for move in moves if move.client == client][-1:]
    return client in tree.unassigned and any(tree.clusters[m.target].children for m in last)


def learned_on(cluster: Cluster, learned: Cluster) -> Cluster:
    """A split cluster whose model has learned on; θ*_v stays."""
    return replace(
        cluster, general=learned.model, optimizer=learned.optimizer, rounds=learned.rounds
    )


def first_in_order(side: tuple[str, ...]) -> tuple[tuple[int, int, str], ...]:
    """Sort key of a side: its first client, so that children's names do not depend on chance."""
    return min(natural_order(name) for name in side)


def is_fresh(known: KnownUpdate | None, born: int, here: Vector) -> bool:
    """Whether a member's last known update still speaks about its cluster's model.

    It does when it was computed after the cluster was born, and the model has since moved by
    no more than the update's own length. This is what "heard from since the model last moved
    far" means; it has no unit, so it needs no setting.

    Parameters
    ----------
    known : KnownUpdate or None
    born : int
        The round whose end made the cluster.
    here : ndarray
        What is kept of the cluster's model now.
    """
    if known is None or known.server_round <= born:
        return False
    return known.origin is here or norm(here - known.origin) <= known.norm


def norm(vector: Vector) -> float:
    """Euclidean norm as a plain number; infinite where the precision does not hold it.

    >>> norm(np.array([3.0, 4.0])), norm(np.float32([3e38, 3e38]))
    (5.0, inf)
    """
    with np.errstate(over="ignore"):
        return float(np.linalg.norm(vector))
