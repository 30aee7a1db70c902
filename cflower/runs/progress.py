"""How far a run is: a bar on a terminal, plain lines elsewhere."""

import time
from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from cflower.algorithm.criteria import Decision, Outcome
from cflower.federation.reports import RoundReport

Say = Callable[[str], None]


class RoundProgress:
    """Tells every finished round; a decision is told when it differs from the one before.

    Parameters
    ----------
    say : callable
        Prints one plain line.
    console : Console, optional
        A terminal to draw a bar on instead; used if it is one.
    """

    def __init__(self, say: Say, console: Console | None = None) -> None:
        self._say, self._began = say, time.monotonic()
        self._told: dict[str, Outcome] = {}
        self._bar: Progress | None = None
        if console is not None and console.is_terminal:
            self._bar = Progress(
                TextColumn("round"),
                MofNCompleteColumn(),
                BarColumn(),
                TextColumn("{task.description}"),
                TimeRemainingColumn(),
                console=console,
            )
            self._task = self._bar.add_task("starting", total=None)
            self._bar.start()
            self._say = self._bar.console.print

    def __call__(self, report: RoundReport) -> None:
        """Tell one round."""
        for decision in report.decisions:
            self._tell(decision)
        if self._bar is not None:
            self._bar.update(
                self._task,
                total=report.num_rounds,
                completed=report.server_round,
                description=state_of(report),
            )
            return
        left = (time.monotonic() - self._began) / report.server_round
        left *= report.num_rounds - report.server_round
        self._say(
            f"Round {report.server_round}/{report.num_rounds}: {state_of(report)}, "
            f"{report.seconds:.1f} s, about {left:.0f} s left"
        )

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._bar is not None:
            self._bar.stop()

    def _tell(self, decision: Decision) -> None:
        if self._told.get(decision.cluster) is not decision.outcome:
            self._told[decision.cluster] = decision.outcome
            self._say(f"  cluster {decision.cluster}, {decision.outcome}: {decision.reason}")


def state_of(report: RoundReport) -> str:
    """Clusters, accuracy and who was missing, in a few words."""
    count = len(report.state.tree.leaves)
    parts = [f"{count} cluster{'s' * (count != 1)}"]
    metrics = report.metrics()
    if "accuracy" in metrics:
        parts.append(f"accuracy {metrics['accuracy']:.4f}")
    if report.problems:
        parts.append(f"{len(report.problems)} without a usable reply")
    return ", ".join(parts)
