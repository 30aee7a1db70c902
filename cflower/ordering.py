"""Names in the order that people expect."""

import re
from collections.abc import Iterable
from functools import lru_cache


@lru_cache(maxsize=2**17)  # the same names are sorted in every round
def natural_order(name: str) -> tuple[tuple[int, int, str], ...]:
    """Sort key that puts partition-2 before partition-10.

    >>> sorted(["partition-10", "partition-2"], key=natural_order)
    ['partition-2', 'partition-10']
    """
    parts = re.findall(r"[0-9]+|[^0-9]+", name)
    order = ((0, int(p), "") if p.isdecimal() else (1, 0, p) for p in parts)
    return (*order, (-1, 0, name))  # the name itself tells 7 from 007


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """The names in natural order."""
    return tuple(sorted(names, key=natural_order))
