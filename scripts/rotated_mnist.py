"""IFCA's federation: MNIST in four rotations, many clients, four groups.

    python scripts/rotated_mnist.py --data /data/mnist --clients 1200 --every-rotation --share 0.1

Ghosh et al. (NeurIPS 2020), as in the code jichan3751/ifca, commit 61e44b8: inputs in [0, 1], one
hidden layer of 200 units, ten steps of plain gradient descent a round over all of a client's
examples, learning rate 0.1. Its sizes are 1,200 clients of 200 examples, 2,400 of 100 and 4,800
of 50, with everyone in each of 300 rounds.

With `--every-rotation` every image is in each of the four rotations, as there. There the clients
of the test set judge; here every client holds out a seventh of its share of MNIST's 70,000 images
and trains on as many as there: no image is twice in a group. Without it each of the 60,000 images
to train on is in one rotation, and a client holds out a fifth; 240 clients of 200 are the most.
Records resume as those of `peers.py` do; a folder for each size.
"""

import json
import os
from pathlib import Path
from typing import Annotated

os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")

import numpy as np
import typer
from battery import chosen, numbers
from command import quieten_flower, start, write_table
from federations.planted import Job, Keys
from peers.contest import IFCA, run_all
from peers.levels import images_of
from peers.report import COLUMNS, lines, summary_table
from rich.console import Console
from torch import nn

from cflower.config import RunConfig
from cflower.errors import ConfigError

NUM_IMAGES = 60_000
METHODS = ("cflower", "federated", "oracle", *IFCA)


def rotations_of(mnist: Path, folder: Path) -> Path:
    """A folder with every image of MNIST in each of four rotations, named in the column `topic`."""
    if not (folder / "train.npz").exists():
        inputs, labels = images_of(mnist)
        folder.mkdir(parents=True, exist_ok=True)
        np.savez(
            folder / "part.npz",
            x=np.concatenate([np.rot90(inputs, turns, axes=(1, 2)) for turns in range(4)]),
            y=np.tile(labels, 4),
            topic=np.repeat(["0", "90", "180", "270"], len(labels)),
        )
        (folder / "part.npz").replace(folder / "train.npz")  # whole, or not there
    return folder


def mlp(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Their model: one hidden layer of 200 units."""
    features = input_shape[0] * input_shape[1] * input_shape[2]
    return nn.Sequential(
        nn.Flatten(), nn.Linear(features, 200), nn.ReLU(), nn.Linear(200, num_classes)
    )


def keys_of(data: Path, clients: int, examples: int, rounds: int, seed: int, share: float) -> Keys:
    """The run config of one federation in which every image has one rotation."""
    held_out = 0.2
    if clients * examples / (1 - held_out) > NUM_IMAGES:
        raise ConfigError(
            f"Got {clients} clients of {examples} examples, a fifth of all held out, but "
            f"MNIST has {NUM_IMAGES:,}: use fewer of either, or every-rotation."
        )
    return RunConfig.read(
        {
            "dataset": str(data.expanduser().absolute()),
            "dataset-size": round(clients * examples / (1 - held_out)),
            "validation-fraction": held_out,
            "shift": "rotation",
            **training(clients, examples, rounds, seed, share),
        }
    ).as_keys()


def keys_of_every(
    folder: Path, clients: int, examples: int, rounds: int, seed: int, share: float
) -> Keys:
    """The run config of one in which every image has each; `folder` as `rotations_of` writes it."""
    if clients * examples > 4 * NUM_IMAGES:
        raise ConfigError(
            f"Got {clients} clients of {examples} examples, but four rotations of MNIST have "
            f"{4 * NUM_IMAGES:,} to train on: use fewer of either."
        )
    return RunConfig.read(
        {
            "dataset": str(folder.expanduser().absolute()),
            "dataset-size": round(clients * examples * 7 / 6),
            "validation-fraction": 1 / 7,
            "shift": "topic",
            **training(clients, examples, rounds, seed, share),
            "batch-size": 2 * examples,  # all of them: some clients have one more
        }
    ).as_keys()


def training(clients: int, examples: int, rounds: int, seed: int, share: float) -> Keys:
    """What both have in common."""
    return {
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


def main(
    data: Annotated[Path, typer.Option(help="MNIST as a folder.")],
    clients: Annotated[int, typer.Option(min=8)] = 120,
    examples: Annotated[int, typer.Option(min=5, help="To train on, a client.")] = 200,
    rounds: Annotated[int, typer.Option(min=1)] = 15,
    share: Annotated[float, typer.Option(help="Of the clients, in a round.")] = 1.0,
    every: Annotated[bool, typer.Option("--every-rotation", help="As theirs.")] = False,
    seeds: Annotated[str, typer.Option(help='Such as "0-4".')] = "0-1",
    methods: Annotated[str, typer.Option(help=f"Of: {', '.join(METHODS)}.")] = "all",
    out: Annotated[Path, typer.Option(help="Where the records go.")] = Path("outputs/mnist"),
) -> None:
    """Measure and print the table."""
    out.mkdir(parents=True, exist_ok=True)
    quieten_flower()
    family = f"rotated-{clients}x{examples}-{rounds}"
    source = rotations_of(data, out / "four-rotations") if every else data
    make = keys_of_every if every else keys_of
    jobs = [
        Job("mnist", family, name, seed, make(source, clients, examples, rounds, seed, share))
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
