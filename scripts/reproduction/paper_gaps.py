"""The paper's figures 5 and 6: the separation gap by data points per client, and by round.

Both need the same federations (section VI-A): 20 clients in 4 groups that each swap two labels.
In every round the gap is taken of the clients' weight-updates (eq. 51), and in some also of
their gradients (eq. 50): the update of one full-batch step from the model as it is then.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from cflower.data.shifts import groups_of
from cflower.runs.plots import COLORS, new_figure, save
from cflower.strategy.clustered_fl import ClusteredFL
from cflower.strategy.reports import RoundReport
from reproduction.evaluation import separation_gap
from reproduction.experiment import Experiment, Results, Setting
from reproduction.rounds import Keys, federate

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CLIENTS, GROUPS, HELD_OUT = 20, 4, 5
# Without momentum and with small batches: else the gap swings from round to round.
SGD = {"learning-rate": 0.05, "learning-rate-decay": 1.0, "momentum": 0.0, "batch-size": 10}


class Problem(NamedTuple):
    """Points per client of figure 5 and of figure 6, and rounds."""

    points: tuple[int, ...]
    by_round: int
    rounds: int = 50


PROBLEMS = {
    "mnist": Problem((10, 20, 50, 100, 200), by_round=100),
    "cifar10": Problem((100, 300, 500, 1500), by_round=1500),
}
QUICK = {"digits": Problem((10, 20), by_round=20, rounds=2)}
GRADIENTS_AT = (1, 2, 3, 5, 7, 10, 15, 20, 25, 30, 35, 40, 45)


def problems(setting: Setting) -> dict[str, Problem]:
    """What is run at this size."""
    return QUICK if setting.quick else PROBLEMS


def run_by_points(setting: Setting) -> Results:
    """Figure 5: both gaps after the last round."""
    results: Results = {}
    for data, problem in problems(setting).items():
        runs = [gaps(setting, data, points, problem) for points in problem.points]
        results[data] = {
            "rounds": problem.rounds,
            "points": problem.points,
            "update": [run["update"][-1] for run in runs],
            "gradient": [list(run["gradient"].values())[-1] for run in runs],
            "accuracy": [run["accuracy"] for run in runs],
        }
    return results


def run_by_round(setting: Setting) -> Results:
    """Figure 6: both gaps by round."""
    return {
        data: {"points": problem.by_round} | gaps(setting, data, problem.by_round, problem)
        for data, problem in problems(setting).items()
    }


def gaps(setting: Setting, data: str, points: int, problem: Problem) -> dict[str, Any]:
    """One federation's gaps by round; kept in ``setting.out``, so that no figure runs it again."""
    kept = setting.out / "gaps" / f"{data}-{points}-{problem.rounds}-{setting.seed}.json"
    if not kept.exists():
        print(f"{data}: {points} points a client, {problem.rounds} rounds")
        series = measure_gaps(setting, data, points, problem)
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(series))
    return dict(json.loads(kept.read_text()))


def measure_gaps(setting: Setting, data: str, points: int, problem: Problem) -> dict[str, Any]:
    """Run it; ``gradient`` is by round, as text."""
    keys = {
        "dataset": data if setting.quick else setting.source(data),
        "dataset-size": CLIENTS * (points + HELD_OUT),
        "validation-fraction": HELD_OUT / (points + HELD_OUT),
        "shift": "label-swap",
        "num-groups": GROUPS,
        "model": "cnn" if setting.quick else "lab-convnet",
        "min-available-nodes": CLIENTS,
        "num-server-rounds": problem.rounds,
        "seed": setting.seed,
        **SGD,
    }
    updates: list[float] = []
    gradients: dict[str, float] = {}

    def on_round(report: RoundReport, strategy: ClusteredFL) -> None:
        updates.append(gap(report))
        if report.server_round in (*GRADIENTS_AT, problem.rounds):
            model = strategy.layout.record(report.state.tree.root.model)
            gradients[str(report.server_round)] = gradient_gap(keys, points, model)

    final = federate(keys, on_round)
    return {"update": updates, "gradient": gradients, "accuracy": final.metrics["accuracy"]}


def gradient_gap(keys: Keys, points: int, model: Any) -> float:
    """The gap of the clients' gradients at a model."""
    step = {"num-server-rounds": 1, "local-epochs": 1, "batch-size": points}
    found: list[float] = []
    federate({**keys, **step}, lambda report, _: found.append(gap(report)), start=model)
    return found[0]


def gap(report: RoundReport) -> float:
    """g(α) of the one cluster that there is."""
    similarity = report.decisions[0].similarity
    assert similarity is not None and len(similarity) == CLIENTS
    return round(separation_gap(similarity, groups_of(CLIENTS, GROUPS)), 4)


def draw_by_points(results: Results, path: Path) -> None:
    """One pane a data set."""
    with new_figure(3.6 * len(results), 3) as figure:
        panes = figure.subplots(1, len(results), squeeze=False)[0]
        for axes, (data, series) in zip(panes, results.items(), strict=True):
            for kind, color in zip(("update", "gradient"), COLORS, strict=False):
                axes.semilogx(series["points"], series[kind], "o-", color=color, label=LABELS[kind])
            axes.set_xticks(series["points"], list(map(str, series["points"])))
            axes.minorticks_off()
            axes.set(title=f"{NAMES[data]}, after {series['rounds']} rounds")
            finish(axes, "data points per client")
        save(figure, path)


def draw_by_round(results: Results, path: Path) -> None:
    """One pane a data set."""
    with new_figure(3.6 * len(results), 3) as figure:
        panes = figure.subplots(1, len(results), squeeze=False)[0]
        for axes, (data, series) in zip(panes, results.items(), strict=True):
            rounds = range(1, len(series["update"]) + 1)
            axes.plot(rounds, series["update"], color=COLORS[0], label=LABELS["update"])
            at = list(map(int, series["gradient"]))
            gradients = list(series["gradient"].values())
            axes.plot(at, gradients, "o-", ms=3, color=COLORS[1], label=LABELS["gradient"])
            axes.set_xticks(range(0, len(rounds) + 1, 10))
            axes.set(title=f"{NAMES[data]}, {series['points']} points a client")
            finish(axes, "round")
        save(figure, path)


def finish(axes: "Axes", across: str) -> None:
    """What all panes have."""
    axes.axhline(0, color="black", ls="--", lw=1)
    axes.set(xlabel=across, ylabel="separation gap g(α)")
    axes.legend(loc="best")


LABELS = {"update": "weight-updates", "gradient": "gradients"}
NAMES = {"mnist": "MNIST", "cifar10": "CIFAR-10", "digits": "digits"}

EXPERIMENTS = (
    Experiment(
        "paper-fig5",
        "paper, Fig. 5",
        "separation gap by data points per client",
        run_by_points,
        draw_by_points,
    ),
    Experiment(
        "paper-fig6", "paper, Fig. 6", "separation gap by round", run_by_round, draw_by_round
    ),
)
