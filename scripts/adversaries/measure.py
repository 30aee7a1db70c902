"""Clients that spoil the training: are they separated, and are the others as good as without them?

    python scripts/run.py adversaries --data digits,mnist=/data/mnist,table --seeds 0-2
    python scripts/run.py adversaries --clients 30 --adversaries 10 --rules fedavg,FedMedian
    python scripts/run.py adversaries --search --budget 60 --fixed hostile=1,rule=fedavg+fedavg

Each of the attacks in `adversaries.attacks` is run with cflower and with a rule (the key
``aggregation``), and once while the adversaries stay away, which leaves the others exactly the same
examples. Rules with capitals are Flower's own strategies. The column ``success`` has the share of
the honest held-out examples of other classes that a backdoor's pixels turn into class 0. What
those do that lie in evaluations is measured by ``liars``.

With ``--search`` attacks are drawn and changed, and the worst are kept (`adversaries.search`);
``--fixed`` names parts that all of them have. Runs with ``--set`` belong in a folder of their own.
"""

from itertools import product
from pathlib import Path
from typing import Annotated, Any

import command
import pandas as pd
import typer
from command import ALL, DATA, chosen, folders, numbers, out_folder
from records import Job, Record, run_all
from tables import show, write_table

from adversaries.attacks import ATTACKS
from adversaries.programs import parts
from adversaries.runs import AWAY, attacked, is_cflowers, shift_of
from adversaries.search import search
from cflower.config import read_overrides
from cflower.ordering import in_order

TABLE = "table"


def separated(summary: dict[str, Any], honest: int) -> bool:
    """Whether no adversary is in a cluster with another client."""
    placed = [summary["clients"][name]["cluster"] for name in in_order(summary["clients"])]
    return not set(placed[:honest]) & set(placed[honest:])


def breast_cancer(place: Path) -> str:
    """The folder with scikit-learn's table, its columns scaled; written if it is not there."""
    from sklearn.datasets import load_breast_cancer

    table = load_breast_cancer(as_frame=True)
    scaled_to_one = (table.data - table.data.mean()) / table.data.std()
    scaled_to_one.assign(label=table.target).to_csv(out_folder(place) / "train.csv", index=False)
    return str(place.absolute())


def federation_of(
    data: str, folder: str, model: str, clients: int, examples: int, out: Path
) -> dict[str, Any]:
    """The run-config keys of data and model."""
    if data == TABLE:
        return {"dataset": breast_cancer(out / TABLE), "model": "linear"}
    size = 0 if data == "digits" else clients * examples
    return {"dataset": folder or data, "dataset-size": size, "model": model}


def measured(job: Job) -> Record:
    """The figures of one run."""
    attack, clients = job.what["attack"], job.what["clients"]
    found = attacked(attack, clients, job.what["adversaries"], job.settings)
    honest, summary = clients - job.what["adversaries"], found.summary
    return {
        "separated": separated(summary, honest) if summary else None,
        "clusters": len(summary["clusters"]) if summary else None,
        "accuracy": found.accuracy,
        "success": found.success if attack == "backdoor" else None,
    }


def sentence(record: Record) -> str:
    """One run in a few words."""
    return f"accuracy {record['accuracy']:.4f}"


def report(records: list[Record], out: Path) -> None:
    """Means over the seeds by attack and rule; of the points against a run without, the worst."""
    run = ["data", "model", "groups", "clients", "adversaries", "rounds", "rule", "seed"]
    runs = pd.DataFrame(records)
    away = runs[runs["attack"] == AWAY].set_index(run)["accuracy"]
    runs["points"] = 100 * (runs["accuracy"] - runs[run].join(away, on=run)["accuracy"])
    write_table(runs.drop(columns="config"), out / "adversaries.csv")
    kinds = [*run[:-1], "attack"]
    rows = runs.groupby(kinds).agg(
        seeds=("seed", "count"),
        accuracy=("accuracy", "mean"),
        success=("success", "mean"),
        points=("points", "mean"),
        worst=("points", "min"),
    )
    show(rows.reset_index().to_dict("records"))


def main(
    data: Annotated[
        str, typer.Option(help="digits, NAME=FOLDER, table (breast cancer); commas.")
    ] = "digits",
    seeds: command.Seeds = "0-2",
    attacks: Annotated[str, typer.Option(help="all, or some; commas.")] = ALL,
    rules: Annotated[str, typer.Option(help="fedavg, my_rules:Mine, Krum, ...; commas.")] = (
        "fedavg"
    ),
    model: Annotated[str, typer.Option(help="For images; the table's is linear.")] = "mlp",
    clients: Annotated[int, typer.Option(min=5)] = 20,
    adversaries: Annotated[int, typer.Option(min=1, help="But for sleeper: a tenth.")] = 3,
    examples: Annotated[int, typer.Option(min=10, help="A client, of an image set.")] = 200,
    rounds: Annotated[int, typer.Option(min=1)] = 30,
    group_sizes: Annotated[
        str, typer.Option(help='Groups, such as "10,10"; adversaries are in the last.')
    ] = "",
    searching: Annotated[bool, typer.Option("--search", help="Search for the worst.")] = False,
    budget: Annotated[float, typer.Option(min=0, help="Minutes of the search.")] = 10.0,
    fixed: Annotated[
        str, typer.Option(help="Parts of all programs: hostile=1,rule=fedavg+fedavg")
    ] = "",
    more: command.More = "",
    out: command.Out = Path("outputs/adversaries"),
    workers: command.Workers = None,
    table: command.TableOnly = False,
) -> None:
    """Measure the attacks, print the means and write ``adversaries.csv``."""
    if searching:
        return search(budget, numbers(seeds), out, parts(fixed))
    jobs: dict[str, Job] = {}
    options = (
        folders(data, (*DATA, TABLE)).items(),
        numbers(seeds),
        rules.split(","),
        chosen("attack", attacks, ATTACKS),
    )
    for (name, folder), seed, rule, attack in product(*options):
        keys = federation_of(name, folder, model, clients, examples, out)
        halves = f"{clients - clients // 2},{clients // 2}" if ATTACKS[attack].grouped else ""
        sizes = group_sizes or halves
        keys |= {"num-server-rounds": rounds, "aggregation": rule, **shift_of(sizes)}
        keys |= read_overrides([more], "--set")
        hostile = clients // 10 if attack == "sleeper" else adversaries
        what = {"data": name, "model": keys["model"], "groups": sizes or "one", "rule": rule}
        what |= {"clients": clients, "adversaries": hostile, "rounds": rounds, "seed": seed}
        for one in (attack, AWAY) if is_cflowers(rule) else (attack,):
            job = Job({**what, "attack": one}, {**keys, "seed": seed})
            jobs[job.name] = job
    run_all(jobs.values(), measured, sentence, report, out, workers, table)
