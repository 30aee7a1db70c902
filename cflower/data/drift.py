"""Clients whose data change in mid-run: from some round on they are as those of another group."""

import re
from functools import lru_cache
from typing import NamedTuple

from cflower.errors import ConfigError


class Change(NamedTuple):
    """From ``server_round`` on a client's examples are those of a member of ``group``."""

    server_round: int
    client: int
    """Its partition."""
    group: int


@lru_cache(maxsize=8)
def changes_of(drift: str) -> tuple[Change, ...]:
    """The changes that a text tells, in order of their rounds.

    Parameters
    ----------
    drift : str
        ``ROUND:CLIENT=GROUP`` separated by commas; rounds count from 1, clients and groups from 0.

    Raises
    ------
    ConfigError

    Examples
    --------
    >>> changes_of("20:3=1, 10:4=0")
    (Change(server_round=10, client=4, group=0), Change(server_round=20, client=3, group=1))
    """
    found = []
    for part in drift.split(",") if drift.strip() else []:
        match = re.fullmatch(r"\s*(\d+):(\d+)=(\d+)\s*", part)
        if match is None or match[1] == "0":
            raise ConfigError(
                f"Got drift={drift!r}, but expected ROUND:CLIENT=GROUP separated by commas, rounds "
                f"from 1 and clients from 0, such as '20:3=1,30:4=1'; {part.strip()!r} is not that."
            )
        found.append(Change(*map(int, match.groups())))
    return tuple(sorted(found))


def check_changes(drift: str, num_clients: int, num_groups: int) -> None:
    """Refuse changes of a client or to a group that there is not.

    Raises
    ------
    ConfigError
    """
    for change in changes_of(drift):
        if change.client >= num_clients or change.group >= num_groups:
            raise ConfigError(
                f"Got drift={drift!r}, but there is no client {change.client} or no group "
                f"{change.group} among {num_clients} clients and {num_groups} groups, which are "
                "counted from 0."
            )


def group_at(drift: str, client: int, server_round: int) -> int | None:
    """The group that a client has changed to by a round; None before its first change.

    >>> [group_at("20:3=1", 3, server_round) for server_round in (19, 20)]
    [None, 1]
    """
    groups = [c.group for c in changes_of(drift) if c.client == client]
    until = sum(c.server_round <= server_round for c in changes_of(drift) if c.client == client)
    return groups[until - 1] if until else None
