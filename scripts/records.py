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
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from command import quieten_flower, write_record

from cflower.errors import ConfigError

Record = dict[str, Any]
"""One run: what it was, and what came out."""


R = TypeVar("R")
"""One run to be measured: `Job`, or another class with its name, settings and cost."""


@dataclass(frozen=True)
class Job:
    """One run of a measurement."""

    what: Mapping[str, Any]
    """What it is, by which its record is named."""
    settings: Mapping[str, Any]
    """What the result depends on: the record's ``config``."""
    cost: float = 1.0
    """In proportion to its duration, for the time left."""

    @property
    def name(self) -> str:
        """Also the name of its record."""
        return re.sub(r"[^\w.-]+", "-", "--".join(map(str, self.what.values())))


def is_done(run: Any, out: Path) -> bool:
    """Whether a run's record is there and of the same settings.

    Settings that are newer than the record do not count.
    """
    path = out / f"{run.name}.json"
    if not path.exists():
        return False
    known = json.loads(path.read_text())["config"]
    return all(run.settings.get(key, value) == value for key, value in known.items())


def run_all(
    runs: Sequence[R],
    measure: Callable[[R], Record],
    out: Path,
    sentence: Callable[[Record], str],
    workers: int | None = None,
) -> int:
    """Measure what is missing in processes of one core each; the number of failed runs.

    ``sentence`` says in a few words what a record holds. One worker for each core by default.
    """
    missing = [run for run in runs if not is_done(run, out)]
    print(f"{len(runs)} runs, {len(runs) - len(missing)} there already, {len(missing)} to do.")
    # Every worker computes on one core, and reads these when it loads its libraries.
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    began, cost_done, cost = time.monotonic(), 0.0, sum(run.cost for run in missing)
    failed = 0
    pool = ProcessPoolExecutor(
        max(1, min(workers or os.cpu_count() or 1, len(missing))),
        multiprocessing.get_context("spawn"),
        be_quiet,
    )
    try:
        running: dict[Future[Record], R] = {
            pool.submit(kept, run, measure, out): run for run in missing
        }
        for count, future in enumerate(as_completed(running), start=1):
            run = running[future]
            cost_done += run.cost
            left = (time.monotonic() - began) * (cost - cost_done) / cost_done / 60
            try:
                result = sentence(future.result())
            except Exception as error:
                failed += 1
                result = f"FAILED: {type(error).__name__}: {error} (see {run.name}.error.txt)"
                lines = traceback.format_exception(error)
                (out / f"{run.name}.error.txt").write_text("".join(lines))
            line = f"[{count}/{len(missing)}] {run.name}: {result}; about {left:.0f} min left"
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


def kept(run: R, measure: Callable[[R], Record], out: Path) -> Record:
    """One run's record, written to ``out``; in a worker."""
    record = measure(run)
    write_record(record, out / f"{run.name}.json")
    (out / f"{run.name}.error.txt").unlink(missing_ok=True)
    return record


def read_all(out: Path) -> list[Record]:
    """All records in a folder; there has to be one."""
    records = [json.loads(path.read_text()) for path in sorted(out.glob("*--*.json"))]
    if not records:
        raise ConfigError(f"There are no runs in {out}.")
    return records
