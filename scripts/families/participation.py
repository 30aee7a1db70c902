"""Groups that take part seldom: are they found, and served no worse than alone?

    python scripts/run.py participation --seeds 0-9 --out outputs/participation

20 clients of two label permutations. The second group, a quarter or half of the clients, is there
in every second, third, fourth or eighth round only: in all others its nodes are not connected, so
that they get no message and send none, and judge nothing. With ``--scattered`` every client of the
group is away in other rounds. Everyone is there before the first round and after the last one. A
run has 30 rounds, or as many as give the group ten.

Ways: ``auto``, the rows of the table, and ``isolated``, each client alone in the same rounds. Worse
are clients more than two standard errors below alone, by their own reported examples.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import command
import numpy as np
import pandas as pd
import typer
from command import ALL, DATA, chosen, folders, numbers
from flwr.app import Context
from flwr.serverapp import Grid
from records import Job, Record, jobs_of, run_all
from tables import Row, show, table_of, write_table

from cflower import Observer
from cflower.config import RunConfig, read_overrides
from cflower.simulation.inline_grid import FIRST_NODE_ID, InlineGrid
from cflower.strategy.reports import RoundReport
from families.planted import Keys, are_worse, found_in, run_of, truth_of

CLIENTS, UPDATES = 20, 10
"""Of a federation; how often a group takes part at least."""
SELDOM = {
    "always": (5, 1),
    "quarter-2": (5, 2),
    "quarter-3": (5, 3),
    "quarter-4": (5, 4),
    "quarter-8": (5, 8),
    "half-4": (10, 4),
}
"""By name: the clients of the second group, and the rounds from one in which it is there to the
next."""
WAYS: dict[str, Keys] = {"auto": {}, "isolated": {"method": "isolated"}}


class Presence(Observer):
    """Who is there in the current round; an observer that knows which round that is."""

    def __init__(self, seldom: int, every: int, rounds: int, scattered: bool = False) -> None:
        self.first, self.every, self.rounds = CLIENTS - seldom, every, rounds
        self.scattered, self.now = scattered, 0

    def on_round(self, report: RoundReport) -> None:
        """The next round begins."""
        self.now = report.server_round + 1

    def on_start(self, run: Any) -> None:
        """The first round begins."""
        self.now = 1

    def is_away(self, client: int) -> bool:
        """Whether a client is not there now; everyone is before the first round and at the end."""
        if client < self.first or not 1 <= self.now <= self.rounds:
            return False
        return (self.now + self.scattered * client) % self.every != 0

    def grid(self, *settings: Any) -> InlineGrid:
        """A grid whose nodes come and go."""
        presence = self

        class Nodes(InlineGrid):
            def get_node_ids(self) -> Iterable[int]:
                nodes = super().get_node_ids()
                return [node for node in nodes if not presence.is_away(node - FIRST_NODE_ID)]

        return Nodes(*settings)


def participation(
    families: Annotated[str, typer.Option(help=f"Of: {', '.join(SELDOM)}.")] = ALL,
    ways: Annotated[str, typer.Option(help=f"Of: {', '.join(WAYS)}.")] = ALL,
    data: command.Data = "digits",
    seeds: command.Seeds = "0-9",
    rounds: Annotated[int, typer.Option(min=1, help="At least.")] = 30,
    scattered: Annotated[bool, typer.Option("--scattered", help="Not all at once.")] = False,
    more: command.More = "",
    out: command.Out = Path("outputs/participation"),
    workers: command.Workers = None,
    table: command.TableOnly = False,
) -> None:
    """Measure, print the tables and write ``participation.csv``."""
    keys, places = read_overrides([more], "--set"), folders(data)

    def settings(data: str, family: str, way: str, seed: int) -> Keys:
        seldom, every = SELDOM[family.removesuffix("-scattered")]
        given = WAYS[way] | keys
        config = config_of(places[data] or data, seldom, every, rounds, given, seed)
        return config | {"every": every, "scattered": scattered}

    jobs = jobs_of(
        settings,
        data=places,
        family=[name + "-scattered" * scattered for name in chosen("family", families, SELDOM)],
        way=chosen("way", ways, WAYS),
        seed=numbers(seeds),
    )
    run_all(jobs, run_one, sentence, report, out, workers, table)


def config_of(data: str, seldom: int, every: int, rounds: int, more: Keys, seed: int) -> Keys:
    """The whole run config of one run."""
    sizes = f"{CLIENTS - seldom},{seldom}"
    keys = {"shift": "label-permutation", "num-groups": 2, "group-sizes": sizes}
    return run_of(data, CLIENTS, max(rounds, UPDATES * every), seed, keys | more)


def run_one(job: Job) -> Record:
    """The figures of one run."""
    config = dict(job.settings)
    every, scattered = config.pop("every"), config.pop("scattered")
    truth = truth_of(config)
    seldom = sum(truth.values())
    presence = Presence(seldom, every, config["num-server-rounds"], scattered)
    with TemporaryDirectory() as folder:
        summary = simulated(config | {"output-dir": folder}, presence)
    return {
        **found_in(summary, truth),
        "seldom": seldom,
        "held_out": [summary["clients"][name]["held_out"] for name in truth],
        "split_lines": summary["splits"],
    }


def simulated(config: Keys, presence: Presence, clients: int = CLIENTS) -> dict[str, Any]:
    """As `cflower.server_app.run`, with clients that come and go; the summary."""
    from cflower import Recorder, simulate
    from cflower.client_app import app
    from cflower.server_app import agree_on_model, roll_call_of, strategy_of, train

    def serve(grid: Grid, context: Context) -> dict[str, Any]:
        settings = RunConfig.read(context.run_config)
        recorder = Recorder(settings.output_path, settings.as_keys(), say=lambda text: None)
        roll_call = roll_call_of(settings)
        strategy = strategy_of(settings, None, roll_call, [recorder, presence])
        (model,), about = agree_on_model(grid, roll_call, settings, recorder)
        train(strategy, grid, model, settings, about)
        return recorder.summary

    return simulate(app, clients, server_app=serve, run_config=config, grid_type=presence.grid)


def sentence(record: Record) -> str:
    """One run in a few words."""
    often, seldom = groups_of(record)
    right = "exact" if record["exact"] else "not exact"
    return f"{right}, {record['clusters']} clusters, accuracy {often:.4f}, seldom {seldom:.4f}"


def groups_of(record: Mapping[str, Any], key: str = "accuracies") -> tuple[float, float]:
    """The mean accuracies of the two groups."""
    first = CLIENTS - record["seldom"]
    return float(np.mean(record[key][:first])), float(np.mean(record[key][first:]))


def report(records: list[Record], out: Path) -> None:
    """The runs and their means; the figures of every run as ``participation.csv``."""
    order = [name + tail for name in SELDOM for tail in ("", "-scattered")]
    runs = table_of(records, data=DATA, family=order, way=WAYS)
    keys = ["data", "family", "seed"]
    alone = runs[runs["way"] == "isolated"].set_index(keys)["accuracies"]
    runs = runs[runs["way"] != "isolated"].join(alone.rename("alone"), on=keys)
    if runs.empty:
        return
    lines = [line(run) for run in runs.to_dict("records")]
    show(lines, "every run")
    frame = pd.DataFrame(lines)
    write_table(frame, out / "participation.csv")
    cells = frame.groupby(["data", "family"], sort=False)
    show([{"data": data, "family": family, **figures(cell)} for (data, family), cell in cells])
    print("leaf: without the personal step. worse: clients of both groups, of so many.")


def line(run: Mapping[str, Any]) -> Row:
    """A run's line of the table."""
    row = {key: run[key] for key in ("data", "family", "seed", "exact", "clusters")}
    splits = [split for split in run["split_lines"] if split.get("trial") != "undone"]
    row["last split"] = max((split["round"] for split in splits), default=None)
    for key, name in (("accuracies", "accuracy"), ("leaves", "leaf"), ("alone", "alone")):
        known = isinstance(run[key], list)
        often, seldom = groups_of(run, key) if known else (np.nan, np.nan)
        row |= {f"{name} often": often, f"{name} seldom": seldom}
    if isinstance(run["alone"], list):
        alone, held_out = np.array(run["alone"]), np.array(run["held_out"])
        for key, name in (("accuracies", "worse"), ("leaves", "leaf worse")):
            row[name] = int(are_worse(np.array(run[key]), alone, held_out).sum())
    return row


def figures(runs: pd.DataFrame) -> Row:
    """Those of a family."""
    numbers = [name for name in runs if name.endswith(("often", "seldom"))]
    return {
        "runs": len(runs),
        "exact": runs["exact"].sum(),
        "last split": runs["last split"].mean(),
        **runs[numbers].mean(),
        **{
            name: f"{runs[name].sum():.0f} of {CLIENTS * runs[name].count()}"
            for name in ("worse", "leaf worse")
            if name in runs
        },
    }
