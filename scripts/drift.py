"""Federations whose clients change in mid-run: accuracy step by step, of several ways to train.

    python scripts/drift.py --schemes A,W --shift label-swap --seeds 0 --out outputs/drift

FedDrift is run as in `peers.py`; it knows where the steps begin, and has a threshold, for example
`--ways feddrift-0.1`. The oracle knows every change, all other ways know none.

Every run goes through cflower's own apps and leaves one small JSON in the output folder; what is
there already is not run again. Accuracy is the mean over clients, each under the model that it is
sent in a round, before it trains it, on its held-out examples as they are in that round.
"""

import json
import os
import shutil
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from battery import chosen, numbers
from command import quieten_flower, start, write_table
from federations.drifting import NUM_GROUPS, SCHEMES, Oracle, Truth, drift_of
from flwr.app import Context
from flwr.serverapp import Grid
from peers import feddrift
from peers.federation import Federation, Vector
from rich.console import Console
from rich.table import Table

from cflower.algorithm.criteria import NeverSplit
from cflower.config import RunConfig
from cflower.data.client_data import load_client_data
from cflower.data.drift import group_at
from cflower.data.settings import DataSettings

WAYS: dict[str, dict[str, Any]] = {
    "moving": {},
    "staying": {"moving": False},
    "federated": {"method": "federated"},
    "oracle": {"method": "federated"},
}
FEDDRIFT = {f"feddrift-{delta:g}": delta for delta in (0.02, 0.05, 0.1, 0.2, 0.3, 0.4)}
"""The thresholds tried."""
AFTER = 3
"""Rounds after a change, in which clients are sent a model the fourth time since."""


def drift(
    schemes: Annotated[str, typer.Option(help=f"Of: {', '.join(SCHEMES)}.")] = "A",
    shift: Annotated[str, typer.Option(help="What makes groups differ.")] = "label-swap",
    ways: Annotated[str, typer.Option(help=f"Of: {', '.join((*WAYS, *FEDDRIFT))}.")] = ",".join(
        WAYS
    ),
    seeds: Annotated[str, typer.Option(help='Such as "0-4" or "0,2,5-7".')] = "0",
    rounds: Annotated[int, typer.Option(min=4, help="Of a step.")] = 8,
    dataset: Annotated[str, typer.Option(help='"digits", or a folder.')] = "digits",
    size: Annotated[int, typer.Option(min=0, help="Examples; 0: all.")] = 0,
    model: Annotated[str, typer.Option(help="Of the run config.")] = "cnn",
    out: Annotated[Path, typer.Option(help="Where the records go.")] = Path("outputs/drift"),
    keep: Annotated[bool, typer.Option(help="Keep the run folders, in OUT/runs.")] = False,
) -> None:
    """Measure, and print the table; options that name several things take commas."""
    out = out.expanduser().absolute()
    out.mkdir(parents=True, exist_ok=True)
    quieten_flower()
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    records = []
    for name in chosen("scheme", schemes, SCHEMES):
        for seed in numbers(seeds):
            for way in chosen("way", ways, {**WAYS, **FEDDRIFT}):
                path = out / f"{Path(dataset).name}--{shift}--{name}--{way}--{seed}.json"
                if not path.exists():
                    keys = {"dataset": dataset, "dataset-size": size, "model": model}
                    record = run_one(name, rounds, {**keys, "shift": shift, "seed": seed}, way, out)
                    path.write_text(json.dumps(record, indent=1) + "\n")
                    if not keep:
                        shutil.rmtree(out / "runs", ignore_errors=True)
                records.append(json.loads(path.read_text()))
                accuracy, moves = np.mean(records[-1]["accuracy"]), len(records[-1]["moves"])
                print(f"{path.stem}: mean accuracy {accuracy:.4f}, moves {moves}", flush=True)
    for name in {record["scheme"]: None for record in records}:
        here = [line for record in records if record["scheme"] == name for line in by_step(record)]
        shown = Table(*here[0], title=f"{name}, {shift}: accuracy by step")
        for line in here:
            shown.add_row(*line.values())
        Console(width=150).print(shown)
    write_table([line for record in records for line in lines_of(record)], out / "drift.csv")


