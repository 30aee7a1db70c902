"""Unusable replies: which clients are excluded, and when a run must stop.

One failing client never stops a run. A run stops when no usable reply arrives, or when a worker of
the simulation engine died: it stays in its pool and answers every message at once with an error.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import chain
from logging import INFO, WARNING
from statistics import median
from typing import Any, NamedTuple

from flwr.supercore import log

from cflower.algorithm.state import Ask
from cflower.errors import FederationError
from cflower.messages.client_names import TASKS
from cflower.messages.exchange import SLOW
from cflower.messages.grouped_log import GroupedLog, naming
from cflower.ordering import counted, in_order, listed, without

PATIENCE = 3
"""Rounds in a row without a usable reply after which a run stops, and without any answer from a
client after which no round waits for it."""
SILENT = (
    "Client(s) %s did not answer in %d rounds in a row. Rounds no longer wait for them, until they "
    "answer again."
)
EXCLUDED = "No messages are sent to {clients} for {rounds}: {cause}."
FACTOR = 10.0
"""Times what a client in the middle uses that each may use, besides what is free for all."""
PAUSE = 5
"""Rounds in which an excluded client is not asked, the first time; then twice as many each time."""
CLIENT_FAILED = 2
"""Flower's error code of a ClientApp that raised, also because it has no such function."""


class Fault(StrEnum):
    """Why there is no usable reply."""

    CLIENT = "client"
    """The client, or its app, sent an unusable reply."""
    ABSENT = "absent"
    """It could not be reached, or its reply came too late."""
    SILENT = "silent"
    """It did not answer in time."""
    EMPTY = "empty"
    """The client has no examples, which in an evaluation is no fault."""
    WORKER = "worker"
    """The simulation engine failed; the client is not to blame."""


FAULTS = {0: Fault.WORKER, 3: Fault.SILENT, 4: Fault.ABSENT, 5: Fault.ABSENT}
"""By Flower's error codes. 0 is an exception in the simulation engine itself, such as ray's
ActorDiedError; with 3, 4 and 5 the SuperLink answers for a node: 3 after the message's time to
live, 5 for a node that cannot be reached."""


class Problem(NamedTuple):
    """Why a reply is unusable or missing."""

    text: str
    """Completes "its reply ..."."""
    fault: Fault = Fault.CLIENT


class BadReplyError(FederationError):
    """A reply that must not be used; its text completes "the reply of client x ..."."""

    def __init__(self, problem: str, fault: Fault = Fault.CLIENT) -> None:
        super().__init__(problem)
        self.fault = fault


class ExchangeOutcome(NamedTuple):
    """The clients' replies in one exchange."""

    responded: Collection[str]
    """Clients with a usable reply."""
    problems: Mapping[str, Problem]

    @property
    def num_asked(self) -> int:
        return len({*self.responded, *self.problems})

    def failed(self, *faults: Fault) -> list[str]:
        """Clients without a usable reply, for one of these faults."""
        missing = without(self.problems, self.responded)
        return [name for name, problem in missing.items() if problem.fault in faults]

    def mostly_failed(self, *faults: Fault) -> bool:
        return 2 * len(self.failed(*faults)) > self.num_asked

    @property
    def worker_died(self) -> str:
        """One sentence if most replies failed in the simulation engine itself, else empty."""
        if not self.mostly_failed(Fault.WORKER):
            return ""
        failed = self.failed(Fault.WORKER)
        return (
            f"{len(failed)} of {self.num_asked} replies failed because a worker of the simulation "
            "engine died, and it will fail every further message: find out what killed it (most "
            "often memory; fewer clients at once need less), then start the run again with resume "
            f"({failed[0]}: the reply {self.problems[failed[0]].text})"
        )


