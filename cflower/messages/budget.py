"""What single clients use up of the server over a whole run."""

from dataclasses import dataclass, field
from statistics import median

FACTOR = 10.0
"""Times what a client in the middle uses that each may use, beside what is free for all."""


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
        """Add what a reply of the client has used."""
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
