"""Runs and their records: what is missing is run, on every core, and leaves one small JSON each.

Stop a script whenever you like and start it again: what is there, made with the same settings, is
not run once more. Every table is over all records in the output folder.
"""

import json
import multiprocessing
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import manifest
import typer
from command import out_folder, quieten_flower, write_record

from cflower.errors import ConfigError

Record = dict[str, Any]
"""One run: what it was, what came out, and as ``config`` the settings."""


@dataclass(frozen=True)
class Job:
    """One run of a measurement."""

    what: Mapping[str, Any]
    """What it is, by which its record is named."""
    settings: Mapping[str, Any]
    """What the result depends on."""

    @property
    def name(self) -> str:
        """Also the name of its record."""
        return re.sub(r"[^\w.-]+", "-", "--".join(map(str, self.what.values())))


def jobs_of(settings: Callable[..., Mapping[str, Any]], **options: Iterable[Any]) -> Iterator[Job]:
    """A job for every choice among the options, which name it; ``settings`` gets them by name."""
    for values in product(*options.values()):
        what = dict(zip(options, values, strict=True))
        yield Job(what, settings(**what))


def is_done(job: Job, out: Path) -> bool:
    """Whether a run's record is there and of the same settings.

    Settings that are newer than the record do not count.
    """
    path = out / f"{job.name}.json"
    if not path.exists():
        return False
    known = json.loads(path.read_text())["config"]
    return all(job.settings.get(key, value) == value for key, value in known.items())


def run_all(
    jobs: Iterable[Job],
    measure: Callable[[Job], Record],
    sentence: Callable[[Record], str],
    report: Callable[[list[Record], Path], None],
    out: Path,
    workers: int | None = None,
    table: bool = False,
) -> None:
    """Measure what is missing in processes of one core each, then report; ends the script.

    Parameters
    ----------
    jobs : iterable of Job
    measure : callable
        The figures of a run.
    sentence : callable
        A few words for a record.
    report : callable
        Shows all records, and may write to the folder.
    out : Path
        Where the records are.
    workers : int, optional
        Processes; one for each core by default.
    table : bool
        Run nothing.
    """
    out, failed = out_folder(out), 0
    jobs = [] if table else list(jobs)
    missing = [job for job in jobs if not is_done(job, out)]
    if missing:
        manifest.note(out)
    print(f"{len(jobs)} runs, {len(jobs) - len(missing)} there already, {len(missing)} to do.")
    began, spawn = time.monotonic(), multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, spawn, be_quiet) as pool:
        running = {pool.submit(recorded, job, measure, out): job for job in missing}
        for count, future in enumerate(as_completed(running), start=1):
            try:
                result = sentence(future.result())
            except Exception as error:
                traceback.print_exception(error)
                failed, result = failed + 1, f"FAILED: {error!r}"
            left = (time.monotonic() - began) / 60 * (len(missing) - count) / count
            line = f"[{count}/{len(missing)}] {running[future].name}: {result}"
            print(f"{line}; about {left:.0f} min left", flush=True)  # a file shows it too
    report(read_all(out), out)
    raise typer.Exit(1 if failed else 0)


def be_quiet() -> None:
    """Once in every worker: nothing of its own in the terminal.

    A worker ends with the script, also when that is killed and cannot say so.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    script = multiprocessing.parent_process()
    assert script is not None
    threading.Thread(target=lambda: (script.join(), os._exit(1)), daemon=True).start()
    sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 (as long as the worker lives)
    quieten_flower()


def recorded(job: Job, measure: Callable[[Job], Record], out: Path) -> Record:
    """One run's record, written to ``out``; in a worker."""
    began = time.monotonic()
    record = {**job.what, **measure(job), "config": job.settings}
    record |= {"commit": manifest.commit(), "processor": manifest.processor()}
    record["seconds_taken"] = round(time.monotonic() - began, 1)
    write_record(record, out / f"{job.name}.json")
    return record


def read_all(out: Path) -> list[Record]:
    """All records in a folder; there has to be one."""
    records = [json.loads(path.read_text()) for path in sorted(out.glob("*--*.json"))]
    if not records:
        raise ConfigError(f"There are no runs in {out}.")
    return records
