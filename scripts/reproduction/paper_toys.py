"""The paper's figures 1 and 2: two federations that no single model serves, and the two kinds of
stationary points that conventional federated learning can reach.
"""

import numpy as np
from numpy.typing import NDArray
from peers.levels import Level, saved

from cflower.algorithm.similarity import cosine_similarity
from cflower.seeding import generator
from reproduction.experiment import Experiment, Results, Setting, simulate, summary_of

Points = NDArray[np.float64]
CLIENTS, EXAMPLES = 10, 100
"""Clients, half of them of each cluster, and examples of each."""
CORNERS = np.array([[-1.0, 1.0], [1.0, 1.0], [-1.0, -1.0], [1.0, -1.0]])
"""Upper left, upper right, lower left, lower right: the first cluster has the upper two."""
XOR = np.array([0, 1, 1, 0])
STEP, STEPS = 0.05, 400


def run_violations(setting: Setting) -> Results:
    """A linear model for both problems: conventional FL, and the clusters that `auto` finds."""
    return {
        name: compared(setting, f"fig1-{name}", problem(setting.seed, name))
        for name in ("xor", "preferences")
    }


def problem(seed: int, name: str) -> Level:
    """The examples of a panel of Fig. 1, the first cluster's before the second's.

    ``xor``: the clusters have two corners each, which a line divides, but none divides all four.
    ``preferences``: both have the same points, and the second names the sides the other way round.
    """
    rng = generator(seed, "fig1", name)
    each = CLIENTS // 2 * EXAMPLES
    inputs, labels = [], []
    for cluster in range(2):
        corner = rng.integers(4, size=each)
        if name == "xor":
            corner = corner % 2 + 2 * cluster
        inputs.append(CORNERS[corner] + rng.normal(0, 0.3, (each, 2)))
        labels.append(XOR[corner] if name == "xor" else (corner + cluster) % 2)
    topic = np.repeat(["group 00", "group 01"], each)
    points = np.concatenate(inputs).astype(np.float32)
    return Level(points, np.concatenate(labels), topic, (CLIENTS // 2,) * 2)


def compared(setting: Setting, name: str, made: Level) -> Results:
    """Accuracy of both ways, and the clusters that were found."""
    rounds = 4 if setting.quick else 30
    keys = saved(made, setting.out / f"{name}-data") | {
        "model": "linear",
        "num-server-rounds": rounds,
    }
    results: Results = {}
    for method in ("federated", "clustered"):
        summary = summary_of(simulate(setting, f"{name}-{method}", keys | {"method": method}))
        results[method] = {
            "accuracy": round(summary["metrics"]["accuracy"], 4),
            "clusters": len(summary["clusters"]),
            "adjusted_rand_index": summary["adjusted_rand_index"],
            "split_rounds": [split["round"] for split in summary["splits"]],
        }
    return results


def run_paths(setting: Setting) -> Results:
    """Gradient descent on the mean of two clients' risks, for a pair of each kind."""
    return {name: descent(setting, congruent) for name, congruent in KINDS.items()}


KINDS = {"incongruent": False, "congruent": True}


def descent(setting: Setting, congruent: bool) -> Results:
    """Where federated learning ends, and the clients' gradients there (Theorem 1's setting).

    A client's risk is the squared distance of θ from a disc, zero in it. Two discs that overlap
    are congruent risks: a θ in both minimises both. Discs apart are incongruent.
    """
    centres = np.array([[-1.0, 0.0], [1.0, 0.3]])
    radius = 1.3 if congruent else 0.4
    place = generator(setting.seed, "fig2").normal(0, 1.5, 2)
    path = [place]
    for _ in range(20 if setting.quick else STEPS):
        place = place - STEP * gradients(place, centres, radius).mean(axis=0)
        path.append(place)
    last = gradients(place, centres, radius)
    norms = np.linalg.norm(last, axis=1)
    apart = norms.min() > 1e-3
    return {
        "start": path[0].round(4).tolist(),
        "end": place.round(4).tolist(),
        "gradient_norms": norms.round(4).tolist(),
        "mean_gradient_norm": round(float(np.linalg.norm(last.mean(axis=0))), 4),
        "cosine": round(float(cosine_similarity(last)[0, 1]), 4) if apart else None,
    }


def gradients(place: Points, centres: Points, radius: float) -> Points:
    """∇r_i(θ) of each client, shape (2, 2)."""
    away = place - centres
    distance = np.linalg.norm(away, axis=1, keepdims=True)
    return 2 * away * np.maximum(0, 1 - radius / np.maximum(distance, 1e-12))


EXPERIMENTS = (
    Experiment(
        "paper-fig1", "paper, Fig. 1", "two toy problems that no linear model solves for all",
        run_violations,
    ),
    Experiment(
        "paper-fig2", "paper, Fig. 2", "gradients where federated learning ends, for two clients",
        run_paths,
    ),
)  # fmt: skip
