"""The paper's figure 3: where bipartitions are correct, and where Theorem 1 says they must be."""

import numpy as np
from numpy.typing import NDArray

from cflower.algorithm.bipartition import bipartition
from cflower.algorithm.similarity import cosine_similarity
from cflower.seeding import generator
from reproduction.experiment import Experiment, Results, Setting, separation_gap

DIMENSIONS = 100
CLIENTS_PER_GROUP = 3


def run_map(setting: Setting) -> Results:
    """Share of trials with a correct bipartition, by number of distributions and noise."""
    num_groups = [2, 5, 20] if setting.quick else [*range(2, 11), *range(12, 31, 2)]
    gammas = np.round(np.linspace(0.1, 3.0, 4 if setting.quick else 30), 3)
    trials = 5 if setting.quick else 50
    correct = np.zeros((len(gammas), len(num_groups)))
    gap = np.zeros_like(correct)
    for column, k in enumerate(num_groups):
        print(f"k = {k}: {len(gammas)} x {trials} trials")
        groups = np.repeat(np.arange(k), CLIENTS_PER_GROUP)
        for row, gamma in enumerate(gammas):
            for trial in range(trials):
                rng = generator(setting.seed, "fig3", k, row, trial)
                similarity = cosine_similarity(noisy_gradients(k, float(gamma), rng))
                correct[row, column] += is_correct(similarity, groups) / trials
                gap[row, column] += (separation_gap(similarity, groups) > 0) / trials
    return {
        "dimensions": DIMENSIONS,
        "clients_per_group": CLIENTS_PER_GROUP,
        "trials": trials,
        "k": num_groups,
        "gamma": gammas.tolist(),
        "correct": correct.round(3).tolist(),
        "gap_above_zero": gap.round(3).tolist(),
        "guaranteed_below": [round(guaranteed_gamma(k), 4) for k in num_groups],
    }


def noisy_gradients(num_groups: int, gamma: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """∇r_i of every client at a stationary point, shape (3k, d).

    The ∇R are normally distributed and, as the point is stationary, sum to zero; every client's
    noise is normally distributed and γ_i = `gamma` times as long as its ∇R (eq. 16).
    """
    true = rng.normal(size=(num_groups, DIMENSIONS))
    true -= true.mean(axis=0)
    of_client = np.repeat(true, CLIENTS_PER_GROUP, axis=0)
    noise = rng.normal(size=of_client.shape)
    lengths = [np.linalg.norm(part, axis=1, keepdims=True) for part in (of_client, noise)]
    return of_client + gamma * noise * lengths[0] / lengths[1]


def is_correct(similarity: NDArray[np.floating], groups: NDArray[np.int64]) -> bool:
    """Whether no group has clients on both sides (Definition 1)."""
    sides = bipartition(similarity)
    return not set(groups[list(sides.first)]) & set(groups[list(sides.second)])


def guaranteed_gamma(num_groups: int) -> float:
    """The γ below which Theorem 1 and Corollary 1 promise a correct bipartition.

    With γ_i = γ, H = 1 − 2γ² is cos φ with φ = 2 arcsin γ, and the bound of eq. 19 is
    cos(π/(k−1) − φ). It stays below that of eq. 21, H, as long as φ < π/(2(k−1)). For k = 2,
    eqs. 22 and 23 say the same.
    """
    return float(np.sin(np.pi / (4 * (num_groups - 1))))


EXPERIMENTS = (
    Experiment(
        "paper-fig3",
        "paper, Fig. 3",
        "where bipartitions are correct, by k and γ",
        run_map,
    ),
)
