"""cflower beside the field: every method on the same clients.

    python scripts/run.py peers --methods all --families all --seeds 0-1 --out outputs/peers

The families are the battery's and, with `--data mnist=FOLDER`, those of other papers: FLUX's four
kinds of shift at eight levels (such as `flux-px-4`, see `levels.py`), IFCA's rotated MNIST and
PACFL's label skew (`theirs.py`), and some by which nothing was decided (`unseen.py`); with `--data
tables=FOLDER` those of real tables (`natural.py`), with `--data fresh=FOLDER` those of kinds that
are in no other table (`fresh.py`) and of bigger models (`bigger.py`). Runs go one after another,
because their CPU time counts. Then the tables over all runs in the folder, and `peers.csv`,
`peers-clients.parquet` and `peers.png`. The methods are files beside this one;
`--given "alpha=20 k=5"` tries other values of what they must be given. A method with " as long"
after its name (`--methods "isolated as long"`) has so many rounds that its clients train as often
as cflower's may at most, 1.3 times as often as FedAvg's; it has to have run with its own before.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import command
import typer
from command import ALL, chosen, folders, numbers, out_folder
from families.planted import FAMILIES, MODELS, run_config
from records import Record, run_all
from tables import draw, show, table_of, write_table

from cflower.config import RunConfig, read_overrides
from peers import bigger, fresh, natural, pfllib, theirs, unseen
from peers.contest import ALL_NAMES, NAMES, TUNED, compete, job_of
from peers.levels import LEVELS, written
from peers.report import (
    accuracy_lines,
    client_lines,
    client_rows,
    family_lines,
    served_worse,
    summary_lines,
)

COLUMNS = (
    "data", "family", "method", "seed", "groups", "found", "exact", "split_in", "bodies",
    "adjusted_rand_index",
    "accuracy", "worst", "rounds", "trainings", "down", "up", "client_seconds", "server_seconds",
    "given",
)  # fmt: skip
OTHERS = (
    *theirs.NAMES, *pfllib.NAMES, *unseen.NAMES, *unseen.SEEN, *natural.NAMES, *fresh.NAMES,
    *bigger.NAMES,
)  # fmt: skip
DATA = (*MODELS, "tables", "fresh")
"""Data sets by name; the last two are folders with the tables of `natural`, and with several."""
ALL_FAMILIES = (*FAMILIES, *OTHERS, *LEVELS)


def main(
    methods: Annotated[str, typer.Option(help=f"Of: {', '.join(NAMES)}.")] = ALL,
    families: Annotated[
        str,
        typer.Option(help=f"Also {', '.join(OTHERS)}, flux-KIND-N."),
    ] = ALL,
    seeds: command.Seeds = "0-1",
    data: command.Data = "digits",
    out: command.Out = Path("outputs/peers"),
    more: command.More = "",
    given: Annotated[str, typer.Option(help=f"Of: {', '.join(TUNED['digits'])}.")] = "",
    workers: command.Workers = 1,
    table: command.TableOnly = False,
) -> None:
    """Measure; options that name several things take commas, methods and families also "all"."""
    keys = read_overrides([more], "--set")
    tuned = {key: float(value) for key, value in read_overrides([given], "--given").items()}
    jobs = (
        job_of(name, family, method, seed, config, tuned, out_folder(out))
        for seed in numbers(seeds)
        for name, folder in folders(data, DATA).items()
        for family in chosen("family", families, FAMILIES if families == ALL else ALL_FAMILIES)
        for config in [config_of(name, folder, family, seed, keys, out)]
        for method in chosen("method", methods, NAMES if methods == ALL else ALL_NAMES)
    )
    run_all(jobs, partial(compete, tuned=tuned), sentence, report, out, workers, table)


def config_of(
    data: str, folder: str, family: str, seed: int, more: dict[str, Any], out: Path
) -> dict[str, Any]:
    """The whole run config of one federation; other papers' are written to ``out / "data"``."""
    if family in FAMILIES:
        return run_config(data, folder, family, "auto", seed, more)
    place = out_folder(out) / "data" / f"{data}-{family}-{seed}"
    for module in (theirs, pfllib, unseen, natural, fresh, bigger):
        if family in module.NAMES or family in getattr(module, "SEEN", ()):
            keys = module.federation(family, folder, seed, place)
            break
    else:
        _, kind, level = family.split("-")
        keys = written(Path(folder), kind, int(level), seed, place)
    return RunConfig.read({**keys, "seed": seed, **more}).as_keys()


def sentence(record: Record) -> str:
    """One run in a few words."""
    exact = {None: "no groups", True: "exact", False: f"{record['found']} groups"}
    return f"{exact[record['exact']]}, accuracy {record['accuracy']:.4f}"


def report(records: Sequence[Record], out: Path) -> None:
    """The table in the terminal, and the CSV and the picture in a folder."""
    runs = table_of(records, data=DATA, family=ALL_FAMILIES, method=ALL_NAMES)
    show(summary_lines(runs))
    show(accuracy_lines(runs), "Accuracy by family; medians of a run")
    if "clients" in runs and runs["clients"].notna().all():  # not in records of older versions
        show(client_lines(runs), "Accuracy by family, each client as much: mean, median")
    if "cflower" in set(runs["method"]):
        show(family_lines(runs), "Points of accuracy less cflower's, ± half of a 95 % interval")
        show(served_worse(runs), "Clients that cflower serves worse, by two standard errors")
    print(
        "Accuracies in per cent, mean over runs ± standard deviation of the seeds' means; better, "
        "worse: runs, than cflower's; MB, s: medians of a run, training only, CPU time."
    )
    write_table(runs, out / "peers.csv", COLUMNS)
    client_rows(runs).to_parquet(out / "peers-clients.parquet", index=False)
    draw(runs, "method", out / "peers.png")
    print(f"Written: {out / 'peers.csv'}, {out / 'peers.png'}")
