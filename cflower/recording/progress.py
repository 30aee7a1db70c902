"""How far a run is: a bar on a terminal, plain lines elsewhere."""

from collections.abc import Callable
from logging import INFO
from typing import cast

from flwr.supercore import log
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from cflower.algorithm.criteria import Decision, Outcome
from cflower.strategy.observers import Observer, RunStart
from cflower.strategy.reports import FinalReport, Metric, RoundReport

Say = Callable[[str], None]


def say_by_log(text: str) -> None:
    """One line of Flower's log per line of text."""
    for line in text.splitlines():
        log(INFO, line)


class RoundProgress(Observer):
    """Tells every finished round; a decision is told when it differs from the one before.

    Parameters
    ----------
    say : callable
        Prints one plain line.
    console : Console, optional
        A terminal to draw a bar on instead; used if it is one.
    """

    def __init__(self, say: Say, console: Console | None = None) -> None:
        self._say, self._metric = say, Metric()
        self._seconds: list[float] = []
        self._told: dict[str, Outcome] = {}
        self._bar: Progress | None = None
        self._console = console if console is not None and console.is_terminal else None

    def on_start(self, run: RunStart) -> None:
        """Draw the bar."""
        self._metric = run.metric
        if self._console is None:
            return
        self._bar = Progress(
            TextColumn("round"),
            MofNCompleteColumn(),
            BarColumn(),
            TextColumn("{task.description}"),
            TimeRemainingColumn(),
            console=self._console,
        )
        self._task = self._bar.add_task("starting", total=None)
        self._bar.start()
        self._say = self._bar.console.print

    def on_round(self, report: RoundReport) -> None:
        """Tell one round."""
        for decision in report.decisions:
            self._tell(decision)
        state = state_of(report, self._metric)
        if self._bar is not None:
            self._bar.update(
                self._task,
                total=report.num_rounds,
                completed=report.server_round,
                description=state,
            )
            return
        self._seconds.append(report.seconds)
        left = sum(self._seconds) / len(self._seconds) * (report.num_rounds - report.server_round)
        self._say(
            f"Round {report.server_round}/{report.num_rounds}: {state}, "
            f"{report.seconds:.1f} s, about {left:.0f} s left"
        )

    def on_end(self, report: FinalReport | None) -> None:
        """Leave the terminal as it was."""
        if self._bar is not None:
            self._bar.stop()

    def _tell(self, decision: Decision) -> None:
        if self._told.get(decision.cluster) is not decision.outcome:
            self._told[decision.cluster] = decision.outcome
            self._say(f"  cluster {decision.cluster}, {decision.outcome}: {decision.reason}")


def state_of(report: RoundReport, metric: Metric) -> str:
    """Clusters, the leading metric and who was missing, in a few words."""
    count = len(report.state.tree.leaves)
    parts = [f"{count} cluster{'s' * (count != 1)}"]
    metrics = report.metrics()
    if metric.name in metrics:
        value = cast(float, metrics[metric.name])
        parts.append(f"{metric.name} {metric.in_words(value)}")
    if report.problems:
        parts.append(f"{len(report.problems)} without a usable reply")
    return ", ".join(parts)
