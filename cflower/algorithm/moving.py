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
from cflower.algorithm.similarity import cosine_similarity
from cflower.algorithm.tree import ROOT, Cluster, ParameterTree, Vector

CHANCE = 0.01
"""Probability that chance alone makes any member of a leaf stand out in all rounds so far."""
NOTHING = -1e300
"""Logarithm of no length at all, as JSON can write it."""
PATIENCE = 8
"""Rounds after which longer updates are a member's habit, when nothing has come of it."""
ASTRAY = 0.5
"""Cosine of 60 degrees: an update that is turned by more points elsewhere than the one before."""
LEAST = 3
"""Rounds after which a member's habits are known."""


class Habit(NamedTuple):
    """What is known of how long a member's updates are, since it came to its leaf."""

    leaf: str
    heard: int = 0
    """Rounds that count as habit."""
    mean: float = 0.0
    """Of the logarithm of their length over the median length of the leaf's of the same round."""
    squares: float = 0.0
    """Sum of squared deviations from that mean."""
    longest: float = NOTHING
    """Logarithm of the longest one's length, but for the first, which a new leaf makes long."""
    held: int = 0
    """Rounds in a row, up to now, that it has stood out for."""
    factor: float = 0.0
    """How many times as long as usual, beside the others', its update was in the first of these; 0
    where most of them stood out at once."""
    probing: str = ""
    """The split cluster whose model it trains beside its own, as that was when it was split."""

    def usual(self, share: float, length: float) -> "Habit":
        """With a round in which it did not stand out."""
        heard = self.heard + 1
        mean = self.mean + (share - self.mean) / heard
        squares = self.squares + (share - mean) * (share - self.mean)
        longest = max(self.longest, length) if self.heard else self.longest
        return Habit(self.leaf, heard, mean, squares, longest)


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


def watch(habits: Mapping[str, Habit], leaf: str, norms: Mapping[str, float]) -> dict[str, Habit]:
    """One round of one leaf: its members' habits, which also tell who stands out.

    A member stands out when its update is longer than all before it in this leaf, and by more
    standard errors longer beside the others' than chance makes anybody's in so many rounds; or
    when most of the members have longer ones than ever at once. It goes on standing out as long as
    its updates are longer than those before.

    Parameters
    ----------
    habits : mapping of str to Habit
    leaf : str
    norms : mapping of str to float
        ‖Δ_i‖ of the members heard from in this round.
    """
    lengths = {c: float(np.log(n)) for c, n in norms.items() if 0 < n < np.inf}
    middle = float(np.median(list(lengths.values()))) if lengths else 0.0
    before = {
        c: habits[c] if c in habits and habits[c].leaf == leaf else Habit(leaf) for c in lengths
    }
    freedom = sum(max(0, habit.heard - 1) for habit in before.values())
    scatter = np.sqrt(sum(habit.squares for habit in before.values()) / max(1, freedom))
    longer = {c for c, h in before.items() if h.heard >= LEAST and lengths[c] > h.longest}
    most = 2 * len(longer) > len(lengths)
    after = {}
    for client, habit in before.items():
        share = lengths[client] - middle
        errors = 0.0
        if client in longer and scatter > 0:
            errors = (share - habit.mean) / (scatter * np.sqrt(1 + 1 / habit.heard))
        chance = CHANCE / (len(lengths) * max(1, habit.heard))
        from scipy.special import stdtr  # no client's process needs it

        alone = bool(stdtr(max(1, freedom), -errors) < chance)
        if client in longer and (0 < habit.held < PATIENCE or (not habit.held and (alone or most))):
            factor = float(np.exp(share - habit.mean)) if alone and not habit.held else habit.factor
            after[client] = habit._replace(held=habit.held + 1, factor=factor)
        else:
            after[client] = habit.usual(share, lengths[client])
    return after


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

    def walk(self, away: Mapping[str, Vector]) -> None:
        """What those made of a model above their leaf that stand out, or left it before.

        Parameters
        ----------
        away : mapping of str to ndarray, shape (k,)
            Their updates of it.
        """
        for client, vector in away.items():
            habit = self.habits.get(client)
            if client in self.tree.unassigned:
                self.step(client, vector)
            elif habit and habit.held > 1 and habit.leaf == self.tree.leaf_of(client).name:
                self.probed(client, vector)
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
        above = self.tree.path(leaf.name)[:-1]
        ready = bool(above) and not any(cluster.on_trial for cluster in above)
        for client in leaf.members:
            habit = self.habits.get(client)
            if ready and habit and habit.held and habit.leaf == leaf.name and not habit.probing:
                self.habits[client] = habit._replace(probing=ROOT)

    def probed(self, client: str, vector: Vector) -> None:
        """What a client that stands out for the second round makes of the model above its leaf."""
        habit, leaf = self.habits[client], self.tree.leaf_of(client)
        where = self.tree.clusters[habit.probing]
        own = next(c for c in where.children if f"{leaf.name}.".startswith(f"{c}."))
        fork = self.tree.fork(where.name, vector)
        edges = {child: self.tree.clusters[child].edge for child in where.children}
        bar = resemblance(edges)
        here = fork.similarities[own]
        if here >= loyalty(edges[own]) or (fork.child == own and here > bar):
            deeper = bool(self.tree.clusters[own].children)
            self.habits[client] = habit._replace(probing=own) if deeper else Habit(habit.leaf)
            return
        since = "its updates, as most of its leaf's, are longer than ever"
        if habit.factor:
            since = f"its update was {habit.factor:.1f} times as long as usual beside the others'"
        self.habits.pop(client)
        self.tree = self.tree.called_back(client, where.name)
        self.step(client, vector, since)

    def step(self, client: str, vector: Vector, since: str = "") -> None:
        """One step down for a client that left its leaf, or a leaf of its own (Algorithm 4)."""
        where, left = self.tree.clusters[self.tree.unassigned[client]], self.tree.leaf_of(client)
        if where.on_trial:
            return
        fork = self.tree.fork(where.name, vector)
        alike = fork.similarities[fork.child]
        edges = {child: self.tree.clusters[child].edge for child in where.children}
        bar = resemblance(edges)
        told = f"its update of {where.name} is most like those of {fork.child}: cosine {alike:.2f}"
        if alike > bar and len(edges) > 1:
            self.tree, _ = self.tree.assign_step(client, vector)
            target = self.tree.unassigned.get(client, fork.child)
            told = f"{told}, more than {bar:.2f}"
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
            told = f"{told}, not more than {bar:.2f}" if len(edges) > 1 else ""
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
        """Where the root is the only leaf: those that stand out for the second round leave it.

        The others must be at rest.

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
            elif habit.held > 1 and habit.factor:
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
            since = f"its update was {habit.factor:.1f} times as long as usual beside the others'"
            self.step(client, vector, since)
        for client, habit in self.habits.items():
            self.habits[client] = habit._replace(leaf=name)


def add_to(decisions: list[Decision], cluster: str, told: str) -> None:
    """Let the decision about a cluster say more."""
    for i, decision in enumerate(decisions):
        if decision.cluster == cluster:
            decisions[i] = replace(decision, reason=f"{decision.reason}; {told}")
