"""The paper's figures 5 and 6: the separation gap by data points per client, and by round.

Both need the same federations (section VI-A): 20 clients in 4 groups that each swap two labels.
In every round the gap is taken of the clients' weight-updates (eq. 51), and in some also of
their gradients (eq. 50): the update of one full-batch step from the model as it is then.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from flwr.app import ArrayRecord

from cflower import ClusteredFL, Observer, simulate
from cflower.client_app import app as client_app
from cflower.config import RunConfig
from cflower.data.client_data import load_client_data
from cflower.data.settings import DataSettings
from cflower.data.shifts import groups_of
from cflower.messages.claims import DataSpec
from cflower.server_app import initial_model
from cflower.strategy.reports import FinalReport, RoundReport
from reproduction.experiment import Experiment, Results, Setting, Watch, separation_gap

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


def gradient_gap(keys: Mapping[str, Any], points: int, model: Any) -> float:
    """The gap of the clients' gradients at a model."""
    step = {"num-server-rounds": 1, "local-epochs": 1, "batch-size": points}
    found: list[float] = []
    federate({**keys, **step}, lambda report, _: found.append(gap(report)), start=model)
    return found[0]


def federate(
    keys: Mapping[str, Any],
    on_round: Callable[[RoundReport, ClusteredFL], None],
    start: ArrayRecord | None = None,
) -> FinalReport:
    """Train without splits from a model, else from that of the seed; ``on_round`` sees each round.

    Its decisions come with similarity matrices, and the strategy's ``layout`` unpacks models.
    """
    config = RunConfig.read(keys)
    clients, examples = config.min_available_nodes, config.part(DataSettings)
    train = load_client_data(examples, 0, clients).train
    first = initial_model(config, DataSpec(train.input_shape, train.class_names))
    observer = Observer()
    observer.on_round = lambda report: on_round(report, strategy)
    strategy = ClusteredFL(
        Watch(),
        fraction_evaluate=0.0,
        min_evaluate_nodes=0,
        min_available_nodes=clients,
        weighting=config.weighting,
        projection_dim=config.projection_dim,
        seed=config.seed,
        observers=[observer],
    )
    options = {"arrays": start or first, "num_rounds": config.num_server_rounds}
    simulate(client_app, clients, strategy=strategy, run_config=config.as_keys(), **options)
    assert strategy.final_report is not None  # `simulate` has returned
    return strategy.final_report


def gap(report: RoundReport) -> float:
    """g(α) of the one cluster that there is."""
    similarity = report.decisions[0].similarity
    assert similarity is not None and len(similarity) == CLIENTS
    return round(separation_gap(similarity, groups_of(CLIENTS, GROUPS)), 4)


EXPERIMENTS = (
    Experiment(
        "paper-fig5", "paper, Fig. 5", "separation gap by data points per client", run_by_points
    ),
    Experiment("paper-fig6", "paper, Fig. 6", "separation gap by round", run_by_round),
)