class Standing(NamedTuple):
    """The messages, failures and costs of one client in a run so far."""

    connected: int = 0
    """Number of rounds that began while it was connected."""
    away: int = 0
    """Rounds since then."""
    longest: int = 0
    """The longest time for which it was away before, in rounds."""
    trainings: int = 0
    """How often it was asked to train; each time may cost it privacy."""
    evaluations: int = 0
    problems: int = 0
    """Number of unusable replies; missing replies do not count."""
    in_a_row: int = 0
    """Unusable replies to training since the last usable one."""
    unanswered: int = 0
    """Messages in a row to train that it did not answer in time."""
    pauses: int = 0
    """How often it was excluded since its last usable reply."""
    pause: int = 0
    """Rounds until it is asked again, if it is excluded."""
    reason: str = ""
    """Why it is or was excluded."""
    megabytes: float = 0.0
    """Megabytes of metrics in its replies."""
    reading: float = 0.0
    """Seconds that its replies took to read."""
    waiting: float = 0.0
    """Seconds that exchanges waited for it beyond what the others needed."""

    @property
    def silent(self) -> bool:
        """Whether no round waits for it, until it answers again."""
        return self.unanswered >= PATIENCE

    @property
    def gone(self) -> bool:
        """Whether it is away for as long as it was connected, and twice as long as ever before."""
        return self.away >= max(1, self.connected, 2 * self.longest)

    @property
    def absent(self) -> bool:
        """Whether it counts for nothing: silent, gone, or without a usable reply since a pause."""
        return bool(self.silent or self.gone or self.pause or self.pauses)

    def next(self, *, connected: bool) -> "Standing":
        if connected:
            longest = max(self.longest, self.away)
            return self._replace(connected=self.connected + 1, away=0, longest=longest)
        return self._replace(away=self.away + bool(self.connected))

    def trained(self, replied: bool, problem: Problem | None, exclude_after: int) -> "Standing":
        """Its standing after a round of training, with the problem if its reply is not usable.

        ``exclude_after`` unusable replies in a row exclude the client; 0: never. Five in a row also
        happen by chance, so it is asked again after a pause, which doubles as long as it fails.
        """
        after = self._replace(pause=max(0, self.pause - 1))
        if replied:
            return after._replace(in_a_row=0, unanswered=0, pauses=0)
        if problem is None or problem.fault is not Fault.CLIENT:
            silent = problem is not None and problem.fault is Fault.SILENT
            return after._replace(unanswered=self.unanswered + silent)
        after = after._replace(in_a_row=self.in_a_row + 1, unanswered=0)
        if not 0 < exclude_after <= after.in_a_row:
            return after
        times = counted(after.in_a_row, "unusable reply", "unusable replies")
        reason = f"{times} in a row; the last one {problem.text}"
        pause = PAUSE * 2**self.pauses
        return after._replace(pauses=self.pauses + 1, pause=pause, reason=reason)


NOTHING_YET = Standing()
BUDGETS = (("megabytes", "MB of metrics", 1.0), ("reading", "seconds of reading", 60.0))
"""Costs of a client that are limited, with the amount that is free for every client."""


