"""One honest client with 10 or 100 times the examples of nine others: is anybody the worse for it?

    python scripts/large_clients.py --data digits,mnist=/data/mnist --times 10,100 --seeds 0-2

All have the same distribution. Measured is every client's own model on examples that nobody
trained on, with the bound on what one client counts for (``max-influence``) and without it.
"""

import tempfile
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from battery import folders, numbers
from command import quieten_flower, start, write_table
from numpy.typing import NDArray
from peers.levels import images_of
from rich.console import Console
from rich.table import Table
from safetensors.torch import load_file

from cflower import server_app, simulate
from cflower.client_app import app as client_app
from cflower.config import RunConfig
from cflower.data.examples import Examples
from cflower.learning.models import build_model
from cflower.learning.training import evaluate

OTHERS = 9
MOST = 14_000
"""Images of a folder that are taken, the first ones."""
CLASSES = tuple(str(digit) for digit in range(10))
Rows = tuple[NDArray[np.uint8], NDArray[np.int64]]


def rows_of(folder: str, seed: int) -> tuple[Rows, Rows]:
    """Images and labels to train on and to test on."""
    if not folder:
        from sklearn.datasets import load_digits

        images, labels = load_digits(return_X_y=True)
        images = (images.reshape(-1, 8, 8) * 15.9).astype(np.uint8)
    else:
        images, labels = (rows[:MOST] for rows in images_of(Path(folder), "train.parquet"))
    order = np.random.default_rng(seed).permutation(len(labels))
    test, train = order[: len(order) // 5], order[len(order) // 5 :]
    return (images[train], labels[train]), (images[test], labels[test])


def one_run(
    train: Rows, test: Rows, times: int, small: int, keys: dict[str, Any]
) -> dict[str, Any]:
    """The accuracy of the large client's model and of the others', and the number of clusters."""
    sizes = [times * small] + [small] * OTHERS
    owner = np.repeat(np.arange(OTHERS + 1), sizes)
    images, labels = (values[: len(owner)] for values in train)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "data"
        folder.mkdir()
        np.savez(folder / "train.npz", x=images, y=labels, owner=owner)
        data = {"dataset": str(folder), "partitioner": "natural-id", "natural-id-column": "owner"}
        keys = data | {"shift": "none", "model": "mlp", "output-dir": scratch} | keys
        config = RunConfig.read(keys).as_keys()
        server = partial(server_app.run, say=lambda text: None)
        found = simulate(client_app, OTHERS + 1, server_app=server, run_config=config)
        run = Path(scratch) / found["run_id"]
        right = {}
        for name in found["clusters"]:
            model = build_model("mlp", (1, *images.shape[1:]), 10, 0)
            model.load_state_dict(load_file(run / "models" / f"{name}.safetensors"))
            inputs = (test[0][:, None] / 255).astype(np.float32)
            right[name] = evaluate(model, Examples(inputs, test[1], CLASSES))["accuracy"]
    of = {name: right[one["cluster"]] for name, one in found["clients"].items()}
    large = of.pop("owner-0")
    others = float(np.mean(list(of.values())))
    return {"large": large, "others": others, "clusters": len(found["clusters"])}


def main(
    data: Annotated[str, typer.Option(help="digits, NAME=FOLDER; commas.")] = "digits",
    times: Annotated[str, typer.Option(help="The examples of the others; commas.")] = "10,100",
    seeds: Annotated[str, typer.Option(help='Such as "0-2".')] = "0-2",
    influence: Annotated[str, typer.Option(help="max-influence; commas.")] = "3,0",
    rounds: Annotated[int, typer.Option(min=1)] = 30,
    out: Annotated[Path | None, typer.Option(help="A CSV file for the figures.")] = None,
) -> None:
    """Measure and print the table."""
    quieten_flower()
    lines: list[dict[str, Any]] = []
    for name, folder in folders(data).items():
        for seed in numbers(seeds):
            train, test = rows_of(folder, seed)
            for many in numbers(times):
                small = min(100, len(train[0]) // (many + OTHERS))
                for most in influence.split(","):
                    keys = {"seed": seed, "num-server-rounds": rounds, "max-influence": float(most)}
                    found = one_run(train, test, many, small, keys)
                    lines.append(
                        {"data": name, "times": many, "small": small, "seed": seed}
                        | {"max_influence": most, "rounds": rounds}
                        | found
                    )
                    if out:
                        write_table(lines, out)
    table = Table(*lines[0])
    for line in lines:
        table.add_row(*(f"{x:.4f}" if isinstance(x, float) else str(x) for x in line.values()))
    Console(width=110).print(table)


if __name__ == "__main__":
    start(lambda: typer.run(main))
