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
Step = tuple[Vector, OptimizerState]
"""How far the model moves, shape (d,), and the state to keep."""


def fedavg(settings: "ServerOptimizer", update: Vector, state: OptimizerState) -> Step:
    """The mean update itself (eq. 2)."""
    return update if settings.eta == 1 else settings.eta * update, state


def fedavgm(settings: "ServerOptimizer", update: Vector, state: OptimizerState) -> Step:
    """The velocity β v + Δ."""
    velocity = settings.momentum * state.get("momentum", np.zeros_like(update)) + update
    return settings.eta * velocity, {"momentum": velocity}


def fedadagrad(settings: "ServerOptimizer", update: Vector, state: OptimizerState) -> Step:
    """The update over the root of the sum of all squares."""
    second = second_of(settings, update, state) + update**2
    return scaled(settings, update, second)


def fedadam(settings: "ServerOptimizer", update: Vector, state: OptimizerState) -> Step:
    """Momentum over the root of the mean square."""
    beta, second = settings.second_momentum, second_of(settings, update, state)
    second = beta * second + (1 - beta) * update**2
    return scaled(settings, first_of(settings, update, state), second)


def fedyogi(settings: "ServerOptimizer", update: Vector, state: OptimizerState) -> Step:
    """As FedAdam, with a second moment that changes by no more than the square."""
    beta, second = settings.second_momentum, second_of(settings, update, state)
    second = second - (1 - beta) * update**2 * np.sign(second - update**2)
    return scaled(settings, first_of(settings, update, state), second)


def first_of(settings: "ServerOptimizer", update: Vector, state: OptimizerState) -> Vector:
    """The momentum with this update."""
    before = state.get("momentum", np.zeros_like(update))
    return settings.momentum * before + (1 - settings.momentum) * update


def second_of(settings: "ServerOptimizer", update: Vector, state: OptimizerState) -> Vector:
    """The second moment before this update: τ² at first."""
    return state.get("second", np.zeros_like(update) + settings.tau**2)


def scaled(settings: "ServerOptimizer", first: Vector, second: Vector) -> Step:
    """An adaptive step with these moments."""
    move = settings.eta * first / (np.sqrt(second) + settings.tau)
    return move, {"momentum": first, "second": second}


RULES: Mapping[str, Callable[["ServerOptimizer", Vector, OptimizerState], Step]] = {
    rule.__name__: rule for rule in (fedavg, fedavgm, fedadagrad, fedadam, fedyogi)
}
"""Every rule: a function of the settings, the mean update and the cluster's state."""
SERVER_OPTIMIZERS = tuple(RULES)
ADAPTIVE = ("fedadagrad", "fedadam", "fedyogi")


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
        if self.learning_rate is not None:
            return self.learning_rate
        return 0.1 if self.rule in ADAPTIVE else 1.0

    def step(
        self, model: Vector, mean_update: Vector, state: OptimizerState
    ) -> tuple[Vector, OptimizerState]:
        """The model after one round and the state to keep; neither argument is changed."""
        move, after = RULES[self.rule](self, mean_update, state)
        return (model + move).astype(model.dtype, copy=False), after
