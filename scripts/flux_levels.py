"""FLUX's levels of heterogeneity: cflower and others beside the figures that FLUX published.

    python scripts/flux_levels.py --data mnist=/data/mnist --levels 1,4,8 --out outputs/levels

Four kinds of shift, eight levels, see `peers/levels.py`. As theirs (NeurIPS 2025): ten clients,
LeNet5, 10 rounds of 2 epochs, momentum 0.9, everyone in every round. Smaller than theirs: 750
examples a client instead of 6,000 and batches of 16 instead of 64, so half as many steps, each
twice as long (learning rate 0.01 instead of 0.005). Records resume as those of `peers.py` do; the
table is one for each data set, a figure the mean over the four kinds, as theirs.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Annotated

os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")

import numpy as np
import typer
from battery import ALL, chosen, folders, numbers
from command import quieten_flower, start, write_table
from federations.planted import Job, Keys
from peers.contest import Record, run_all
from peers.levels import KINDS, Level, federation, images_of
from peers.report import COLUMNS, lines

from cflower.config import RunConfig
from cflower.errors import ConfigError

METHODS = ("cflower", "federated", "oracle", "flux", "ifca", "ditto", "fine-tuned")
PUBLISHED = {
    "mnist": {
        "FLUX": (0.957, 0.953, 0.949, 0.935, 0.934, 0.905, 0.878, 0.884),
        "FLUX given k": (0.959, 0.958, 0.955, 0.957, 0.957, 0.957, 0.959, 0.959),
        "IFCA": (0.914, 0.925, 0.897, 0.836, 0.836, 0.796, 0.759, 0.760),
        "CFL": (0.932, 0.897, 0.849, 0.821, 0.814, 0.769, 0.724, 0.695),
        "FedAvg": (0.931, 0.894, 0.845, 0.816, 0.809, 0.762, 0.720, 0.694),
        "pFedMe": (0.948, 0.950, 0.952, 0.954, 0.956, 0.957, 0.959, 0.961),
        "APFL": (0.957, 0.956, 0.954, 0.954, 0.955, 0.954, 0.953, 0.954),
    },
    "fashion-mnist": {
        "FLUX": (0.789, 0.797, 0.793, 0.797, 0.792, 0.783, 0.804, 0.800),
        "FLUX given k": (0.799, 0.805, 0.804, 0.813, 0.819, 0.830, 0.840, 0.842),
        "IFCA": (0.793, 0.758, 0.759, 0.727, 0.728, 0.715, 0.663, 0.652),
        "CFL": (0.776, 0.738, 0.693, 0.661, 0.666, 0.626, 0.572, 0.546),
        "FedAvg": (0.772, 0.733, 0.685, 0.655, 0.661, 0.621, 0.568, 0.541),
        "pFedMe": (0.789, 0.797, 0.808, 0.815, 0.824, 0.832, 0.842, 0.846),
        "APFL": (0.814, 0.811, 0.812, 0.810, 0.815, 0.821, 0.835, 0.838),
    },
    "cifar10": {
        "FLUX": (0.367, 0.375, 0.383, 0.378, 0.397, 0.386, 0.398, 0.408),
        "FLUX given k": (0.374, 0.377, 0.382, 0.395, 0.403, 0.411, 0.422, 0.443),
        "IFCA": (0.400, 0.394, 0.386, 0.387, 0.371, 0.366, 0.384, 0.379),
        "CFL": (0.378, 0.360, 0.353, 0.341, 0.315, 0.296, 0.269, 0.259),
        "FedAvg": (0.367, 0.349, 0.342, 0.332, 0.304, 0.281, 0.253, 0.245),
        "pFedMe": (0.383, 0.394, 0.404, 0.417, 0.430, 0.438, 0.455, 0.473),
        "APFL": (0.427, 0.430, 0.434, 0.444, 0.440, 0.448, 0.465, 0.484),
    },
}
"""Their "known association", from ``plots/plot_1_hetero.py`` at the commit of `peers/levels.py`."""


def main(
    data: Annotated[str, typer.Option(help="NAME=FOLDER of Parquet files; commas.")],
    levels: Annotated[str, typer.Option(help='Such as "1-8" or "1,4,8".')] = "1-8",
    kinds: Annotated[str, typer.Option(help=f"Of: {', '.join(KINDS)}.")] = ALL,
    methods: Annotated[str, typer.Option(help=f"Of: {', '.join(METHODS)}.")] = ALL,
    seeds: Annotated[str, typer.Option(help='Such as "0-4".')] = "0",
    examples: Annotated[int, typer.Option(min=10, help="A client; a fifth is held out.")] = 750,
    rounds: Annotated[int, typer.Option(min=1, help="FLUX has 10.")] = 10,
    out: Annotated[Path, typer.Option(help="Where the records go.")] = Path("outputs/levels"),
) -> None:
    """Measure and print the tables; kinds and methods take commas, or "all"."""
    out = out.expanduser().absolute()
    out.mkdir(parents=True, exist_ok=True)
    quieten_flower()
    failed = 0
    for name, folder in folders(data).items():
        if name not in PUBLISHED:
            raise ConfigError(f"Got data {name!r}, but expected some of {', '.join(PUBLISHED)}.")
        images, labels = images_of(Path(folder))
        for seed in numbers(seeds):
            for level in numbers(levels):
                jobs = []
                for kind in chosen("kind", kinds, KINDS):
                    made = federation(images, labels, kind, level, examples, seed)
                    keys = written(made, out / "data" / f"{name}-{kind}-{level}-{seed}")
                    keys |= {"seed": seed, "num-server-rounds": rounds}
                    config = RunConfig.read(keys).as_keys()
                    jobs += [
                        Job(name, f"level-{level}-{kind}", method, seed, config)
                        for method in chosen("method", methods, dict.fromkeys(METHODS))
                    ]
                failed += run_all(jobs, out)
    records = [json.loads(path.read_text()) for path in out.glob("*--level-*.json")]
    (out / "levels.md").write_text(markdown(records))
    write_table([{c: line[c] for c in COLUMNS} for line in lines(records)], out / "levels.csv")
    print((out / "levels.md").read_text())
    raise typer.Exit(1 if failed else 0)


def written(made: Level, folder: Path) -> Keys:
    """The run config of a federation, whose examples are then in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "train.npz", x=made.inputs, y=made.labels, topic=made.topic)
    return {
        "dataset": str(folder),
        "shift": "topic",
        "num-groups": len(made.sizes),
        "group-sizes": ",".join(map(str, made.sizes)),
        "min-available-nodes": sum(made.sizes),
        "model": "peers.levels:lenet5",
        "local-epochs": 2,
        "batch-size": 16,
        "learning-rate": 0.01,
        "learning-rate-decay": 1.0,
        "momentum": 0.9,
    }


