"""Clustered Federated Learning, server side (Algorithm 5): asks to the clients and their replies.

Sattler, Müller, Samek, arXiv 1910.01991. `CFL.asks` and `CFL.heard` are the whole interface; both
are pure: state in, state out.

Differences from the paper: after a split each child starts from the parent's model plus the mean
update of its own members, as the authors' code does (Algorithm 5 leaves it open); where updates are
only kept as projections, and for entries that are not trained, it starts from the mean over the
whole parent. Members may be absent; `KnownUpdate.is_fresh` defines which updates count. The model
may follow the mean update by other rules than eq. 2 (`ServerOptimizer`). Splits may go on trial and
leaves may be joined (`cflower.algorithm.proposals`), split clusters may go on learning, and members
may move (`cflower.algorithm.moves`).
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, zip_longest
from typing import Literal, NamedTuple

import numpy as np

from cflower.algorithm import moves, personal, proposals
from cflower.algorithm.aggregation import TrimmedMean, WeightedMean, trimmed_mean
from cflower.algorithm.criteria import Criterion, Decision, Evidence, Outcome, verdict
from cflower.algorithm.optimizers import ServerOptimizer
from cflower.algorithm.paired_comparison import Measure
from cflower.algorithm.placement import Branches
from cflower.algorithm.projection import Projection
from cflower.algorithm.state import Ask, CFLState, Judging, KnownUpdate, Reply, Role
from cflower.algorithm.tree import ROOT, Cluster, ParameterTree, Proposal
from cflower.algorithm.weights import Vector, Weights, norm
from cflower.errors import ConfigError
from cflower.ordering import in_order, listed, natural_order, only, without

Weighting = Literal["examples", "uniform"]
WEIGHTINGS: tuple[Weighting, ...] = ("examples", "uniform")


class RoundResult(NamedTuple):
    """The result of `CFL.heard`."""

    state: CFLState
    decisions: tuple[Decision, ...]
    """One for each leaf at the start of the round, then one for each split on trial."""
    asks: tuple[Ask, ...] = ()
    """Of proposals: the replies go into a further call, which ends the round or asks again."""


@dataclass
class Received:
    """The replies of a round, summed."""

    means: dict[str, Weights] = field(default_factory=dict)
    """The mean update of each cluster with replies (eq. 2)."""
    longest: dict[str, float] = field(default_factory=dict)
    """Largest update norm of each split cluster that goes on learning."""
    general: dict[str, dict[str, Vector]] = field(default_factory=dict)
    """Updates of these clusters' models as similarity sees them, by cluster and client."""
    places: dict[str, Vector] = field(default_factory=dict)
    """Updates that show the place of a client, by client."""


