"""Progress of a run: a bar on a terminal, plain lines elsewhere."""

from collections.abc import Callable
from logging import INFO
from statistics import fmean
from typing import cast

from flwr.supercore import log
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from cflower.algorithm.criteria import Outcome
from cflower.ordering import counted
from cflower.strategy.observers import Observer, RunStart
from cflower.strategy.reports import FinalReport, RoundReport

Say = Callable[[str], None]


def print_to_log(text: str) -> None:
    """Write each line of a text as a line of Flower's log."""
    for line in text.splitlines():
        log(INFO, line)


class RoundProgress(Observer):
    """Prints every finished round, and each decision that differs from the cluster's last one.

    If ``console`` is a terminal, a bar is drawn on it instead of a line for each round.
    """

    def __init__(self, print_line: Say, console: Console | None = None) -> None:
        self._print = print_line
        self._durations: list[float] = []
        self._outcomes: dict[str, Outcome] = {}
        self._bar: Progress | None = None
        self._console = console if console is not None and console.is_terminal else None

    def on_start(self, run: RunStart) -> None:
        if self._console is None:
            return
        columns = ("round", MofNCompleteColumn(), BarColumn(), "{task.description}")
        self._bar = Progress(*columns, TimeRemainingColumn(), console=self._console)
        self._task = self._bar.add_task("starting", total=None)
        self._bar.start()
        self._print = self._bar.console.print

    def on_round(self, report: RoundReport) -> None:
        for decision in report.decisions:
            if self._outcomes.get(decision.cluster) is not decision.outcome:
                self._outcomes[decision.cluster] = decision.outcome
                self._print(f"  cluster {decision.cluster}, {decision.outcome}: {decision.reason}")
        now, total, state = report.server_round, report.num_rounds, state_of(report)
        if self._bar is not None:
            self._bar.update(self._task, total=total, completed=now, description=state)
            return
        self._durations.append(report.seconds)
        left = fmean(self._durations) * (total - now)
        more = f", about {left:.0f} s left" if left >= 1 else ""
        self._print(f"Round {now}/{total}: {state}, {report.seconds:.1f} s{more}")

    def on_end(self, report: FinalReport | None) -> None:
        if self._bar is not None:
            self._bar.stop()


def state_of(report: RoundReport) -> str:
    """The number of clusters, the leading metric and the number of missing replies."""
    parts = [counted(len(report.state.tree.leaves), "cluster")]
    metric, metrics = report.metric, report.metrics()
    if metric.name in metrics:
        value = cast(float, metrics[metric.name])
        parts.append(f"{metric.name} {metric.in_words(value)}")
    if report.problems:
        parts.append(f"{len(report.problems)} without a usable reply")
    return ", ".join(parts)
