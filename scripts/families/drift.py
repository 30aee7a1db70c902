"""Federations whose clients change in mid-run: accuracy step by step, of several ways to train.

    python scripts/run.py drift --schemes A,D --shift label-swap --seeds 0 --out outputs/drift
    python scripts/run.py drift --schemes A --shift stream --data sea,mnist=/data/mnist --rounds 20

With shift ``stream`` every step has fresh examples, as in FedDrift's paper: see `streams.py`.

FedDrift is run as in `peers`; it knows where the steps begin, and has a threshold, for example
`--ways feddrift-0.1`. The oracle knows every change, all other ways know none.

Every other run goes through cflower's own apps. Accuracy is the mean over clients, each under the
model that it is sent in a round, before it trains it, on its held-out examples as they are then. A
member that only shows its place in a round counts with its accuracy of the round before.
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import command
import numpy as np
import pandas as pd
import typer
from command import DATA, chosen, folders, numbers, out_folder
from flwr.app import Context, Message
from flwr.serverapp import Grid
from peers import feddrift
from peers.federation import Federation, Vector
from records import Job, Record, run_all
from tables import show, write_table

from cflower.config import RunConfig, read_overrides
from cflower.data.client_data import load_client_data
from cflower.data.settings import DataSettings, group_at
from cflower.runs.run_files import read_lines
from families.drifting import NUM_GROUPS, SCHEMES, Oracle, drift_of
from families.streams import GENERATED, STREAM, as_of, written

WAYS: dict[str, dict[str, Any]] = {
    "moving": {},
    "staying": {"moving": False},
    "federated": {"method": "federated"},
    "oracle": {"method": "federated"},
}
FEDDRIFT = {f"feddrift-{delta:g}": delta for delta in (0.02, 0.04, 0.05, 0.1, 0.2, 0.3, 0.4)}
"""The thresholds tried."""
Then = Callable[[Mapping[str, Any], int], dict[str, Any]]
"""A run config as it is for the clients in a round."""
AFTER = 3
"""Rounds after a change, in which clients are sent a model the fourth time since."""


def drift(
    schemes: Annotated[str, typer.Option(help=f"Of: {', '.join(SCHEMES)}.")] = "A",
    shift: Annotated[str, typer.Option(help="What makes groups differ.")] = "label-swap",
    ways: Annotated[str, typer.Option(help=f"Of: {', '.join((*WAYS, *FEDDRIFT))}.")] = ",".join(
        WAYS
    ),
    seeds: command.Seeds = "0",
    data: command.Data = "digits",
    out: command.Out = Path("outputs/drift"),
    rounds: Annotated[int, typer.Option(min=4, help="Of a step.")] = 8,
    more: command.More = "",
    workers: command.Workers = None,
    table: command.TableOnly = False,
) -> None:
    """Measure, and print the table; options that name several things take commas."""
    keys = read_overrides([more], "--set")
    jobs = (
        Job(
            {"data": name, "shift": shift, "scheme": scheme, "way": way, "seed": seed},
            config_of(scheme, rounds, given | {"seed": seed} | keys | WAYS.get(way, {})),
        )
        for name, folder in folders(data, (*DATA, *GENERATED)).items()
        for scheme in chosen("scheme", schemes, SCHEMES)
        for seed in numbers(seeds)
        for place in [out / "data" / f"{name}-{scheme}-{seed}"]
        for given in [
            written(name, folder, SCHEMES[scheme], seed, out_folder(place))
            if shift == STREAM
            else {"dataset": folder or name, "shift": shift}
        ]
        for way in chosen("way", ways, (*WAYS, *FEDDRIFT))
    )
    run_all(jobs, partial(run_one, rounds=rounds), sentence, report, out, workers, table)


def report(records: list[Record], out: Path) -> None:
    """The tables, and the accuracy of every round as ``drift.csv``."""
    runs = pd.DataFrame(records)
    for what, some in runs.groupby(["data", "shift", "scheme"]):
        lines = [line for record in some.to_dict("records") for line in by_step(record)]
        show(lines, ", ".join(what) + ": accuracy by step")
    write_table(every_round(runs), out / "drift.csv")


def config_of(scheme: str, rounds: int, keys: dict[str, Any]) -> dict[str, Any]:
    """The whole run config of one run."""
    steps = SCHEMES[scheme]
    settings = {"num-server-rounds": rounds * len(steps), "min-available-nodes": len(steps[0])}
    if keys["shift"] != "none":
        groups = NUM_GROUPS.get(scheme, 1 + max(map(max, steps)))
        settings |= {"num-groups": groups, "drift": drift_of(steps, rounds)}
    return RunConfig.read(settings | keys).as_keys()


def run_one(job: Job, rounds: int) -> Record:
    """The figures of one run."""
    from cflower import simulate
    from cflower.client_app import app as client_app
    from cflower.server_app import run

    steps, way, config = SCHEMES[job.what["scheme"]], job.what["way"], dict(job.settings)
    then = partial(as_of, rounds=rounds, steps=len(steps))
    if way in FEDDRIFT:
        return {"rounds": rounds, **by_feddrift(config, FEDDRIFT[way], len(steps), then)}

    def client(message: Message, context: Context) -> Message:
        asked = message.content.config_records.get("config", {})
        now = then(context.run_config, int(str(asked.get("server-round", 1))))
        node = context.run_id, context.node_id, context.node_config, context.state
        return client_app(message, Context(*node, now))

    server = partial(run, say=lambda text: None)
    if way == "oracle":
        afresh = job.what["shift"] == STREAM
        server = partial(with_oracle, drift=drift_of(steps, rounds), afresh=afresh)
    with TemporaryDirectory() as folder:
        config |= {"output-dir": folder}
        summary = simulate(client, len(steps[0]), server_app=server, run_config=config)
        lines = read_lines(Path(folder) / summary["run_id"] / "rounds.jsonl")
    latest: dict[str, float] = {}  # a member that shows its place is not measured in that round
    by_round: dict[int, float] = {}
    for line in lines:
        latest |= {name: client["accuracy"] for name, client in line.clients.items()}
        by_round[line.round] = float(np.mean([*latest.values()]))
    return {
        "rounds": rounds,
        "accuracy": [by_round[i] for i in sorted(by_round)],
        "adjusted_rand_index": summary["adjusted_rand_index"],
        "clusters": summary["clusters"],
        "moves": summary["moves"],
        "splits": [[s["round"], s["cluster"], s.get("trial")] for s in summary["splits"]],
    }


def sentence(record: Record) -> str:
    """One run in a few words."""
    return f"mean accuracy {np.mean(record['accuracy']):.4f}, moves {len(record['moves'])}"


class Drifting(Federation):
    """Clients that change, and how good the models are that they are sent."""

    def __init__(self, config: dict[str, Any], then: Then) -> None:
        super().__init__(config)
        self.accuracy: dict[int, list[float]] = {}
        self.then = then

    def at(self, server_round: int) -> None:
        """As the run config's ``drift`` has it, or the stream."""
        config, count = self.then(self.config.as_keys(), server_round), len(self.clients)
        settings = RunConfig.read(config).part(DataSettings)
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