@dataclass(frozen=True)
class CFL:
    """The fixed parts of the algorithm."""

    criterion: Criterion
    projection: Projection
    optimizer: ServerOptimizer = field(default_factory=ServerOptimizer)
    weighting: Weighting = "examples"
    """w_i: |D_i|/|D_c| (eq. 2) or 1/|c| (Algorithm 5)."""
    as_sent: Callable[[Weights], Weights] = lambda weights: weights
    """Rounds a new model to the precision that clients receive (integers, half precision)."""
    trial_rounds: int = 0
    """Rounds after a split until the clients judge it; 0: splits are final."""
    moving: bool = False
    """Whether members with changed data move to other leaves."""
    inner_interval: int = 0
    """Split clusters go on learning in every so many-th round; 0: they do not."""
    personal: bool = False
    """Whether the run ends with the personal step (`cflower.algorithm.personal`)."""
    metric: Measure = Measure()
    """The metric by which clients judge proposals, next to their loss."""
    trim: float = 0.0
    """Share of each coordinate's values that is left out of the mean at each end, where weights do
    not count (`trimmed_mean`); 0: none, and the mean is weighted."""

    # ------------------------------------------------------------------------- the asks

    def asks(
        self, state: CFLState, server_round: int, clients: Iterable[str] | None = None
    ) -> tuple[Ask, ...]:
        """The training of a round, counted from 1: one ask for each client, and at most one more.

        ``clients`` are those that take part; all members if not given.
        """
        tree, first, general, places = state.tree, [], [], []
        for client in tree.clients if clients is None else clients:
            if client in tree.unassigned:
                first.append(Ask(client, tree.unassigned[client], Role.PLACE, server_round))
                continue
            leaf = tree.leaf_of(client).name
            first.append(Ask(client, leaf, Role.OWN, server_round))
            if place_at := moves.place_at(state, client):
                places.append(Ask(client, place_at, Role.PLACE, server_round))
            elif above := self._learning_above(tree, leaf, server_round):
                general.append(Ask(client, above, Role.GENERAL, server_round))
        return (*first, *general, *places)

    def _learning_above(self, tree: ParameterTree, leaf: str, server_round: int) -> str:
        """The split cluster that learns from a leaf's members in a round; empty if none does.

        The one on trial; else, in every `inner_interval`-th round, those on the path take turns.
        """
        above = [cluster for cluster in tree.path(leaf)[:-1] if cluster.split_round is not None]
        for cluster in above:
            if cluster.on_trial:
                return cluster.name
        if not above or not self.inner_interval or server_round % self.inner_interval:
            return ""
        return above[server_round // self.inner_interval % len(above)].name

    def too_late(self, state: CFLState, reply: Reply) -> str:
        """Why a late reply cannot be used; empty if it can.

        It can if its client still trains that cluster's model. It can also place a client that the
        cluster's split left out, as long as the model it trained was near θ*.
        """
        (client, name, role, asked, *_), tree = reply.ask, state.tree
        if name not in tree.clusters:
            return f"cluster {name} was joined again"
        here = tree.training_cluster(client)
        if role is Role.GENERAL or name != here.name:
            return f"the client trains the model of {here.name} now, not that of {name}"
        if here.is_leaf and here.born >= asked:
            return f"cluster {name} was split and joined again"
        assert reply.origin is not None
        if not here.is_leaf and norm(reply.origin.trained - here.model.trained) > reply.norm:
            return f"the model of {name} had moved on before it was split"
        return ""

    # ---------------------------------------------------------------------- the replies

    def heard(
        self,
        state: CFLState,
        replies: Iterable[Reply],
        server_round: int,
        excluded: Container[str] = (),
        *,
        last: bool = False,
    ) -> RoundResult:
        """The state after the clients' replies: to training, or to the asks of proposals.

        ``replies`` come in an order that does not depend on chance, and rounds are counted from 1.
        No decision waits for ``excluded`` members. In the ``last`` round the clients judge every
        split that is on trial.
        """
        if state.judging is None:
            return self.run_round(state, replies, server_round, excluded, last=last)
        if state.judging.chains:
            state, asks = personal.heard(state, replies, self.metric, self.as_sent)
            return RoundResult(state, (), asks)
        again = 0 if last else self.trial_rounds
        state, decisions = proposals.settled(state, replies, self.metric, again)
        return RoundResult(state, decisions)

    def personalised(self, state: CFLState, server_round: int) -> RoundResult:
        """The personal steps after the last round; `heard` takes the replies, and asks again."""
        state, asks = personal.proposed(state, server_round)
        return RoundResult(state, (), asks)

    def run_round(
        self,
        state: CFLState,
        replies: Iterable[Reply],
        server_round: int,
        excluded: Container[str] = (),
        *,
        last: bool = False,
    ) -> RoundResult:
        """Algorithm 5, server side: aggregate, place, decide and split, propose."""
        before, due = state.tree, server_round + (0 if last else self.trial_rounds)
        state, received = self._received(state, replies, server_round)  # Σ w_i Δ_i of eq. 2
        state = self._placed(state, received.places, server_round)  # Algorithm 4
        if self.moving:
            state = moves.watched(state, server_round)
        decisions = []
        for name in [leaf.name for leaf in before.leaves]:
            leaf, mean = state.tree.clusters[name], received.means.get(name)
            evidence = self._evidence(state, leaf, mean, server_round, excluded)
            state, decision = self._decided(state, leaf, evidence, mean, due)
            decisions.append(decision)
        state = self._learned_on(state, received)
        for trial in open_trials(state.tree if last else before):
            until = due if last else trial.due
            decisions.append(self._on_trial(trial.cluster, until, received, server_round))
        if self.moving:
            suspects = without(received.places, before.unassigned)
            state = moves.checked(state, suspects, server_round)
        return self._propose(state, received, tuple(decisions), server_round, last=last)

    def _received(
        self, state: CFLState, replies: Iterable[Reply], server_round: int
    ) -> tuple[CFLState, Received]:
        """The replies, each used once, so that they can be read one after another."""
        tree, known = state.tree, dict(state.known)
        models = {cluster.name: cluster.grown.model for cluster in tree.clusters.values()}
        received, empty = Received(), partial(TrimmedMean, self.trim) if self.trim else WeightedMean
        sums = defaultdict[str, WeightedMean | TrimmedMean](empty)
        origins = {c.name: self.projection.project(c.model.trained) for c in tree.clusters.values()}
        for reply in replies:
            assert reply.update is not None and reply.kept is not None
            name, seen = reply.ask.cluster, self.projection.seen(reply.kept)
            if reply.ask.role is Role.PLACE or reply.client in tree.unassigned:
                received.places[reply.client] = seen
            elif reply.ask.role is Role.GENERAL:
                sums[name].add(reply.update, self._weight(reply))
                received.longest[name] = max(reply.norm, received.longest.get(name, 0.0))
                received.general.setdefault(name, {})[reply.client] = seen
            else:
                origin, staleness = origins[name], 0.0
                if late := reply.origin:
                    origin = self.projection.project(late.trained)
                    # Staleness and its price as in AsyncFedED (Wang et al., arXiv 2205.13797).
                    staleness = norm(models[name].trained - late.trained) / (reply.norm or 1.0)
                update = reply.kept, reply.norm, reply.num_examples, origin, reply.share, staleness
                known[reply.client] = KnownUpdate(server_round, *update)
                scale = 1 / (1 + staleness)
                sums[name].add(reply.update, self._weight(reply), scale)
        received.means = {name: sums.pop(name).mean() for name in [*sums]}
        return replace(state, known=known), received

    def _placed(self, state: CFLState, places: Mapping[str, Vector], server_round: int) -> CFLState:
        """Algorithm 4: every unassigned client that replied goes one level down."""
        unassigned, moved = state.tree.unassigned, {move.client for move in state.moves}
        places = only(places, unassigned)
        clusters = set(only(unassigned, places).values())
        branches = {name: Branches.of(state.tree, name) for name in clusters}
        placed = {c: branches[unassigned[c]].place(update) for c, update in places.items()}
        # A member that a split left out is of one of its groups, also if it had never trained; a
        # newcomer may be of none, and so may a member with changed data.
        above = chain.from_iterable(map(state.tree.path, clusters))
        members = {*state.known} | {c for cluster in above for c in cluster.left_out} - moved
        familiar = {
            client: step.child
            for client, step in placed.items()
            if client in members or (step.familiar and client not in moved)
        }
        state = replace(state, tree=state.tree.descended(familiar))
        for client in without(placed, familiar):
            # Once more: it may resemble another client that has just begun a leaf of its own.
            placed[client] = Branches.of(state.tree, unassigned[client]).place(places[client])
            state = moves.stepped(state, client, places[client], placed[client], server_round)
        return replace(state, placed=placed)

    def _evidence(
        self,
        state: CFLState,
        leaf: Cluster,
        mean: Weights | None,
        server_round: int,
        excluded: Container[str],
    ) -> Evidence:
        """The members' fresh updates; the mean norm is that of the updates that are not late."""
        here, unassigned = self.projection.project(leaf.model.trained), state.tree.unassigned
        assigned = without(dict.fromkeys(leaf.members), unassigned)
        members = tuple(without(assigned, excluded))
        known = only(state.known, members)
        fresh = {c: update for c, update in known.items() if update.is_fresh(leaf.born, here)}
        rounds = np.array([update.server_round for update in fresh.values()], dtype=int)
        timely = {c: update for c, update in fresh.items() if not update.staleness} or fresh
        mean_update = mean.trained if mean else np.zeros(0)
        if np.any(rounds != server_round) or len(timely) < len(fresh):
            mean_update = self._mean(timely)
        vectors, output = [update.vector for update in fresh.values()], self.projection.output
        return Evidence(
            cluster=leaf.name,
            server_round=server_round,
            members=members,
            clients=tuple(fresh),
            vectors=tuple(map(self.projection.seen, vectors)),
            norms=np.array([update.norm for update in fresh.values()]),
            weights=self._weights(fresh),
            mean_norm=norm(mean_update),
            rounds=rounds,
            outputs=tuple(map(output.rows, vectors)) if output else (),
        )

    def _decided(
        self, state: CFLState, leaf: Cluster, evidence: Evidence, mean: Weights | None, due: int
    ) -> tuple[CFLState, Decision]:
        """The leaf split, if the criterion decides so (eqs. 32, 33, 39), or moved by the mean.

        In an unsplit root, members with changed data may also leave.
        """
        if mean is None:
            reason = "no member replied in this round"
            return state, verdict(evidence, Outcome.TOO_FEW_HEARD, reason)
        decision, memory = self.criterion.decide(evidence, dict(leaf.memory))
        if self.moving and leaf.name == ROOT and decision.outcome is not Outcome.SPLIT:
            decision = moves.leaving(state, evidence.clients, decision)
        if decision.outcome is Outcome.SPLIT:
            decision = proposals.postponed(decision, leaf, state.tree)
        leaf = replace(leaf, memory=memory)
        if decision.outcome is Outcome.SPLIT:
            return self._split(state, leaf, decision, evidence, mean, due)
        return replace(state, tree=state.tree.update(self._follow(leaf, mean))), decision

    def _split(
        self,
        state: CFLState,
        leaf: Cluster,
        decision: Decision,
        evidence: Evidence,
        mean: Weights,
        due: int,
    ) -> tuple[CFLState, Decision]:
        """Algorithm 1: the leaf as a split cluster with its stationary model θ*, and its children.

        The clients judge a split on trial in the round ``due``. Members without a child count to
        the largest one, and Algorithm 4 places them, from this split on, with their next update.
        """
        now = decision.server_round
        sides = zip_longest(decision.sides, decision.unsure, fillvalue=())
        parts = sorted(sides, key=lambda part: min(map(natural_order, part[0])))
        placed = [client for part in parts for side in part for client in side]
        self._refuse_twice(placed, leaf)
        others = tuple(without(dict.fromkeys(leaf.members), placed))
        largest = max(range(len(parts)), key=lambda i: len(parts[i][0]))
        number = int(leaf.next_child.rpartition(".")[2])
        memory = self.criterion.inherit(dict(leaf.memory))
        children = [
            replace(
                self._follow(leaf, self._mean_of(state, side, evidence, mean)),
                name=f"{leaf.name}.{number + i}",
                members=in_order((*side, *near, *(others if i == largest else ()))),
                born=now,
                edge={c: self.projection.seen(state.known[c].vector) for c in side},
                memory=memory,
                undone=(),
            )
            for i, (side, near) in enumerate(parts)
        ]
        names = tuple(child.name for child in children)
        parent = replace(leaf, children=names, split_round=now, memory={}, left_out=others)
        if self.trial_rounds:
            trial = Proposal(leaf.name, now, due, decision.sides)
            parent = replace(self._learned(parent, mean), trial=trial, memory=memory)
            reason = f"{decision.reason}; on trial until round {due}"
            decision = replace(decision, reason=reason)
        unassigned = {**dict.fromkeys(others, leaf.name), **state.tree.unassigned}
        tree = state.tree.update(parent, *children, unassigned=unassigned)
        return replace(state, tree=tree), replace(decision, children=names)

    def _refuse_twice(self, placed: list[str], leaf: Cluster) -> None:
        """Raise a ConfigError for a criterion that put a member on two sides of a split."""
        if twice := in_order(client for client, times in Counter(placed).items() if times > 1):
            raise ConfigError(
                f"The criterion {self.criterion!r} puts {listed(twice)} on two sides of a split of "
                f"cluster {leaf.name}: expected each member on one side at most."
            )

    def _learned_on(self, state: CFLState, received: Received) -> CFLState:
        """The state with the split clusters that learned in this round; their θ* stay."""
        clusters = only(state.tree.clusters, received.longest)
        learned = [self._learned(c, received.means[name]) for name, c in clusters.items()]
        return replace(state, tree=state.tree.update(*learned))

    def _on_trial(self, name: str, due: int, received: Received, server_round: int) -> Decision:
        """The decision on a split that was on trial in this round."""
        reason, mean = f"the clients judge in round {due}", received.means.get(name)
        norms = norm(mean.trained) if mean else 0.0, received.longest.get(name, 0.0)
        return Decision(name, server_round, Outcome.ON_TRIAL, reason, *norms)

    def _propose(
        self,
        state: CFLState,
        received: Received,
        decisions: tuple[Decision, ...],
        server_round: int,
        *,
        last: bool,
    ) -> RoundResult:
        """The proposals that the clients judge now: new starts, splits that are due, joins."""
        trials = open_trials(state.tree)
        due = [t._replace(due=server_round) for t in trials if last or t.due <= server_round]
        if self.moving and self.trial_rounds:
            starts = moves.new_starts(state, server_round)
            due = [*starts, *due, *self._joins(state, received.general, server_round)]
        if not due:
            return RoundResult(state, decisions)
        state = replace(state, judging=Judging(tuple(due), decisions))
        return RoundResult(state, decisions, proposals.judges(state.tree, due))

    def _joins(
        self, state: CFLState, updates: Mapping[str, Mapping[str, Vector]], server_round: int
    ) -> Iterator[Proposal]:
        """Joins of two leaves each, with the mean of their models for both."""
        for pair in proposals.similar_leaves(state.tree, updates):
            known = (only(state.known, leaf.members).values() for leaf in pair)
            weights, mean = [sum(map(self._weight, some)) for some in known], WeightedMean()
            if all(weights):  # updates of both leaves are known
                for leaf, weight in zip(pair, weights, strict=True):
                    mean.add(leaf.model, weight)
                parts, leaves = zip(*((leaf.members, leaf.name) for leaf in pair), strict=True)
                join = Proposal(pair[0].parent, server_round, server_round, parts, leaves=leaves)
                yield join._replace(common=self.as_sent(mean.mean()))

    def _learned(self, cluster: Cluster, mean: Weights) -> Cluster:
        """A split cluster with its general model moved by a mean update."""
        learned = self._follow(cluster.grown, mean)
        return replace(
            cluster, general=learned.model, optimizer=learned.optimizer, rounds=learned.rounds
        )

    def _follow(self, cluster: Cluster, mean: Weights) -> Cluster:
        """The cluster with its model moved by a mean update (eq. 2)."""
        trained, optimizer = self.optimizer.step(
            cluster.model.trained, mean.trained, cluster.optimizer
        )
        model = self.as_sent(Weights(trained, cluster.model.carried + mean.carried))
        return replace(cluster, model=model, optimizer=optimizer, rounds=cluster.rounds + 1)

    def _mean_of(
        self, state: CFLState, side: tuple[str, ...], evidence: Evidence, mean: Weights
    ) -> Weights:
        """The mean update of a side's members; the whole cluster's if only projections are kept."""
        fresh = only(only(state.known, side), evidence.clients)
        if not fresh or not self.projection.keeps_all:
            return mean
        return mean._replace(trained=self._mean(fresh))

    def _mean(self, updates: Mapping[str, KnownUpdate]) -> Vector:
        """Σ w_i Δ_i over these clients, or its projection; their trimmed mean with `trim`."""
        if self.trim:
            vectors = [self.projection.projected(known.vector) for known in updates.values()]
            return trimmed_mean(vectors, self.trim)
        total = np.zeros(len(next(iter(updates.values())).vector))
        for weight, known in zip(self._weights(updates), updates.values(), strict=True):
            total += weight * known.vector
        return self.projection.projected(total)

    def _weights(self, updates: Mapping[str, KnownUpdate]) -> Vector:
        """w_i of these clients, shape (m,), summing to 1."""
        weights = np.array(list(map(self._weight, updates.values())))
        return np.asarray(weights / weights.sum())

    def _weight(self, update: KnownUpdate | Reply) -> float:
        """w_i before normalisation."""
        return self.weight_of(update.num_examples) * update.share

    def weight_of(self, num_examples: float) -> float:
        """w_i before normalisation, if all of it counts."""
        return num_examples if self.weighting == "examples" and not self.trim else 1.0


def open_trials(tree: ParameterTree) -> list[Proposal]:
    """The splits that are on trial, in natural order of the clusters' names."""
    clusters = map(tree.clusters.__getitem__, in_order(tree.clusters))
    return [cluster.trial for cluster in clusters if cluster.trial and cluster.on_trial]
