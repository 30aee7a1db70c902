"""How a cluster's model follows the mean update of its members.

``fedavg`` is eq. 2. The others take the mean update as a pseudo-gradient: FedAvgM (Hsu et al.,
arXiv 1909.06335), FedAdagrad, FedAdam and FedYogi (Reddi et al., arXiv 2003.00295, Alg. 2).

Differences from Flower's strategies of these names: the second moment starts at τ², as in the
paper, where theirs starts at 0, and there is no bias correction.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from cflower.algorithm.weights import Vector
from cflower.settings import Checked, choice, number

OptimizerState = Mapping[str, Vector]
"""Momentum and second moment of one cluster, shape (d,) each; empty before the first step."""
SECOND_MOMENTS: Mapping[str, Callable[[float, Vector, Vector], Vector]] = {
    "fedadagrad": lambda beta, second, square: second + square,
    "fedadam": lambda beta, second, square: beta * second + (1 - beta) * square,
    "fedyogi": lambda beta, second, square: second - (1 - beta) * square * np.sign(second - square),
}
"""The next second moment of each adaptive rule, from β2, the last one and the update's square."""
ADAPTIVE = tuple(SECOND_MOMENTS)
SERVER_OPTIMIZERS = ("fedavg", "fedavgm", *ADAPTIVE)


@dataclass(frozen=True)
class ServerOptimizer(Checked):
    """The aggregation rule of every cluster; its state lives with the cluster.

    Parameters
    ----------
    rule : str
        One of ``SERVER_OPTIMIZERS``.
    learning_rate : float > 0, or None
        Server step size η. ``None``: 0.1 for the adaptive rules, 1.0 for the others.
    momentum : float in [0, 1)
        β (FedAvgM), β1 (FedAdam, FedYogi). FedAdagrad uses none.
    second_momentum : float in [0, 1)
        β2 of FedAdam and FedYogi.
    tau : float > 0
        Adaptivity τ: the larger, the closer to plain averaging.
    """

    rule: str = choice("fedavg", SERVER_OPTIMIZERS)
    learning_rate: float | None = number(None, above=0)
    momentum: float = number(0.9, least=0, below=1)
    second_momentum: float = number(0.99, least=0, below=1)
    tau: float = number(1e-3, above=0)

    @property
    def eta(self) -> float:
        """The server's step size."""
        return self.learning_rate or (0.1 if self.rule in ADAPTIVE else 1.0)

    def step(
        self, model: Vector, mean_update: Vector, state: OptimizerState
    ) -> tuple[Vector, OptimizerState]:
        """The model after one round and the state to keep; neither argument is changed."""
        move, after = self._move(mean_update, state)
        return (model + move).astype(model.dtype, copy=False), after

    def _move(self, update: Vector, state: OptimizerState) -> tuple[Vector, OptimizerState]:
        """How far the model moves, shape (d,), and the state to keep."""
        if self.rule == "fedavg":
            return update if self.eta == 1 else self.eta * update, state
        zeros, beta = np.zeros_like(update), self.momentum
        momentum = state.get("momentum", zeros)
        if self.rule == "fedavgm":
            momentum = beta * momentum + update
            return self.eta * momentum, {"momentum": momentum}
        adagrad = self.rule == "fedadagrad"
        momentum = update if adagrad else beta * momentum + (1 - beta) * update
        second = state.get("second", zeros + self.tau**2)
        second = SECOND_MOMENTS[self.rule](self.second_momentum, second, update**2)
        move = self.eta * momentum / (np.sqrt(second) + self.tau)
        return move, {"momentum": momentum, "second": second}
