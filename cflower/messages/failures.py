"""Unusable replies: which clients are excluded, and when a run must stop.

One failing client never stops a run. A run stops when no usable reply arrives, or when a worker of
the simulation engine died: it stays in its pool and answers every message at once with an error.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from logging import INFO, WARNING
from typing import NamedTuple

from flwr.supercore import log

from cflower.algorithm.state import Ask
from cflower.errors import FederationError
from cflower.messages.client_names import TASKS
from cflower.messages.grouped_log import GroupedLog, naming
from cflower.ordering import counted, in_order, listed, only, without

PATIENCE = 3
"""Rounds in a row without a usable reply after which a run stops, and without any answer from a
client after which no round waits for it."""
SILENT = (
    "Client(s) %s did not answer in %d rounds in a row. Rounds no longer wait for them, until they "
    "answer again."
)
EXCLUDED = "No messages are sent to {clients} for {rounds}: {cause}."
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


class Presence(NamedTuple):
    """For how long a client has been connected to a run."""

    connected: int = 0
    """Rounds at whose start it was connected."""
    away: int = 0
    """Rounds since then."""
    longest: int = 0
    """The longest time for which it was away before, in rounds."""

    def next(self, *, connected: bool) -> "Presence":
        if connected:
            return Presence(self.connected + 1, 0, max(self.longest, self.away))
        return self._replace(away=self.away + 1)

    @property
    def gone(self) -> bool:
        """Whether it is away for as long as it was connected, and twice as long as ever before."""
        return self.away >= max(self.connected, 2 * self.longest)


@dataclass(frozen=True)
class FailureRecord:
    """The clients' failures up to a round; methods return a new record."""

    problems: Mapping[str, int] = field(default_factory=dict)
    """Number of unusable replies by client; missing replies do not count."""
    in_a_row: Mapping[str, int] = field(default_factory=dict)
    """Unusable replies to training since the last usable one, by client."""
    excluded: Mapping[str, str] = field(default_factory=dict)
    """Clients that are sent no messages for some rounds, with the reason."""
    rounds_with_replies: int = 0
    """Rounds with a usable reply."""
    silent_streak: int = 0
    """Rounds in a row, up to now, without a usable reply."""
    failing_streak: int = 0
    """Rounds in a row, up to now, in which most replies failed."""
    silent_in_a_row: Mapping[str, int] = field(default_factory=dict)
    """Messages in a row to train that a client did not answer in time."""
    trainings: Mapping[str, int] = field(default_factory=dict)
    """How often each client was asked to train; each time may cost it privacy."""
    evaluations: Mapping[str, int] = field(default_factory=dict)
    presence: Mapping[str, Presence] = field(default_factory=dict)
    pauses: Mapping[str, int] = field(default_factory=dict)
    """How often each client was excluded since its last usable reply."""
    waiting: Mapping[str, int] = field(default_factory=dict)
    """Rounds until an excluded client is asked again."""

    @property
    def silent(self) -> tuple[str, ...]:
        """Clients for which no round waits; they count again once they answer."""
        return tuple(name for name, rounds in self.silent_in_a_row.items() if rounds >= PATIENCE)

    @property
    def gone(self) -> tuple[str, ...]:
        """Clients that have left, as far as one can tell: see `Presence.gone`."""
        return tuple(name for name, presence in self.presence.items() if presence.gone)

    @property
    def absent(self) -> set[str]:
        """Clients that count for nothing: silent and gone ones, and those without a usable reply
        since they were excluded.
        """
        return {*self.excluded, *self.pauses, *self.silent, *self.gone}

    def met(self, clients: Iterable[str]) -> "FailureRecord":
        """The record at the start of a round with these clients connected."""
        here = dict.fromkeys(clients, Presence())
        presence = {
            name: before.next(connected=name in here)
            for name, before in {**here, **self.presence}.items()
        }
        return replace(self, presence=presence)

    def asked(self, asks: Iterable[Ask]) -> "FailureRecord":
        """The record after these asks were sent."""
        trainings, evaluations = Counter(self.trainings), Counter(self.evaluations)
        for ask in asks:
            trainings[ask.client] += ask.trainings
            evaluations[ask.client] += not TASKS[ask.task].trains
        return replace(self, trainings=dict(+trainings), evaluations=dict(+evaluations))

    def noted(self, problems: Mapping[str, Problem]) -> "FailureRecord":
        """The record after an exchange, with the number of unusable replies by client."""
        failed = [name for name, problem in problems.items() if problem.fault is Fault.CLIENT]
        return replace(self, problems=dict(Counter(self.problems) + Counter(failed)))

    def trained(
        self, outcome: ExchangeOutcome, exclude_after: int, num_present: int
    ) -> "FailureRecord":
        """The record after a round of training with so many clients that could be sampled.

        A failure of the only one sampled of several is no sign of a problem with the run.
        ``exclude_after`` unusable replies in a row exclude a client; 0: never. Five in a row also
        happen by chance, so it is asked again after a pause, which doubles as long as it fails.
        """
        failed = outcome.failed(Fault.CLIENT)
        in_a_row = Counter(without(self.in_a_row, outcome.responded)) + Counter(failed)
        before = without(self.silent_in_a_row, {*outcome.responded, *failed})
        silent_in_a_row = dict(Counter(before) + Counter(outcome.failed(Fault.SILENT)))
        waiting = {name: self.waiting.get(name, 1) - 1 for name in self.excluded}
        waiting = {name: rounds for name, rounds in waiting.items() if rounds > 0}
        excluded = only(self.excluded, waiting)
        pauses = Counter(without(self.pauses, outcome.responded))
        for name in failed:
            if 0 < exclude_after <= in_a_row[name]:
                waiting[name] = PAUSE * 2 ** pauses[name]
                pauses[name] += 1
                times = counted(in_a_row[name], "unusable reply", "unusable replies")
                excluded[name] = f"{times} in a row; the last one {outcome.problems[name].text}"
        empty, failing = self.silent_streak, self.failing_streak
        if outcome.num_asked != 1 or num_present == 1:
            empty += 1
            failing = failing + 1 if outcome.mostly_failed(Fault.CLIENT, Fault.WORKER) else 0
        problems, rounds = self.noted(outcome.problems).problems, self.rounds_with_replies
        if outcome.responded:
            rounds, empty = rounds + 1, 0
        return replace(
            self,
            problems=problems,
            in_a_row=dict(in_a_row),
            excluded=excluded,
            rounds_with_replies=rounds,
            silent_streak=empty,
            failing_streak=failing,
            silent_in_a_row=silent_in_a_row,
            pauses=dict(pauses),
            waiting=waiting,
        )

    def log_since(self, before: "FailureRecord") -> dict[str, str]:
        """Log what changed; the newly excluded clients, with the reason."""
        excluded = without(self.excluded, before.excluded)
        grouped = GroupedLog()
        for client, reason in excluded.items():
            rounds = counted(self.waiting[client], "round")
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
