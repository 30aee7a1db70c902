"""Clustered Federated Learning, server side (Algorithm 5): asks to the clients and their replies.

Sattler, Müller, Samek, arXiv 1910.01991. `CFL.asks` and `CFL.heard` are the whole interface; both
are pure: state in, state out.

Differences from the paper: after a split each child starts from the parent's model plus the mean
update of its own members, as the authors' code does (Algorithm 5 leaves it open); where updates are
only kept as projections, and for entries that are not trained, it starts from the mean over the
whole parent. Members may be absent; `KnownUpdate.is_fresh` defines which updates count. The model
may follow the mean update by other rules than eq. 2 (`ServerOptimizer`). A newcomer that resembles
no cluster gets one of its own. Everything else that goes beyond the paper is a `Change`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from math import inf
from typing import Literal

import numpy as np

from cflower.algorithm.aggregation import Aggregator, Average
from cflower.algorithm.change import Change, Questions
from cflower.algorithm.criteria import Criterion, Decision, Evidence, Outcome, check_sides, verdict
from cflower.algorithm.layers import (
    OUTPUT_SHARE,
    disagreement,
    parted_where_opposed,
    with_body_of,
    with_common_bodies,
    with_common_updates,
)
from cflower.algorithm.means import Mean, RoundMeans
from cflower.algorithm.middle import Middle
from cflower.algorithm.optimizers import ServerOptimizer
from cflower.algorithm.projection import Projection
from cflower.algorithm.state import (
    Ask,
    CFLState,
    Division,
    KnownUpdate,
    Reply,
    Role,
    RoundResult,
    Training,
)
from cflower.algorithm.steps import placed
from cflower.algorithm.tree import Cluster
from cflower.algorithm.weights import Rounding, Vector, Weights, norm
from cflower.metric import Metric
from cflower.ordering import in_order, natural_order, only, without

Weighting = Literal["examples", "uniform"]
WEIGHTINGS: tuple[Weighting, ...] = ("examples", "uniform")


@dataclass(frozen=True)
class CFL:
    """The fixed parts of the algorithm."""

    criterion: Criterion
    projection: Projection
    optimizer: ServerOptimizer = field(default_factory=ServerOptimizer)
    weighting: Weighting = "examples"
    """w_i: |D_i|/|D_c| (eq. 2) or 1/|c| (Algorithm 5)."""
    as_sent: Rounding = lambda weights: weights
    changes: tuple[Change, ...] = ()
    """What goes beyond the paper."""
    budget: float = inf
    """Models that clients may evaluate for questions in the whole run."""
    all_train_after: float = inf
    """The round after which clients also train with the examples that decide, unless they are asked
    something in the round to come."""
    last_round: float = inf
    """The last round of the run, after which it is too late to ask anything."""
    middle: bool = False
    """Whether entries that are not trained become the middle ones of those sent (`Middle`), where
    one client counts for no more than another; else they are averaged like the others."""
    metric: Metric = Metric()
    """The metric by which clients compare models, next to their loss."""
    body: int = 0
    """Number of trained entries that stay common after a split, those before the output layer; 0: a
    split parts all layers."""
    aggregator: Aggregator = Average()
    """How the updates of a cluster become one."""

    def asks(
        self, state: CFLState, server_round: int, clients: Iterable[str] | None = None
    ) -> tuple[Ask, ...]:
        """The training of a round, counted from 1: one ask for each client, or what changes need.

        ``clients`` are those that take part; all members if not given.
        """
        tree, asks = state.tree, list[Ask]()
        for client in tree.clients if clients is None else clients:
            role = Role.PLACE if client in tree.unassigned else Role.OWN
            asks.append(Ask(client, tree.training_cluster(client).name, role, server_round))
        for change in self.changes:
            asks = change.asked(state, asks)
        return tuple(asks)

    def heard(
        self,
        state: CFLState,
        replies: Iterable[Reply],
        server_round: int,
        *,
        last: bool = False,
    ) -> RoundResult:
        """The state after the clients' replies: to training, or to the questions after it.

        ``replies`` come in a reproducible order, and rounds are counted from 1. ``last`` is the
        last round of a run.
        """
        if state.pending is None:
            trainings = (reply for reply in replies if isinstance(reply, Training))
            return self.run_round(state, trainings, server_round, last=last)
        return state.pending.answered(state, replies, self.metric, self.as_sent)

    def run_round(
        self,
        state: CFLState,
        replies: Iterable[Training],
        server_round: int,
        *,
        last: bool = False,
    ) -> RoundResult:
        """Algorithm 5, server side: aggregate, place, decide and split."""
        leaves, decisions = state.tree.leaves, list[Decision]()
        origins = {leaf.name: self.projection.project(leaf.model.trained) for leaf in leaves}
        # Σ w_i Δ_i of eq. 2
        state, means, places = self._received(state, origins, replies, server_round)
        tree = parted_where_opposed(state.tree, means, self.body)
        means = with_common_updates(tree, means, self.body)
        state = replace(state, groups={}, tree=tree)
        state = placed(state, places, server_round)  # Algorithm 4
        for change in self.changes:
            state = change.observed(state, server_round)
        for name, origin in origins.items():
            leaf, mean = state.tree.clusters[name], means.get(name)
            evidence = self._evidence(state, leaf, origin, mean, server_round)
            state, decision = self._decided(state, leaf, evidence, mean)  # eqs. 32, 33, 39
            decisions.append(decision)
        state = replace(state, tree=with_common_bodies(state.tree, means, self.body))
        for change in self.changes:
            state = change.followed(state, decisions, places)
        proposals = [*chain(*(c.proposed(state, server_round, last=last) for c in self.changes))]
        asked = (change.will_ask(state, decisions, server_round) for change in self.changes)
        held_out = server_round + 1 < self.last_round and any(asked)
        all_train = server_round >= self.all_train_after and not held_out
        state = replace(state, divisions={}, all_train=all_train)
        return Questions.within(self.budget, state, server_round, proposals, tuple(decisions))

    def _received(
        self,
        state: CFLState,
        origins: Mapping[str, Vector],
        replies: Iterable[Training],
        server_round: int,
    ) -> tuple[CFLState, dict[str, Mean], dict[str, Vector]]:
        """The leaves' mean updates, and the updates that show the place of a client, by name.

        Each reply is used once, so that they can be read one after another. ``origins`` are the
        leaves' models as `Projection.project` shortens them.
        """
        tree, known = state.tree, dict(state.known)
        sums = RoundMeans(self.aggregator.empty, state.groups)
        sent, places = dict[str, Middle](), dict[str, Vector]()
        # What is not trained belongs to the body, so to all members of the leaves that share it.
        for leaves in tree.bodies.values() if self.middle else ():
            sent |= dict.fromkeys((leaf.name for leaf in leaves), Middle(leaves))
        for reply in replies:
            name, seen = reply.ask.cluster, self.projection.seen(reply.kept)
            if state.places_client(reply.ask):
                places[reply.client] = seen
            else:
                origin, staleness, here = origins[name], 0.0, tree.clusters[name].model
                if late := reply.origin:
                    origin = self.projection.project(late.trained)
                    # Staleness and its price as in AsyncFedED (Wang et al., arXiv 2205.13797).
                    staleness = norm(here.trained - late.trained) / (reply.norm or 1.0)
                update = reply.kept, reply.norm, reply.num_examples, origin, reply.share
                known[reply.client] = KnownUpdate(server_round, *update, staleness)
                scale = 1 / (1 + staleness)
                sums.add(name, reply.client, reply.update, self._weight(reply), scale)
                if self.middle:
                    sent[name].add(reply.client, reply.update.carried, (late or here).carried)
        means, changed = sums.means(), list[Cluster]()
        for name, middle in only(sent, means).items():
            carried, kept = middle.changed
            means[name] = means[name]._replace(whole=means[name].whole._replace(carried=carried))
            changed.append(replace(tree.clusters[name], sent=kept))
        return replace(state, known=known, tree=tree.update(*changed)), means, places

    def _evidence(
        self,
        state: CFLState,
        leaf: Cluster,
        origin: Vector,
        mean: Mean | None,
        server_round: int,
    ) -> Evidence:
        """The members' fresh updates; the mean norm is that of the updates that are not late."""
        everyone = dict.fromkeys(state.tree.assigned(leaf))
        members = tuple(without(everyone, state.absent))
        known = only(state.known, members)
        fresh = {c: update for c, update in known.items() if update.is_fresh(leaf.born, origin)}
        rounds = np.array([update.server_round for update in fresh.values()], dtype=int)
        timely = {c: update for c, update in fresh.items() if not update.staleness} or fresh
        mean_update = mean.whole.trained if mean else np.zeros(0)
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
            absent=tuple(without(everyone, members)),
            outputs=tuple(map(output.rows, vectors)) if output else (),
        )

    def _decided(
        self, state: CFLState, leaf: Cluster, evidence: Evidence, mean: Mean | None
    ) -> tuple[CFLState, Decision]:
        """The leaf split, if the criterion decides so, or moved by the mean."""
        if mean is None:
            reason = "no member replied in this round"
            return state, verdict(evidence, Outcome.TOO_FEW_HEARD, reason)
        decided = self.criterion.decide(evidence, dict(leaf.memory))
        decision, memory = check_sides(self.criterion, decided, evidence, state.known)
        groups = groups_of(decision)
        for change in self.changes:
            decision = change.revised(state, evidence, decision)
            groups = groups_of(decision) or groups  # a split that is put off names no sides
        if not self.projection.keeps_all:
            state = replace(state, groups={**state.groups, **groups})
        leaf = replace(leaf, memory=memory, weight=self._weight_in(state, leaf.members))
        if decision.outcome is Outcome.SPLIT:
            division = self._division(state, leaf, decision, evidence, mean)
            names = tuple(child.name for child in division.children)
            tree = state.tree.divided(division.cluster, division.children)
            return replace(state, tree=tree), replace(decision, children=names)
        if decision.outcome is Outcome.PROPOSED and not (self.projection.keeps_all or mean.groups):
            reason = "the models of its groups are known after the next round"
            decision = replace(
                decision, outcome=Outcome.PUT_OFF, reason=reason, sides=(), unsure=()
            )
        if decision.outcome is Outcome.PROPOSED:
            division = self._division(state, leaf, decision, evidence, mean)
            state = replace(state, divisions={**state.divisions, leaf.name: division})
        return replace(state, tree=state.tree.update(self._follow(leaf, mean.moved))), decision

    def _division(
        self, state: CFLState, leaf: Cluster, decision: Decision, evidence: Evidence, mean: Mean
    ) -> Division:
        """Algorithm 1: the leaf as a split cluster with its stationary model θ*, and its children.

        Members without a child count to the largest one, and Algorithm 4 places them, from this
        split on, with their next update.
        """
        now = decision.server_round
        parts = sorted(decision.parts, key=lambda part: min(map(natural_order, part[0])))
        dealt = chain(*decision.sides, *decision.unsure)
        others = tuple(without(dict.fromkeys(leaf.members), dealt))
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
                weight=self._weight_in(state, (*side, *near)),
                own_body=True,
                agreement=0.0,
            )
            for i, (side, near) in enumerate(parts)
        ]
        models = tuple(child.model for child in children)
        if self._parts_output_only(state, decision, evidence):
            moved = self._follow(leaf, mean.moved)
            children = [with_body_of(child, moved, self.body) for child in children]
            children = [replace(child, own_body=False) for child in children]
        names = tuple(child.name for child in children)
        parent = replace(
            leaf, children=names, split_round=now, memory=memory, left_out=others, sent={}
        )
        return Division(parent, tuple(children), models)

    def _parts_output_only(self, state: CFLState, decision: Decision, evidence: Evidence) -> bool:
        """Whether most of what the sides of a split disagree about is in the output layer."""
        known = only(state.known, evidence.clients)
        sides = [[*only(known, side).values()] for side in decision.sides]
        if not self.body or not all(sides):
            return False
        after = self.body - self.projection.num_trained  # it is at the end of what is kept
        output, whole = (
            disagreement([np.stack([seen(update.vector) for update in side]) for side in sides])
            for seen in (lambda kept: kept[after:], self.projection.projected)
        )
        return output > OUTPUT_SHARE * whole

    def _follow(self, cluster: Cluster, mean: Weights) -> Cluster:
        """The cluster with its model moved by a mean update (eq. 2)."""
        trained, optimizer = self.optimizer.step(
            cluster.model.trained, mean.trained, cluster.optimizer
        )
        model = self.as_sent(Weights(trained, cluster.model.carried + mean.carried))
        return replace(cluster, model=model, optimizer=optimizer, rounds=cluster.rounds + 1)

    def _mean_of(
        self, state: CFLState, side: tuple[str, ...], evidence: Evidence, mean: Mean
    ) -> Weights:
        """The mean update of a side's members.

        If only projections are kept, it is that of the group which most of them were in before.
        """
        fresh = only(only(state.known, side), evidence.clients)
        if not fresh or not self.projection.keeps_all:
            return mean.of(side)._replace(carried=mean.whole.carried)
        return mean.whole._replace(trained=self._mean(fresh))

    def _mean(self, updates: Mapping[str, KnownUpdate]) -> Vector:
        """These clients' updates in one, Σ w_i Δ_i of eq. 2, or its projection."""
        vectors = [self.projection.projected(known.vector) for known in updates.values()]
        return self.aggregator.mean(vectors, self._weights(updates))

    def _weights(self, updates: Mapping[str, KnownUpdate]) -> Vector:
        """w_i of these clients, shape (m,), summing to 1."""
        weights = np.array(list(map(self._weight, updates.values())))
        return np.asarray(weights / weights.sum())

    def _weight_in(self, state: CFLState, clients: Iterable[str]) -> float:
        """Sum of the clients' weights before normalisation, as last known."""
        present = without(only(state.known, clients), state.absent)
        return sum(map(self._weight, present.values()))

    def _weight(self, update: KnownUpdate | Training) -> float:
        """w_i before normalisation."""
        return self.weight_of(update.num_examples) * update.share

    def weight_of(self, num_examples: float) -> float:
        """w_i before normalisation, if all of it counts."""
        by_examples = self.weighting == "examples" and self.aggregator.weighted
        return num_examples if by_examples else 1.0


def groups_of(decision: Decision) -> dict[str, int]:
    """The number of the side of each client that a criterion has put on one or near one."""
    return {client: i for i, part in enumerate(decision.parts) for client in chain(*part)}
