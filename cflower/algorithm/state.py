"""What the algorithm carries from one round to the next."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from cflower.algorithm.difference import Vector
from cflower.algorithm.moving import Move
from cflower.algorithm.norm_history import Habit
from cflower.algorithm.projection import norm
from cflower.algorithm.tree import ParameterTree


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
    share: float = 1.0
    """How much of its weight counts."""
    staleness: float = 0.0
    """How far its cluster's model had moved from its origin when it came, in lengths of it."""


@dataclass(frozen=True)
class CFLState:
    """Everything the algorithm carries from one round to the next."""

    tree: ParameterTree
    known: Mapping[str, KnownUpdate] = field(default_factory=dict)
    habits: Mapping[str, Habit] = field(default_factory=dict)
    """How long each member's updates usually are."""
    moves: tuple[Move, ...] = ()
    """All that there were."""


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
