"""Observers of a run: run folder, trackers, terminal progress and users' own.

The shape is that of the callbacks of apple/pfl-research: start, every round, end.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from logging import ERROR
from typing import Any, NamedTuple, TypeVar

import numpy as np
from flwr.supercore import log

from cflower.algorithm.state import CFLState
from cflower.errors import CFlowerError, FederationError
from cflower.messages.failures import FailureRecord
from cflower.messages.layout import Layout
from cflower.messages.messenger import Sent
from cflower.metric import Metric
from cflower.settings import has_methods, require
from cflower.strategy.reports import FinalReport, RoundReport

Returned = TypeVar("Returned")
FAILED = "The run goes on without its observer %s, which failed in %s: %s"


class Checkpoint(NamedTuple):
    """The state at the end of a round."""

    server_round: int
    state: CFLState
    failures: FailureRecord = FailureRecord()
    outstanding: tuple[Sent, ...] = ()
    """Asks without a reply when the round was closed; a new process sends them again."""

    def refuse_other_clients(self, now: Sequence[str]) -> None:
        """Raise a FederationError if none of the run's clients is here."""
        before = self.state.tree.clients
        if not set(before) & set(now):
            raise FederationError(
                f"Cannot resume: none of the run's clients ({', '.join(before[:3])}, ...) is here, "
                f"but {', '.join(now[:3])}, ... are. Node ids change from run to run: give the "
                "clients lasting names with cflower.name_clients(app) in the ClientApp."
            )


@dataclass(frozen=True)
class RunStart:
    """A run before its first round."""

    num_rounds: int
    metric: Metric
    settings: Mapping[str, Any]
    """The effective settings of strategy and criterion, as plain values under kebab-case keys."""
    layout: Layout
    facts: Mapping[str, Mapping[str, Any]]
    """The facts that each client reported in the roll call, by name; often empty."""


class Observer:
    """Watches a run; override what you need.

    An exception does not end a run that has begun: it is logged once, and the run goes on.
    Only a `CFlowerError` from `on_start` (nothing is trained yet) refuses the run.
    """

    def on_start(self, run: RunStart) -> Checkpoint | None:
        """The first round is about to begin; a checkpoint lets the run go on from there."""
        return None

    def on_round(self, report: RoundReport) -> bool | None:
        """A round is over; True, also NumPy's, ends the run after it, with the final evaluation."""
        return None

    def on_end(self, report: FinalReport | None) -> None:
        """The run is over; None if it was broken off."""


def ends(answer: object) -> bool:
    """Whether an observer's answer ends a run: only True does, also that of NumPy or PyTorch.

    >>> ends(np.mean([0.8, 1.0]) > 0.5), ends(1), ends("no"), ends(np.ones(2))
    (True, False, False, False)
    """
    same = np.asarray(answer)
    return same.dtype == bool and same.shape == () and bool(same)


class Observers:
    """All observers of one run, called in their order."""

    def __init__(self, observers: Iterable[Observer]) -> None:
        self._observers = tuple(observers)
        for observer in self._observers:
            require(
                has_methods(observer, "on_start", "on_round", "on_end"),
                f"Got {observer!r} in observers, but expected an Observer, such as Recorder().",
            )
        self._failed: set[int] = set()

    def start(self, run: RunStart) -> Checkpoint | None:
        """The checkpoint of the first observer that has one; a CFlowerError refuses the run."""
        checkpoints = [self._call(o, o.on_start, run) for o in self._observers]
        return next(filter(None, checkpoints), None)

    def round(self, report: RoundReport) -> bool:
        """Call all observers after a round; whether one of them ends the run."""
        answers = [self._call(o, o.on_round, report) for o in self._observers]
        return any(answer is not None and ends(answer) for answer in answers)

    def end(self, report: FinalReport | None) -> None:
        for observer in reversed(self._observers):
            self._call(observer, observer.on_end, report)

    def _call(
        self,
        observer: Observer,
        method: Callable[[Any], Returned],
        event: RunStart | RoundReport | FinalReport | None,
    ) -> Returned | None:
        try:
            return method(event)
        except Exception as error:
            if isinstance(event, RunStart) and isinstance(error, CFlowerError):
                raise
            if id(observer) not in self._failed:
                self._failed.add(id(observer))
                cause = error if isinstance(error, CFlowerError) else repr(error)
                log(ERROR, FAILED, type(observer).__name__, method.__name__, cause)
            return None
