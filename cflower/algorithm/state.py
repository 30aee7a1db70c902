"""The state of the algorithm, its asks and the clients' replies: plain values, no input or output.

`CFL.asks` names the clients that train or evaluate a model; whoever runs the algorithm carries the
messages and gives the replies to `CFL.heard`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from math import inf
from typing import Any, Literal, NamedTuple, Protocol

from cflower.algorithm.criteria import Decision
from cflower.algorithm.placement import Placement
from cflower.algorithm.tree import ROOT, Cluster, ParameterTree
from cflower.algorithm.weights import Rounding, Update, Vector, Weights, norm
from cflower.metric import Metric

DECIDE, REPORT = "decide", "report"
"""The parts of a client's held-out examples: nothing is decided by those that are reported."""
ALL_EXAMPLES = "all-examples"
"""In the config of a message to train, true: with the examples that decide, too."""
Task = Literal["train", "evaluate", "adapt"]
ADAPT: Literal["adapt"] = "adapt"
"""The task of a client that does the whole personal step by itself."""


class Role(StrEnum):
    """The purpose of an ask: which model the client gets, and what its reply is for."""

    OWN = "own"
    """The model of the client's leaf; the update moves that model (eq. 2)."""
    PLACE = "place"
    """The stationary model θ*_v of a split cluster; the update places the client (Algorithm 4)."""
    CANDIDATE = "candidate"
    """The candidate of a question (`cflower.algorithm.change`); the metrics answer it."""
    PERSONAL = "personal"
    """A model of the client's own, or on the way to one (`cflower.changes.personal`)."""


class Ask(NamedTuple):
    client: str
    cluster: str
    """The model of this cluster; for `Role.CANDIDATE`, the cluster that the question is about."""
    role: Role
    server_round: int
    task: Task = "train"
    part: str = REPORT
    """The examples to measure the model on, `DECIDE` or `REPORT`."""
    number: int = 0
    """With `Role.CANDIDATE` the place of the question among those of the round; with
    `Role.PERSONAL` the number of the model, or for `ADAPT` that of the trainings."""

    @property
    def trainings(self) -> int:
        """How often the client trains for it."""
        return {"train": 1, "evaluate": 0, ADAPT: self.number}[self.task]


@dataclass(frozen=True, eq=False)
class Reply:
    """The reply to an evaluation; `Training` is that to a training."""

    ask: Ask
    num_examples: float
    metrics: Mapping[str, Any] = field(default_factory=dict)

    @property
    def client(self) -> str:
        return self.ask.client


@dataclass(frozen=True, eq=False, kw_only=True)
class Training(Reply):
    """The reply to a training, with the client's update."""

    update: Weights | Update
    """Δ_i = θ_i − θ_c, θ_i after local training."""
    norm: float
    """‖Δ_i‖ over all trained entries."""
    kept: Vector
    """Δ_i as `Projection.keep` keeps it."""
    share: float = 1.0
    """Fraction of the client's weight that counts in the mean update."""
    counts: float = 1.0
    """Fraction of its pull that is left by bounds on its update and its weight."""
    origin: Weights | None = None
    """The model that the client trained; only of a late reply."""


class KnownUpdate(NamedTuple):
    """The last known update of a client, as in its `Training`."""

    server_round: int
    vector: Vector
    """Δ_i = θ_i − θ_c as `Projection.keep` keeps it."""
    norm: float
    num_examples: float
    origin: Vector
    """θ_c as `Projection.keep` keeps it; one array for all clients of a round."""
    share: float = 1.0
    staleness: float = 0.0
    """Distance of the cluster's model from the origin when the update came, divided by ``norm``."""

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


class Division(NamedTuple):
    """A split that may be made."""

    cluster: Cluster
    """The cluster as it will be."""
    children: tuple[Cluster, ...]
    models: tuple[Weights, ...]
    """The models that its parts would have if it parted all layers: those that clients judge."""


class Personal(NamedTuple):
    """The personal step of a leaf, judged."""

    reason: str
    """One sentence."""
    kappa: float
    """In training examples; ∞ is the leaf's model, 0 the client's own."""
    trainings: int
    """Trainings of each member, from the leaf's model to its own."""
    evaluations: int
    models: Mapping[str, Weights]
    """The models that serve members, if not the leaf's."""
    shares: Mapping[str, float]
    """a_i of these members."""

    @property
    def accepted(self) -> bool:
        """Whether it serves the members better than the leaf's model."""
        return self.kappa < inf


