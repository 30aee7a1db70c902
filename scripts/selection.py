"""Is the best of a client's models at least conventional federated learning?

    python scripts/battery.py --criterion auto,federated --seeds 3 --keep --out outputs/selection
    python scripts/selection.py outputs/selection

reads the run folders that the battery kept, and judges every client's models anew, with the code
of now: by θ*_root, its leaf, `best` and `ensemble`, and by the model of the run with the same data
that never split (``federated``), which went on learning from everyone for all rounds. `best` is
judged on each half of a client's held-out examples by the level that the other half chose.
"""

import json
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
import typer
from command import start, write_table
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from safetensors.torch import load_file
from torch import nn

from cflower.config import RunConfig
from cflower.data.client_data import load_client_data
from cflower.data.examples import Examples
from cflower.data.settings import DataSettings
from cflower.errors import RunFolderError
from cflower.learning.models import build_model
from cflower.learning.selection import judge_path
from cflower.learning.training import predict
from cflower.ordering import in_order
from cflower.runs.run_files import read_json
from cflower.seeding import generator

COLUMNS = ("root", "leaf", "best", "ensemble", "federated")


class Served(NamedTuple):
    """One client: how many of its held-out examples each column gets right."""

    examples: int
    right: dict[str, int]


class Models:
    """The models of a run folder, as predictions."""

    def __init__(self, folder: Path, config: RunConfig) -> None:
        self._folder, self._config = folder, config
        self._loaded: dict[str, nn.Module] = {}

    def logits(self, cluster: str, examples: Examples) -> NDArray[np.float32]:
        """What a cluster's model says of these examples."""
        if cluster not in self._loaded:
            shape, classes = examples.input_shape, examples.num_classes
            model = build_model(self._config.model, shape, classes, seed=0)
            arrays = load_file(self._folder / "models" / f"{cluster}.safetensors")
            model.load_state_dict(arrays)
            self._loaded[cluster] = model
        return predict(self._loaded[cluster], examples)


def served(clustered: Path, federated: Path) -> list[Served]:
    """Every client of a run, and of the run with the same data that never split."""
    config = RunConfig.read(read_json(clustered, "config.json")["config"])
    clusters = read_json(clustered, "summary.json")["clusters"]
    leaf_of = {name: cluster for cluster, members in clusters.items() for name in members}
    ours, flat = Models(clustered, config), Models(federated, config)
    found = []
    for name in in_order(leaf_of):
        partition = int(name.removeprefix("partition-"))
        examples = load_client_data(config.part(DataSettings), partition, len(leaf_of)).report
        steps = leaf_of[name].split(".")
        way = [".".join(steps[: i + 1]) for i in range(len(steps))]
        logits = {cluster: ours.logits(cluster, examples) for cluster in way}
        rng = generator(config.seed, "selection", name)
        judged = judge_path(logits, examples.labels, rng)
        accuracy = {
            "root": judged.levels[way[0]]["accuracy"],
            "leaf": judged.levels[way[-1]]["accuracy"],
            "best": judged.best["accuracy"],
            "ensemble": judged.ensemble["accuracy"],
            "federated": float(
                np.mean(flat.logits("0", examples).argmax(axis=1) == examples.labels)
            ),
        }
        count = len(examples)
        found.append(Served(count, {column: round(a * count) for column, a in accuracy.items()}))
    return found


def beyond_chance(client: Served, baseline: str) -> bool:
    """Whether `best` is worse by more than two standard errors of a difference by chance.

    That of two models that are equally good and err independently.
    """
    right = client.right
    share = (right[baseline] + right["best"]) / (2 * client.examples)
    error = float(np.sqrt(2 * client.examples * share * (1 - share)))
    return right[baseline] - right["best"] > 2 * error


def line_of(family: str, seed: int, clients: list[Served]) -> dict[str, Any]:
    """One row of the table."""
    total = sum(client.examples for client in clients)
    line: dict[str, Any] = {"family": family, "seed": seed, "clients": len(clients)}
    line |= {column: sum(c.right[column] for c in clients) / total for column in COLUMNS}
    for baseline in ("root", "federated"):
        short = [c.right[baseline] - c.right["best"] for c in clients]
        line |= {
            f"at least {baseline}": sum(s <= 0 for s in short),
            f"worst against {baseline}": max(0, *short),
            f"beyond chance against {baseline}": sum(beyond_chance(c, baseline) for c in clients),
        }
    return line


def main(
    battery: Annotated[Path, typer.Argument(help="The battery's --out; run with --keep.")],
    out: Annotated[Path | None, typer.Option(help="A CSV file for the figures.")] = None,
) -> None:
    """Print the table of all families that were run both ways."""
    torch.set_num_threads(1)
    lines, everyone = [], []
    for folder in sorted((battery / "runs").glob("*--auto--*")):
        data, family, _, seed = folder.name.split("--")
        pair = [folder, folder.with_name(f"{data}--{family}--federated--{seed}")]
        ends = [next(iter(p.glob("*/summary.json")), None) for p in pair]
        if not all(end and json.loads(end.read_text())["finished"] for end in ends):
            continue
        clients = served(*(end.parent for end in ends if end))
        everyone += clients
        lines.append(line_of(family, int(seed), clients))
    if not lines:
        raise RunFolderError(f"There is no family in {battery}/runs that was run both ways.")
    lines.append(line_of("all", -1, everyone))
    table = Table("family", "clients", *COLUMNS, "≥ root", "worst", "≥ federated", "worst")
    for line in lines:
        figures = [f"{line[column]:.4f}" for column in COLUMNS]
        shares = []
        for baseline in ("root", "federated"):
            shares += [str(line[f"at least {baseline}"])]
            shares += [
                f"{line[f'worst against {baseline}']} ({line[f'beyond chance against {baseline}']})"
            ]
        table.add_row(line["family"], str(line["clients"]), *figures, *shares)
    console = Console()
    (console if console.is_terminal else Console(width=130)).print(table)
    print("worst: held-out examples; in brackets, clients short by more than two standard errors")
    if out:
        write_table(lines, out)


if __name__ == "__main__":
    start(lambda: typer.run(main))
