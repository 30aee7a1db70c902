"""How the clients of a run behave: whose replies were bad, who is excluded, when it must stop.

One bad client never stops a run. What stops it is that nothing useful comes back at all, or
that the simulation engine itself is broken: a worker of it that died stays in its pool, answers
every message at once with an error, and is never replaced.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from flwr.app import Message

from cflower.ordering import in_order

PATIENCE = 3
"""Rounds in a row without one usable reply after which a run gives up."""


class Fault(StrEnum):
    """Why there is no usable reply."""

    CLIENT = "client"
    """The client, or its app, answered badly."""
    ABSENT = "absent"
    """It could not be reached, or did not answer in time."""
    WORKER = "worker"
    """The simulation engine failed, whichever client it was working for."""


class Problem(NamedTuple):
    """A reply that was set aside, or did not come."""

    text: str
    """Completes "its reply ..."."""
    fault: Fault = Fault.CLIENT


def fault_of(reply: Message) -> Fault:
    """Whose fault a bad reply is, by Flower's error codes."""
    if not reply.has_error():
        return Fault.CLIENT
    # 3, 4, 5: the SuperLink answers for a node that is gone. 0: what is not the ClientApp's
    # own exception in the simulation engine, such as ray's ActorDiedError.
    return {0: Fault.WORKER, 3: Fault.ABSENT, 4: Fault.ABSENT, 5: Fault.ABSENT}.get(
        reply.error.code, Fault.CLIENT
    )


class ExchangeOutcome(NamedTuple):
    """What came of one exchange."""

    heard: Collection[str]
    """Clients with a usable reply."""
    problems: Mapping[str, Problem]

    @property
    def num_asked(self) -> int:
        """How many clients were written to."""
        return len({*self.heard, *self.problems})

    def failed(self, *faults: Fault) -> list[str]:
        """Clients without a usable reply, for one of these faults."""
        return [
            name
            for name, problem in self.problems.items()
            if problem.fault in faults and name not in self.heard
        ]

    @property
    def worker_died(self) -> str:
        """One sentence if most replies failed in the simulation engine itself; else empty."""
        failed = self.failed(Fault.WORKER)
        if 2 * len(failed) <= self.num_asked:
            return ""
        return (
            f"{len(failed)} of {self.num_asked} replies failed because a worker of the simulation "
            "engine died, and a dead worker stays in its pool and fails whatever it is given: "
            "look for what killed it (most often memory; fewer clients at once need less), then "
            "start the run again with resume "
            f"({failed[0]}: the reply {self.problems[failed[0]].text})"
        )


@dataclass(frozen=True)
class FailureRecord:
    """The clients' record up to a round: state in, state out."""

    problems: Mapping[str, int] = field(default_factory=dict)
    """Number of unusable replies of each client; not answering is not counted."""
    in_a_row: Mapping[str, int] = field(default_factory=dict)
    """Bad replies to training since the last usable one."""
    excluded: Mapping[str, str] = field(default_factory=dict)
    """Clients that are asked no more, and why."""
    rounds_with_replies: int = 0
    """Rounds that brought a usable reply."""
    silent_streak: int = 0
    """Rounds in a row, up to now, that brought none."""
    failing_streak: int = 0
    """Rounds in a row, up to now, in which most replies failed."""

    def noted(self, problems: Mapping[str, Problem]) -> dict[str, int]:
        """The counts of bad replies with those of one more exchange."""
        bad = [name for name, problem in problems.items() if problem.fault is Fault.CLIENT]
        return {**self.problems, **{name: self.problems.get(name, 0) + 1 for name in bad}}

    def trained(
        self, answers: ExchangeOutcome, exclude_after: int, num_present: int
    ) -> "FailureRecord":
        """The record after a round's training.

        Parameters
        ----------
        answers : ExchangeOutcome
        exclude_after : int
            Bad replies in a row after which a client is excluded; 0: never.
        num_present : int
            Clients that could have been asked. A round that asked only one of several and got
            nothing says something about that client, nothing about the run.
        """
        failed = answers.failed(Fault.CLIENT)
        again = {name: self.in_a_row.get(name, 0) + 1 for name in failed}
        in_a_row = {name: n for name, n in self.in_a_row.items() if name not in answers.heard}
        excluded = {
            name: f"{n} unusable replies in a row; the last one {answers.problems[name].text}"
            for name, n in again.items()
            if 0 < exclude_after <= n
        }
        rounds_with_replies, silent_streak, failing = (
            self.rounds_with_replies,
            self.silent_streak,
            self.failing_streak,
        )
        if answers.heard:
            rounds_with_replies, silent_streak = rounds_with_replies + 1, 0
        if answers.num_asked != 1 or num_present == 1:
            silent_streak += not answers.heard
            most = 2 * len(answers.failed(Fault.CLIENT, Fault.WORKER)) > answers.num_asked
            failing = failing + 1 if most else 0
        return FailureRecord(
            self.noted(answers.problems),
            in_a_row | again,
            {**self.excluded, **excluded},
            rounds_with_replies,
            silent_streak,
            failing,
        )

    def must_stop(self, answers: ExchangeOutcome, server_round: int, *, simulated: bool) -> str:
        """Why the run cannot go on after this round, in one sentence; empty if it can."""
        where = f"round {server_round}"
        if died := answers.worker_died:
            return f"The run stops in {where}: {died}."
        if self.silent_streak >= PATIENCE or (self.silent_streak and server_round == 1):
            return f"No usable reply in {where}. {self._told(answers)}"
        if simulated and self.failing_streak >= PATIENCE:
            return (
                f"Most replies failed in {PATIENCE} rounds in a row, up to {where}. "
                f"{self._told(answers)}"
            )
        return ""

    def must_not_end(self, *, simulated: bool) -> str:
        """Why a run that went through its rounds is no success; empty if it is."""
        if not self.rounds_with_replies:
            return f"No round brought a usable reply. {self._told(ExchangeOutcome((), {}))}"
        if simulated and self.silent_streak:
            return f"The last {self.silent_streak} round(s) brought no usable reply."
        return ""

    def _told(self, answers: ExchangeOutcome) -> str:
        """Every reason once, with one client that gave it."""
        reasons: dict[str, str] = {}
        for name, problem in answers.problems.items():
            reasons.setdefault(problem.text, name)
        told = [f"{name}: the reply {text}" for text, name in reasons.items()]
        if not told and self.excluded:
            told = [f"Excluded: {', '.join(in_order(self.excluded))}"]
        return "; ".join(told) or "Nobody was asked."

    def as_json(self) -> dict[str, Any]:
        """For a checkpoint; ``FailureRecord(**...)`` of it is the same record."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}
