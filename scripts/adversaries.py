"""Clients that spoil the training: are they separated, and are the others as good as without them?

    python scripts/adversaries.py --data digits,mnist=/data/mnist --seeds 0-2

Each attack is run with cflower's defaults, with conventional federated learning, and while the
adversaries stay away, which leaves the others exactly the same examples:

- ``labels``: their labels say nothing about their inputs (``shift = "label-noise"``);
- ``reversed``: they train as the others do and send θ − Δθ in place of θ + Δθ.
"""

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Annotated, Any

import typer
from battery import folders, numbers
from command import quieten_flower, start, write_table
from flwr.app import Context, Message, MessageType
from rich.console import Console
from rich.progress import track
from rich.table import Table

from cflower import server_app, simulate
from cflower.client_app import app as client_app
from cflower.config import RunConfig
from cflower.federation.arrays import record_of
from cflower.federation.client_names import FACTS, ROLL_CALL
from cflower.federation.layout import UNTRAINED, is_trained
from cflower.ordering import in_order

Client = Callable[[Message, Context], Message]
ATTACKS = ("labels", "reversed")


def reverse(message: Message, context: Context) -> Message:
    """An answer to training with the update turned round."""
    received = dict(message.content.array_records)
    reply = client_app(message, context)
    if message.metadata.message_type == MessageType.TRAIN and not reply.has_error():
        old, new = received["arrays"], reply.content.array_records["arrays"]
        arrays = {}
        for key, array in new.items():
            values = array.numpy()
            if is_trained(key, values.dtype, UNTRAINED):
                values = 2 * old[key].numpy() - values
            arrays[key] = values
        reply.content["arrays"] = record_of(arrays)
    return reply


def stay_away(message: Message, context: Context) -> Message:
    """An answer to the roll call with a reason not to take part."""
    reply = client_app(message, context)
    if message.metadata.message_type == ROLL_CALL:
        reply.content[FACTS]["problem"] = "stays away"
    return reply


def only(adversaries: range, behave: Client) -> Client:
    """A ClientApp in which these clients behave differently from the others."""

    def client(message: Message, context: Context) -> Message:
        mine = context.node_config["partition-id"] in adversaries
        return (behave if mine else client_app)(message, context)

    return client


def one_run(keys: dict[str, Any], clients: int, behave: Client) -> dict[str, Any]:
    """The summary of a run in this process."""
    with tempfile.TemporaryDirectory() as folder:
        config = RunConfig.read(keys | {"output-dir": folder}).as_keys()
        server = partial(server_app.run, say=lambda text: None)
        return simulate(behave, clients, server_app=server, run_config=config)


def without(clients: int, adversaries: int, keys: dict[str, Any]) -> dict[str, Any]:
    """The summary of a run in which the last clients stay away."""
    honest = clients - adversaries
    keys = keys | {"shift": "none", "min-available-nodes": honest}
    return one_run(keys, clients, only(range(honest, clients), stay_away))


def attacked(attack: str, clients: int, adversaries: int, keys: dict[str, Any]) -> dict[str, Any]:
    """The summary of a run in which the last clients are adversaries."""
    honest = clients - adversaries
    keys = keys | {"shift": "none", "min-available-nodes": clients}
    if attack == "reversed":
        return one_run(keys, clients, only(range(honest, clients), reverse))
    sizes = {"num-groups": 2, "group-sizes": f"{honest},{adversaries}"}
    return one_run(keys | {"shift": "label-noise"} | sizes, clients, client_app)


def accuracy(summary: dict[str, Any], honest: int) -> float:
    """Mean over the first clients, those that want no harm."""
    return mean(summary["clients"][f"partition-{i}"]["accuracy"] for i in range(honest))


def separated(summary: dict[str, Any], honest: int) -> bool:
    """Whether no adversary is in a cluster with another client."""
    placed = [summary["clients"][name]["cluster"] for name in in_order(summary["clients"])]
    return not set(placed[:honest]) & set(placed[honest:])


def main(
    data: Annotated[str, typer.Option(help="digits, or NAME=FOLDER; commas.")] = "digits",
    seeds: Annotated[str, typer.Option(help='Such as "0-2".')] = "0-2",
    clients: Annotated[int, typer.Option(min=4)] = 20,
    adversaries: Annotated[int, typer.Option(min=1)] = 3,
    examples: Annotated[int, typer.Option(min=10, help="A client; digits: all there are.")] = 200,
    rounds: Annotated[int, typer.Option(min=1)] = 30,
    model: str = "mlp",
    out: Annotated[Path | None, typer.Option(help="A CSV file for the figures.")] = None,
) -> None:
    """Measure both attacks and print the table."""
    quieten_flower()
    table = Table("data", "attack", "seed", "separated", "first split")
    for heading in ("accuracy", "without them", "federated", "difference"):
        table.add_column(heading, justify="right")
    lines, honest = [], clients - adversaries
    jobs = [(*source, seed) for source in folders(data).items() for seed in numbers(seeds)]
    for name, folder, seed in track(jobs, "Measuring", console=Console(stderr=True)):
        size = 0 if name == "digits" else clients * examples
        keys = {"dataset": folder or name, "dataset-size": size, "model": model, "seed": seed}
        keys |= {"num-server-rounds": rounds}
        alone = accuracy(without(clients, adversaries, keys), honest)
        for attack in ATTACKS:
            found = attacked(attack, clients, adversaries, keys)
            flat = attacked(attack, clients, adversaries, keys | {"method": "federated"})
            line = {
                "data": name,
                "attack": attack,
                "seed": seed,
                "separated": separated(found, honest),
                "clusters": len(found["clusters"]),
                "first_split": min((split["round"] for split in found["splits"]), default=None),
                "clustered": accuracy(found, honest),
                "without": alone,
                "federated": accuracy(flat, honest),
            }
            lines.append(line)
            gap = line["clustered"] - alone
            figures = [line["clustered"], alone, line["federated"]]
            row = [name, attack, str(seed), "yes" if line["separated"] else "no"]
            row += [str(line["first_split"]), *(f"{figure:.4f}" for figure in figures)]
            table.add_row(*row, f"{gap:+.4f}")
            if out:
                write_table(lines, out)
    console = Console()
    (console if console.is_terminal else Console(width=110)).print(table)


if __name__ == "__main__":
    start(lambda: typer.run(main))
