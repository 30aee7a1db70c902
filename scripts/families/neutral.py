"""Splits that change nothing: where one model can serve everybody, are the clients left together?

    python scripts/run.py neutral --data mnist=/data/mnist --seeds 0-9 --out outputs/neutral

20 clients share 4,000 images at half their size (or all the digits, as they are). Half of a
client's images are trained on, a tenth decides, the rest is reported. Families:

- ``iid-halves``: the clients are alike;
- ``noise``, ``blur``: half of the clients have noisy, or blurred images;
- ``brightness``: a third each has images as they are, times 0.3 and times 0.1;
- ``half-epochs``: the clients are alike, but half of them do ten local epochs, the others one.

Ways: ``auto`` finds what it finds. ``forced`` is split into the true groups (of ``iid-halves``: the
clients with even and odd numbers) in round 4, and the clients judge the split as they always do.
``federated`` is conventional federated learning of as many rounds; ``unsplit`` is the same with
cflower's guard against clients that count for much (`max-influence`), so what it loses is not lost
by splits. Differences are between the clients' accuracies on the same reported examples, and their
standard errors over the clients.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import command
import numpy as np
import pandas as pd
import typer
from command import ALL, DATA, chosen, folders, numbers, out_folder
from flwr.app import Context, Message
from numpy.typing import NDArray
from peers.levels import images_of
from records import Job, Record, run_all
from tables import Row, show, table_of, write_table

from cflower.algorithm.criteria import Decision, Evidence, Memory, Outcome, verdict
from cflower.auto.criterion import AutoCriterion
from cflower.config import RunConfig, read_overrides
from cflower.runs.records import Line
from cflower.runs.run_files import read_lines
from cflower.seeding import generator
from families.planted import Keys

CLIENTS, EXAMPLES = 20, 200
"""Images of a client, where there are so many."""
FORCED = 4
"""The round in which a split is forced."""
EPOCHS = (1, 10)
"""Local epochs of the two halves of ``half-epochs``."""
SPLIT = "split"
"""How the decisions begin that are events of a split: made, confirmed, taken back, put off."""
Images = NDArray[np.uint8]
Change = Callable[[Images, int, np.random.Generator], NDArray[np.floating] | Images]
"""What a group's images are made of the original ones."""


def unchanged(images: Images, group: int, rng: np.random.Generator) -> Images:
    return images


def noisy(images: Images, group: int, rng: np.random.Generator) -> NDArray[np.floating]:
    """With Gaussian noise of six tenths of the range."""
    return images + group * 0.6 * 255 * rng.normal(size=images.shape)


def blurred(images: Images, group: int, rng: np.random.Generator) -> NDArray[np.floating]:
    """Every pixel the mean of the nine around it."""
    padded = np.pad(images.astype(float), ((0, 0), (1, 1), (1, 1)), mode="edge")
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))
    return np.asarray(windows.mean(axis=(3, 4)) if group else images)


def darker(images: Images, group: int, rng: np.random.Generator) -> NDArray[np.floating]:
    return np.asarray(images * (1.0, 0.3, 0.1)[group])


FAMILIES: dict[str, tuple[int, Change]] = {
    "iid-halves": (2, unchanged),
    "noise": (2, noisy),
    "blur": (2, blurred),
    "brightness": (3, darker),
    "half-epochs": (2, unchanged),
}
"""By name: how many groups, and what sets them apart."""
WAYS: dict[str, Keys] = {
    "auto": {},
    "forced": {},
    "unsplit": {"method": "federated"},
    "federated": {"method": "federated", "max-influence": 0.0},
}


@dataclass(frozen=True)
class Forced(AutoCriterion):
    """One split into given groups in a given round; all else is as with `AutoCriterion`."""

    truth: Mapping[str, int] = field(default_factory=dict)
    when: int = FORCED

    def decide(self, evidence: Evidence, memory: Memory) -> tuple[Decision, Memory]:
        """The groups in the round `when`, if there are several among the clients."""
        members: dict[int, list[str]] = {}
        for client in evidence.clients:
            members.setdefault(self.truth[client], []).append(client)
        if evidence.server_round != self.when or len(members) < 2:
            return verdict(evidence, Outcome.NEVER, "no split is forced now"), memory
        sides = tuple(tuple(members[group]) for group in sorted(members))
        return verdict(evidence, Outcome.SPLIT, "forced", sides=sides, alpha_cross=0.0), memory

    def inherit(self, memory: Memory) -> Memory:
        """Nothing."""
        return {}


