"""What single clients use up of the server over a whole run."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

from cflower.messages.exchange import SLOW

FACTOR = 10.0
"""Times what a client in the middle uses that each may use, beside what is free for all."""


class Used(NamedTuple):
    """What each client has used up in a run so far; a resumed run goes on from it."""

    megabytes: Mapping[str, float] = {}
    """Of metrics."""
    reading: Mapping[str, float] = {}
    """Seconds that its replies took to read."""
    waiting: Mapping[str, float] = {}
    """Seconds that rounds waited for it beyond what the others needed."""


@dataclass
class Budget:
    """The share of one resource that each client has used up in the run.

    >>> budget = Budget("MB of metrics", free=1.0)
    >>> for client, megabytes in ("a", 0.2), ("b", 0.2), ("c", 2.5), ("d", 3.5):
    ...     budget.charge(client, megabytes)
    >>> budget.problem("c"), budget.problem("d")
    ('', '')
    >>> budget.charge("d", 20.0)
    >>> budget.problem("d")
    'is not read: its replies took 23.5 MB of metrics in this run, those of half of the clients 1.4'
    """

    unit: str
    free: float
    used: dict[str, float] = field(default_factory=dict)

    def charge(self, client: str, amount: float) -> None:
        self.used[client] = self.used.get(client, 0.0) + amount

    def problem(self, client: str) -> str:
        """Why no further reply of the client is read; empty if one is."""
        used = self.used.get(client, 0.0)
        if used <= self.free:
            return ""
        usual = median(self.used.values())
        if used <= self.free + FACTOR * usual:
            return ""
        took = f"took {used:.1f} {self.unit} in this run"
        return f"is not read: its replies {took}, those of half of the clients {usual:.1f}"


@dataclass
class Waiting:
    """The seconds that exchanges have waited for single clients beyond what the others needed.

    Beyond is what is more than `SLOW` times the median of an exchange of three clients or more. A
    client that has used up ``free`` seconds is hurried; it gets back a twentieth of them with each
    reply in time.

    >>> waiting = Waiting(free=60.0)
    >>> for _ in range(2):
    ...     waiting.charge({"a": 1.0, "b": 1.0, "c": 50.0})
    >>> waiting.used, waiting.hurried
    ({'c': 94.0}, {'c'})
    """

    free: float
    used: dict[str, float] = field(default_factory=dict)

    @property
    def hurried(self) -> set[str]:
        """The clients for which no exchange waits much longer than for the others."""
        return {client for client, seconds in self.used.items() if seconds > self.free}

    def charge(self, seconds: Mapping[str, float]) -> None:
        """Add the time of each client in an exchange, until its reply or the end."""
        if len(seconds) < 3:
            return
        usual = SLOW * median(seconds.values())
        for client, one in seconds.items():
            beyond = one - usual if one > usual else -self.free / 20
            self.used[client] = max(0.0, self.used.get(client, 0.0) + beyond)
        self.used = {client: used for client, used in self.used.items() if used}
