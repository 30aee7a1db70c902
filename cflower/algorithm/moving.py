"""Members that change: their updates suddenly stand out, and Algorithm 4 says where they belong.

Not in the paper, in which a client never leaves its leaf. A member that fits sends updates about
as long, beside those of its leaf's other members, as it ever did. One whose data change sends
longer ones at once, for its leaf's model has nothing of what it needs now. Lengths are compared
on a logarithmic scale, where a factor common to all, such as a decaying learning rate, adds the
same to each, so nothing here has a unit.

That is only a suspicion: a client also stands out when its training goes astray for once. So it
trains, beside its leaf's model, the models that its leaf was split from, which stay as they were;
and as long as its updates of them are like those of its own branch, nothing happens. Where they
are not, it leaves for the branch that they are like, or goes on alone if they are like none.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cflower.algorithm.criteria import Decision, Memory, Outcome
from cflower.algorithm.difference import Vector
from cflower.algorithm.norm_history import CHANCE, Habit, watch
from cflower.algorithm.similarity import cosine_similarity
from cflower.algorithm.tree import ROOT, Cluster, Fork, ParameterTree

ASTRAY = 0.5
"""Cosine of 60 degrees: an update that is turned by more points elsewhere than the one before."""
LONG = 2.0
"""So many times as long as usual, beside the others', is the update of who leaves a root without
splits: where no other model tells whether a suspicion is right, being sure is not enough."""


class Move(NamedTuple):
    """A client left its leaf, or arrived at one after that."""

    server_round: int
    client: str
    origin: str
    """The leaf that it was a member of."""
    target: str
    """The leaf that it is a member of from now on, or a split cluster that it walks down from."""
    reason: str
    """One sentence with the figures behind it."""


def resemblance(edges: Mapping[str, Mapping[str, NDArray[np.floating]]]) -> float:
    """The cosine to a branch above which a client resembles it, rather than nobody.

    Halfway between the medians, over the clients of the fork, of their largest cosine to others of
    their own branch and of that to other branches, or of 0 where that is below: there are no
    strangers whose updates are more foreign than those that have nothing in common.

    Parameters
    ----------
    edges : mapping of str to mapping of str to ndarray, shape (k,)
        Δ_e of every branch (eq. 47).

    Examples
    --------
    >>> up, right = np.array([0.0, 1.0]), np.array([1.0, 0.0])
    >>> resemblance({"0.0": {"a": up, "b": up}, "0.1": {"c": right}})
    0.5
    """
    branch = np.array([name for name, edge in edges.items() for _ in edge])
    cosines = cosine_similarity(np.stack([v for edge in edges.values() for v in edge.values()]))
    np.fill_diagonal(cosines, -np.inf)  # nobody is in its own company
    same = branch[:, None] == branch
    within = np.where(same, cosines, -np.inf).max(axis=1)
    across = np.where(same, -np.inf, cosines).max(axis=1)
    usual = [
        float(np.median(c[np.isfinite(c)])) if np.isfinite(c).any() else None
        for c in (within, across)
    ]
    foreign = max(0.0, usual[1] or 0.0)
    return foreign if usual[0] is None else (usual[0] + foreign) / 2


def loyalty(edge: Mapping[str, NDArray[np.floating]]) -> float:
    """How alike the clients of a branch are at least: of each the largest cosine to the others.

    Infinite for a branch of one client, of which nothing is known.
    """
    if len(edge) < 2:
        return np.inf
    cosines = cosine_similarity(np.stack(list(edge.values())))
    np.fill_diagonal(cosines, -np.inf)
    return float(cosines.max(axis=1).min())


def outgrown(edge: Mapping[str, NDArray[np.floating]], vector: NDArray[np.floating]) -> bool:
    """Whether an update is longer than all on a branch, and by more than chance makes one.

    On a logarithmic scale, Student's t.

    Examples
    --------
    >>> edge = {"a": np.array([1.0, 0.0]), "b": np.array([0.0, 1.1]), "c": np.array([-1.2, 0.0])}
    >>> outgrown(edge, np.array([0.0, 1.3])), outgrown(edge, np.array([0.0, 9.0]))
    (False, True)
    """
    known = lengths(edge)
    if len(known) < 2 or not vector.any():
        return False
    longer = lengths({"": vector}) - known
    from scipy.special import stdtr  # no client's process needs it

    scatter = known.std(ddof=1) * np.sqrt(1 + 1 / len(known))
    errors = longer.mean() / max(scatter, np.finfo(float).tiny)
    return bool(longer.min() > 0 and stdtr(len(known) - 1, -errors) < CHANCE)


def lengths(edge: Mapping[str, NDArray[np.floating]]) -> NDArray[np.floating]:
    """The logarithms of the lengths of the updates on a branch that have one."""
    found = (np.linalg.norm(vector.astype(float)) for vector in edge.values())
    return np.log([length for length in found if length > 0])


def at_rest(edges: Mapping[str, Mapping[str, NDArray[np.floating]]]) -> str:
    """The branch whose clients were at rest when all others left them; empty if there is none."""
    for name, edge in edges.items():
        others = [vector for other in edges.keys() - {name} for vector in edges[other].values()]
        if others and all(outgrown(edge, vector) for vector in others):
            return name
    return ""


@dataclass
class Moves:
    """The moves of one round: made of the state before it, read when it is over.

    Attributes
    ----------
    tree : ParameterTree
    habits : dict of str to Habit
    made : list of Move
        All of the run, those of this round last.
    server_round : int
    """

    tree: ParameterTree
    habits: dict[str, Habit]
    made: list[Move]
    server_round: int

    def watch(self, leaf: str, norms: Mapping[str, float]) -> None:
        """See `watch`."""
        self.habits |= watch(self.habits, leaf, norms)

    def walk(self, away: Mapping[str, Vector], suspects: Mapping[str, Habit]) -> None:
        """What those made of a model above their leaf that stood out before, or left it.

        Whether they still stand out says little: the models of small leaves follow who changed.

        Parameters
        ----------
        away : mapping of str to ndarray, shape (k,)
            Their updates of it.
        suspects : mapping of str to Habit
            The habits before this round.
        """
        for client, vector in away.items():
            if client in self.tree.unassigned:
                self.step(client, vector)
            elif self.habits.get(client, Habit("")).leaf == self.tree.leaf_of(client).name:
                self.probed(client, vector, suspects[client])
        for leaf in self.tree.leaves:
            self.suspect(leaf)

    def leave(
        self, decisions: list[Decision], forget: Callable[[Memory, str], Memory]
    ) -> list[str]:
        """Who left in this round; their leaves forget them, and the decisions about these say so.

        Parameters
        ----------
        decisions : list of Decision
            Changed in place.
        forget : callable
            A criterion's memory without a client.
        """
        new = [move for move in self.made if move.server_round == self.server_round]
        for move in new:
            home = self.tree.clusters[move.origin]
            home = replace(home, memory=forget(home.memory, move.client))
            self.tree = self.tree.update(home)
            add_to(decisions, move.origin, f"{move.client} moves to {move.target}")
        return [move.client for move in new]

    def suspect(self, leaf: Cluster) -> None:
        """Let the members of a leaf that stand out train what it was split from.

        Not while a split above them is on trial.
        """
        ready = leaf.name != ROOT and not self.tree.awaits_trial(leaf.name)
        for client in leaf.members:
            habit = self.habits.get(client)
            if ready and habit and habit.held and habit.leaf == leaf.name and not habit.probing:
                self.habits[client] = habit._replace(probing=ROOT)

    def probed(self, client: str, vector: Vector, habit: Habit) -> None:
        """What a client that stood out makes of the model above its leaf."""
        leaf, where = self.tree.leaf_of(client), self.tree.clusters[habit.probing]
        own = next(c for c in where.children if f"{leaf.name}.".startswith(f"{c}."))
        fork, bar, _ = self.compared(where, vector)
        here = fork.similarities[own]
        if (fork.child == own and here > bar) or here >= loyalty(self.tree.clusters[own].edge):
            deeper = own if self.tree.clusters[own].children else ""
            known = self.habits[client]
            begins = known.held and not deeper
            self.habits[client] = Habit(leaf.name) if begins else known._replace(probing=deeper)
            return
        self.habits.pop(client)
        self.tree = self.tree.called_back(client, where.name)
        self.step(client, vector, habit.suspicion)

    def compared(
        self, where: Cluster, vector: Vector, leaving: bool = False
    ) -> tuple[Fork, float, str]:
        """How like each branch an update of a split cluster's model is, and from when on it is.

        Also the branch of clients at rest, if there is one, see `at_rest`.

        Where clients were at rest when others left them, their updates point anywhere. What is
        about as short is like them, what is about as long as those of the others is not; nor is,
        of a client that is ``leaving`` its leaf, what is like one of the others.
        """
        fork = self.tree.fork(where.name, vector)
        edges = {child: self.tree.clusters[child].edge for child in fork.similarities}
        resting = at_rest(edges)
        if not resting:
            return fork, resemblance(edges), ""
        own, long = lengths(edges.pop(resting)), [lengths(edge) for edge in edges.values()]
        middle = (np.median(own) + np.median(np.concatenate(long))) / 2
        bar = resemblance(edges) or ASTRAY
        short = (lengths({"": vector}) < middle).all()
        elsewhere = leaving and max(fork.similarities[name] for name in edges) > bar
        similarities = fork.similarities | {resting: 1.0 if short and not elsewhere else -1.0}
        best = max(similarities, key=similarities.__getitem__)
        return Fork(best, similarities), bar, resting

    def step(self, client: str, vector: Vector, since: str = "") -> None:
        """One step down for a client that left its leaf, or a leaf of its own (Algorithm 4)."""
        where, left = self.tree.clusters[self.tree.unassigned[client]], self.tree.leaf_of(client)
        if where.on_trial:
            return
        fork, bar, resting = self.compared(where, vector, leaving=True)
        alike, several = fork.similarities[fork.child], len(fork.similarities) > 1
        told = f"its update of {where.name} is most like those of {fork.child}: cosine {alike:.2f}"
        if alike > bar and several:
            self.tree = self.tree.descended(client, fork.child)
            target = self.tree.unassigned.get(client, fork.child)
            told = f"{told}, more than {bar:.2f}"
            if fork.child == resting:
                told = f"its update of {where.name} is about as short as those of {resting}"
        else:
            target = self.tree.next_child(where.name)
            branch = replace(
                left,
                name=target,
                members=(),
                born=self.server_round,
                edge={client: vector},
                memory={},
                undone=(),
            )
            self.tree = self.tree.branched(client, branch)
            told = f"{told}, not more than {bar:.2f}" if several else ""
            told = f"{told}: it resembles nobody" if told else "there is no other cluster yet"
            told = f"{told}, and goes on alone"
        reason = "; ".join(filter(None, (since, told)))
        self.made.append(Move(self.server_round, client, left.name, target, reason))

    def part(
        self,
        root: Cluster,
        last: Mapping[str, Vector],
        now: Mapping[str, Vector],
        decisions: list[Decision],
    ) -> None:
        """Where the root is the only leaf: those that stand out for the third round leave it.

        If they were `LONG` times as long as usual in the first, and then turned elsewhere.

        Parameters
        ----------
        root : Cluster
            As it was at the start of the round.
        last, now : mapping of str to ndarray, shape (k,)
            Updates before this round, of those that stand out for the first, and in it, of all.
        decisions : list of Decision
            The first becomes a split if anyone leaves.
        """
        changed = {}
        for client in now:
            habit = self.habits.get(client)
            if habit is None:  # its update has no length
                continue
            if habit.held == 1 and client in last:
                if cosine_similarity(np.stack([last[client], now[client]]))[0, 1] > ASTRAY:
                    # the same way, only further
                    self.habits[client] = habit._replace(factor=0.0)
            elif habit.held > 2 and habit.factor >= LONG:
                changed[client] = now[client]
        stay = {c: v for c, v in now.items() if c not in self.habits or not self.habits[c].held}
        if not changed or not stay:
            return
        self._open(root, stay, changed)
        children = self.tree.root.children
        decisions[0] = replace(
            decisions[0],
            outcome=Outcome.SPLIT,
            sides=tuple(self.tree.clusters[child].members for child in children),
            children=children,
            reason=f"{' and '.join(changed)} changed",
        )

    def _open(
        self, before: Cluster, vectors: Mapping[str, Vector], changed: Mapping[str, Vector]
    ) -> None:
        """Split the root, as it was before, into those that stay and those that changed."""
        name = self.tree.next_child(ROOT)
        stay = replace(self.tree.root, name=name, edge=dict(vectors), undone=())
        root = replace(
            before,
            members=self.tree.root.members,
            children=(name,),
            split_round=self.server_round,
            memory={},
        )
        self.tree = self.tree.update(root, stay)
        for client, vector in changed.items():
            habit = self.habits.pop(client)
            self.tree = self.tree.called_back(client, ROOT)
            self.step(client, vector, habit.suspicion)
        for client, habit in self.habits.items():
            self.habits[client] = habit._replace(leaf=name)


def add_to(decisions: list[Decision], cluster: str, told: str) -> None:
    """Let the decision about a cluster say more."""
    for i, decision in enumerate(decisions):
        if decision.cluster == cluster:
            decisions[i] = replace(decision, reason=f"{decision.reason}; {told}")
