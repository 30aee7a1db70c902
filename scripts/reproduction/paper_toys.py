"""The paper's figures 1 and 2: problems in the plane that one line can or cannot solve."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from cflower.algorithm.auto.criterion import AutoCriterion
from cflower.algorithm.weights import Weights
from cflower.learning.models import build_model
from cflower.learning.training import evaluate
from cflower.messages.layout import Layout
from cflower.runs.plots import COLORS, new_figure, save
from cflower.strategy.clustered_fl import ClusteredFL
from cflower.strategy.reports import RoundReport
from reproduction.experiment import Experiment, Results, Setting
from reproduction.rounds import Keys, client_data, federate

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LINE = {"model": "linear", "local-epochs": 1, "momentum": 0.0, "learning-rate-decay": 1.0}
FAILURES = {
    "limited model complexity": {"dataset": "reproduction.toys:xor", "shift": "topic"},
    "divergent conditionals": {"dataset": "reproduction.toys:axes", "shift": "label-permutation"},
}
PAIRS = {
    "incongruent": {"dataset": "reproduction.toys:axes", "shift": "label-permutation"},
    "congruent": {"dataset": "reproduction.toys:axes", "shift": "topic"},
}
STARTS = ((-2.0, -1.0), (-1.0, 2.5))
"""Where the paths of figure 2 begin."""
GRID = np.linspace(-3.0, 6.0, 19)


# ------------------------------------------------------------------------------ figure 1


def run_failures(setting: Setting) -> Results:
    """Both failures of one model for all, and the clusters' models."""
    return {name: run_failure(keys, setting) for name, keys in FAILURES.items()}


def run_failure(problem: Keys, setting: Setting) -> dict[str, Any]:
    """The lines that federated learning and clustered federated learning end with."""
    clients = 4 if setting.quick else 10
    keys = {
        **LINE,
        **problem,
        "learning-rate": 0.5,
        "min-available-nodes": clients,
        "num-server-rounds": 5 if setting.quick else 60,
        "seed": setting.seed,
    }
    lines: dict[str, list[float]] = {}

    def on_round(report: RoundReport, strategy: ClusteredFL) -> None:
        lines.clear()
        for leaf in report.state.tree.leaves:
            lines[leaf.name] = line_of(strategy.layout, leaf.model)

    federated, one_line = federate(keys, on_round), dict(lines)
    clustered = federate(keys, on_round, AutoCriterion())
    points = []
    for group, partition in enumerate((0, clients - 1)):
        held = client_data(keys, partition).train
        points += [
            [round(float(x), 3), round(float(y), 3), int(label), group]
            for (x, y), label in zip(held.inputs, held.labels, strict=True)
        ]
    return {
        "federated": {"accuracy": federated.metrics["accuracy"], "lines": one_line},
        "clustered": {"accuracy": clustered.metrics["accuracy"], "lines": lines},
        "points": points,
        "clients": clients,
    }


def line_of(layout: Layout, model: Weights) -> list[float]:
    """(w_x, w_y, b) of the line w·x + b = 0 on which both labels are as likely."""
    arrays = layout.arrays(model)
    weight, bias = arrays["classifier.weight"], arrays["classifier.bias"]
    return [round(float(v), 3) for v in (*(weight[1] - weight[0]), bias[1] - bias[0])]


def draw_failures(results: Results, path: Path) -> None:
    """Points in the colour of their group, in the form of their label; the lines."""
    with new_figure(7.2, 4.2) as figure:
        for axes, (name, result) in zip(figure.subplots(1, 2), results.items(), strict=True):
            points = np.array(result["points"])
            for group, label in ((0, 0), (0, 1), (1, 0), (1, 1)):
                x, y = points[(points[:, 3] == group) & (points[:, 2] == label)].T[:2]
                axes.plot(x, y, "o+"[label], color=COLORS[group], mfc="none", ms=5, mew=0.9)
            (line,) = result["federated"]["lines"].values()
            draw_line(axes, line, color="black", ls="--", label="FL")
            for color, (cluster, line) in zip(
                COLORS, result["clustered"]["lines"].items(), strict=False
            ):
                draw_line(axes, line, color=color, label=f"cluster {cluster}")
            shares = [result[way]["accuracy"] for way in ("federated", "clustered")]
            axes.set_title(f"{name}\naccuracy: FL {shares[0]:.0%}, CFL {shares[1]:.0%}", fontsize=9)
            axes.set(xlim=(-1.8, 1.8), ylim=(-1.8, 1.8), aspect="equal")
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3)
        save(figure, path)


def draw_line(axes: "Axes", line: list[float], **style: Any) -> None:
    """w·x + b = 0 as the closest point to the origin and its direction."""
    w, b = np.array(line[:2]), line[2]
    foot = -b * w / (w @ w)
    axes.axline(foot, foot + np.array([-w[1], w[0]]), lw=1.5, **style)


# ------------------------------------------------------------------------------ figure 2


def run_paths(setting: Setting) -> Results:
    """Paths of both pairs, and the two clients' losses around them."""
    return {name: run_pair(keys, setting) for name, keys in PAIRS.items()}


