"""How a cluster's model follows the mean update of its members.

``fedavg`` is eq. 2. The others take the mean update as a pseudo-gradient: FedAvgM (Hsu et al.,
arXiv 1909.06335), FedAdagrad, FedAdam and FedYogi (Reddi et al., arXiv 2003.00295, Alg. 2).

Differences from Flower's strategies of these names: the second moment starts at τ², as in the
paper, where theirs starts at 0, and there is no bias correction.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from cflower.algorithm.weights import Vector

OptimizerState = Mapping[str, Vector]
"""Momentum and second moment of one cluster, shape (d,) each; empty before the first step."""

ADAPTIVE = ("fedadagrad", "fedadam", "fedyogi")
SERVER_OPTIMIZERS = ("fedavg", "fedavgm", *ADAPTIVE)


@dataclass(frozen=True)
class ServerOptimizer:
    """The aggregation rule of every cluster; its state lives with the cluster.

    Parameters
    ----------
    rule : str
        One of ``SERVER_OPTIMIZERS``.
    learning_rate : float or None
        Server step size η. ``None``: 1.0 for ``fedavg`` and ``fedavgm``, 0.1 for the others.
    momentum : float
        β (FedAvgM), β1 (FedAdam, FedYogi). FedAdagrad uses none.
    second_momentum : float
        β2 of FedAdam and FedYogi.
    tau : float
        Adaptivity τ: the larger, the closer to plain averaging.
    """

    rule: str = "fedavg"
    learning_rate: float | None = None
    momentum: float = 0.9
    second_momentum: float = 0.99
    tau: float = 1e-3

    def __post_init__(self) -> None:
        if self.rule not in SERVER_OPTIMIZERS:
            raise ValueError(
                f"Got server optimizer {self.rule!r}, expected one of {SERVER_OPTIMIZERS}."
            )

    def step(
        self, model: Vector, mean_update: Vector, state: OptimizerState
    ) -> tuple[Vector, OptimizerState]:
        """The model after one round and the state to keep; neither argument is changed."""
        eta = self.learning_rate
        if eta is None:
            eta = 0.1 if self.rule in ADAPTIVE else 1.0
        if self.rule == "fedavg":
            move = mean_update if eta == 1 else eta * mean_update
            return (model + move).astype(model.dtype, copy=False), state
        zero: Vector = np.zeros_like(mean_update)
        after: OptimizerState
        if self.rule == "fedavgm":
            velocity = self.momentum * state.get("momentum", zero) + mean_update
            move, after = eta * velocity, {"momentum": velocity}
        else:
            beta = 0.0 if self.rule == "fedadagrad" else self.momentum
            first = beta * state.get("momentum", zero) + (1 - beta) * mean_update
            second = self._second_moment(state.get("second", zero + self.tau**2), mean_update**2)
            move = eta * first / (np.sqrt(second) + self.tau)
            after = {"momentum": first, "second": second}
        return (model + move).astype(model.dtype, copy=False), after

    def _second_moment(self, second: Vector, square: Vector) -> Vector:
        if self.rule == "fedadagrad":
            return second + square
        if self.rule == "fedadam":
            return self.second_momentum * second + (1 - self.second_momentum) * square
        return second - (1 - self.second_momentum) * square * np.sign(second - square)
