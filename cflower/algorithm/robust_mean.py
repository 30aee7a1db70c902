"""How far one client may move the model of its cluster, judged by what is usual there.

The mean of eq. 2 gives a client as much of a say as it claims to have examples, and as its update
is long: one reply could be worth all the others. What honest clients have in common needs no number
from the user: the median of their cluster. Of medians, nearly half of the members may be wrong.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cflower.algorithm.difference import Update
from cflower.algorithm.state import KnownUpdate
from cflower.algorithm.tree import ParameterTree, Weights
from cflower.messages.layout import Layout
from cflower.messages.replies import TrainReply

ENOUGH = 3
"""Other clients that must be known to judge a reply; until then it is held back."""
LONGEST = 2.0
"""Times the usual length of an update, beyond which it is shortened and weighs less."""
MOST = 3.0
"""Usual clients that one may count for. A fifth of the clients, all at this limit, have three
sevenths of the pull: the others still have their way."""
AMONG = 9
"""In a small cluster nobody has a larger part of a round's pull than one that counts for the most
has among so many usual ones: with `MOST` a quarter. The equal part is always allowed."""
NO_LIMIT = 1e300
TOLD = 0.5
"""Who counts for less than this share of what it claims is told of."""
FAR_LESS, LASTING = 0.03, 10
"""Less than this share of what it claims, or so many rounds in a row, is worth a warning. An honest
group of its own counts for 0.04 or more of it, and is split off within seven rounds (measured)."""


class Admitted(NamedTuple):
    """A reply that is used, and how much of its weight counts."""

    reply: TrainReply
    share: float = 1.0


@dataclass
class Company:
    """What is known of a cluster's members: last round, or as far as this one has come.

    A client's pull is its weight times the length of its update: what it adds to the sum of eq. 2.
    """

    lengths: dict[str, float]
    pulls: dict[str, float]
    carried: dict[str, NDArray[np.floating]] = field(default_factory=dict)
    """Lengths of the updates of each array that is not trained, of this round only."""
    now: set[str] = field(default_factory=set)
    """Those heard from in this round."""
    early: list[TrainReply] = field(default_factory=list)
    """Replies that came before enough was known."""
    held: list[TrainReply] = field(default_factory=list)
    """Replies that are out of line with what was known when they came."""
    usual: "Usual | None" = None

    def add(self, answer: TrainReply, weight: float, carried: NDArray[np.floating]) -> None:
        """Note one more reply."""
        self.lengths[answer.client] = answer.norm
        self.pulls[answer.client] = answer.norm * weight
        self.carried[answer.client] = carried
        self.now.add(answer.client)
        self.early.append(answer)

    def in_line(self, members: int, longest: float, most: float) -> Iterator[TrainReply]:
        """The replies that need not wait for the others; the rest is held."""
        enough, all_trained = min(ENOUGH, members - 1), not next(iter(self.carried.values())).size
        if len(self.lengths) <= enough or not (all_trained or len(self.carried) > enough):
            return
        if self.usual is None or len(self.lengths) + len(self.now) >= 2 * self.usual.known:
            # Seldom enough for clusters of thousands.
            self.usual = Usual.of(self)
        for answer in self.early:
            client = answer.client
            fits = (
                self.lengths[client] <= longest * self.usual.length
                and self.pulls[client] <= most * self.usual.pull
                and (self.carried[client] <= most * self.usual.carried).all()
            )
            if fits:
                yield answer
            else:
                self.held.append(answer)
        self.early.clear()

    def without(self, client: str) -> "Company":
        """The others."""
        lengths, pulls, carried = (
            {name: value for name, value in figures.items() if name != client}
            for figures in self._figures
        )
        return Company(lengths, pulls, carried, self.now - {client})

    def forget(self, client: str) -> None:
        """Judge the others without this one."""
        for figures in self._figures:
            figures.pop(client, None)
        self.now.discard(client)

    @property
    def _figures(self) -> tuple[dict[str, Any], ...]:
        return self.lengths, self.pulls, self.carried


class Usual(NamedTuple):
    """The medians of a company."""

    length: float
    pull: float
    carried: NDArray[np.floating]
    known: int
    """Of how many lengths, those of this round counted twice."""

    @classmethod
    def of(cls, company: Company) -> "Usual":
        """The medians of a company that is not empty."""
        carried = list(company.carried.values())
        return cls(
            median(company.lengths.values()),
            median(company.pulls.values()),
            np.median(carried, axis=0) if carried else np.zeros(0),
            len(company.lengths) + len(company.now),
        )


class Influence:
    """Lets the replies of one round pass, none with more influence than is usual.

    An update longer than `LONGEST` times the median of its cluster's other members is shortened to
    that, and pulls as one of the median's length; then a client whose pull is more than `MOST`
    times their median pull, or a larger part of the round's than `AMONG` allows, has its weight
    lowered until it is not. Arrays that are not trained, such as BatchNorm's statistics, are
    bounded each by itself. What is out of line waits for the end of the round, until all others
    are known.

    A client on its way down the tree (Algorithm 4) moves no model and is not judged, nor is one
    with fewer than two others, since of two nobody can tell who is right.

    Parameters
    ----------
    tree : ParameterTree
        Before the round.
    known : mapping of str to KnownUpdate
    layout : Layout
    weight : callable
        w_i before normalisation, from a number of examples.
    ratio : float
        An update longer than this times the median is set aside altogether; 0: none, only updates
        whose norm is not even finite.
    most : float
        Usual clients that one may count for, `MOST` unless asked; 0: any number, and updates of any
        length, as eq. 2 has it.

    Attributes
    ----------
    lowered : dict of str to float
        The part of what it claims that a client counts for, where that is less than `TOLD`.
    """

    def __init__(
        self,
        tree: ParameterTree,
        known: Mapping[str, KnownUpdate],
        layout: Layout,
        weight: Callable[[float], float],
        ratio: float = 0.0,
        most: float = MOST,
    ) -> None:
        self._tree, self._layout, self._weight, self._ratio = tree, layout, weight, ratio
        self._most, self._longest = (most, LONGEST) if most else (NO_LIMIT, NO_LIMIT)
        self.lowered: dict[str, float] = {}
        self._companies = {}
        for name, cluster in tree.clusters.items():
            # Of the inner models nothing is known from before.
            members = cluster.members if cluster.is_leaf else ()
            there = {client: known[client] for client in members if client in known}
            self._companies[name] = Company(
                {name: update.norm for name, update in there.items()},
                {name: update.norm * weight(update.num_examples) for name, update in there.items()},
            )

    def sift(
        self, answers: Iterable[TrainReply], set_aside: Callable[[str, str], None]
    ) -> Iterator[Admitted]:
        """The answers, held to what is usual; ``set_aside(client, problem)`` hears of the rest."""
        early = min(self._ratio or np.inf, self._longest)
        for answer in answers:
            general = self._tree.clusters.get(answer.general)
            start = general or self._tree.training_cluster(answer.client)
            walks = answer.client in self._tree.unassigned
            if not np.isfinite(answer.norm):
                set_aside(answer.client, "has an update too long for its norm to be finite")
            elif walks or len(start.members) < 3:
                yield Admitted(answer)
            else:
                company = self._companies[start.name]
                weight = self._weight(answer.measured.num_examples)
                company.add(answer, weight, self._carried(answer.update))
                for reply in company.in_line(len(start.members), early, self._most):
                    yield Admitted(reply)
        for company in self._companies.values():
            for answer in (*company.early, *company.held):
                if admitted := self._judged(answer, company, set_aside):
                    yield admitted

    def _judged(
        self,
        answer: TrainReply,
        company: Company,
        set_aside: Callable[[str, str], None],
    ) -> Admitted | None:
        """A reply beside all others of the round; None if it is not used."""
        others = company.without(answer.client)
        if len(others.lengths) < 2:
            return Admitted(answer)
        usual = Usual.of(others)
        times = answer.norm / usual.length if usual.length else 1.0
        if self._ratio and times > self._ratio:
            company.forget(answer.client)
            problem = (
                f"has an update of norm {answer.norm:.3g}, more than {self._ratio:g} times the "
                f"{usual.length:.3g} that is usual in its cluster"
            )
            set_aside(answer.client, problem)
            return None
        clipped = self._longest / times if times > self._longest else 1.0
        together = sum(others.pulls[name] for name in others.now)
        a_share = together * self._most / AMONG or NO_LIMIT
        limit = min(self._most * usual.pull, max(usual.pull, a_share))
        pull = company.pulls[answer.client] * clipped
        share = limit / pull if 0 < limit < pull and self._most < NO_LIMIT else 1.0
        if times > self._longest:
            # As evidence it stays longer than usual, as those of a small group are before it is
            # told apart; in the mean it pulls no more than the usual one.
            share = min(share, 1 / self._longest)
        if clipped * share < TOLD:
            self.lowered[answer.client] = clipped * share
        trained, carried = answer.update
        carried = self._bounded(carried, company.carried[answer.client], self._most * usual.carried)
        if clipped < 1:
            trained, answer = (
                np.asarray(trained) * trained.dtype.type(clipped),
                answer._replace(kept=None),
            )
        return Admitted(answer._replace(update=Update(trained, carried)), share)

    @property
    def _places(self) -> list[slice]:
        """Where the arrays lie that are not trained."""
        return [entry.place for entry in self._layout.entries if not entry.trained]

    def _carried(self, update: Weights | Update) -> NDArray[np.floating]:
        """The length of every array's update that is not trained."""
        return np.array([np.linalg.norm(update.carried[place]) for place in self._places])

    def _bounded(
        self,
        carried: NDArray[np.floating],
        lengths: NDArray[np.floating],
        most: NDArray[np.floating],
    ) -> NDArray[np.floating]:
        """The update of the arrays that are not trained, none longer than its limit."""
        if not most.size or not (over := (lengths > most) & (most > 0)).any():
            return carried
        carried = carried.copy()
        for i in np.flatnonzero(over):
            carried[self._places[i]] *= most[i] / lengths[i]
        return carried


def median(values: Iterable[float]) -> float:
    """The median as a plain number."""
    return float(np.median(list(values)))
