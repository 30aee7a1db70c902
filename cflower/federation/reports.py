"""What the strategy tells those who watch it: values, no prose."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cflower.algorithm.cfl_round import CFLState
from cflower.algorithm.criteria import Decision
from cflower.federation.conduct import Conduct
from cflower.federation.replies import ClientMetrics, Metrics, weighted_mean


@dataclass(frozen=True)
class RoundReport:
    """One finished round."""

    server_round: int
    num_rounds: int
    state: CFLState
    """After the round."""
    decisions: tuple[Decision, ...]
    trained_on: Mapping[str, str]
    """The cluster whose model each client trained, of those heard from."""
    measured: Mapping[str, ClientMetrics]
    """What each of them measured: in training, and in the evaluation where there was one."""
    problems: Mapping[str, str]
    """Why a client's reply was set aside, or that it did not answer."""
    seconds: float
    conduct: Conduct = field(default_factory=Conduct)
    """The clients' record up to this round."""

    def metrics(self, cluster: str | None = None) -> Metrics:
        """Means weighted by examples, over one cluster or over all."""
        return weighted_mean(
            measured
            for client, measured in self.measured.items()
            if cluster is None or self.trained_on.get(client) == cluster
        )


@dataclass(frozen=True)
class ClientResult:
    """How one client is served when the run ends."""

    cluster: str
    num_examples: float | None
    """|D_i|, the examples it trained on; None if it never did."""
    own: ClientMetrics
    """Its cluster's model, on its held-out examples."""
    federated: ClientMetrics
    """θ*_root on the same examples: what conventional federated learning would have given."""
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class FinalReport:
    """The closing evaluation, of every client that answered it."""

    state: CFLState
    clients: Mapping[str, ClientResult]
    problems: Mapping[str, str] = field(default_factory=dict)
    conduct: Conduct = field(default_factory=Conduct)

    @property
    def metrics(self) -> Metrics:
        """Means over all clients, weighted by held-out examples; ``fl_accuracy`` with them."""
        own = weighted_mean(client.own for client in self.clients.values())
        federated = weighted_mean(client.federated for client in self.clients.values())
        return own | {f"fl_{key}": value for key, value in federated.items()}
