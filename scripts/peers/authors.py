"""PACFL by its authors' script beside `pacfl.py`, on the same clients.

    git clone https://github.com/MMorafah/PACFL && git -C PACFL checkout 7ef000d
    python scripts/run.py pacfl-authors PACFL --data fashion-mnist=FOLDER --seeds 0-1 --out ...

``main_pacfl.py`` runs unchanged. What it cannot have here is replaced: its data (the clients of
`theirs.py`, with the examples of a peer), a GPU, and `numpy.NINF`, which NumPy 2 has no more. Its
figures are what it prints: the accuracy that a client had **after its last local training**, and
the best of those over all rounds, both of the examples to report; beside them that of the
clusters' models, which is what `pacfl.py` reports. It needs torchvision.
"""

import contextlib
import copy
import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import command
import numpy as np
import torch
import typer
from command import folders, numbers, out_folder
from records import Job, Record, jobs_of, run_all
from sklearn.metrics import adjusted_rand_score
from tables import show, table_of, write_table
from torch.utils.data import DataLoader, TensorDataset

from cflower.data.examples import ClientData, Examples
from peers import pacfl
from peers.federation import Federation
from peers.peers import config_of

COLUMNS = (
    "data", "family", "seed", "groups", "ours", "adjusted_rand_index", "clusters' models",
    "trained locally", "best of the rounds",
)  # fmt: skip
SKEWS = ("skew-2", "skew-3")


def main(
    code: Annotated[Path, typer.Argument(help="The authors' repository.")],
    data: command.Data = "fashion-mnist=/data/fashion-mnist",
    seeds: command.Seeds = "0-1",
    degrees: Annotated[float, typer.Option(help="The threshold, for both.")] = 4.9,
    out: command.Out = Path("outputs/authors"),
    workers: command.Workers = 1,
    table: command.TableOnly = False,
) -> None:
    """Measure both label skews."""
    jobs = skews(data, seeds, out, degrees=degrees)
    run_all(jobs, partial(measured, code=code.absolute()), sentence, report, out, workers, table)


def skews(data: str, seeds: str, out: Path, **more: float) -> Iterator[Job]:
    """Both label skews of each data set, with more keys in the jobs' settings."""
    places = folders(data)

    def settings(data: str, family: str, seed: int) -> dict[str, Any]:
        rounds = {"num-server-rounds": 20}
        config = config_of(data, places[data], family, seed, rounds, out_folder(out))
        return {**config, **more}

    yield from jobs_of(settings, data=places, family=SKEWS, seed=numbers(seeds))


def measured(job: Job, code: Path) -> Record:
    """The figures of one run; in a process of its own."""
    config = dict(job.settings)
    degrees = config.pop("degrees")
    clients = list(Federation(config, all_examples=True).clients.values())
    replace_what_is_missing(clients, code)
    with TemporaryDirectory() as place:
        space = run_script(config, degrees, place, code / "main_pacfl.py")
    groups = [space["clients_clust_id"][client] for client in range(len(clients))]
    angles = pacfl.angles([pacfl.signature(client.train, pacfl.N_BASIS) for client in clients])
    ours, theirs = pacfl.clustered(angles, degrees), space["clients"]
    local = shares(theirs)
    for client, group in zip(theirs, groups, strict=True):
        client.set_state_dict(copy.deepcopy(space["w_glob_per_cluster"][group]))
    return {
        "groups": len(set(groups)),
        "ours": len(set(ours)),
        "adjusted_rand_index": float(adjusted_rand_score(groups, ours)),
        "clusters' models": shares(theirs),
        "trained locally": local,
        "best of the rounds": float(np.mean(space["clients_best_acc"])) / 100,
    }


def shares(clients: Sequence[Any]) -> float:
    """The accuracy of what the clients have now, weighted by their examples."""
    sizes = [len(client.ldr_test.dataset) for client in clients]
    found = [float(client.eval_test()[1]) / 100 for client in clients]
    return float(np.average(found, weights=sizes))


def replace_what_is_missing(clients: Sequence[ClientData], code: Path) -> None:
    """Let the script find these clients, no GPU, and the NumPy of its time."""
    sys.path.insert(0, str(code))
    import src.utils as authors

    replaced = (np, "NINF", -np.inf), (torch.cuda, "set_device", id), (torch.Tensor, "cuda", same)
    for holder, name, value in replaced:
        setattr(holder, name, value)
    parts = iter(clients)

    def partition_data(*args: Any, **keys: Any) -> tuple[Any, ...]:
        train, test = ([getattr(c, part) for c in clients] for part in ("train", "report"))
        places = ({i: np.arange(len(own)) for i, own in enumerate(some)} for some in (train, test))
        counts = (
            {i: dict(Counter(own.labels.tolist())) for i, own in enumerate(s)}
            for s in (train, test)
        )
        return (None,) * 4 + (*places, *counts)

    def get_dataloader(*args: Any, **keys: Any) -> tuple[Any, ...]:
        everyone = keys.get("dataidxs_test") is None  # only for figures that are not reported here
        client = clients[0] if everyone else next(parts)
        train, test = as_theirs(client.train), as_theirs(client.report)
        return DataLoader(train, int(args[2]), shuffle=True), DataLoader(test, args[3]), train, test

    authors.partition_data, authors.get_dataloader = partition_data, get_dataloader


def same(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor where it is."""
    return tensor


def as_theirs(examples: Examples) -> TensorDataset:
    """With the attributes of the authors' data sets."""
    made = TensorDataset(torch.tensor(examples.inputs), torch.tensor(examples.labels))
    made.data, made.target = examples.inputs, examples.labels  # type: ignore[attr-defined]
    return made


def run_script(
    config: Mapping[str, Any], degrees: float, place: str, script: Path
) -> dict[str, Any]:
    """Everything that the authors' script leaves, with the run's settings."""
    options = {
        "rounds": config["num-server-rounds"],
        **options_of(config, place),
        "model": "simple-cnn",  # LeNet5 with maxima instead of means
        "cluster_alpha": degrees,
        "n_basis": pacfl.N_BASIS,
        "linkage": "average",
        "print_freq": 1000,
    }
    sys.argv = [script.name, *(f"--{name}={value}" for name, value in options.items())]
    return left_by(script.read_text(), script.name, config["seed"])


def options_of(config: Mapping[str, Any], place: str) -> dict[str, Any]:
    """A run's settings by the names that the scripts of PACFL and of its successors have."""
    return {
        "num_users": config["min-available-nodes"],
        "frac": config["fraction-train"],
        "local_ep": config["local-epochs"],
        "local_bs": config["batch-size"],
        "lr": config["learning-rate"],
        "momentum": config["momentum"],
        "dataset": "fmnist",
        "savedir": f"{place}/",
        "partition": "noniid-#label2",  # of a name that they know
    }


def left_by(source: str, name: str, seed: int) -> dict[str, Any]:
    """Everything that a script leaves, which prints nothing."""
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002 (the script draws from it)
    space: dict[str, Any] = {"__name__": "__main__"}
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        exec(compile(source, name, "exec"), space)
    return space


def sentence(record: Record) -> str:
    """One run in a few words."""
    return f"accuracy {record[COLUMNS[6]]:.4f}, trained locally {record[COLUMNS[7]]:.4f}"


def report(records: Sequence[Record], out: Path) -> None:
    """The table in the terminal and as CSV."""
    runs = table_of(records, family=SKEWS)[list(COLUMNS)]
    show(runs.to_dict("records"))
    write_table(runs, out / "authors.csv", COLUMNS)
