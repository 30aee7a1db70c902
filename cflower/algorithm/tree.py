"""The parameter tree (section V-C, Fig. 4): every cluster there was, its members and model."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from itertools import accumulate
from typing import Any, Literal, NamedTuple

from cflower.algorithm.aggregation import WeightedMean
from cflower.algorithm.weights import Vector, Weights
from cflower.ordering import in_order, only, without

ROOT = "0"
Selection = Literal["leaf", "best", "ensemble"]
SELECTIONS: tuple[Selection, ...] = ("leaf", "best", "ensemble")
"""The models on a client's path that can serve it (section V-C)."""


class Status(StrEnum):
    CONFIRMED = "confirmed"
    JOINED = "joined"
    """Later its clients were served better by one model again."""


class Trial(NamedTuple):
    """A split that its clients judged."""

    began: int
    """Round after which the split was made."""
    judged: int
    """Round after which its clients judged it last."""
    parts: tuple[tuple[str, ...], ...]
    """Members of each child when it was made."""
    status: Status = Status.CONFIRMED
    reason: str = ""
    """One sentence."""


@dataclass(frozen=True)
class Cluster:
    """A node v of the tree.

    The ``model`` of a leaf is in training. A split cluster keeps its stationary model θ*_v, from
    which its members computed the updates that split it.
    """

    name: str
    """Path from the root: ``0``, then ``0.0`` and ``0.1``, then ``0.1.0``."""
    members: tuple[str, ...]
    model: Weights
    born: int = 0
    """The cluster exists since the end of this round."""
    children: tuple[str, ...] = ()
    split_round: int | None = None
    own_body: bool = True
    """Whether all layers of its model are its own; else only the output layer is, and those below
    it, the body, are the ones of the cluster above."""
    agreement: float = 0.0
    """How far its updates of a common body have agreed with the others' so far (`layers`)."""
    edge: Mapping[str, Vector] = field(default_factory=dict)
    """Δ_e of the edge from the parent (eq. 47): pre-split update of each client, shape (k,)."""
    optimizer: Mapping[str, Vector] = field(default_factory=dict)
    sent: Mapping[str, Vector] = field(default_factory=dict)
    """The members' last values of the entries that are not trained (`cflower.algorithm.middle`),
    shape (e,), the newest first; only of a leaf with few replies a round."""
    memory: Mapping[str, Any] = field(default_factory=dict)
    trial: Trial | None = None
    """The judgement of its split; None if no client was asked."""
    undone: tuple[Trial, ...] = ()
    """Its earlier splits that were taken back."""
    weight: float = 0.0
    """The sum of a leaf's members' weights before normalisation (eq. 2), as last known."""
    rounds: int = 0
    """Number of rounds in which its model has learned, those of its ancestors included."""
    left_out: tuple[str, ...] = ()
    """Members without a part when it was split. Algorithm 4 places them."""

    @property
    def is_leaf(self) -> bool:
        """Whether its model is in training."""
        return not self.children

    @property
    def next_child(self) -> str:
        """Name for one more child; no name is used twice, even after a split was taken back."""
        before = sum(len(trial.parts) for trial in self.undone)
        return f"{self.name}.{before + len(self.children)}"

    @property
    def parent(self) -> str:
        """Name of the cluster above; empty for the root."""
        return self.name.rpartition(".")[0]

    def __repr__(self) -> str:
        below = f", split into {', '.join(self.children)}" if self.children else ""
        return f"Cluster({self.name}: {len(self.members)} clients{below})"


