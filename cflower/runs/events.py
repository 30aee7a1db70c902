"""Events of a run other than splits: clients that came or moved, clusters that opened."""

from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

from cflower.algorithm.state import Move
from cflower.algorithm.tree import ROOT
from cflower.ordering import LONGEST_TEXT, counted, in_order, listed
from cflower.runs.record import RunRecord

MOST_IN_EVENT = 6
"""Clients named in the sentence of an event."""


class Event(NamedTuple):
    round: int
    kind: str
    """``"joined"`` the run, ``"opened"`` a cluster, or ``"moved"``."""
    cluster: str
    """The one that was opened or that the clients moved to; the root for clients that joined."""
    clients: tuple[str, ...]
    sentence: str


def events(run: RunRecord) -> list[Event]:
    return sorted([*joined(run), *opened(run), *moved(run)], key=lambda event: event.round)


def joined(run: RunRecord) -> Iterator[Event]:
    """The clients that came after the first round."""
    known = set[str]()
    for number, lines in groupby(run.verdicts, lambda line: line.round):
        here = {name for line in lines for name in line.members}
        if known and (new := in_order(here - known)):
            text = f"{counted(len(new), 'client')} joined the run: {listed(new, MOST_IN_EVENT)}"
            yield Event(number, "joined", ROOT, new, text)
        known |= here


def newcomers(run: RunRecord) -> str:
    """The clients that came after the first round, in a sentence; empty without any."""
    came = list(joined(run))
    if not came:
        return ""
    names = {name for event in came for name in event.clients}
    first, last = came[0].round, came[-1].round
    when = f"round {first}" if first == last else f"rounds {first} to {last}"
    text = f"{counted(len(names), 'client')} joined in {when}"
    for event in opened(run):
        if alone := names.intersection(run.clusters[event.cluster].members):
            text += f"; {len(alone)} of them resembled no cluster, so {event.cluster} was opened"
    return f"{text}."


def opened(run: RunRecord) -> Iterator[Event]:
    """The clusters that no split made: for clients that resemble no other cluster."""
    split = {(line.round, child) for line in run.lines for child in line.children}
    for name, cluster in run.clusters.items():
        if name == ROOT or (cluster.born, name) in split or name not in run.by_cluster:
            continue
        first = tuple(run.by_cluster[name][0].members)
        text = f"cluster {name} opened for {listed(first, MOST_IN_EVENT)}, which resembled no other"
        yield Event(cluster.born, "opened", name, first, text)


def moved(run: RunRecord) -> Iterator[Event]:
    """The moves of clients, those of one round to the same cluster together."""

    def way(move: Move) -> tuple[int, str, str]:
        return move.server_round, move.origin, move.target

    for (number, origin, target), group in groupby(sorted(run.summary.moves, key=way), way):
        moves = list(group)
        names, reasons = [move.client for move in moves], {move.reason: 0 for move in moves}
        text = f"{listed(names, MOST_IN_EVENT)} moved from {origin} to {target}"
        text += f": {listed(reasons, 2, LONGEST_TEXT)}"
        yield Event(number, "moved", target, tuple(names), text)
