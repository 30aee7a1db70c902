"""The measurement: every family of federations, many seeds, any criterion, every core.

    python scripts/battery.py --criterion norms,oracle,federated --seeds 0-4 --out outputs/battery

Every run goes through cflower's own ServerApp and ClientApp. It leaves one small JSON in the
output folder: stop the script whenever you like and start it again, and only what is missing,
or was made with another run config, is run. Then it prints the table and writes `battery.csv`
and `battery.png` over all runs in that folder. Runs with `--set` belong in a folder of their own.

MNIST, Fashion-MNIST and CIFAR-10 come from local folders that `datasets.load_dataset` reads:
`--data digits,mnist=/data/mnist,fashion-mnist=/data/fashion-mnist,cifar10=/data/cifar10`.
"""

import json
import multiprocessing
import os
import shutil
import signal
import sys
import threading
import time
import traceback
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from command import quieten_flower, start, write_record, write_table
from federations.late import LateGrid
from federations.planted import (
    CRITERIA,
    DRIFTING,
    EVERY,
    FAMILIES,
    MODELS,
    Job,
    Oracle,
    judge,
    run_config,
    truth_of,
)
from federations.report import Record, Results, draw, print_table, sentence, table_lines
from rich.console import Console

from cflower.config import read_overrides
from cflower.errors import ConfigError

ALL = "all"


def battery(
    criterion: Annotated[str, typer.Option(help=f"Of: {', '.join(CRITERIA)}.")] = "norms",
    data: Annotated[
        str, typer.Option(help=f"NAME=FOLDER, or digits alone; NAME of: {', '.join(MODELS)}.")
    ] = "digits",
    families: Annotated[
        str, typer.Option(help=f"Of: {', '.join(EVERY)}; all: not {', '.join(DRIFTING)}.")
    ] = ALL,
    seeds: Annotated[str, typer.Option(help='Such as "0-4" or "0,2,5-7".')] = "0-4",
    out: Annotated[Path, typer.Option(help="Where the records go.")] = Path("outputs/battery"),
    rounds: Annotated[int | None, typer.Option(min=1, help="Instead of each family's own.")] = None,
    more: Annotated[str, typer.Option("--set", help='Run config: "key=value ...".')] = "",
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; one per core.")] = None,
    late: Annotated[
        int, typer.Option(min=0, help="One client of ten answers so many rounds later.")
    ] = 0,
    keep: Annotated[bool, typer.Option(help="Keep the run folders, in OUT/runs.")] = False,
    table: Annotated[bool, typer.Option("--table", help="Run nothing.")] = False,
) -> None:
    """Measure; options that name several things take commas, criteria and families also "all"."""
    out = out.expanduser().absolute()
    out.mkdir(parents=True, exist_ok=True)
    failed = 0
    if not table:
        keys = read_overrides([more]) if more else {}
        if rounds is not None:
            keys["num-server-rounds"] = rounds
        jobs = [
            Job(name, family, rule, seed, run_config(name, folder, family, rule, seed, keys))
            for seed in numbers(seeds)
            for name, folder in folders(data).items()
            for family in chosen("family", families, FAMILIES if families == ALL else EVERY)
            for rule in chosen("criterion", criterion, CRITERIA)
        ]
        failed = run_all(jobs, out, workers or os.cpu_count() or 1, keep, late)
    report(out)
    raise typer.Exit(1 if failed else 0)


def run_all(jobs: list[Job], out: Path, workers: int, keep: bool, late: int) -> int:
    """Run what is missing and tell of each; the number of failed runs."""
    missing = [job for job in jobs if not job.is_done(out)]
    print(f"{len(jobs)} runs, {len(jobs) - len(missing)} there already, {len(missing)} to do.")
    # Every worker computes on one core, and reads these when it loads its libraries.
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    began, cost_done, cost = time.monotonic(), 0, sum(job.cost for job in missing)
    failed = 0
    pool = ProcessPoolExecutor(
        max(1, min(workers, len(missing))), multiprocessing.get_context("spawn"), be_quiet
    )
    try:
        running: dict[Future[Record], Job] = {
            pool.submit(run_one, job, out, keep, late): job for job in missing
        }
        for count, future in enumerate(as_completed(running), start=1):
            job = running[future]
            cost_done += job.cost
            left = (time.monotonic() - began) * (cost - cost_done) / cost_done / 60
            try:
                result = sentence(future.result())
            except Exception as error:
                failed += 1
                result = f"FAILED: {type(error).__name__}: {error} (see {job.name}.error.txt)"
                lines = traceback.format_exception(error)
                (out / f"{job.name}.error.txt").write_text("".join(lines))
            label = f"{job.data} {job.family} {job.criterion} seed {job.seed}"
            line = f"[{count}/{len(missing)}] {label}: {result}; about {left:.0f} min left"
            print(line, flush=True)  # a file shows it too while it goes on
    except KeyboardInterrupt:
        print("Stopped. The same command goes on from here.")
        for worker in multiprocessing.active_children():
            worker.terminate()
        raise
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    return failed