def neutral(
    data: command.Data = "digits",
    families: Annotated[str, typer.Option(help=f"Of: {', '.join(FAMILIES)}.")] = ALL,
    ways: Annotated[str, typer.Option(help=f"Of: {', '.join(WAYS)}.")] = ALL,
    seeds: command.Seeds = "0-9",
    rounds: Annotated[int, typer.Option(min=FORCED + 1)] = 20,
    more: command.More = "",
    out: command.Out = Path("outputs/neutral"),
    workers: command.Workers = None,
    table: command.TableOnly = False,
) -> None:
    """Measure, print the tables and write ``neutral.csv``."""
    keys = read_overrides([more], "--set")
    jobs = (
        Job(
            {"data": name, "family": family, "way": way, "seed": seed},
            config_of(made, rounds, seed, WAYS[way] | keys),
        )
        for name, folder in folders(data).items()
        for seed in numbers(seeds)
        for family in chosen("family", families, FAMILIES)
        for place in [out / "data" / f"{name}-{family}-{seed}"]
        for made in [written(name, folder, family, seed, out_folder(place))]
        for way in chosen("way", ways, WAYS)
    )
    run_all(jobs, run_one, sentence, report, out, workers, table)


@cache
def reduced(data: str, folder: str) -> tuple[Images, NDArray[np.int64]]:
    """All images and labels; images of 28 x 28 or 32 x 32 grey pixels at half the size."""
    if data == "digits":
        from sklearn.datasets import load_digits

        digits = load_digits()
        return (digits.images * 255 / 16).astype(np.uint8), digits.target
    images, labels = images_of(Path(folder))
    images = images.mean(axis=3) if images.ndim == 4 else images
    n, height, width = images.shape
    halved = images.reshape(n, height // 2, 2, width // 2, 2).mean(axis=(2, 4))
    return halved.astype(np.uint8), labels


def group_of(family: str, client: int) -> int:
    """The group of a client."""
    return client % FAMILIES[family][0]


def written(data: str, folder: str, family: str, seed: int, place: Path) -> Keys:
    """The run-config keys of the data, which are then in the folder `place`."""
    images, labels = reduced(data, folder)
    rng = generator(seed, "neutral", data, family)
    size = min(EXAMPLES, len(labels) // CLIENTS)
    drawn = rng.permutation(len(labels))[: CLIENTS * size].reshape(CLIENTS, size)
    change = FAMILIES[family][1]
    parts = [change(images[mine], group_of(family, i), rng) for i, mine in enumerate(drawn)]
    np.savez(
        place / "train.npz",
        x=np.clip(np.concatenate(parts), 0, 255).astype(np.uint8),
        y=labels[drawn.ravel()].astype(np.int64),
        client=np.repeat(np.arange(CLIENTS), size),
    )
    return {
        "dataset": str(place.absolute()),
        "shift": "none",
        "partitioner": "natural-id",
        "natural-id-column": "client",
        "validation-fraction": 0.5,
        "decide-fraction": 0.2,
    }


def config_of(made: Keys, rounds: int, seed: int, more: Keys) -> Keys:
    """The whole run config of one run."""
    keys = {"model": "mlp", "num-server-rounds": rounds, "min-available-nodes": CLIENTS}
    return RunConfig.read(made | keys | {"personal": False, "seed": seed} | more).as_keys()


def run_one(job: Job) -> Record:
    """The figures of one run."""
    from cflower import simulate
    from cflower.client_app import app
    from cflower.data.client_data import load_client_data
    from cflower.server_app import run

    family = job.what["family"]
    truth = {f"client-{client}": group_of(family, client) for client in range(CLIENTS)}
    criterion = Forced(truth=truth) if job.what["way"] == "forced" else None
    server = partial(run, say=lambda text: None, criterion=criterion)
    client = with_epochs if family == "half-epochs" else app
    with TemporaryDirectory() as folder:
        config = {**job.settings, "output-dir": folder}
        summary = simulate(client, CLIENTS, server_app=server, run_config=config)
        lines = read_lines(Path(folder) / summary["run_id"] / "rounds.jsonl")
    load_client_data.cache_clear()  # another seed's examples: of no use to the next run
    clients = [summary["clients"][name] for name in truth]
    return {
        "accuracy": float(np.mean([client["accuracy"] for client in clients])),
        "clusters": len(summary["clusters"]),
        "events": events_of(lines),
        "accuracies": [client["accuracy"] for client in clients],
        "found": summary["clusters"],
        "split_lines": summary["splits"],
    }


def with_epochs(message: Message, context: Context) -> Message:
    """The ClientApp of cflower with the local epochs of the client's half."""
    from cflower.client_app import app

    half = group_of("half-epochs", int(context.node_config["partition-id"]))
    config = {**context.run_config, "local-epochs": EPOCHS[half]}
    node = context.run_id, context.node_id, context.node_config, context.state
    return app(message, Context(*node, config))


def events_of(lines: Iterable[Line]) -> list[tuple[int, str, str]]:
    """Round, cluster and kind of everything that happened to splits."""
    return [
        (line.round, line.cluster, line.decision)
        for line in lines
        if line.decision.startswith(SPLIT)
    ]


def sentence(record: Record) -> str:
    """One run in a few words."""
    happened = "; ".join(f"round {r}: {what} ({name})" for r, name, what in record["events"])
    return f"{record['clusters']} clusters, accuracy {record['accuracy']:.4f} {happened}"


def report(records: list[Record], out: Path) -> None:
    """The runs and their means; the figures of every run as ``neutral.csv``."""
    runs = table_of(records, data=DATA, family=FAMILIES, way=WAYS)
    keys = ["data", "family", "seed"]
    for way in BASES:
        base = runs[runs["way"] == way].set_index(keys)["accuracies"]
        runs = runs.join(base.rename(way), on=keys)
    runs = runs[runs["way"] != "federated"]
    if runs.empty:
        return
    lines = [line(run) for run in runs.to_dict("records")]
    show(lines, "every run")
    frame = pd.DataFrame(lines)
    write_table(frame, out / "neutral.csv")
    cells = frame.groupby(["data", "family", "way"], sort=False)
    kinds = ("data", "family", "way")
    show([{**dict(zip(kinds, key, strict=True)), **figures(cell)} for key, cell in cells])
    print("points: accuracy less that of conventional federated learning, and its standard error")
    print("over clients. below: runs that are more than this error below it at the end.")
    print("by splits: accuracy less that of the way unsplit, in points.")


def line(run: Mapping[str, Any]) -> Row:
    """A run's line of the table."""
    unknown = [np.nan] * CLIENTS
    bases = [run[way] if isinstance(run[way], list) else unknown for way in BASES]
    gains = 100 * (np.array(run["accuracies"]) - bases)
    points, by_splits = gains.mean(axis=1).round(4).tolist()
    error = float(gains[0].std(ddof=1) / np.sqrt(CLIENTS))
    happened = pd.DataFrame(run["events"], columns=["round", "cluster", "what"])
    rounds = {kind: happened[happened["what"].str.contains(kind)]["round"] for kind in HAPPENED}
    return {
        **{key: run[key] for key in ("data", "family", "way", "seed", "accuracy")},
        "federated": float(np.mean(bases[0])),
        "points": points,
        "error": error,
        "by splits": by_splits,
        "split at the end": run["clusters"] > 1,
        "below": bool(points < -error - 1e-3),
        **{HAPPENED[kind]: " ".join(map(str, rounds[kind])) for kind in HAPPENED},
    }


BASES = ("federated", "unsplit")
"""What a run is compared with: the second shows what is due to splits."""
HAPPENED = {f"^{SPLIT}$": "split in", "confirmed": "confirmed in", "taken back": "undone in"}
"""Patterns of decisions, and how they are called in the table."""


def figures(runs: pd.DataFrame) -> Row:
    """Those of a family and a way."""
    return {
        "runs": len(runs),
        "ever split": (runs["split in"] != "").sum(),
        "confirmed": (runs["confirmed in"] != "").sum(),
        "undone": (runs["undone in"] != "").sum(),
        "split at the end": runs["split at the end"].sum(),
        "below": runs["below"].sum(),
        "split and below": (runs["below"] & runs["split at the end"]).sum(),
        **runs[["accuracy", "federated", "points", "by splits"]].mean(),
        "worst points": runs["points"].min(),
    }
