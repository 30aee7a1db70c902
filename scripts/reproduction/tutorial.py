"""The Flower tutorial: five aggregation rules, and a server and two clients as processes."""

import re
from pathlib import Path
from statistics import mean

from cflower.runs.plots import COLORS, new_figure, save
from cflower.runs.record import RunRecord
from reproduction.experiment import Experiment, Results, Setting, read_config, simulate

STRATEGIES = {
    "FedAvg": {},
    "weighted": {"weighting": "examples"},
    "FedAvgM": {"server-optimizer": "fedavgm", "server-momentum": 0.5},
    "FedAdagrad": {"server-optimizer": "fedadagrad", "server-learning-rate": 0.003},
    "FedAdam": {"server-optimizer": "fedadam", "server-learning-rate": 0.01},
}
"""By the tutorial's names; what differs from ``tutorial-strategies.toml``."""


def run_strategies(setting: Setting) -> Results:
    """One run for each strategy, from the same first model on the same shares."""
    keys = read_config("tutorial-strategies")
    if setting.quick:
        keys |= {"dataset": "digits", "dataset-size": 300, "num-server-rounds": 2}
    else:
        keys |= {"dataset": setting.source("cifar10")}
    results: Results = {"seed": setting.seed, "keys": STRATEGIES, "strategies": {}}
    for name, more in STRATEGIES.items():
        run = simulate(setting, f"tutorial-{name.lower()}", keys | more)
        results["strategies"][name] = curves(run)
        results["examples"] = {n: c["num_examples"] for n, c in run.summary["clients"].items()}
    return results


def curves(run: RunRecord) -> Results:
    """Loss and accuracy by round, weighted by examples, and the plain mean of the accuracies.

    A round's figures are of the model that it began with; the last ones close the run.
    """
    clients = run.summary["clients"].values()
    end = {**run.summary["metrics"], "mean": mean(client["accuracy"] for client in clients)}
    by_round = [
        line["metrics"] | {"mean": mean(client["accuracy"] for client in line["clients"].values())}
        for line in run.lines
    ]
    return {
        key: [round(metrics[key], 4) for metrics in [*by_round, end]]
        for key in ("loss", "accuracy", "mean")
    }


def draw_strategies(results: Results, path: Path) -> None:
    """Weighted loss and accuracy by round."""
    with new_figure(9, 3.2) as figure:
        for axes, key in zip(figure.subplots(1, 2), ("loss", "accuracy"), strict=True):
            for color, (name, curve) in zip(COLORS, results["strategies"].items(), strict=False):
                axes.plot(range(len(curve[key])), curve[key], color=color, label=name)
            axes.set(xlabel="rounds done", ylabel=f"{key}, weighted by examples")
            axes.xaxis.get_major_locator().set_params(integer=True)
            axes.legend(fontsize=7)
        save(figure, path)


def run_processes(setting: Setting) -> Results:
    """SuperLink and two SuperNodes, started, used by `flwr run` and ended again."""
    from cflower.deployment.federation import NAME, PROJECT, Federation
    from cflower.deployment.materials import CLASSES

    folder, rounds = setting.out / "tutorial-processes", 1 if setting.quick else 3
    runs = folder / "runs"
    federation = Federation(folder)
    keys = f"min-available-nodes=2 num-server-rounds={rounds} method='federated' "
    keys += f"class-names='{','.join(CLASSES)}' output-dir='{runs}' seed={setting.seed}"
    try:
        federation.up(nodes=2, data=[], insecure=setting.quick)
        said = federation.flwr("run", PROJECT, NAME, "--stream", "-c", keys)
        nodes = {name: node.log.read_text() for name, node in federation.nodes.items()}
    finally:
        federation.down()
    run = RunRecord.read(max(runs.iterdir()))
    return {
        "seed": setting.seed,
        "curves": curves(run),
        "clients": run.summary["clients"],
        "log": plain(said, FOLDER=folder, PROJECT=PROJECT),
        "node_logs": {n: plain(log, FOLDER=folder, PROJECT=PROJECT) for n, log in nodes.items()},
    }


def plain(log: str, **places: Path) -> list[str]:
    """Lines without colours, and with names for places on this machine."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", log)
    for name, place in places.items():
        text = text.replace(str(place), name)
    return [line.rstrip() for line in text.splitlines() if line.strip()]


def draw_processes(results: Results, path: Path) -> None:
    """Loss and accuracy by round."""
    with new_figure(4.6, 3) as figure:
        axes = figure.subplots()
        for color, key in zip(COLORS, ("loss", "accuracy"), strict=False):
            values = results["curves"][key]
            axes.plot(range(len(values)), values, "o-", color=color, label=key)
        axes.set(xlabel="rounds done", ylim=(0, None))
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.legend()
        save(figure, path)


EXPERIMENTS = (
    Experiment(
        "tutorial-strategies",
        "tutorial",
        "CIFAR-10 and five clients under five aggregation rules",
        run_strategies,
        draw_strategies,
    ),
    Experiment(
        "tutorial-processes",
        "tutorial",
        "a server and two clients as processes of their own",
        run_processes,
        draw_processes,
    ),
)
