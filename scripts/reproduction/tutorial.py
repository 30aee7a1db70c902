"""Flower's tutorial: the ways to aggregate that it names, side by side on its five clients."""

from reproduction.experiment import Experiment, Results, Setting, simulate, summary_of

WAYS = {
    "FedAvg": {"server-optimizer": "fedavg"},
    "FedAvg, plain mean": {"server-optimizer": "fedavg", "weighting": "uniform"},
    "FedAvgM": {"server-optimizer": "fedavgm"},
    "FedAdagrad": {"server-optimizer": "fedadagrad"},
    "FedAdam": {"server-optimizer": "fedadam"},
    "FedYogi": {"server-optimizer": "fedyogi"},
}
"""The tutorial names all but the last; each has cflower's default server learning rate."""


def run_ways(setting: Setting) -> Results:
    """The common model's accuracy on the clients' held-out examples after each way."""
    keys = {
        "dataset": "digits" if setting.quick else setting.source("cifar10"),
        "dataset-size": 500 if setting.quick else 10_000,
        "shift": "none",
        "model": "cnn",
        "method": "federated",
        "min-available-nodes": 5,
        "num-server-rounds": 2 if setting.quick else 10,
        "local-epochs": 1,
        "learning-rate": 0.03,
    }
    accuracy = {}
    for name, more in WAYS.items():
        run = simulate(
            setting, f"tutorial-{name.replace(', ', '-').replace(' ', '-')}", keys | more
        )
        accuracy[name] = round(summary_of(run)["metrics"]["accuracy"], 4)
    return {"clients": 5, "rounds": keys["num-server-rounds"], "accuracy": accuracy}


EXPERIMENTS = (
    Experiment(
        "tutorial-strategies",
        "tutorial, Aggregation",
        "the tutorial's ways to aggregate, side by side",
        run_ways,
    ),
)
