"""One line for one cause: what is wrong with the replies of many clients, in few lines."""

import re
from collections import Counter, defaultdict
from collections.abc import Collection

from flwr.supercore import log

from cflower.ordering import in_order, listed

MOST_LINES = 3
"""Lines at once for all causes of one kind."""
NUMBER = re.compile(r"[-+]?\b\d[\w.+-]*|\bnan\b|\binf\b")
"""Causes that differ in numbers only are one cause."""
MORE = "%s had other problems with their replies, of %d kinds, such as %s: %s."


class GroupedLog:
    """Collects problems of single clients; `flush` logs one line for each cause.

    A cause that stays is logged once for each client.
    """

    def __init__(self) -> None:
        self._waiting = defaultdict[tuple[int, str, str], dict[str, str]](dict)
        """The causes by client, by level, sentence and kind of cause."""
        self._logged = set[tuple[str, str, str]]()

    def note(self, level: int, sentence: str, client: str, cause: str) -> None:
        """Keep a client's ``cause``; ``sentence`` has places for ``{clients}`` and ``{cause}``, or
        for the first alone.
        """
        kind = NUMBER.sub("#", cause.replace(client, "#"))
        if (sentence, kind, client) not in self._logged:
            self._logged.add((sentence, kind, client))
            self._waiting[level, sentence, kind].setdefault(client, cause)

    def flush(self) -> None:
        """Log what was noted since the last time: those causes first that most clients have."""
        groups = sorted(self._waiting.items(), key=lambda group: -len(group[1]))
        self._waiting.clear()
        shown = groups if len(groups) <= MOST_LINES else groups[: MOST_LINES - 1]
        for (level, sentence, _), causes in shown:
            often = Counter(causes.values()).most_common(1)[0][0]
            cause = often if len({*causes.values()}) == 1 else f"{often} (or alike)"
            log(level, "%s", sentence.format(clients=naming(causes), cause=cause))
        if others := groups[len(shown) :]:
            causes = {client: text for _, group in others for client, text in group.items()}
            client, cause = next(iter(causes.items()))
            level = max(level for (level, *_), _ in others)
            log(level, MORE, naming(causes), len(others), client, cause)


def naming(clients: Collection[str]) -> str:
    """Clients by name, the number of them first.

    >>> naming(["b"]), naming(["b", "a"])
    ('client b', '2 clients (a, b)')
    """
    names = listed(in_order(clients))
    return f"client {names}" if len(clients) == 1 else f"{len(clients):,} clients ({names})"
