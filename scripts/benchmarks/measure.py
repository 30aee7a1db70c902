"""How `bench` measures: medians of alternating repetitions, and peaks of processes of their own.

Two things are compared by running them in turn, A B A B, so that whatever else the machine does
meets both; each figure is the ratio of their medians. Time is CPU time (user and system of this
process), which is steadier than the clock on a shared machine.
"""

import gc
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median

Measured = Callable[[], object]


@dataclass(frozen=True)
class Figure:
    """One line of the table: ours against what it is measured against."""

    name: str
    against: str
    ours: float
    theirs: float
    goal: float
    """The ratio asked for, at most."""
    unit: str = "s CPU"
    least: float | None = None
    most: float | None = None
    """The smallest and the largest ratio of single turns, if there were several."""

    @classmethod
    def of_times(
        cls, name: str, against: str, ours: Sequence[float], theirs: Sequence[float], goal: float
    ) -> "Figure":
        """The medians of several turns, and the range of their ratios."""
        ratios = [one / other for one, other in zip(ours, theirs, strict=True)]
        figure = cls(name, against, median(ours), median(theirs), goal)
        return replace(figure, least=min(ratios), most=max(ratios))

    @property
    def ratio(self) -> float:
        """Ours in theirs."""
        return self.ours / (self.theirs or 1)

    @property
    def met(self) -> bool:
        """Whether the goal is reached."""
        return self.ratio <= self.goal

    def as_record(self) -> dict[str, object]:
        """For JSON, four digits each."""
        found = asdict(self) | {"ratio": self.ratio, "met": self.met}
        return {k: float(f"{v:.4g}") if type(v) is float else v for k, v in found.items()}


def alternate(things: Mapping[str, Measured], repetitions: int) -> dict[str, list[float]]:
    """Run the things in turn so many times; of each its CPU seconds.

    One turn before these does not count.
    """
    found: dict[str, list[float]] = {name: [] for name in things}
    for turn in range(repetitions + 1):
        for name, thing in things.items():
            gc.collect()
            began = time.process_time()
            thing()
            if turn:
                found[name].append(time.process_time() - began)
    return found


def cpu_of(code: str, repetitions: int) -> float:
    """CPU seconds of a new process with this code; the median of several."""
    code += "\nimport sys, time; print(time.process_time(), file=sys.stderr)"

    def once() -> float:
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        return float(done.stderr.split()[-1])

    return median(once() for _ in range(repetitions + 1))


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
