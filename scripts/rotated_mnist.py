"""IFCA's federation, smaller: MNIST in four rotations, many clients, four groups.

    python scripts/rotated_mnist.py --data /data/mnist --clients 120 --examples 200 --rounds 15

Ghosh et al. (NeurIPS 2020), as in the code jichan3751/ifca, commit 61e44b8: inputs in [0, 1], one
hidden layer of 200 units, ten steps of plain gradient descent a round over all of a client's
examples, learning rate 0.1, everyone in every round.

Smaller than theirs: 1,200 clients of 200 examples, 2,400 of 100 or 4,800 of 50, for 300 rounds.
There all 60,000 images are in each of the four rotations; here each image is in one, and each
client is judged on held-out examples of its own, a fifth of what it has (there on clients of the
test set). So 240 clients of 200 are the most. Records resume as those of `peers.py` do; a folder
for each size.
"""

import json
import os
from pathlib import Path
from typing import Annotated

os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")

import typer
from battery import chosen, numbers
from command import quieten_flower, start, write_table
from federations.planted import Job, Keys
from peers.contest import IFCA, run_all
from peers.report import COLUMNS, lines, summary_table
from rich.console import Console
from torch import nn

from cflower.config import RunConfig
from cflower.errors import ConfigError

NUM_IMAGES = 60_000
METHODS = ("cflower", "federated", "oracle", *IFCA)


def mlp(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Their model: one hidden layer of 200 units."""
    features = input_shape[0] * input_shape[1] * input_shape[2]
    return nn.Sequential(
        nn.Flatten(), nn.Linear(features, 200), nn.ReLU(), nn.Linear(200, num_classes)
    )


def keys_of(data: Path, clients: int, examples: int, rounds: int, seed: int, share: float) -> Keys:
    """The run config of one federation."""
    held_out = 0.2
    if clients * examples / (1 - held_out) > NUM_IMAGES:
        raise ConfigError(
            f"Got {clients} clients of {examples} examples, a fifth of all held out, but "
            f"MNIST has {NUM_IMAGES:,}: use fewer of either."
        )
    return RunConfig.read(
        {
            "dataset": str(data.expanduser().absolute()),
            "dataset-size": round(clients * examples / (1 - held_out)),
            "validation-fraction": held_out,
            "shift": "rotation",
            "num-groups": 4,
            "min-available-nodes": clients,
            "num-server-rounds": rounds,
            "fraction-train": share,
            "model": "rotated_mnist:mlp",
            "local-epochs": 10,
            "batch-size": examples,
            "learning-rate": 0.1,
            "learning-rate-decay": 1.0,
            "momentum": 0.0,
            "seed": seed,
        }
    ).as_keys()


def main(
    data: Annotated[Path, typer.Option(help="MNIST as a folder.")],
    clients: Annotated[int, typer.Option(min=8)] = 120,
    examples: Annotated[int, typer.Option(min=5, help="To train on, a client.")] = 200,
    rounds: Annotated[int, typer.Option(min=1)] = 15,
    share: Annotated[float, typer.Option(help="Of the clients, in a round.")] = 1.0,
    seeds: Annotated[str, typer.Option(help='Such as "0-4".')] = "0-1",
    methods: Annotated[str, typer.Option(help=f"Of: {', '.join(METHODS)}.")] = "all",
    out: Annotated[Path, typer.Option(help="Where the records go.")] = Path("outputs/mnist"),
) -> None:
    """Measure and print the table."""
    out.mkdir(parents=True, exist_ok=True)
    quieten_flower()
    family = f"rotated-{clients}x{examples}-{rounds}"
    jobs = [
        Job("mnist", family, name, seed, keys_of(data, clients, examples, rounds, seed, share))
        for seed in numbers(seeds)
        for name in chosen("method", methods, dict.fromkeys(METHODS))
    ]
    failed = run_all(jobs, out)
    records = [json.loads(path.read_text()) for path in out.glob("mnist--rotated-*.json")]
    Console(width=150).print(summary_table(records))
    if records:
        write_table([{c: line[c] for c in COLUMNS} for line in lines(records)], out / "mnist.csv")
    raise typer.Exit(1 if failed else 0)


if __name__ == "__main__":
    start(lambda: typer.run(main))
