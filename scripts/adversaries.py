"""Clients that spoil the training: are they separated, and are the others as good as without them?

    python scripts/adversaries.py --data digits,mnist=/data/mnist,table --seeds 0-2

Each attack is run with cflower's defaults, and while the adversaries stay away, which leaves the
others exactly the same examples. With Δ the update of an honest client with the same examples:

- ``labels``: their labels say nothing about their inputs (``shift = "label-noise"``);
- ``reversed``, ``x10``, ``x-10``, ``x100``, ``x-100``, ``x1e30``: they send -Δ, 10 Δ, ...;
- ``examples``: they send -Δ and claim 10^12 examples;
- ``collude``: a fifth of all clients sends one and the same -3 Δ and claims 10^12 examples;
- ``sleeper``: in a federation of two groups, with permuted labels, a fifth of one group behaves
  until its cluster is one that came out of a split; from then on it sends -10 Δ and claims 10^12
  examples.
"""

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Annotated, Any

import typer
from command import folders, numbers, quieten_flower, start, write_table
from flwr.app import ArrayRecord, Context, Message, MessageType
from rich.console import Console
from rich.progress import track
from rich.table import Table

from cflower import server_app, simulate
from cflower.client_app import app as client_app
from cflower.config import RunConfig
from cflower.messages.arrays import record_of
from cflower.messages.client_names import FACTS, ROLL_CALL
from cflower.messages.layout import UNTRAINED, is_trained
from cflower.ordering import in_order

Client = Callable[[Message, Context], Message]
FACTORS = {"reversed": -1, "x10": 10, "x-10": -10, "x100": 100, "x-100": -100, "x1e30": 1e30}
ATTACKS = ("labels", *FACTORS, "examples", "collude", "sleeper")
CLAIMED = 10**12
"""Examples."""


def scaled(received: ArrayRecord, trained: ArrayRecord, factor: float) -> ArrayRecord:
    """θ + factor · Δ, with Δ the update of θ that was trained."""
    arrays = {}
    for key, array in trained.items():
        values = array.numpy()
        if is_trained(key, values.dtype, UNTRAINED):
            old = received[key].numpy()
            values = (old + factor * (values.astype(float) - old)).astype(values.dtype)
        arrays[key] = values
    return record_of(arrays)


def spoil(
    message: Message, context: Context, factor: float, claimed: int = 0, awake: str = ""
) -> Message:
    """An answer to training with the update scaled, and with a claimed number of examples.

    ``awake`` is how the names of the clusters begin in which the client does so.
    """
    received = dict(message.content.array_records)
    cluster = str(message.content.config_records.get("config", {}).get("cluster", ""))
    reply = client_app(message, context)
    if reply.has_error() or not cluster.startswith(awake):
        return reply
    if message.metadata.message_type == MessageType.TRAIN:
        reply.content["arrays"] = scaled(
            received["arrays"], reply.content.array_records["arrays"], factor
        )
    for record in reply.content.metric_records.values() if claimed else ():
        record["num-examples"] = claimed
    return reply


def collusion() -> Client:
    """Clients that all send what the first of them made of the same message."""
    agreed: dict[tuple[Any, ...], Message] = {}

    def client(message: Message, context: Context) -> Message:
        if message.metadata.message_type != MessageType.TRAIN:
            return spoil(message, context, 1, CLAIMED)
        asked = message.content.config_records["config"]
        key = asked["server-round"], asked["cluster"]
        if key not in agreed:
            agreed[key] = spoil(message, context, -3, CLAIMED)
        return Message(agreed[key].content, reply_to=message)

    return client


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


def without(clients: int, adversaries: int, keys: dict[str, Any], attack: str) -> dict[str, Any]:
    """The summary of a run in which the last clients stay away."""
    honest = clients - adversaries
    keys = keys | shift_of(attack) | {"min-available-nodes": honest}
    return one_run(keys, clients, only(range(honest, clients), stay_away))


def attacked(attack: str, clients: int, adversaries: int, keys: dict[str, Any]) -> dict[str, Any]:
    """The summary of a run in which the last clients are adversaries."""
    honest = clients - adversaries
    keys = keys | shift_of(attack) | {"min-available-nodes": clients}
    if attack == "labels":
        sizes = {"num-groups": 2, "group-sizes": f"{honest},{adversaries}"}
        return one_run(keys | {"shift": "label-noise"} | sizes, clients, client_app)
    behave: Client = {
        "examples": partial(spoil, factor=-1, claimed=CLAIMED),
        "collude": collusion(),
        "sleeper": partial(spoil, factor=-10, claimed=CLAIMED, awake="0."),
    }.get(attack) or partial(spoil, factor=FACTORS[attack])
    return one_run(keys, clients, only(range(honest, clients), behave))


