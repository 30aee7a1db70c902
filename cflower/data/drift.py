"""Drift: the data of a client change during a run, as from some round on it is in another group."""

import re
from functools import lru_cache
from typing import NamedTuple

from cflower.errors import ConfigError
from cflower.settings import require


class Change(NamedTuple):
    """From ``server_round`` on a client's examples are those of a member of ``group``."""

    server_round: int
    client: int
    """Its partition."""
    group: int


@lru_cache(maxsize=8)
def group_changes(drift: str) -> tuple[Change, ...]:
    """The changes that a text lists, in order of their rounds.

    ``ROUND:CLIENT=GROUP`` separated by commas; rounds count from 1, clients and groups from 0.

    >>> group_changes("20:3=1, 10:4=0")
    (Change(server_round=10, client=4, group=0), Change(server_round=20, client=3, group=1))
    """
    changes = []
    for part in drift.split(",") if drift.strip() else []:
        match = re.fullmatch(r"\s*(0*[1-9]\d*):(\d+)=(\d+)\s*", part)
        if match is None:
            raise ConfigError(
                f"Got drift={drift!r}, but expected ROUND:CLIENT=GROUP separated by commas, rounds "
                f"from 1 and clients from 0, such as '20:3=1,30:4=1'; {part.strip()!r} is not that."
            )
        changes.append(Change(*map(int, match.groups())))
    return tuple(sorted(changes))


def check_changes(drift: str, num_clients: int, num_groups: int) -> None:
    """Refuse changes of a client or to a group that does not exist."""
    for server_round, client, group in group_changes(drift):
        require(
            client < num_clients and group < num_groups,
            f"Got drift={drift!r}, but in round {server_round} there is no client {client} or no "
            f"group {group} among {num_clients} clients and {num_groups} groups, which are counted "
            "from 0.",
        )


def group_at(drift: str, client: int, server_round: int) -> int | None:
    """The group that a client has changed to by a round; None before its first change.

    >>> [group_at("20:3=1", 3, server_round) for server_round in (19, 20)]
    [None, 1]
    """
    group = None
    for change in group_changes(drift):
        if change.client == client and change.server_round <= server_round:
            group = change.group
    return group
