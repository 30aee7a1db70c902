"""Quadratic clients with planted groups: f_i(w) = ‖w − c_g(i)‖²/2, so every answer is known."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from hypothesis import settings

from cflower.algorithm.criteria import Criterion, NormCriterion
from cflower.algorithm.projection import Projection
from cflower.algorithm.round import CFL, Reply, RoundResult
from cflower.algorithm.state import CFLState
from cflower.algorithm.tree import ParameterTree, Weights
from cflower.seeding import generator

laws = settings(max_examples=40)
"""How hypothesis looks for counterexamples: the same examples in every run."""

CRITERION = NormCriterion(eps1=0.05, eps2=0.2, gamma_max=0.0, min_cluster_size=1)

DIM = 20


def cfl_of(
    criterion: Criterion = CRITERION,
    *,
    length: int = 0,
    mask: np.ndarray | None = None,
    **settings: object,
) -> CFL:
    """The algorithm for models of `DIM` entries; updates are kept whole unless ``length``."""
    return CFL(criterion, Projection(DIM, length, mask=mask), **settings)


@dataclass(frozen=True)
class Federation:
    """Clients by name, each with its group; the group's optimum is ``centers[group]``."""

    groups: dict[str, int]
    centers: np.ndarray
    step: float = 0.5
    noise: float = 1e-3
    num_examples: dict[str, float] | None = None

    @classmethod
    def dealt(cls, *sizes: int, seed: int = 0, **settings: object) -> "Federation":
        """Groups of these sizes, dealt out in turn, so that no group's clients lie together."""
        left, groups = list(sizes), {}
        while any(left):
            for group, size in enumerate(left):
                if size:
                    groups[f"client-{len(groups)}"] = group
                    left[group] -= 1
        centers = generator(seed, "centers").normal(size=(len(sizes), DIM))
        return cls(groups, centers, **settings)

    @property
    def clients(self) -> list[str]:
        return list(self.groups)

    @property
    def planted(self) -> set[frozenset[str]]:
        return sides_of(self.groups)

    def state(self, model: np.ndarray | None = None) -> CFLState:
        trained = np.zeros(self.centers.shape[1]) if model is None else model
        return CFLState(ParameterTree.initial(Weights(trained, np.zeros(0)), self.clients))

    def reply(self, state: CFLState, client: str, server_round: int) -> Reply:
        """One local step of the client, from the model that the tree gives it."""
        model = state.tree.training_cluster(client).model.trained
        rng = generator(0, "noise", server_round, client)
        step = self.step * (self.centers[self.groups[client]] - model)
        trained = step + self.noise * rng.normal(size=len(model))
        num_examples = 1.0 if self.num_examples is None else self.num_examples[client]
        update = Weights(trained, np.zeros(0))
        return Reply(client, update, float(np.linalg.norm(trained)), num_examples)

    def replies(
        self, state: CFLState, server_round: int, clients: Iterable[str] | None = None
    ) -> list[Reply]:
        chosen = self.clients if clients is None else clients
        return [self.reply(state, client, server_round) for client in chosen]

    def half(self, state: CFLState, server_round: int) -> list[str]:
        """Half of every cluster's clients, and who walks; as the strategy samples."""
        rng, chosen = generator(0, "half", server_round), []
        for leaf in state.tree.leaves:
            order = [leaf.members[i] for i in rng.permutation(len(leaf.members))]
            chosen += order[: max(1, len(order) // 2)]
        return [name for name in self.clients if name in chosen or name in state.tree.unassigned]


def run(
    federation: Federation, cfl: CFL, num_rounds: int, *, partial: bool = False
) -> Iterator[tuple[CFLState, RoundResult]]:
    """Each round's state before it and its result."""
    state = federation.state()
    for server_round in range(1, num_rounds + 1):
        chosen = federation.half(state, server_round) if partial else None
        replies = federation.replies(state, server_round, chosen)
        result = cfl.run_round(state, replies, server_round=server_round)
        yield state, result
        state = result.state


def final(federation: Federation, cfl: CFL, num_rounds: int, *, partial: bool = False) -> CFLState:
    """The state after the last round."""
    *_, (_, result) = run(federation, cfl, num_rounds, partial=partial)
    return result.state


def sides_of(groups: dict[str, int]) -> set[frozenset[str]]:
    """The groups as sets of clients."""
    return {frozenset(c for c, g in groups.items() if g == group) for group in groups.values()}


def found(state: CFLState) -> set[frozenset[str]]:
    """The clusters in training as sets of clients."""
    return {frozenset(leaf.members) for leaf in state.tree.leaves}


def renamed(federation: Federation, names: dict[str, str]) -> Federation:
    """The same clients under other names."""
    return replace(federation, groups={names[c]: g for c, g in federation.groups.items()})


def assert_partitions(tree: ParameterTree, clients: Iterable[str]) -> None:
    """The law: every client is in exactly one leaf, and in every cluster on its way there."""
    dealt = [name for leaf in tree.leaves for name in leaf.members]
    assert sorted(dealt) == sorted(clients)
    for cluster in tree.clusters.values():
        if cluster.children:
            below = [name for child in cluster.children for name in tree.clusters[child].members]
            assert sorted(below) == sorted(cluster.members)