def shift_of(attack: str) -> dict[str, Any]:
    """What makes the honest clients differ: nothing, or what makes a split."""
    return (
        {"shift": "label-permutation", "num-groups": 2}
        if attack == "sleeper"
        else {"shift": "none"}
    )


def accuracy(summary: dict[str, Any], honest: int) -> float:
    """Mean over the first clients, those that want no harm."""
    return mean(summary["clients"][f"partition-{i}"]["accuracy"] for i in range(honest))


def separated(summary: dict[str, Any], honest: int) -> bool:
    """Whether no adversary is in a cluster with another client."""
    placed = [summary["clients"][name]["cluster"] for name in in_order(summary["clients"])]
    return not set(placed[:honest]) & set(placed[honest:])


def places(data: str, scratch: Path) -> dict[str, dict[str, Any]]:
    """The run-config keys of each data set; ``table`` is written out of scikit-learn."""
    found, rest = {}, [part for part in data.split(",") if part.strip() != "table"]
    for name, folder in folders(",".join(rest)).items() if rest else ():
        found[name] = {"dataset": folder or name, "model": "mlp"}
    if len(rest) < len(data.split(",")):
        from sklearn.datasets import load_breast_cancer

        table = load_breast_cancer(as_frame=True)
        scaled_to_one = (table.data - table.data.mean()) / table.data.std()
        scaled_to_one.assign(label=table.target).to_csv(scratch / "train.csv", index=False)
        found["table"] = {"dataset": str(scratch), "model": "linear"}
    return found


def main(
    data: Annotated[
        str, typer.Option(help="digits, NAME=FOLDER, table (breast cancer); commas.")
    ] = "digits",
    seeds: Annotated[str, typer.Option(help='Such as "0-2".')] = "0-2",
    attacks: Annotated[str, typer.Option(help="all, or some; commas.")] = "all",
    clients: Annotated[int, typer.Option(min=5)] = 20,
    adversaries: Annotated[
        int, typer.Option(min=1, help="But for collude and sleeper: a fifth, a tenth.")
    ] = 3,
    examples: Annotated[int, typer.Option(min=10, help="A client, of an image set.")] = 200,
    rounds: Annotated[int, typer.Option(min=1)] = 30,
    out: Annotated[Path | None, typer.Option(help="A CSV file for the figures.")] = None,
) -> None:
    """Measure the attacks and print the table."""
    quieten_flower()
    table, lines = Table("data", "attack", "seed", "separated", "clusters"), []
    for heading in ("accuracy", "without them", "difference"):
        table.add_column(heading, justify="right")
    asked = ATTACKS if attacks == "all" else tuple(attacks.split(","))
    with tempfile.TemporaryDirectory() as scratch:
        there = places(data, Path(scratch))
        jobs = [(n, s, a) for n in there for s in numbers(seeds) for a in asked]
        known: dict[tuple[Any, ...], float] = {}
        for name, seed, attack in track(jobs, "Measuring", console=Console(stderr=True)):
            # The table has 569 rows.
            among = clients // 2 if name == "table" else clients
            bad = max(1, adversaries * among // clients)
            # Of all clients, and of the last ones' group.
            bad = {"collude": among // 5, "sleeper": among // 10}.get(attack, bad)
            if not bad:
                continue  # no group is large enough
            size = clients * examples if name not in ("digits", "table") else 0
            keys = {**there[name], "dataset-size": size, "seed": seed, "num-server-rounds": rounds}
            setting = name, seed, bad, attack == "sleeper"
            if setting not in known:
                known[setting] = accuracy(without(among, bad, keys, attack), among - bad)
            found = attacked(attack, among, bad, keys)
            lines.append(
                {
                    "data": name,
                    "attack": attack,
                    "clients": among,
                    "adversaries": bad,
                    "seed": seed,
                    "separated": separated(found, among - bad),
                    "clusters": len(found["clusters"]),
                    "first_split": min((one["round"] for one in found["splits"]), default=None),
                    "excluded": len(found["excluded"]),
                    "clustered": accuracy(found, among - bad),
                    "without": known[setting],
                }
            )
            line = lines[-1]
            row = [name, attack, str(seed), "yes" if line["separated"] else "no"]
            row += [str(line["clusters"]), f"{line['clustered']:.4f}", f"{line['without']:.4f}"]
            table.add_row(*row, f"{line['clustered'] - line['without']:+.4f}")
            if out:
                write_table(lines, out)
    console = Console()
    (console if console.is_terminal else Console(width=110)).print(table)


if __name__ == "__main__":
    start(lambda: typer.run(main))
