"""FedDAG (Pandit et al., ICLR 2026) by its authors' script, on PACFL's label skew.

    git clone https://github.com/SecretDeB/FedDAG-ICLR-2026 && git -C ... checkout c9d944c
    python scripts/run.py feddag-authors FedDAG-ICLR-2026/Code --data ... --seeds 0-1 --out ...

``JN_main_feddag.py`` with what `authors` replaces, too. Besides, it takes no settings: its parser
reads an empty command line, and the number of rounds (161) and the epochs of the secondary encoder
(10) are in its source. So its parser returns this run's settings here, and both numbers are
replaced, the epochs by those of the primary one, as theirs are equal. The threshold of its
clustering (0.4) is the script's own.

Its figures are those of PACFL's script: the clusters' models at the end; the clients right after
their last local training; and the mean of each client's best round, which is what it prints.
"""

import copy
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import command
import numpy as np
import typer
from families.planted import truth_of
from records import Job, Record, run_all
from sklearn.metrics import adjusted_rand_score
from tables import show, table_of, write_table

from peers.authors import SKEWS, left_by, options_of, replace_what_is_missing, shares, skews
from peers.federation import Federation

COLUMNS = (
    "data", "family", "seed", "groups", "adjusted_rand_index", "clusters' models",
    "trained locally", "best of the rounds",
)  # fmt: skip


def main(
    code: Annotated[Path, typer.Argument(help="The authors' folder Code.")],
    data: command.Data = "fashion-mnist=/data/fashion-mnist",
    seeds: command.Seeds = "0-1",
    out: command.Out = Path("outputs/feddag"),
    workers: command.Workers = 1,
    table: command.TableOnly = False,
) -> None:
    """Measure both label skews."""
    jobs = skews(data, seeds, out)
    run_all(jobs, partial(measured, code=code.absolute()), sentence, report, out, workers, table)


def measured(job: Job, code: Path) -> Record:
    """The figures of one run; in a process of its own."""
    config = dict(job.settings)
    data = list(Federation(config, all_examples=True).clients.values())
    replace_what_is_missing(data, code)
    with_all_loaders()
    with TemporaryDirectory() as place:
        space = run_script(config, place, code / "JN_main_feddag.py")
    groups = [space["clients_clust_id"][client] for client in range(len(data))]
    clients, best = space["clients"], space["client_metric"].values()
    local = shares(clients)
    for client, group in zip(clients, groups, strict=True):
        client.set_state_dict(copy.deepcopy(space["w_glob_per_cluster"][group]))
    return {
        "groups": len(set(groups)),
        "adjusted_rand_index": float(adjusted_rand_score(list(truth_of(config).values()), groups)),
        "clusters' models": shares(clients),
        "trained locally": local,
        "best of the rounds": float(np.mean([float(one["best_any"]) for one in best])) / 100,
    }


def with_all_loaders() -> None:
    """Let a client's data come with two more loaders, which this script takes and never uses."""
    import src.utils as authors

    four = authors.get_dataloader

    def get_dataloader(*args: Any, **keys: Any) -> tuple[Any, ...]:
        unused = () if keys.get("dataidxs_test") is None else (None, None)
        return (*four(*args, **keys), *unused)

    authors.get_dataloader = get_dataloader


def run_script(config: Mapping[str, Any], place: str, script: Path) -> dict[str, Any]:
    """Everything that the authors' script leaves, with the run's settings."""
    import src.utils as authors

    settings = authors.args_parser()
    vars(settings).update(options_of(config, place), noise_type="space")
    authors.args_parser = lambda: settings
    source = script.read_text()
    for name, theirs, ours in (
        ("n_rounds   =", 161, config["num-server-rounds"]),
        ("local_sec_ep =", 10, config["local-epochs"]),
    ):
        assert f"{name} {theirs}" in source, f"no {name} {theirs} in {script}"
        source = source.replace(f"{name} {theirs}", f"{name} {ours}")
    return left_by(source, script.name, config["seed"])


def sentence(record: Record) -> str:
    """One run in a few words."""
    return f"{record['groups']} groups, accuracy {record[COLUMNS[5]]:.4f}"


def report(records: Sequence[Record], out: Path) -> None:
    """The table in the terminal and as CSV."""
    runs = table_of(records, family=SKEWS)[list(COLUMNS)]
    show(runs.to_dict("records"))
    write_table(runs, out / "feddag.csv", COLUMNS)