def markdown(records: Sequence[Record]) -> str:
    """For each data set the means over kinds of shift beside FLUX's figures, and each kind."""
    text = []
    for data in dict.fromkeys(record["data"] for record in records):
        of_data = [record for record in records if record["data"] == data]
        levels = sorted({level_of(record)[0] for record in of_data})
        runs = max(record["seed"] for record in of_data) + 1
        text += ["| " + " | ".join([data, *(f"level {level}" for level in levels)]) + " |"]
        text += ["| --- |" + " --- |" * len(levels)]
        for method in METHODS:
            means = [mean_over(of_data, method, level) for level in levels]
            if any(means):
                text += ["| " + " | ".join([f"{method}, here", *map(cell, means)]) + " |"]
        for method, figures in PUBLISHED[data].items():
            shown = [f"{100 * figures[level - 1]:.1f}" for level in levels]
            text += ["| " + " | ".join([f"{method}, published", *shown]) + " |"]
        text += [""]
        for kind, name in KINDS.items():
            title = name.replace("|", "\\|")
            text += ["| " + " | ".join([title, *(f"level {level}" for level in levels)]) + " |"]
            text += ["| --- |" + " --- |" * len(levels)]
            for method in METHODS:
                cells = [
                    cell_of_kind([r for r in of_data if r["method"] == method], level, kind)
                    for level in levels
                ]
                if any(cells):
                    text += ["| " + " | ".join([method, *(c or "-" for c in cells)]) + " |"]
            text += [""]
        text += [f"{runs} seed(s).", ""]
    return "\n".join(text)


def level_of(record: Record) -> tuple[int, str]:
    """Level and kind of shift of a run."""
    _, level, kind = record["family"].split("-")
    return int(level), kind


def mean_over(records: Sequence[Record], method: str, level: int) -> float | None:
    """Accuracy over the four kinds, each the mean over its seeds; None: a kind is missing."""
    found = [
        [r["accuracy"] for r in records if r["method"] == method and level_of(r) == (level, kind)]
        for kind in KINDS
    ]
    return mean(map(mean, found)) if all(found) else None


def cell(accuracy: float | None) -> str:
    """In per cent."""
    return "-" if accuracy is None else f"{100 * accuracy:.1f}"


def cell_of_kind(records: Sequence[Record], level: int, kind: str) -> str:
    """Accuracy, and the groups found of how many there are."""
    runs = [r for r in records if level_of(r) == (level, kind)]
    if not runs:
        return ""
    groups = [f"{r['found']} of {r['groups']}" for r in runs if r["found"] is not None]
    shown = cell(mean(r["accuracy"] for r in runs))
    return f"{shown} ({', '.join(groups)})" if groups else shown


if __name__ == "__main__":
    start(lambda: typer.run(main))