def run_one(name: str, rounds: int, keys: dict[str, Any], way: str, out: Path) -> dict[str, Any]:
    """One run; its record."""
    from cflower import simulate
    from cflower.client_app import app as client_app
    from cflower.server_app import run

    scheme = SCHEMES[name]
    truth = Truth(scheme, rounds)
    settings = {
        "num-groups": NUM_GROUPS.get(name, 1 + max(map(max, scheme))),
        "drift": drift_of(scheme, rounds),
        "num-server-rounds": rounds * len(scheme),
        "min-available-nodes": len(scheme[0]),
        "output-dir": str(out / "runs"),
    }
    config = RunConfig.read(settings | keys | WAYS.get(way, {})).as_keys()
    record = {key: value for key, value in keys.items() if key in ("shift", "seed")}
    record |= {"scheme": name, "way": way, "rounds": rounds}
    if way in FEDDRIFT:
        return record | by_feddrift(config, FEDDRIFT[way], len(scheme))
    server = partial(with_oracle, truth) if way == "oracle" else partial(run, say=lambda text: None)
    summary = simulate(client_app, len(scheme[0]), server_app=server, run_config=config)
    folder = out / "runs" / summary["run_id"]
    by_round: dict[int, list[float]] = {}
    for text in (folder / "rounds.jsonl").read_text().splitlines():
        line = json.loads(text)
        found = by_round.setdefault(line["round"], [])
        found += [client["accuracy"] for client in line["clients"].values()]
    return record | {
        "accuracy": [float(np.mean(by_round[i])) for i in sorted(by_round)],
        "adjusted_rand_index": summary["adjusted_rand_index"],
        "clusters": summary["clusters"],
        "moves": json.loads((folder / "tree.json").read_text())["moves"],
        "splits": [[s["round"], s["cluster"], s.get("trial")] for s in summary["splits"]],
    }


class Drifting(Federation):
    """Clients that change, and how good the models are that they are sent."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self.accuracy: dict[int, list[float]] = {}

    def at(self, server_round: int) -> None:
        """As the run config's ``drift`` has it."""
        settings, count = self.config.part(DataSettings), len(self.clients)
        groups = [group_at(settings.drift, i, server_round) for i in range(count)]
        self.clients = {
            f"partition-{i}": load_client_data(settings, i, count, group)
            for i, group in enumerate(groups)
        }

    def train(self, client: str, start: Vector, server_round: int, **settings: Any) -> Vector:
        """Measured first."""
        found = self.measure(client, start, "report")["accuracy"]
        self.accuracy.setdefault(server_round, []).append(found)
        return super().train(client, start, server_round, **settings)


def by_feddrift(config: dict[str, Any], delta: float, steps: int) -> dict[str, Any]:
    """What the record has of a run of FedDrift."""
    federation = Drifting(config)
    groups = feddrift.run(federation, delta, steps).groups or {}
    accuracy = [float(np.mean(federation.accuracy[i])) for i in sorted(federation.accuracy)]
    found = {str(name): [c for c in groups if groups[c] == name] for name in set(groups.values())}
    return {"accuracy": accuracy, "clusters": found, "moves": []}


def with_oracle(truth: Truth, grid: Grid, context: Context) -> dict[str, Any]:
    """As `cflower.server_app.run`, with the oracle."""
    from cflower import Recorder
    from cflower.messages.roll_call import RollCall
    from cflower.server_app import agree, train

    config = RunConfig.read(context.run_config)
    recorder = Recorder(config.output_path(), config.as_keys(), say=lambda text: None)
    roll_call = RollCall(timeout=config.node_timeout)
    model = agree(grid, roll_call, config)
    strategy = Oracle(
        truth,
        NeverSplit(),
        fraction_evaluate=0.0,
        seed=config.seed,
        observers=[recorder],
        roll_call=roll_call,
    )
    train(strategy, grid, model, config)
    return recorder.summary


def by_step(record: dict[str, Any]) -> list[dict[str, str]]:
    """A record's lines of the table: the last round of each step, and the third after its start."""
    accuracy = np.array(record["accuracy"]).reshape(-1, record["rounds"])
    when = {f"after {AFTER} rounds": AFTER, "last round": record["rounds"] - 1}
    return [
        {"way": record["way"], "seed": str(record["seed"]), "when": name}
        | {str(step): f"{value:.3f}" for step, value in enumerate(accuracy[:, place])}
        | {"of changes": f"{accuracy[1:, place].mean():.3f}", "all": f"{accuracy.mean():.3f}"}
        for name, place in when.items()
    ]


def lines_of(record: dict[str, Any]) -> list[dict[str, Any]]:
    """The same as a table of all rounds."""
    what = {key: record[key] for key in ("scheme", "shift", "seed", "way")}
    return [
        {**what, "round": i, "step": (i - 1) // record["rounds"], "accuracy": f"{value:.4f}"}
        for i, value in enumerate(record["accuracy"], start=1)
    ]


if __name__ == "__main__":
    start(lambda: typer.run(drift))
