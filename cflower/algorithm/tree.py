"""The parameter tree (section V-C, Fig. 4): every cluster there was, its members and model."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, NamedTuple

from cflower.algorithm.criteria import Memory
from cflower.algorithm.difference import Vector
from cflower.algorithm.optimizers import OptimizerState
from cflower.algorithm.similarity import cosines_to
from cflower.algorithm.trial import Standing, Trial
from cflower.ordering import in_order

ROOT = "0"
Selection = Literal["leaf", "best", "ensemble"]
SELECTIONS: tuple[Selection, ...] = ("leaf", "best", "ensemble")
"""Which of the models on its way a client is served by (section V-C)."""


class Weights(NamedTuple):
    """One model θ, flattened in the reference model's key order."""

    trained: Vector
    """Shape (d,): what is learned; norms and similarities see only this."""
    carried: Vector
    """Shape (e,): what is averaged along (BatchNorm statistics, counters, integers)."""


@dataclass(frozen=True)
class Cluster:
    """A node v of the tree.

    A leaf's ``model`` is the one in training; a cluster that was split keeps its stationary
    model θ*_v, the one from which its members computed the updates it was split by. If it goes on
    learning, as during a trial, that is in ``general``.
    """

    name: str
    """Its path from the root: ``0``, then ``0.0`` and ``0.1``, then ``0.1.0``."""
    members: tuple[str, ...]
    model: Weights
    born: int = 0
    """The round whose end made it."""
    children: tuple[str, ...] = ()
    split_round: int | None = None
    edge: Mapping[str, Vector] = field(default_factory=dict)
    """Δ_e of the edge from the parent (eq. 47): pre-split update of each client, shape (k,)."""
    optimizer: OptimizerState = field(default_factory=dict)
    memory: Memory = field(default_factory=dict)
    general: Weights | None = None
    """Of a split cluster: its model as it has gone on learning since; None: it has not."""
    trial: Trial | None = None
    """Of its split; None where there is no trial."""
    undone: tuple[Trial, ...] = ()
    """The trials of its splits that were taken back."""
    rounds: int = 0
    """In how many rounds its model has learned, as far as ``grown`` has it; those of the clusters
    that it comes from count."""

    @property
    def grown(self) -> "Cluster":
        """This cluster with the model that serves clients: as far as it has learned."""
        return self if self.general is None else replace(self, model=self.general)

    @property
    def on_trial(self) -> bool:
        """Whether its split still has to prove itself."""
        return self.trial is not None and self.trial.standing is Standing.OPEN

    @property
    def num_children_before(self) -> int:
        """Children that it had and that were joined again; their names are not used again."""
        return sum(len(trial.parts) for trial in self.undone)

    @property
    def is_leaf(self) -> bool:
        """Whether it is still in training."""
        return not self.children

    def __repr__(self) -> str:
        """Without the arrays."""
        below = f", split into {', '.join(self.children)}" if self.children else ""
        return f"Cluster({self.name}: {len(self.members)} clients{below})"


class Fork(NamedTuple):
    """One step of Algorithm 4: which branch a client's update resembles most."""

    child: str
    similarities: dict[str, float]
    """α of each branch: the largest cosine to any update cached on its edge."""

    @property
    def margin(self) -> float:
        """How far the branch taken is ahead of the next.

        >>> Fork("0.1", {"0.0": 0.25, "0.1": 0.75}).margin
        0.5
        """
        *_, second, best = sorted(self.similarities.values())
        return best - second