def by_feddrift(config: dict[str, Any], delta: float, steps: int, then: Then) -> dict[str, Any]:
    """What the record has of a run of FedDrift."""
    federation = Drifting(config, then)
    groups = feddrift.run(federation, delta, steps).groups or {}
    accuracy = [float(np.mean(federation.accuracy[i])) for i in sorted(federation.accuracy)]
    found = {
        str(name): [c for c in groups if groups[c] == name]
        for name in dict.fromkeys(groups.values())
    }
    return {"accuracy": accuracy, "clusters": found, "moves": []}


def with_oracle(grid: Grid, context: Context, drift: str, afresh: bool) -> dict[str, Any]:
    """As `cflower.server_app.run`, with the oracle."""
    from cflower import Recorder
    from cflower.messages.roll_call import RollCall
    from cflower.server_app import agree_on_model, train

    config = RunConfig.read(context.run_config)
    recorder = Recorder(config.output_path, config.as_keys(), say=lambda text: None)
    roll_call = RollCall(timeout=config.node_timeout, seed=config.seed)
    (model,), about = agree_on_model(grid, roll_call, config, recorder)
    strategy = Oracle(
        drift,
        afresh,
        fraction_evaluate=0.0,
        seed=config.seed,
        observers=[recorder],
        roll_call=roll_call,
    )
    train(strategy, grid, model, config, about)
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


def every_round(runs: pd.DataFrame) -> pd.DataFrame:
    """A row for each round of each run."""
    lines = runs.explode("accuracy").astype({"accuracy": float})
    lines["round"] = lines.groupby(level=0).cumcount() + 1
    lines["step"] = (lines["round"] - 1) // lines["rounds"]
    return lines[["data", "scheme", "shift", "seed", "way", "round", "step", "accuracy"]]
