"""Who watches a run: run folder, trackers, terminal progress and what users bring themselves.

The shape is that of the callbacks of apple/pfl-research: start, every round, end.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from logging import ERROR
from typing import Any, NamedTuple, TypeVar

from flwr.supercore import log

from cflower.algorithm.state import CFLState
from cflower.errors import CFlowerError
from cflower.messages.failures import FailureRecord
from cflower.messages.layout import Layout
from cflower.messages.messenger import Asked
from cflower.strategy.reports import FinalReport, Metric, RoundReport

Answer = TypeVar("Answer")


class Checkpoint(NamedTuple):
    """The state at the end of a round."""

    server_round: int
    state: CFLState
    failures: FailureRecord = FailureRecord()
    outstanding: tuple[Asked, ...] = ()
    """To whom the round was closed before they answered; a new process asks them again."""


@dataclass(frozen=True)
class RunStart:
    """What is known of a run before its first round."""

    num_rounds: int
    metric: Metric
    settings: Mapping[str, Any]
    """How strategy and criterion describe themselves: plain values under kebab-case keys."""
    layout: Layout
    """The model's arrays."""
    facts: Mapping[str, Mapping[str, Any]]
    """What each client told of itself, by name; empty for an app that tells nothing."""


class Observer:
    """Watches a run; override what you need.

    An observer cannot end a run that has begun: what it raises is logged once, and the run goes
    on. Only a `CFlowerError` from `on_start` (nothing is trained yet) refuses the run.
    """

    def on_start(self, run: RunStart) -> Checkpoint | None:
        """The first round is about to begin; a checkpoint lets the run go on from there."""
        return None

    def on_round(self, report: RoundReport) -> None:
        """A round is over."""

    def on_end(self, report: FinalReport | None) -> None:
        """The run is over; None if it was broken off."""


class Observers:
    """All observers of one run, told in their order.

    Parameters
    ----------
    observers : iterable of Observer
    """

    def __init__(self, observers: Iterable[Observer]) -> None:
        self._observers = tuple(observers)
        self._failed: set[int] = set()

    def start(self, run: RunStart) -> Checkpoint | None:
        """The checkpoint of the first observer that has one.

        Raises
        ------
        CFlowerError
            If an observer refuses the run.
        """
        found = [self._told(o, o.on_start, run, refuses=True) for o in self._observers]
        return next((checkpoint for checkpoint in found if checkpoint is not None), None)

    def round(self, report: RoundReport) -> None:
        """Tell everyone of a round."""
        for observer in self._observers:
            self._told(observer, observer.on_round, report)

    def end(self, report: FinalReport | None) -> None:
        """Tell everyone that the run is over, who was told last of its start first."""
        for observer in reversed(self._observers):
            self._told(observer, observer.on_end, report)

    def _told(
        self,
        observer: Observer,
        tell: Callable[[Any], Answer],
        what: RunStart | RoundReport | FinalReport | None,
        *,
        refuses: bool = False,
    ) -> Answer | None:
        try:
            return tell(what)
        except Exception as error:
            if refuses and isinstance(error, CFlowerError):
                raise
            if id(observer) not in self._failed:
                self._failed.add(id(observer))
                log(
                    ERROR,
                    "The run goes on without its observer %s, which failed in %s: %s",
                    type(observer).__name__,
                    tell.__name__,
                    error if isinstance(error, CFlowerError) else repr(error),
                )
            return None