@dataclass(frozen=True)
class ParameterTree:
    """All clusters by name. Its leaves always partition the clients.

    ``unassigned`` holds the clients whose place is not certain: they count as members of a leaf,
    but the model they get next is that of the inner cluster named here, and the update they
    answer with takes them one level down (Algorithm 4).
    """

    clusters: Mapping[str, Cluster]
    unassigned: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        """Without the arrays."""
        leaves = {c.name: len(c.members) for c in self.clusters.values() if c.is_leaf}
        told = ", ".join(f"{name}: {count} clients" for name, count in leaves.items())
        return f"ParameterTree({told})"

    @classmethod
    def initial(
        cls, model: Weights, clients: Iterable[str], *, isolated: bool = False
    ) -> "ParameterTree":
        """A root with all clients; ``isolated`` gives each client a leaf of its own below it."""
        members = in_order(clients)
        root = Cluster(ROOT, members, model)
        if not isolated:
            return cls({ROOT: root})
        leaves = {f"{ROOT}.{i}": (name,) for i, name in enumerate(members)}
        below = {name: Cluster(name, who, model) for name, who in leaves.items()}
        return cls({ROOT: replace(root, children=tuple(leaves)), **below})

    @property
    def root(self) -> Cluster:
        """The most general cluster."""
        return self.clusters[ROOT]

    @cached_property
    def leaves(self) -> tuple[Cluster, ...]:
        """The clusters in training, in natural order of their names."""
        return tuple(end for end in self.ends if end.members or end.name == ROOT)

    @property
    def ends(self) -> tuple[Cluster, ...]:
        """The leaves, and those that closed when their last member left; who comes reopens one."""
        names = in_order(name for name, cluster in self.clusters.items() if cluster.is_leaf)
        return tuple(self.clusters[name] for name in names)

    @property
    def clients(self) -> tuple[str, ...]:
        """Everyone who belongs to a leaf."""
        return in_order(name for leaf in self.leaves for name in leaf.members)

    def leaf_of(self, client: str) -> Cluster:
        """The leaf a client belongs to; KeyError if it is in none."""
        return self._leaf_of[client]

    @cached_property
    def _leaf_of(self) -> dict[str, Cluster]:
        return {client: leaf for leaf in self.leaves for client in leaf.members}

    def training_cluster(self, client: str) -> Cluster:
        """The cluster whose model the client gets: where it is unassigned, else its leaf."""
        if client in self.unassigned:
            return self.clusters[self.unassigned[client]]
        return self.leaf_of(client)

    def path(self, name: str) -> tuple[Cluster, ...]:
        """From the root to the named cluster: ever more special models.

        Names tell the way: ``0.1.0`` lies below ``0.1`` below ``0``.
        """
        steps = name.split(".")
        return tuple(self.clusters[".".join(steps[: i + 1])] for i in range(len(steps)))

    def awaits_trial(self, name: str) -> bool:
        """Whether a split on the way to a cluster, or its own, still has to prove itself."""
        return any(cluster.on_trial for cluster in self.path(name))

    def path_of(self, client: str) -> tuple[Cluster, ...]:
        """The clusters whose models a client can be given: from the most general to its leaf.

        Inner ones with the models as far as they have learned. Those of isolated clients are their
        leaves alone: nobody ever trained the root.
        """
        *above, leaf = self.path(self.leaf_of(client).name)
        return (*(cluster.grown for cluster in above if cluster.split_round is not None), leaf)

    def parent(self, name: str) -> Cluster | None:
        """The cluster that a cluster was split from; None of the root."""
        above = name.rpartition(".")[0]
        return self.clusters[above] if above else None

    def update(
        self, *clusters: Cluster, unassigned: Mapping[str, str] | None = None
    ) -> "ParameterTree":
        """A tree with these clusters replaced or added."""
        changed = {cluster.name: cluster for cluster in clusters}
        return ParameterTree(
            {**self.clusters, **changed}, self.unassigned if unassigned is None else unassigned
        )

    def trials_due(self, server_round: int) -> tuple[str, ...]:
        """The clusters whose split is to be judged at the end of a round."""
        open_trials = {n: c.trial for n, c in self.clusters.items() if c.trial and c.on_trial}
        return in_order(n for n, trial in open_trials.items() if trial.until <= server_round)

    def rejoined(self, name: str, server_round: int, trial: Trial) -> "ParameterTree":
        """A cluster's split taken back: it is a leaf again, and goes on with the common model.

        Who was on its way further down is a member of it now.
        """
        parent = self.clusters[name]
        below = f"{name}."
        leaf = replace(
            parent.grown,
            born=server_round,
            children=(),
            split_round=None,
            general=None,
            trial=None,
            undone=(*parent.undone, trial),
        )
        clusters = {n: c for n, c in self.clusters.items() if not n.startswith(below)}
        unassigned = {
            client: where
            for client, where in self.unassigned.items()
            if where != name and not where.startswith(below)
        }
        return ParameterTree({**clusters, name: leaf}, unassigned)

    def admit(self, client: str, server_round: int, *, isolated: bool = False) -> "ParameterTree":
        """The tree with a newcomer; one who is already a member changes nothing.

        While nothing has been split a newcomer joins the root. Later it starts unassigned there,
        and counts as a member of the largest leaf until it arrives.
        """
        if client in self._leaf_of:
            return self
        root = replace(self.root, members=in_order((*self.root.members, client)))
        if root.is_leaf:
            return self.update(root)
        if isolated:
            # As if the round before had made it: its first reply counts.
            born, name = server_round - 1, f"{ROOT}.{len(root.children)}"
            leaf = Cluster(name, (client,), root.model, born)
            return self.update(replace(root, children=(*root.children, leaf.name)), leaf)
        largest = max(self.leaves, key=lambda leaf: len(leaf.members))
        return self._settle(client, largest.name, {**self.unassigned, client: ROOT})

    def fork(self, name: str, vector: Vector) -> Fork:
        """Algorithm 4, lines 6 to 12: the branch below ``name`` that ``vector`` resembles most.

        Parameters
        ----------
        name : str
            An inner cluster.
        vector : ndarray, shape (k,)
            The client's update of that cluster's stationary model, as similarity sees it.
        """
        similarities = {}
        for child in self.clusters[name].children:
            if edge := self.clusters[child].edge:  # not of a leaf that was joined to another
                similarities[child] = float(cosines_to(vector, list(edge.values())).max())
        return Fork(max(similarities, key=lambda child: similarities[child]), similarities)

    def assign_step(self, client: str, vector: Vector) -> tuple["ParameterTree", Fork]:
        """Take a unassigned client one level down by its update of the model it was sent."""
        fork = self.fork(self.unassigned[client], vector)
        return self.descended(client, fork.child), fork

    def descended(self, client: str, branch: str) -> "ParameterTree":
        """An unassigned client one level further down, in this branch."""
        unassigned = {who: where for who, where in self.unassigned.items() if who != client}
        child = self.clusters[branch]
        if not child.is_leaf:
            unassigned[client] = child.name
        below = [leaf for leaf in self.ends if leaf.name.startswith(f"{child.name}.")]
        leaf = max(below, key=lambda leaf: len(leaf.members), default=child)
        return self._settle(client, leaf.name, unassigned)

    def called_back(self, client: str, name: str) -> "ParameterTree":
        """A member whose place is no longer certain: it walks down from an inner cluster again."""
        return self.update(unassigned={**self.unassigned, client: name})

    def branched(self, client: str, branch: Cluster) -> "ParameterTree":
        """A client that resembles no branch gets one of its own, a child of where it walked."""
        parent = self.clusters[branch.name.rpartition(".")[0]]
        parent = replace(parent, children=(*parent.children, branch.name))
        unassigned = {who: where for who, where in self.unassigned.items() if who != client}
        return self.update(parent, branch)._settle(client, branch.name, unassigned)

    def next_child(self, name: str) -> str:
        """The name of one more child of a cluster: none is used twice."""
        cluster = self.clusters[name]
        return f"{name}.{cluster.num_children_before + len(cluster.children)}"

    def _settle(self, client: str, leaf: str, unassigned: Mapping[str, str]) -> "ParameterTree":
        """Make ``client`` a member of exactly the clusters on the path to ``leaf``."""
        path = {cluster.name for cluster in self.path(leaf)}
        changed = []
        for cluster in self.clusters.values():
            others = [name for name in cluster.members if name != client]
            members = in_order([*others, client] if cluster.name in path else others)
            if members != cluster.members:
                changed.append(replace(cluster, members=members))
        return self.update(*changed, unassigned=unassigned)
