"""What a default run costs its clients: trainings, evaluations and bytes, relative to FedAvg.

    python scripts/run.py cost --rounds 3,5,10,30,100 --seeds 0-2 --out outputs/cost
    python scripts/run.py cost --rounds 6 --clients 3 --ways own-fedavg,own --out outputs/own

20 clients of the digits in two rotations, and without groups. Every message to a client and its
reply are counted where they pass, in the grid: by kind, with the bytes of the arrays in them.
``plain`` is a run without the personal step, ``default`` one with it, and ``federated``
conventional federated learning of as many rounds, whose messages are those of Flower's FedAvg
without federated evaluation. Trainings are messages of this kind; steps are those of stochastic
gradient descent, wherever a client takes them. An exchange is messages that are sent together.
CPU time is the clients', with what a process loads in its first run.

``own`` is `ClusteredFL()` as it is, with a ClientApp like those of Flower's templates: it trains
and evaluates, its replies to training have a loss only, and it has no other function.
``own-fedavg`` is Flower's `FedAvg()` with that app.
"""

import time
from collections import Counter
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Annotated, Any
from unittest.mock import patch

import command
import pandas as pd
import typer
from command import ALL, DATA, chosen, folders, numbers
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from records import Job, Record, jobs_of, run_all
from tables import Row, show, table_of, write_table

from cflower.config import RunConfig, read_overrides
from cflower.learning import dense
from cflower.messages.client_names import ROLL_CALL
from cflower.simulation.inline_grid import Failure, InlineGrid
from families.planted import FLAT, TURNED, Keys, run_of

GROUPS: dict[str, Keys] = {"two rotations": TURNED, "no groups": FLAT}
WAYS: dict[str, Keys] = {
    "federated": {"method": "federated", "personal": False},
    "plain": {"personal": False},
    "default": {},
    "own-fedavg": {},
    "own": {},
}
BASES = {"own": "own-fedavg", "own-fedavg": "own-fedavg"}
"""What a way is compared with, if it is not ``federated``."""
TOGETHER = ("trainings", "steps", "evaluations", "models_evaluated", "down", "up", "exchanges",
            "seconds")  # fmt: skip


class Counts:
    """What passes between a server and its clients."""

    def __init__(self) -> None:
        self.messages, self.models = Counter[str](), Counter[str]()
        self.down = self.up = self.exchanges = self.steps = 0
        self.seconds = 0.0

    def step(self, *arguments: Any, sgd: Any, **settings: Any) -> None:
        """One step of stochastic gradient descent."""
        self.steps += 1
        sgd(*arguments, **settings)

    def grid(self, *settings: Any) -> InlineGrid:
        """A grid that counts."""
        counts = self

        class Counting(InlineGrid):
            def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
                messages = list(messages)
                counts.exchanges += any(m.metadata.message_type != ROLL_CALL for m in messages)
                return super().push_messages(messages)

            def run_client(
                self, message: Message, context: Context
            ) -> tuple[Message, Failure | None]:
                kind = message.metadata.message_type
                counts.messages[kind] += 1
                counts.models[kind] += len(message.content.array_records)
                counts.down += size_of(message.content)
                began = time.process_time()
                reply, failure = super().run_client(message, context)
                counts.seconds += time.process_time() - began
                counts.up += 0 if reply.has_error() else size_of(reply.content)
                return reply, failure

        return Counting(*settings)


def size_of(content: RecordDict) -> int:
    """Bytes of all arrays."""
    return sum(len(a.data) for record in content.array_records.values() for a in record.values())


def cost(
    rounds: Annotated[str, typer.Option(help="Such as 3,5,10.")] = "3,5,10,30,100",
    groups: Annotated[str, typer.Option(help=f"Of: {', '.join(GROUPS)}.")] = ALL,
    ways: Annotated[str, typer.Option(help=f"Of: {', '.join(WAYS)}.")] = "federated,plain,default",
    clients: Annotated[int, typer.Option(min=2)] = 20,
    data: command.Data = "digits",
    seeds: command.Seeds = "0",
    more: command.More = "",
    out: command.Out = Path("outputs/cost"),
    workers: command.Workers = None,
    table: command.TableOnly = False,
) -> None:
    """Measure, print the table and write ``cost.csv``."""
    keys, places = read_overrides([more], "--set"), folders(data)

    def settings(data: str, groups: str, clients: int, rounds: int, way: str, seed: int) -> Keys:
        given = GROUPS[groups] | keys | WAYS[way]
        return run_of(places[data] or data, clients, rounds, seed, given)

    jobs = jobs_of(
        settings,
        data=places,
        groups=chosen("groups", groups, GROUPS),
        clients=[clients],
        rounds=numbers(rounds),
        way=chosen("way", ways, WAYS),
        seed=numbers(seeds),
    )
    run_all(jobs, run_one, sentence, report, out, workers, table)


