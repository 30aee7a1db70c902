"""The state of the algorithm, its asks and the clients' replies: plain values, no input or output.

`CFL.asks` names the clients that train or evaluate a model; whoever runs the algorithm carries the
messages and gives the replies to `CFL.heard`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, NamedTuple

from cflower.algorithm.criteria import Decision
from cflower.algorithm.norm_history import NormHistory
from cflower.algorithm.placement import Placement
from cflower.algorithm.tree import ParameterTree, Proposal
from cflower.algorithm.weights import Vector, Weights, norm

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


class Ask(NamedTuple):
    """A request to one client."""

    client: str
    cluster: str
    """The model of this cluster; for `Role.COMMON`, the common model of its proposal."""
    role: Role
    server_round: int
    task: Literal["train", "evaluate"] = "train"
    part: str = REPORT
    """The examples to measure the model on, `DECIDE` or `REPORT`."""


@dataclass(frozen=True, eq=False)
class Reply:
    """The reply to an ask."""

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
        """Name of the client."""
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
        more than the update's own length: a rule without a unit, so without a setting.

        Parameters
        ----------
        born : int
            The cluster exists since the end of this round.
        model : ndarray
            The cluster's model now, as `Projection.keep` keeps it.
        """
        if self.server_round <= born:
            return False
        return self.origin is model or norm(model - self.origin) <= self.norm


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


class Judging(NamedTuple):
    """A round that waits for the clients to evaluate its proposals."""

    proposals: tuple[Proposal, ...]
    decisions: tuple[Decision, ...]
    """The round's decisions so far."""


@dataclass(frozen=True)
class CFLState:
    """Everything that the algorithm carries from one call to the next."""

    tree: ParameterTree
    known: Mapping[str, KnownUpdate] = field(default_factory=dict)
    norms: Mapping[str, NormHistory] = field(default_factory=dict)
    """The history of each member's update norms."""
    moves: tuple[Move, ...] = ()
    """All moves of the run."""
    placed: Mapping[str, Placement] = field(default_factory=dict)
    """The steps of unassigned clients in the last round (Algorithm 4)."""
    judging: Judging | None = None

    def model_of(self, ask: Ask) -> Weights:
        """The model that an ask is about."""
        cluster = self.tree.clusters[ask.cluster]
        if ask.role in (Role.OWN, Role.PLACE):
            return cluster.model
        for proposal in self.judging.proposals if self.judging else ():
            if proposal.cluster == ask.cluster and proposal.common is not None:
                return proposal.common
        return cluster.grown.model
