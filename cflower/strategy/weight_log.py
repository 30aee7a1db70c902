"""The log of clients that count for less than they claim, in the model or in a mean of metrics."""

from collections import Counter
from collections.abc import Collection, Mapping
from logging import WARNING

from flwr.supercore import log

from cflower.algorithm.constants import MOST
from cflower.messages.grouped_log import GroupedLog
from cflower.messages.metrics import ClientMetrics
from cflower.ordering import in_order, listed
from cflower.robust.robust_mean import limited

REPORTED = 0.5
"""A client that counts for less than this fraction of its claim is logged."""
FAR_LESS, LASTING = 0.03, 10
"""Less than this fraction, or so many rounds in a row, is worth a warning. An honest group of its
own counts for 0.04 of its claim or more, and is split off within seven rounds (measured)."""
LOWERED = (
    "Only {cause} of the weight of {clients} counts in the mean update: the update or the number "
    "of examples is more than %g times as large as usual in the cluster. Once or twice is normal, "
    "also for a group that has no model of its own yet. If it lasts and these clients are honest, "
    "raise max-influence."
)
HEAVY = (
    "In the means of the clients' metrics, %s count for at most %g usual clients: their numbers of "
    "examples are far above the median."
)


class WeightLog:
    """Warns of clients with a lowered weight in the mean update."""

    def __init__(self) -> None:
        self._lowered_for: Counter[str] = Counter()
        """Rounds in a row."""
        self._lasting_logged = False
        self._grouped = GroupedLog()

    def lowered(self, shares: Mapping[str, float], clients: Collection[str], most: float) -> None:
        """Warn of clients that count for far less than their claim, or for less for long.

        ``shares`` are the fractions of their weight that clients have kept in a round, ``clients``
        all that took part. Of those with less for long only the first ones are named: the sentence
        explains the others.
        """
        less = {client for client, share in shares.items() if share < REPORTED}
        for client in clients:
            self._lowered_for[client] = self._lowered_for[client] + 1 if client in less else 0
        odd = {client for client in less if shares[client] < FAR_LESS}
        if not self._lasting_logged:
            odd |= {client for client in less if self._lowered_for[client] >= LASTING}
        for client in odd:
            self._grouped.note(WARNING, LOWERED % most, client, f"{shares[client]:.2g}")
        self._lasting_logged = self._lasting_logged or bool(odd)
        self._grouped.flush()


def log_limited_examples(measured: Mapping[str, ClientMetrics]) -> None:
    """Log the clients with numbers of examples that are limited in a mean of metrics."""
    claimed = [one.num_examples for one in measured.values()]
    limits = zip(measured, claimed, limited(claimed), strict=True)
    if heavy := [name for name, examples, limit in limits if limit < REPORTED * examples]:
        log(WARNING, HEAVY, listed(in_order(heavy)), MOST)
