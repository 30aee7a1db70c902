"""How `bench` measures: medians of alternating repetitions, and peaks of processes of their own.

Two things are compared by running them in turn, A B A B, so that whatever else the machine does
meets both; each figure is the ratio of their medians. CPU time (user and system of this process)
stands beside the time on the clock: on a shared machine it is the steadier of the two.
"""

import gc
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

Measured = Callable[[], object]


@dataclass(frozen=True)
class Times:
    """What one thing took, median over the repetitions, in seconds."""

    wall: float
    cpu: float


@dataclass(frozen=True)
class Figure:
    """One line of the table: ours against what it is measured against."""

    name: str
    against: str
    ours: float
    theirs: float
    ratio: float
    goal: float
    """The ratio asked for: at most this, or at least this where ``at_least``."""
    at_least: bool = False
    unit: str = "s CPU"
    wall_ratio: float | None = None
    """The ratio on the clock, where ``ratio`` is of CPU times."""

    @property
    def met(self) -> bool:
        """Whether the goal is reached."""
        return self.ratio >= self.goal if self.at_least else self.ratio <= self.goal

    def as_record(self) -> dict[str, object]:
        """For JSON, four digits each."""
        kept = {k: float(f"{v:.4g}") if type(v) is float else v for k, v in asdict(self).items()}
        return kept | {"met": self.met}


def alternate(things: Mapping[str, Measured], repetitions: int) -> dict[str, Times]:
    """Run the things in turn so many times, after one turn that does not count."""
    found: dict[str, list[Times]] = {name: [] for name in things}
    for turn in range(repetitions + 1):
        for name, thing in things.items():
            gc.collect()
            wall, cpu = time.perf_counter(), time.process_time()
            thing()
            took = Times(time.perf_counter() - wall, time.process_time() - cpu)
            if turn:
                found[name].append(took)
    return {
        name: Times(median(t.wall for t in times), median(t.cpu for t in times))
        for name, times in found.items()
    }


def compared(
    name: str, against: str, ours: Times, theirs: Times, goal: float, at_least: bool = False
) -> Figure:
    """The figure of two times; with ``at_least`` the ratio is how many times faster ours is."""
    ratio, wall = ours.cpu / theirs.cpu, ours.wall / theirs.wall
    if at_least:
        ratio, wall = 1 / ratio, 1 / wall
    return Figure(name, against, ours.cpu, theirs.cpu, ratio, goal, at_least, wall_ratio=wall)


def now_mb() -> float:
    """The memory of this process now, in MB (10^6 bytes); Linux only."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def peak_mb() -> float:
    """The most memory this process ever had, in MB (10^6 bytes); Linux only.

    Not ``ru_maxrss``: after fork and exec that starts at what the parent had.
    """
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024 / 1e6


def in_a_process(*arguments: str, **environment: str) -> dict[str, float]:
    """The JSON that ``run.py bench`` prints last with these arguments, in a new process.

    A peak of memory is of a process's whole life, so each is taken in one of its own.
    """
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parents[1] / "run.py"), "bench", *arguments],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | environment,
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found