@dataclass(frozen=True)
class ParameterTree:
    """All clusters by name. Its leaves always partition the clients.

    ``unassigned`` has the clients whose leaf is not known yet, each with a split cluster: the
    client counts as a member of a leaf below, but trains θ* of that cluster, and its update takes
    it one level down (Algorithm 4).
    """

    clusters: Mapping[str, Cluster]
    unassigned: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        leaves = ", ".join(f"{leaf.name}: {len(leaf.members)} clients" for leaf in self.leaves)
        return f"ParameterTree({leaves})"

    @classmethod
    def initial(
        cls, model: Weights, clients: Iterable[str], *, isolated: bool = False
    ) -> "ParameterTree":
        """A root with all clients; ``isolated`` gives each client a leaf of its own below it."""
        members = in_order(clients)
        alone = members if isolated else ()
        leaves = [Cluster(f"{ROOT}.{i}", (client,), model) for i, client in enumerate(alone)]
        root = Cluster(ROOT, members, model, children=tuple(leaf.name for leaf in leaves))
        return cls({cluster.name: cluster for cluster in (root, *leaves)})

    @property
    def root(self) -> Cluster:
        return self.clusters[ROOT]

    @cached_property
    def leaves(self) -> tuple[Cluster, ...]:
        """The clusters in training, in natural order of their names."""
        return tuple(end for end in self.ends if end.members or end.name == ROOT)

    def body_of(self, name: str) -> str:
        """The cluster of which the named one has the body: itself, or one above."""
        cluster = self.clusters[name]
        return name if cluster.own_body or name == ROOT else self.body_of(cluster.parent)

    @cached_property
    def bodies(self) -> dict[str, tuple[Cluster, ...]]:
        """The ends that have the same body, by the cluster of which it is."""
        shared = defaultdict[str, list[Cluster]](list)
        for leaf in self.ends:
            shared[self.body_of(leaf.name)].append(leaf)
        return {name: tuple(leaves) for name, leaves in shared.items()}

    @property
    def ends(self) -> tuple[Cluster, ...]:
        """The leaves, and those without a member, which a newcomer opens again."""
        return tuple(self.clusters[n] for n in in_order(self.clusters) if self.clusters[n].is_leaf)

    @property
    def clients(self) -> tuple[str, ...]:
        """All members, in natural order."""
        return self.root.members

    def assigned(self, leaf: Cluster) -> tuple[str, ...]:
        """The members of a leaf that Algorithm 4 need not place any more."""
        return tuple(client for client in leaf.members if client not in self.unassigned)

    def leaf_of(self, client: str) -> Cluster:
        """The leaf of a client; KeyError if it is in none."""
        return self._leaf_of[client]

    @cached_property
    def _leaf_of(self) -> dict[str, Cluster]:
        return {client: leaf for leaf in self.leaves for client in leaf.members}

    def among(self, clients: Iterable[str], name: str) -> tuple[str, ...]:
        """Those of some clients that are members of the named cluster, in natural order."""
        leaves = only(self._leaf_of, clients)
        return in_order(client for client, leaf in leaves.items() if is_below(leaf.name, name))

    def training_cluster(self, client: str) -> Cluster:
        """The cluster that the client trains: where it is unassigned, else its leaf."""
        if client in self.unassigned:
            return self.clusters[self.unassigned[client]]
        return self.leaf_of(client)

    def path(self, name: str) -> tuple[Cluster, ...]:
        """From the root to the named cluster: ever more special models."""
        return tuple(self.clusters[n] for n in accumulate(name.split("."), "{}.{}".format))

    def path_of(self, client: str) -> tuple[Cluster, ...]:
        """The clusters with models that can serve a client: from the most general to its leaf.

        The path of an isolated client is its leaf alone: the root was never trained.
        """
        *above, leaf = self.path(self.leaf_of(client).name)
        trained = (cluster.name for cluster in above if cluster.split_round is not None)
        return (*map(self.serving, trained), leaf)

    def serving(self, name: str) -> Cluster:
        """A cluster with its model as it serves clients, in place of θ*."""
        return replace(self.clusters[name], model=self.model_of(name))

    def model_of(self, name: str) -> Weights:
        """The model of a cluster as it serves clients.

        A leaf has its own, and a cluster with a split that no client judged keeps θ*. Otherwise it
        is the mean of the leaves below, weighted as eq. 2 weighs clients: where clients agree, this
        is the model that all of them would have trained together.
        """
        cluster = self.clusters[name]
        if cluster.trial is None:  # no leaf has one
            return cluster.model
        if name not in self._means:
            leaves = self.leaves_below(name)
            self._means[name] = mean_model(leaves) if leaves else cluster.model
        return self._means[name]

    @cached_property
    def _means(self) -> dict[str, Weights]:
        return {}

    def leaves_below(self, name: str) -> tuple[Cluster, ...]:
        """The leaves on or below a cluster."""
        return tuple(leaf for leaf in self.leaves if is_below(leaf.name, name))

    def update(self, *clusters: Cluster) -> "ParameterTree":
        """A tree with these clusters replaced or added."""
        changed = {cluster.name: cluster for cluster in clusters}
        return replace(self, clusters={**self.clusters, **changed})

    def divided(self, cluster: Cluster, children: Iterable[Cluster]) -> "ParameterTree":
        """A tree in which a leaf is split; Algorithm 4 places its members without a child.

        Members that have come since the split was computed have none, and count to the largest one.
        """
        members = self.clusters[cluster.name].members
        came = tuple(without(dict.fromkeys(members), cluster.members))
        left_out = tuple(client for client in cluster.left_out if client in members) + came
        cluster = replace(cluster, members=members, left_out=left_out)
        parts = [replace(c, members=in_order({*c.members} & {*members})) for c in children]
        largest = max(range(len(parts)), key=lambda i: len(parts[i].members))
        together = in_order((*parts[largest].members, *came))
        parts[largest] = replace(parts[largest], members=together)
        unassigned = {**dict.fromkeys(left_out, cluster.name), **self.unassigned}
        return replace(self.update(cluster, *parts), unassigned=unassigned)

    def rejoined(self, name: str, leaf: Cluster) -> "ParameterTree":
        """A tree in which ``leaf`` takes the place of a split cluster and of all below it."""
        clusters = {n: c for n, c in self.clusters.items() if not is_below(n, name)}
        unassigned = {c: place for c, place in self.unassigned.items() if not is_below(place, name)}
        return ParameterTree({**clusters, name: leaf}, unassigned)

    def admit(
        self, clients: Iterable[str], server_round: int, *, isolated: bool = False
    ) -> "ParameterTree":
        """The tree with newcomers; members change nothing.

        Newcomers join the root if nothing was split. Otherwise they are unassigned at the root, and
        count as members of the largest leaf until Algorithm 4 has placed them.
        """
        tree, newcomers = self, [client for client in clients if client not in self._leaf_of]
        if not newcomers:
            return self
        if not isolated or self.root.is_leaf:
            return self.descended(dict.fromkeys(newcomers, ROOT))
        for client in newcomers:
            # Born a round ago, so that its first reply counts.
            leaf = Cluster(tree.root.next_child, (client,), tree.root.model, server_round - 1)
            tree = tree.with_child(ROOT, leaf)
        return tree.update(replace(tree.root, members=in_order((*tree.clients, *newcomers))))

    def with_child(self, name: str, child: Cluster) -> "ParameterTree":
        """The tree with one more child of a cluster."""
        parent = self.clusters[name]
        return self.update(replace(parent, children=(*parent.children, child.name)), child)

    def called_back(self, client: str, name: str) -> "ParameterTree":
        """The tree with a client that Algorithm 4 places again, from this cluster on."""
        return replace(self, unassigned={**self.unassigned, client: name})

    def descended(self, children: Mapping[str, str]) -> "ParameterTree":
        """The tree with unassigned clients one level further down, in these children.

        A client in a child that is itself split counts as a member of its largest leaf.
        """
        largest = {
            child: max(
                (end.name for end in self.ends if is_below(end.name, child)),
                key=lambda name: len(self.clusters[name].members),
            )
            for child in set(children.values())
        }
        below = {client: child for client, child in children.items() if largest[child] != child}
        tree = replace(self, unassigned=without(self.unassigned, children) | below)
        return tree.moved({client: largest[child] for client, child in children.items()})

    def moved(self, leaves: Mapping[str, str]) -> "ParameterTree":
        """The tree with clients as members of exactly the clusters on the path to their leaf."""
        changed = []
        for cluster in self.clusters.values():
            joining = {c for c, leaf in leaves.items() if is_below(leaf, cluster.name)}
            members = {*cluster.members} - leaves.keys() | joining
            if members != {*cluster.members}:
                changed.append(replace(cluster, members=in_order(members)))
        return self.update(*changed)

    def closed(self, leaves: Iterable[str]) -> "ParameterTree":
        """The tree in which Algorithm 4 ignores those clusters up to these leaves without members.

        An edge without updates attracts no newcomer.
        """
        empty = [c for name in leaves for c in self.path(name) if not c.members]
        return self.update(*(replace(cluster, edge={}, memory={}) for cluster in empty))


def is_below(name: str, above: str) -> bool:
    """Whether a cluster lies on or below another.

    >>> is_below("0.1", "0.1"), is_below("0.1.0", "0.1"), is_below("0.10", "0.1")
    (True, True, False)
    """
    return f"{name}.".startswith(f"{above}.")


def mean_model(leaves: Sequence[Cluster]) -> Weights:
    """The mean of these leaves' models, weighted as eq. 2 weighs their clients."""
    # A leaf that has just begun has no weight yet: each member then counts as usual.
    members = sum(len(leaf.members) for leaf in leaves if leaf.weight)
    usual = sum(leaf.weight for leaf in leaves) / members if members else 1.0
    mean = WeightedMean()
    for leaf in leaves:
        mean.add(leaf.model, leaf.weight or usual * len(leaf.members))
    return mean.mean()