def be_quiet() -> None:
    """Once in every worker: no progress bars of many runs in one terminal, Ctrl-C is ours.

    A worker ends with the script, also when that is killed and cannot say so.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    script = multiprocessing.parent_process()
    assert script is not None
    threading.Thread(target=lambda: (script.join(), os._exit(1)), daemon=True).start()
    sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 (as long as the worker lives)
    quieten_flower()


def run_one(job: Job, out: Path, keep: bool, late: int = 0) -> Record:
    """One run through cflower's own apps, in a worker; its record, also written to ``out``."""
    from cflower import simulate
    from cflower.client_app import app as client_app
    from cflower.data.client_data import load_client_data
    from cflower.server_app import run
    from cflower.simulation.inline_grid import InlineGrid

    began, folder = time.monotonic(), out / "runs" / job.name
    shutil.rmtree(folder, ignore_errors=True)
    config = job.config | {"output-dir": str(folder)}
    truth = truth_of(config)
    rule = Oracle(truth) if job.criterion == "oracle" else None
    server = partial(run, say=lambda text: None, criterion=rule)
    summary = simulate(
        client_app,
        len(truth),
        server_app=server,
        run_config=config,
        grid_type=partial(LateGrid, rounds=late) if late else InlineGrid,
    )
    tree = json.loads((folder / summary["run_id"] / "tree.json").read_text())
    load_client_data.cache_clear()  # another seed's examples: of no use to the next run
    if not keep:
        shutil.rmtree(folder)
    record = {
        "data": job.data,
        "family": job.family,
        "criterion": job.criterion,
        "seed": job.seed,
        "rounds": summary["rounds"],
        **judge(summary, tree, config),
        "seconds": round(time.monotonic() - began, 1),
        "found": summary["clusters"],
        "split_lines": summary["splits"],
        "config": job.settings,
    }
    path = out / f"{job.name}.json"
    write_record(record, path)
    (out / f"{job.name}.error.txt").unlink(missing_ok=True)
    return record


def report(out: Path) -> None:
    """Table, CSV and picture of all records in ``out``."""
    results = Results([json.loads(path.read_text()) for path in out.glob("*--*.json")])
    if not results.records:
        raise ConfigError(f"There are no runs in {out}.")
    console = Console()
    print_table(results, console if console.is_terminal else Console(width=130))
    write_table(table_lines(results), out / "battery.csv")
    draw(results, out / "battery.png")
    print(f"Written: {out / 'battery.csv'}, {out / 'battery.png'}")


def chosen(what: str, names: str, known: dict[str, Any], between: str = ",") -> list[str]:
    """The names between commas; all of them for "all"."""
    parts = list(known) if names == ALL else [name.strip() for name in names.split(between)]
    for name in parts:
        if name not in known:
            raise ConfigError(f"Got {what} {name!r}, but expected some of {', '.join(known)}.")
    return parts


def folders(data: str, known: dict[str, Any] = MODELS) -> dict[str, str]:
    """``NAME=FOLDER`` between commas; the folder is empty for the digits."""
    found = {}
    for part in data.split(","):
        name, _, folder = (piece.strip() for piece in part.partition("="))
        chosen("data", name, known)
        if bool(folder) == (name == "digits"):
            raise ConfigError(f"Got data {part!r}, but expected digits or NAME=FOLDER.")
        found[name] = str(Path(folder).expanduser().absolute()) if folder else ""
    return found


def numbers(seeds: str) -> list[int]:
    """The numbers of ``0,2,5-7``: 0, 2, 5, 6, 7."""
    try:
        ends = [[int(end) for end in part.split("-")] for part in seeds.split(",")]
        return [n for first, *last in ends for n in range(first, (*last, first)[0] + 1)]
    except ValueError:
        raise ConfigError(f"Got seeds {seeds!r}, but expected such as 0-4 or 0,2,5-7.") from None


if __name__ == "__main__":
    start(lambda: typer.run(battery))