def run_one(job: Job) -> Record:
    """The figures of one run."""
    counts, way = Counts(), job.what["way"]
    counted = partial(counts.step, sgd=dense.sgd)
    with TemporaryDirectory() as folder, patch.object(dense, "sgd", counted):
        # A step of several clients together would be counted once.
        config = {**job.settings, "output-dir": folder, "clients-together": False}
        accuracies = own_run(way, config, counts) if way in BASES else default_run(config, counts)
    return {
        "accuracy": mean(accuracies) if accuracies else None,
        "trainings": of_kind(counts.messages, "train"),
        "evaluations": of_kind(counts.messages, "evaluate"),
        "models_evaluated": of_kind(counts.models, "evaluate"),
        "messages": dict(counts.messages),
        **{key: getattr(counts, key) for key in ("steps", "down", "up", "exchanges", "seconds")},
    }


def default_run(config: Keys, counts: Counts) -> list[float]:
    """A run of cflower's own apps; the clients' accuracies."""
    from cflower import simulate
    from cflower.client_app import app
    from cflower.server_app import run

    server, clients = partial(run, say=lambda text: None), config["min-available-nodes"]
    summary = simulate(app, clients, server_app=server, run_config=config, grid_type=counts.grid)
    return [client["accuracy"] for client in summary["clients"].values()]


def own_run(way: str, config: Keys, counts: Counts) -> list[float]:
    """A run of an app like those of Flower's templates; no accuracies."""
    from flwr.serverapp.strategy import FedAvg

    from cflower import ClusteredFL, simulate
    from cflower.data.client_data import load_client_data
    from cflower.data.settings import DataSettings
    from cflower.learning.models import arrays_of, build_model
    from cflower.messages.arrays import record_of

    settings, clients = RunConfig.read(config), config["min-available-nodes"]
    data = load_client_data(settings.part(DataSettings), 0, clients, None)
    first = record_of(arrays_of(build_model(settings.model, *data.train.sizes, settings.seed)))
    strategy = FedAvg() if way == "own-fedavg" else ClusteredFL()
    simulate(
        template_app(),
        clients,
        strategy=strategy,
        arrays=first,
        num_rounds=settings.num_server_rounds,
        run_config=config,
        grid_type=counts.grid,
    )
    return []


def template_app() -> ClientApp:
    """A ClientApp that trains and evaluates, and tells a loss only when it has trained."""
    from cflower import client_app

    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        reply = client_app.train_round(message, context)
        (metrics,) = reply.content.metric_records.values()
        for name in set(metrics) - {"num-examples", "train-loss"}:
            del metrics[name]
        return reply

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        reply = client_app.evaluate_round(message, context)
        for name in reply.content.config_records:
            del reply.content[name]
        return reply

    return app


def of_kind(counts: Counter[str], task: str) -> int:
    """The sum over all functions of a task, such as ``evaluate.way``."""
    return sum(count for kind, count in counts.items() if kind.split(".")[0] == task)


def sentence(record: Record) -> str:
    """One run in a few words."""
    return f"{record['trainings']} trainings, {record['evaluations']} evaluations"


def report(records: list[Record], out: Path) -> None:
    """A row for each kind of run, means over the seeds; every run as ``cost.csv``."""
    runs = table_of(records, data=DATA, groups=GROUPS, way=WAYS)
    runs = runs.astype({"accuracy": float}).sort_values(
        ["groups", "clients", "rounds"], key=lambda c: c.map(_place), kind="stable"
    )
    write_table(runs.drop(columns=["config", "messages"]), out / "cost.csv")
    kinds = ["data", "groups", "clients", "rounds"]
    means = runs.groupby([*kinds, "way"], sort=False)[["accuracy", *TOGETHER]].mean()
    show([row_of(key, means) for key in means.index])
    print("A client's mean; x: times conventional federated learning's of as many rounds.")


def _place(value: Any) -> Any:
    return list(GROUPS).index(value) if value in GROUPS else value


def row_of(key: Any, means: pd.DataFrame) -> Row:
    """The figures of one kind of run."""
    own, base = means.loc[key], (*key[:-1], BASES.get(key[-1], "federated"))
    clients = key[2]
    other = means.loc[base] if base in means.index else own * float("nan")
    total, their_total = own["down"] + own["up"], other["down"] + other["up"]
    return {
        **dict(zip(("data", "groups", "clients", "rounds", "way"), key, strict=True)),
        "accuracy": own["accuracy"],
        "trainings": own["trainings"] / clients,
        "x trainings": own["trainings"] / other["trainings"],
        "x steps": own["steps"] / other["steps"],
        "evaluations": own["evaluations"] / clients,
        "models evaluated": own["models_evaluated"] / clients,
        "MB down": own["down"] / clients / 1e6,
        "x down": own["down"] / other["down"],
        "MB up": own["up"] / clients / 1e6,
        "x up": own["up"] / other["up"],
        "x bytes": total / their_total,
        "exchanges": own["exchanges"],
        "x CPU": own["seconds"] / other["seconds"],
    }
