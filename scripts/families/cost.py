"""What a default run costs its clients: trainings, evaluations and bytes, relative to FedAvg.

    python scripts/run.py cost --rounds 3,5,10,30,100 --seeds 0-2 --out outputs/cost

20 clients of the digits in two rotations, and without groups. Every message to a client and its
reply are counted where they pass, in the grid: by kind, with the bytes of the arrays in them.
``plain`` is a run without the personal step, ``default`` one with it, and ``federated``
conventional federated learning of as many rounds, whose messages are those of Flower's FedAvg
without federated evaluation. Trainings are messages of this kind; steps are those of stochastic
gradient descent, wherever a client takes them. An exchange is messages that are sent together.
"""

import time
from collections import Counter
from collections.abc import Iterable
from functools import partial
from itertools import product
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
from records import Job, Record, run_all
from tables import Row, show, table_of, write_table

from cflower.config import RunConfig, read_overrides
from cflower.learning import training
from cflower.messages.client_names import ROLL_CALL
from cflower.simulation.inline_grid import Failure, InlineGrid
from families.planted import FLAT, TURNED, Keys

CLIENTS = 20
GROUPS: dict[str, Keys] = {"two rotations": TURNED, "no groups": FLAT}
WAYS: dict[str, Keys] = {
    "federated": {"method": "federated", "personal": False},
    "plain": {"personal": False},
    "default": {},
}
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
    ways: Annotated[str, typer.Option(help=f"Of: {', '.join(WAYS)}.")] = ALL,
    data: command.Data = "digits",
    seeds: command.Seeds = "0",
    more: command.More = "",
    out: command.Out = Path("outputs/cost"),
    workers: command.Workers = None,
    table: command.TableOnly = False,
) -> None:
    """Measure, print the table and write ``cost.csv``."""
    keys = read_overrides([more], "--set")
    options = (
        folders(data).items(),
        chosen("groups", groups, GROUPS),
        numbers(rounds),
        chosen("way", ways, WAYS),
        numbers(seeds),
    )
    jobs = (
        Job(
            {"data": name, "groups": kind, "rounds": count, "way": way, "seed": seed},
            config_of(folder or name, count, GROUPS[kind] | keys | WAYS[way], seed),
        )
        for (name, folder), kind, count, way, seed in product(*options)
    )
    run_all(jobs, run_one, sentence, report, out, workers, table)


def config_of(data: str, rounds: int, more: Keys, seed: int) -> Keys:
    """The whole run config of one run."""
    keys = {
        "dataset": data,
        "dataset-size": 0 if data == "digits" else 100 * CLIENTS,
        "model": "mlp",
        "min-available-nodes": CLIENTS,
        "num-server-rounds": rounds,
        "seed": seed,
    }
    return RunConfig.read(keys | more).as_keys()


def run_one(job: Job) -> Record:
    """The figures of one run."""
    from cflower import simulate
    from cflower.client_app import app
    from cflower.server_app import run

    counts, server = Counts(), partial(run, say=lambda text: None)
    counted = partial(counts.step, sgd=training.sgd)
    with TemporaryDirectory() as folder, patch.object(training, "sgd", counted):
        config = {**job.settings, "output-dir": folder}
        summary = simulate(
            app, CLIENTS, server_app=server, run_config=config, grid_type=counts.grid
        )
    return {
        "accuracy": mean(client["accuracy"] for client in summary["clients"].values()),
        "clusters": len(summary["clusters"]),
        "trainings": of_kind(counts.messages, "train"),
        "evaluations": of_kind(counts.messages, "evaluate"),
        "models_evaluated": of_kind(counts.models, "evaluate"),
        "messages": dict(counts.messages),
        **{key: getattr(counts, key) for key in ("steps", "down", "up", "exchanges", "seconds")},
    }


def of_kind(counts: Counter[str], task: str) -> int:
    """The sum over all functions of a task, such as ``evaluate.way``."""
    return sum(count for kind, count in counts.items() if kind.split(".")[0] == task)


def sentence(record: Record) -> str:
    """One run in a few words."""
    return f"{record['trainings']} trainings, {record['evaluations']} evaluations"


def report(records: list[Record], out: Path) -> None:
    """A row for each kind of run, means over the seeds; every run as ``cost.csv``."""
    runs = table_of(records, data=DATA, groups=GROUPS, way=WAYS)
    runs = runs.sort_values(["groups", "rounds"], key=lambda c: c.map(_place), kind="stable")
    write_table(runs.drop(columns=["config", "messages"]), out / "cost.csv")
    kinds = ["data", "groups", "rounds"]
    means = runs.groupby([*kinds, "way"], sort=False)[["accuracy", *TOGETHER]].mean()
    show([row_of(key, means) for key in means.index])
    print("A client's mean; x: times conventional federated learning's of as many rounds.")


def _place(value: Any) -> Any:
    return list(GROUPS).index(value) if value in GROUPS else value


def row_of(key: Any, means: pd.DataFrame) -> Row:
    """The figures of one kind of run."""
    own, base = means.loc[key], (*key[:-1], "federated")
    other = means.loc[base] if base in means.index else own * float("nan")
    total, their_total = own["down"] + own["up"], other["down"] + other["up"]
    return {
        **dict(zip(("data", "groups", "rounds", "way"), key, strict=True)),
        "accuracy": own["accuracy"],
        "trainings": own["trainings"] / CLIENTS,
        "x trainings": own["trainings"] / other["trainings"],
        "x steps": own["steps"] / other["steps"],
        "evaluations": own["evaluations"] / CLIENTS,
        "models evaluated": own["models_evaluated"] / CLIENTS,
        "MB down": own["down"] / CLIENTS / 1e6,
        "x down": own["down"] / other["down"],
        "MB up": own["up"] / CLIENTS / 1e6,
        "x up": own["up"] / other["up"],
        "x bytes": total / their_total,
        "exchanges": own["exchanges"],
        "x CPU": own["seconds"] / other["seconds"],
    }
