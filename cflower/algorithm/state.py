"""The state of the algorithm, its asks and the clients' replies: plain values, no input or output.

`CFL.asks` names the clients that train or evaluate a model; whoever runs the algorithm carries the
messages and gives the replies to `CFL.heard`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import product
from math import inf
from typing import Any, Literal, NamedTuple

import numpy as np

from cflower.algorithm.criteria import Decision
from cflower.algorithm.norm_history import NormHistory
from cflower.algorithm.placement import Placement
from cflower.algorithm.tree import ParameterTree, Proposal
from cflower.algorithm.weights import Vector, Weights, norm
from cflower.ordering import only

DECIDE, REPORT = "decide", "report"
"""The parts of a client's held-out examples: nothing is decided by those that are reported."""


class Role(StrEnum):
    """The purpose of an ask: which model the client gets, and what its reply is for."""

    OWN = "own"
    """The model of the client's leaf; the update moves that model (eq. 2)."""
    PLACE = "place"
    """The stationary model θ*_v of a split cluster; the update places the client (Algorithm 4)."""
    GENERAL = "general"
    """The model of a split cluster that goes on learning; the update moves that model."""
    COMMON = "common"
    """The common model of a proposal; the metrics judge it."""
    PERSONAL = "personal"
    """A model of the client's own, or on the way to one (`cflower.algorithm.personal`)."""


class Ask(NamedTuple):
    client: str
    cluster: str
    """The model of this cluster; for `Role.COMMON`, the common model of its proposal."""
    role: Role
    server_round: int
    task: Literal["train", "evaluate"] = "train"
    part: str = REPORT
    """The examples to measure the model on, `DECIDE` or `REPORT`."""
    candidate: int = 0
    """Of `Role.PERSONAL`: the number of the model among `Chain.candidates`."""


@dataclass(frozen=True, eq=False)
class Reply:
    ask: Ask
    num_examples: float
    metrics: Mapping[str, Any] = field(default_factory=dict)
    update: Weights | None = None
    """Δ_i = θ_i − θ_c, θ_i after local training; None for an evaluation."""
    norm: float = 0.0
    """‖Δ_i‖ over all trained entries."""
    kept: Vector | None = None
    """Δ_i as `Projection.keep` keeps it."""
    share: float = 1.0
    """Fraction of the client's weight that counts in the mean update."""
    origin: Weights | None = None
    """Of a late reply: the model that the client trained."""

    @property
    def client(self) -> str:
        return self.ask.client


class KnownUpdate(NamedTuple):
    """The last known update of a client."""

    server_round: int
    vector: Vector
    """Δ_i = θ_i − θ_c as `Projection.keep` keeps it."""
    norm: float
    """‖Δ_i‖ over all trained entries."""
    num_examples: float
    origin: Vector
    """θ_c as `Projection.keep` keeps it; one array for all clients of a round."""
    share: float = 1.0
    """Fraction of its weight that counts."""
    staleness: float = 0.0
    """Distance of the cluster's model from the origin when the update came, in lengths of it."""

    def is_fresh(self, born: int, model: Vector) -> bool:
        """Whether the update still describes its cluster's model.

        It does if it was computed after the cluster was born and the model has since moved by no
        more than the update's own length: a rule without a unit, so without a setting. ``born`` is
        the round at the end of which the cluster began, and ``model`` its model now, as
        `Projection.keep` keeps it.
        """
        return self.server_round > born and (
            self.origin is model or norm(model - self.origin) <= self.norm
        )


class Move(NamedTuple):
    """A client left its leaf, or reached another one after that."""

    server_round: int
    client: str
    origin: str
    """Its leaf before."""
    target: str
    """Its leaf from now on, or the split cluster from which Algorithm 4 places it further."""
    reason: str
    """One sentence with the figures behind it."""


KAPPAS = (0.0, 1 / 3, 1.0, 3.0)
"""Candidates for κ, in the median number of the members' training examples; ∞ is the other one."""


class OwnModels(NamedTuple):
    """The models v_i that members trained by themselves from one start."""

    models: Mapping[str, Weights] = {}
    """Empty without a gain over the leaf's model."""
    trainings: int = 0