class Pending(Protocol):
    """Questions to the clients that follow the training of a round."""

    @property
    def asks(self) -> tuple[Ask, ...]:
        """The next asks; empty if there are none."""

    def model_of(self, ask: Ask) -> Weights:
        """The model that a client gets with one of these asks."""

    def settings_of(self, ask: Ask) -> Mapping[str, Any]:
        """The additional entries in the config of the message of such an ask."""
        return {}

    def answered(
        self, state: "CFLState", replies: Iterable[Reply], metric: Metric, as_sent: Rounding
    ) -> "RoundResult":
        """The state after the replies, with the round's decisions and the next asks."""


@dataclass(frozen=True)
class CFLState:
    """Everything that the algorithm carries from one call to the next."""

    tree: ParameterTree
    known: Mapping[str, KnownUpdate] = field(default_factory=dict)
    moves: tuple[Move, ...] = ()
    placed: Mapping[str, Placement] = field(default_factory=dict)
    """The steps of unassigned clients in the last round (Algorithm 4)."""
    absent: tuple[str, ...] = ()
    """Members that count for nothing in this round: no decision waits for them, and their last
    updates do not show what is usual."""
    groups: Mapping[str, int] = field(default_factory=dict)
    """The number of each client's group in its leaf. Groups may become leaves: if only projections
    of updates are kept, the mean update of each group is computed in the next round."""
    divisions: Mapping[str, Division] = field(default_factory=dict)
    """The splits that are proposed, by cluster, until the questions about them are put."""
    pending: "Pending | None" = None
    """The questions to the clients after the training of this round."""
    asked: int = 0
    """Models that clients have evaluated for questions so far."""
    first: Weights | None = None
    """The run's first model."""
    all_train: bool = False
    """Whether clients also train with the examples that decide in the next round, because no
    question follows it."""
    memory: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What a change remembers between rounds (`cflower.algorithm.change`), by its name."""
    personal: Mapping[str, Personal] = field(default_factory=dict)
    """The personal steps at the end of the run, by the name of their leaf."""

    @property
    def personal_models(self) -> dict[str, Weights]:
        """The model of each client that has one of its own."""
        return {c: model for step in self.personal.values() for c, model in step.models.items()}

    @cached_property
    def unplaced(self) -> frozenset[str]:
        """Members of no cluster yet: no usable update of theirs has come.

        They count to a leaf, but nothing shows whether they belong there.
        """
        known = {*self.known, *(move.client for move in self.moves)}
        if self.tree.root.is_leaf:
            return frozenset(self.tree.clients) - known
        waiting = self.tree.unassigned.items()
        return frozenset(client for client, place in waiting if place == ROOT) - known

    def path_of(self, client: str) -> tuple[Cluster, ...]:
        """The clusters with models that can serve a client: `ParameterTree.path_of`.

        Only the root's can serve one that has no place.
        """
        if client in self.unplaced:
            return (self.tree.serving(ROOT),)
        return self.tree.path_of(client)

    def members_of(self, cluster: Cluster) -> tuple[str, ...]:
        """The members of a cluster that have a place."""
        return tuple(client for client in cluster.members if client not in self.unplaced)

    def places_client(self, ask: Ask) -> bool:
        """Whether the update for an ask places its client (Algorithm 4) and moves no model."""
        return ask.role is Role.PLACE or ask.client in self.tree.unassigned

    def model_of(self, ask: Ask) -> Weights:
        """The model that the client gets."""
        if ask.role in (Role.CANDIDATE, Role.PERSONAL):
            assert self.pending is not None  # they are asked only while it is
            return self.pending.model_of(ask)
        return self.tree.clusters[ask.cluster].model

    def settings_of(self, ask: Ask) -> Mapping[str, Any]:
        """The additional entries in the config of the message of an ask."""
        if ask.task == "train" and ask.role is not Role.PERSONAL:
            return {ALL_EXAMPLES: True} if self.all_train else {}
        return self.pending.settings_of(ask) if ask.task == ADAPT and self.pending else {}


class RoundResult(NamedTuple):
    """The result of `CFL.heard`."""

    state: CFLState
    decisions: tuple[Decision, ...]
    """One for each leaf at the start of the round, then those on splits that clients judge."""
    asks: tuple[Ask, ...] = ()
    """Questions: the replies go into a further call, which ends the round or asks again."""
