"""`Advised(FedAvg())`: is its answer right, and are its groups the true ones?

    python scripts/run.py advice --data mnist=/data/mnist --seeds 0-4 --out outputs/advice

The federations of `peers.unseen` and `peers.pfllib`, in six rounds of FedAvg. The right answer is
yes if models of the true groups are better than FedAvg by a point or more after all 20 rounds, by
``scripts/results/peers-unseen.csv``; no answer is read from these runs. Nothing in `Advised` was
fitted to a family: its constants are those of `ClusteredFL`, but for the round of the question.
"""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import command
import typer
from command import ALL, chosen, folders, numbers, quieten_flower
from flwr.app import Context, Message, MessageType, MetricRecord
from flwr.serverapp.strategy import FedAvg
from manifest import RESULTS
from peers import pfllib, unseen
from peers.peers import config_of
from records import Job, Record, jobs_of, run_all
from tables import show, table_of, write_table

from cflower import Advised, simulate
from cflower.client_app import app
from cflower.config import RunConfig
from cflower.data.client_data import client_data
from cflower.data.settings import DataSettings
from cflower.learning.models import arrays_of, build_model
from cflower.messages.arrays import record_of
from families.planted import Keys, truth_of

FAMILIES = (*unseen.NAMES, *pfllib.NAMES)
ROUNDS, POINT = 6, 0.01
TRAINING = "train-loss", "num-examples"
COLUMNS = "data", "family", "seed", "groups", "found", "exact", "answer", "right", "gain"


def advice(
    families: Annotated[str, typer.Option(help=f"Of: {', '.join(FAMILIES)}.")] = ALL,
    data: command.Data = "mnist",
    seeds: command.Seeds = "0-4",
    out: command.Out = Path("outputs/advice"),
    workers: command.Workers = None,
    table: command.TableOnly = False,
) -> None:
    """Measure, print the table and write ``advice.csv``."""
    places = {} if table else folders(data, ("mnist",))

    def settings(data: str, family: str, seed: int) -> Keys:
        return config_of(data, places[data], family, seed, {}, out)

    chosen_ones = chosen("family", families, FAMILIES)
    jobs = jobs_of(settings, data=places, family=chosen_ones, seed=numbers(seeds))
    run_all(jobs, run_one, sentence, report, out, workers, table)


def run_one(job: Job) -> Record:
    """The answer and the groups of one run."""
    quieten_flower()
    config, truth = RunConfig.read(job.settings), truth_of(job.settings)
    examples = client_data(config.part(DataSettings), 0, len(truth)).train
    model = build_model(config.model, *examples.sizes, config.seed)
    strategy = Advised(FedAvg(fraction_evaluate=0.0))
    arrays = record_of(arrays_of(model))
    run = {"arrays": arrays, "num_rounds": ROUNDS, "run_config": job.settings}
    simulate(with_losses_only, len(truth), strategy=strategy, **run)
    found = {client: number for number, group in enumerate(strategy.groups) for client in group}
    pairs = {(group, found.get(client)) for client, group in truth.items()}
    groups, number = len({*truth.values()}), len(strategy.groups)
    exact = len(pairs) == groups == max(1, number)
    return {"groups": groups, "found": number, "exact": exact, "answer": strategy.answer}


def with_losses_only(message: Message, context: Context) -> Message:
    """A client of cflower; ``FedAvg`` stops if not all replies to training have the same metrics.

    A client whose held-out examples are of one class has no F1, as some of `peers.pfllib`.
    """
    reply = app(message, context)
    if message.metadata.message_type == MessageType.TRAIN and reply.has_content():
        metrics = reply.content["metrics"]
        reply.content["metrics"] = MetricRecord({key: metrics[key] for key in TRAINING})
    return reply


def sentence(record: Record) -> str:
    """One run in a few words."""
    return f"{record['answer']}, {record['found']} groups"


def gains() -> dict[tuple[str, str], float]:
    """By family and seed: how much better models of the true groups are than FedAvg's."""
    with (RESULTS / "peers-unseen.csv").open() as file:
        known = {
            (line["family"], line["seed"], line["method"]): float(line["accuracy"])
            for line in csv.DictReader(file)
        }
    best = {key[:2]: value for key, value in known.items() if key[2] == "oracle"}
    return {run: value - known[*run, "federated"] for run, value in best.items()}


def report(records: Sequence[Record], out: Path) -> None:
    """Every run as a line of ``advice.csv``; the answers by family in the terminal."""
    runs, gain = table_of(records, family=FAMILIES), gains()
    runs["gain"] = [gain[key] for key in zip(runs["family"], runs["seed"].astype(str), strict=True)]
    runs["right"] = [
        None if answer == "cannot tell" else (answer == "yes") == (gain >= POINT)
        for answer, gain in zip(runs["answer"], runs["gain"], strict=True)
    ]
    write_table(runs, out / "advice.csv", COLUMNS)
    for answer in ("yes", "no", "cannot tell"):
        runs[answer] = runs["answer"] == answer
    runs["wrong"] = runs["right"] == False  # noqa: E712  None is neither
    columns = {"exact": "sum", "yes": "sum", "no": "sum", "cannot tell": "sum", "wrong": "sum"}
    rows = runs.groupby("family", sort=False).agg(columns | {"gain": "mean"})
    show(rows.reset_index().to_dict("records"))
    print({key: int(runs[key].sum()) for key in columns}, f"of {len(runs)} runs")