def run_pair(problem: Keys, setting: Setting) -> dict[str, Any]:
    """Two clients, one full-batch gradient step a round."""
    keys = {
        **LINE,
        **problem,
        "learning-rate": 1.0,
        "batch-size": 1000,
        "min-available-nodes": 2,
        "num-server-rounds": 5 if setting.quick else 100,
        "seed": setting.seed,
    }
    paths = [run_path(keys, start) for start in STARTS]
    grid = GRID[::6] if setting.quick else GRID
    losses = [losses_of(keys, client, grid) for client in (0, 1)]
    return {"paths": paths, "grid": grid.tolist(), "losses": losses}


def run_path(keys: Keys, start: tuple[float, float]) -> dict[str, Any]:
    """Models, norms and last updates of one federation."""
    path, mean_norm, max_norm = [list(start)], [], []
    ends: list[list[float]] = []

    def on_round(report: RoundReport, strategy: ClusteredFL) -> None:
        path.append(line_of(strategy.layout, report.state.tree.root.model)[:2])
        mean_norm.append(float(f"{report.decisions[0].mean_norm:.3g}"))
        max_norm.append(float(f"{report.decisions[0].max_norm:.3g}"))
        updates = [known.vector for known in report.state.known.values()]
        # The arrays in the model's order: weight (2, 2), then bias (2,).
        ends[:] = [(u[2:4] - u[:2]).round(4).tolist() for u in updates]

    federate(keys, on_round, start=ArrayRecord(arrays_at(start)))
    return {"path": path, "mean_norm": mean_norm, "max_norm": max_norm, "last_updates": ends}


def arrays_at(w: tuple[float, float]) -> dict[str, Array]:
    """The model with the line w·x = 0, its two rows of weights opposite."""
    weight = np.array([w, w], np.float32) * np.array([[-0.5], [0.5]], np.float32)
    return {"classifier.weight": Array(weight), "classifier.bias": Array(np.zeros(2, np.float32))}


def losses_of(keys: Keys, client: int, grid: NDArray[np.floating]) -> list[list[float]]:
    """A client's loss at each w of the grid, rows by w_y."""
    train = client_data(keys, client).train
    model = build_model("linear", train.input_shape, train.num_classes, seed=0)

    def loss(w: tuple[float, float]) -> float:
        state = {name: torch.tensor(a.numpy()) for name, a in arrays_at(w).items()}
        model.load_state_dict(state)
        return round(evaluate(model, train)["loss"], 3)

    return [[loss((float(x), float(y))) for x in grid] for y in grid]


def draw_paths(results: Results, path: Path) -> None:
    """Contours of both losses, the paths over them; below, the norms by round."""
    with new_figure(7.2, 5.6) as figure:
        rows = figure.subplots(2, 2, height_ratios=[2, 1], sharey="row")
        for (upper, lower), (name, result) in zip(rows.T, results.items(), strict=True):
            losses = np.array(result["losses"])
            upper.contourf(
                result["grid"],
                result["grid"],
                losses.max(axis=0),
                levels=[0, 0.1],
                colors="#d4d7da",
            )
            for color, surface in zip(COLORS, losses, strict=False):
                upper.contour(
                    result["grid"],
                    result["grid"],
                    surface,
                    levels=[0.1, 0.3, 0.7, 1.2, 1.8, 2.5],
                    colors=color,
                    linewidths=0.6,
                )
            for trace, dash in zip(result["paths"], ("-", "--"), strict=True):
                way = np.array(trace["path"])
                upper.plot(*way.T, color="black", ls=dash, lw=1.5)
                upper.plot(*way[0], "o", color="black", ms=4)
                lower.semilogy(trace["mean_norm"], color="black", ls=dash, label="‖mean update‖")
                lower.semilogy(
                    trace["max_norm"], color=COLORS[3], ls=dash, label="largest ‖update‖"
                )
            end = np.array(result["paths"][0]["path"][-1])
            for color, update in zip(COLORS, result["paths"][0]["last_updates"], strict=False):
                arrow = {"arrowstyle": "-|>", "color": color, "lw": 2}
                tip = end + ARROW * np.array(update)
                upper.annotate("", xy=tip, xytext=end, arrowprops=arrow)
            upper.set(title=name, aspect="equal", xlabel="w₁", ylabel="w₂")
            lower.set(xlabel="round", ylim=(1e-4, None))
        rows[1, 0].set(ylabel="norm")
        rows[1, 0].legend(*(part[:2] for part in rows[1, 0].get_legend_handles_labels()))
        save(figure, path)


ARROW = 2.0
"""How many times its length an update is drawn."""

EXPERIMENTS = (
    Experiment(
        "paper-fig1",
        "paper, Fig. 1",
        "two ways in which no one model fits all clients",
        run_failures,
        draw_failures,
    ),
    Experiment(
        "paper-fig2",
        "paper, Fig. 2",
        "optimization paths of an incongruent and a congruent pair",
        run_paths,
        draw_paths,
    ),
)