@dataclass(frozen=True)
class Chain:
    """The personal step of a leaf in progress."""

    server_round: int
    members: tuple[str, ...]
    starts: tuple[Weights, ...]
    """The models from which members train by themselves, one after the other; the leaf's first."""
    measured: tuple[Mapping[str, Reply], ...] = ()
    """The members' evaluations of each candidate so far."""
    own: tuple[OwnModels, ...] = ()
    """The result of each start that is over."""
    here: Mapping[str, Weights] = field(default_factory=dict)
    """The members' models after the last training from the present start."""
    trainings: int = 0
    """Trainings from there."""
    gained: bool = False
    """Whether a model from there was better than the leaf's."""
    total: int = 0
    """Trainings of a member so far."""
    sizes: Mapping[str, float] = field(default_factory=dict)
    """n_i, the members' training examples."""

    @property
    def candidates(self) -> list[tuple[int, float]]:
        """Start and κ of each candidate, the leaf's model first."""
        starts = [start for start, own in enumerate(self.own) if own.models]
        return [(0, inf), *product(starts, KAPPAS)]

    @property
    def judges(self) -> tuple[str, ...]:
        """The members that evaluate the next candidate: all, or those with a model of their own."""
        if not self.measured:
            return self.members
        start, _ = self.candidates[len(self.measured)]
        return tuple(only(self.own[start].models, self.members))

    def kappa(self, factor: float) -> float:
        """κ in training examples."""
        return inf if factor == inf else factor * float(np.median(list(self.sizes.values())))

    def share(self, client: str, factor: float) -> float:
        """a_i = n_i / (n_i + κ)."""
        return self.sizes[client] / (self.sizes[client] + self.kappa(factor))

    def received(self, client: str) -> Weights:
        """The model that a member trains next."""
        return self.here.get(client, self.starts[min(len(self.own), len(self.starts) - 1)])

    def trained(self, client: str, update: Weights) -> Weights:
        """The member's model after a training."""
        return Weights(*(w + u for w, u in zip(self.received(client), update, strict=True)))

    def candidate(self, client: str, number: int) -> Weights:
        """W + a_i (v_i − w); w is the leaf's model."""
        leaf, (start, factor) = self.starts[0], self.candidates[number]
        if factor == inf:
            return leaf
        share, own = self.share(client, factor), self.own[start].models[client]
        return Weights(*(w + share * (v - w) for w, v in zip(leaf, own, strict=True)))


class Personal(NamedTuple):
    """The personal step of a leaf, judged."""

    reason: str
    """One sentence."""
    kappa: float
    """In training examples; ∞ is the leaf's model, 0 the client's own."""
    start: int
    """The start that the members chose: 0 for the leaf's model, 1 for the run's first one."""
    length: int
    """The number of trainings from there to their own models."""
    trainings: int
    """Trainings of each member in all."""
    evaluations: int
    models: Mapping[str, Weights]
    """The models that serve members, if not the leaf's."""
    shares: Mapping[str, float]
    """a_i of these members."""

    @property
    def accepted(self) -> bool:
        """Whether it serves the members better than the leaf's model."""
        return self.kappa < inf


class Judging(NamedTuple):
    """A round that waits for the clients to evaluate its proposals."""

    proposals: tuple[Proposal, ...]
    decisions: tuple[Decision, ...]
    """The round's decisions so far."""
    chains: Mapping[str, Chain] = {}
    """Of personal steps, by the name of their leaf."""


@dataclass(frozen=True)
class CFLState:
    """Everything that the algorithm carries from one call to the next."""

    tree: ParameterTree
    known: Mapping[str, KnownUpdate] = field(default_factory=dict)
    norms: Mapping[str, NormHistory] = field(default_factory=dict)
    moves: tuple[Move, ...] = ()
    placed: Mapping[str, Placement] = field(default_factory=dict)
    """The steps of unassigned clients in the last round (Algorithm 4)."""
    judging: Judging | None = None
    personal: Mapping[str, Personal] = field(default_factory=dict)
    """The personal steps at the end of the run, by the name of their leaf."""
    first: Weights | None = None
    """The run's first model, from which personal steps start, too."""

    @property
    def personal_models(self) -> dict[str, Weights]:
        """The model of each client that has one of its own."""
        return {c: model for step in self.personal.values() for c, model in step.models.items()}

    def model_of(self, ask: Ask) -> Weights:
        if ask.role is Role.PERSONAL:
            assert self.judging is not None  # they are asked only during personal steps
            chain = self.judging.chains[ask.cluster]
            if ask.task == "train":
                return chain.received(ask.client)
            return chain.candidate(ask.client, ask.candidate)
        cluster = self.tree.clusters[ask.cluster]
        if ask.role in (Role.OWN, Role.PLACE):
            return cluster.model
        proposals = self.judging.proposals if self.judging else ()
        common = (p.common for p in proposals if p.cluster == ask.cluster and p.common)
        return next(common, cluster.grown.model)
