"""Progress of a run in lines of text."""

import os
import sys
from collections.abc import Callable
from logging import INFO
from shutil import get_terminal_size
from statistics import fmean
from textwrap import fill
from typing import cast

from flwr.supercore import log

from cflower.algorithm.criteria import Outcome
from cflower.ordering import counted
from cflower.strategy.observers import Observer
from cflower.strategy.reports import RoundReport

STEPS = 3
"""Lines of a run among several."""
Say = Callable[[str], None]


def print_while_read(text: str) -> None:
    """Print a text; once nobody reads standard output (`| head`), a run goes on without it."""
    try:
        print(text, flush=True)
    except BrokenPipeError:  # as Python's manual has it, in its note on SIGPIPE
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_to_log(text: str) -> None:
    for line in text.splitlines():
        log(INFO, line)


class RoundProgress(Observer):
    """Prints every finished round, and each decision that differs from the cluster's last one."""

    def __init__(self, print_line: Say) -> None:
        self._print = print_line
        self._durations: list[float] = []
        self._outcomes: dict[str, Outcome] = {}

    def on_round(self, report: RoundReport) -> None:
        for decision in report.decisions:
            if self._outcomes.get(decision.cluster) is not decision.outcome:
                self._outcomes[decision.cluster] = decision.outcome
                text = f"  cluster {decision.cluster}, {decision.outcome}: {decision.reason}"
                width = get_terminal_size((1000, 24)).columns  # a file keeps whole lines
                self._print(fill(text, width, subsequent_indent="    ", break_on_hyphens=False))
        now, total = report.server_round, report.num_rounds
        self._durations.append(report.seconds)
        left = fmean(self._durations) * (total - now)
        more = f", about {left:.0f} s left" if left >= 1 else ""
        self._print(f"Round {now}/{total}: {state_of(report)}, {report.seconds:.1f} s{more}")


class Steps(Observer):
    """Prints about `STEPS` lines in a run."""

    def __init__(self, print_line: Say) -> None:
        self._print = print_line

    def on_round(self, report: RoundReport) -> None:
        now, total = report.server_round, report.num_rounds
        if now * STEPS // total > (now - 1) * STEPS // total:
            self._print(f"  round {now} of {total}: {state_of(report)}")


def state_of(report: RoundReport) -> str:
    """The number of clusters, the leading metric and the number of missing replies."""
    parts = [counted(len(report.state.tree.leaves), "cluster")]
    metric, metrics = report.metric, report.metrics()
    if metric.name in metrics:
        value = cast(float, metrics[metric.name])
        known = sum(metric.name in one.metrics for one in report.measured.values())
        members = len(report.state.tree.clients)
        some = f" of {known} of {members} clients" if known < members else ""
        parts.append(f"{metric.name} {metric.in_words(value)}{some}")
    if report.problems:
        parts.append(f"{len(report.problems)} without a usable reply")
    return ", ".join(parts)