@dataclass(frozen=True)
class FailureRecord:
    """The standing of all clients after a round; methods return a new record."""

    clients: Mapping[str, Standing] = field(default_factory=dict)
    rounds_with_replies: int = 0
    silent_streak: int = 0
    """Rounds in a row, up to now, without a usable reply."""
    failing_streak: int = 0
    """Rounds in a row, up to now, in which most replies failed."""

    def counts(self, name: str) -> dict[str, Any]:
        """A field of `Standing` by client, where it is not 0."""
        values = {client: getattr(one, name) for client, one in self.clients.items()}
        return {client: value for client, value in values.items() if value}

    @property
    def problems(self) -> dict[str, int]:
        return self.counts("problems")

    @property
    def trainings(self) -> dict[str, int]:
        return self.counts("trainings")

    @property
    def evaluations(self) -> dict[str, int]:
        return self.counts("evaluations")

    @property
    def silent(self) -> tuple[str, ...]:
        return tuple(self.counts("silent"))

    @property
    def absent(self) -> set[str]:
        return set(self.counts("absent"))

    @property
    def excluded(self) -> dict[str, str]:
        """Clients that are sent no messages for some rounds, with the reason."""
        return {name: self.clients[name].reason for name in self.counts("pause")}

    def _changed(
        self, clients: Iterable[str], change: Callable[[str, Standing], Standing]
    ) -> "FailureRecord":
        changed = {name: change(name, self.clients.get(name, NOTHING_YET)) for name in clients}
        return replace(self, clients={**self.clients, **changed})

    def met(self, clients: Iterable[str]) -> "FailureRecord":
        """The record at the start of a round with these clients connected."""
        here = dict.fromkeys(clients)
        return self._changed(
            {**self.clients, **here}, lambda name, one: one.next(connected=name in here)
        )

    def asked(self, asks: Iterable[Ask]) -> "FailureRecord":
        trainings, evaluations = Counter[str](), Counter[str]()
        for ask in asks:
            trainings[ask.client] += ask.trainings
            evaluations[ask.client] += not TASKS[ask.task].trains
        return self.added(trainings=trainings, evaluations=evaluations)

    def added(self, **more: Mapping[str, float]) -> "FailureRecord":
        """The record with these amounts, by client, added to fields of `Standing`."""

        def with_more(client: str, one: Standing) -> Standing:
            sums = {key: getattr(one, key) + by.get(client, 0) for key, by in more.items()}
            return one._replace(**sums)

        return self._changed(dict.fromkeys(chain(*more.values())), with_more)

    def noted(self, problems: Mapping[str, Problem]) -> "FailureRecord":
        """The record after an exchange, with the number of unusable replies by client."""
        failed = [name for name, problem in problems.items() if problem.fault is Fault.CLIENT]
        return self.added(problems=dict.fromkeys(failed, 1))

    def trained(
        self, outcome: ExchangeOutcome, exclude_after: int, num_present: int
    ) -> "FailureRecord":
        """The record after a round of training with so many clients that could be sampled.

        A failure of the only one sampled of several is no sign of a problem with the run.
        """
        replied, noted = set(outcome.responded), self.noted(outcome.problems)
        clients = noted._changed(
            {**noted.clients, **dict.fromkeys(replied), **outcome.problems},
            lambda name, one: one.trained(
                name in replied, outcome.problems.get(name), exclude_after
            ),
        ).clients
        empty, failing = self.silent_streak, self.failing_streak
        if outcome.num_asked != 1 or num_present == 1:
            empty += 1
            failing = failing + 1 if outcome.mostly_failed(Fault.CLIENT, Fault.WORKER) else 0
        rounds = self.rounds_with_replies + bool(replied)
        return FailureRecord(clients, rounds, 0 if replied else empty, failing)

    def used_up(self, client: str) -> str:
        """Why no further reply of the client is read; empty if one is.

        >>> record = FailureRecord().added(megabytes={"a": 0.2, "b": 0.2, "c": 2.5})
        >>> record.used_up("c"), record.added(megabytes={"c": 0.6}).used_up("c")
        ('', 'is not read: its replies took 3.1 MB of metrics in this run, those of \
half of the clients 0.2')
        """
        for name, unit, free in BUDGETS:
            own = getattr(self.clients.get(client, NOTHING_YET), name)
            usual = median(self.counts(name).values()) if own > free else 0.0
            if own > free + FACTOR * usual:
                took = f"took {own:.1f} {unit} in this run"
                return f"is not read: its replies {took}, those of half of the clients {usual:.1f}"
        return ""

    def waited(self, seconds: Mapping[str, float], free: float) -> "FailureRecord":
        """The record after an exchange, with the time of each client until its reply or the end.

        What is more than `SLOW` times the median of three clients or more counts. A client gets
        back a twentieth of the ``free`` seconds with each reply in time.

        >>> record = FailureRecord().waited({"a": 1.0, "b": 1.0, "c": 50.0}, free=60.0)
        >>> record.counts("waiting")
        {'c': 47.0}
        """
        if len(seconds) < 3:
            return self
        usual = SLOW * median(seconds.values())
        beyond = {name: one - usual if one > usual else -free / 20 for name, one in seconds.items()}
        return self._changed(
            seconds, lambda name, one: one._replace(waiting=max(0.0, one.waiting + beyond[name]))
        )

    def log_since(self, before: "FailureRecord") -> dict[str, str]:
        """Log what changed; the newly excluded clients, with the reason."""
        excluded = without(self.excluded, before.excluded)
        grouped = GroupedLog()
        for client, reason in excluded.items():
            rounds = counted(self.clients[client].pause, "round")
            grouped.note(WARNING, EXCLUDED.replace("{rounds}", rounds), client, reason)
        grouped.flush()
        if again := without(before.excluded, self.excluded):
            log(INFO, "Client(s) %s are asked again.", listed(in_order(again)))
        if new := set(self.silent) - set(before.silent):
            log(WARNING, SILENT, listed(in_order(new)), PATIENCE)
        if back := set(before.silent) - set(self.silent):
            log(INFO, "Client(s) %s answer again.", listed(in_order(back)))
        return excluded

    def must_stop(self, outcome: ExchangeOutcome, server_round: int, *, simulated: bool) -> str:
        """Why the run cannot continue after this round, in one sentence; empty if it can."""
        # A real node can claim anything in its error, so only the engine's own is believed.
        if simulated and (died := outcome.worker_died):
            return f"The run stops in round {server_round}: {died}."
        if self.silent_streak >= (1 if server_round == 1 else PATIENCE):
            return f"No usable reply in round {server_round}: {self._reasons(outcome)}"
        if simulated and self.failing_streak >= PATIENCE:
            return (
                f"Most replies failed in {PATIENCE} rounds in a row, up to round {server_round}: "
                f"{self._reasons(outcome)}"
            )
        return ""

    def must_not_end(self, *, simulated: bool) -> str:
        """Why a run that completed its rounds is no success; empty if it is."""
        if not self.rounds_with_replies:
            return f"No round brought a usable reply: {self._reasons(ExchangeOutcome((), {}))}"
        if simulated and self.silent_streak:
            rounds = counted(self.silent_streak, "round")
            return f"No usable reply arrived in the last {rounds}."
        return ""

    def _reasons(self, outcome: ExchangeOutcome) -> str:
        """Each reason once, with the clients that gave it."""
        clients = defaultdict[str, list[str]](list)
        for name, problem in outcome.problems.items():
            clients[problem.text].append(name)
        if clients:
            return "; ".join(f"the reply of {naming(of)} {text}" for text, of in clients.items())
        if self.excluded:
            return f"excluded are {listed(in_order(self.excluded))}"
        return "no client was sent a message"
