"""Quadratic clients in planted groups, f_i(w) = ‖w − c_g(i)‖²/2, and a driver that runs rounds."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from hypothesis import settings
from numpy.typing import ArrayLike

from cflower.algorithm.criteria import Criterion, Evidence
from cflower.algorithm.norm_criterion import NormCriterion
from cflower.algorithm.projection import Projection
from cflower.algorithm.round import CFL, RoundResult
from cflower.algorithm.state import Ask, CFLState, Reply, Role, Training
from cflower.algorithm.tree import ParameterTree
from cflower.algorithm.weights import Weights
from cflower.seeding import generator

laws = settings(max_examples=40)
"""Settings of hypothesis for all laws."""

CRITERION = NormCriterion(eps1=0.05, eps2=0.2, gamma_max=0.0, min_cluster_size=1)

DIM = 20

Opinions = Iterator[bool | None]
"""The clients' opinion on each question: separate models are better, worse, or neither (None)."""
ACCURACIES = {True: 0.5, None: 0.7, False: 0.9}
"""Of a common model, by the opinion on separate ones, which have 0.7."""


def cfl_of(
    criterion: Criterion = CRITERION,
    *,
    length: int = 0,
    mask: np.ndarray | None = None,
    **settings: object,
) -> CFL:
    """The algorithm for models of `DIM` entries; updates are kept whole unless ``length``."""
    return CFL(criterion, Projection(DIM, length, mask=mask), **settings)


def evidence_of(
    updates: ArrayLike,
    server_round: int = 1,
    *,
    clients: Iterable[int] | None = None,
    weights: ArrayLike = 1.0,
    num_members: int = 0,
) -> Evidence:
    """Evidence from the updates of client-0, client-1, ... or of the clients with these numbers."""
    rows = np.asarray(updates)
    numbers = list(range(len(rows)) if clients is None else clients)
    shares = np.broadcast_to(np.asarray(weights, float), len(rows))
    shares = shares / (shares.sum() or 1.0)
    return Evidence(
        cluster="0",
        server_round=server_round,
        members=tuple(f"client-{i}" for i in range(num_members or max(numbers, default=-1) + 1)),
        clients=tuple(f"client-{i}" for i in numbers),
        vectors=tuple(rows),
        norms=np.linalg.norm(rows, axis=1),
        weights=shares,
        mean_norm=float(np.linalg.norm(shares @ rows)),
        rounds=np.full(len(rows), server_round),
    )


def vector(trained: ArrayLike, *carried: float) -> Weights:
    """A model, or an update."""
    return Weights(np.array(trained, float), np.array(carried, float))


def trained_reply(cfl: CFL, ask: Ask, update: Weights, num_examples: float = 1.0) -> Training:
    """The reply of a client that trained."""
    kept, length = cfl.projection.keep(update.trained), float(np.linalg.norm(update.trained))
    return Training(ask, num_examples, update=update, norm=length, kept=kept)


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
        """Groups of these sizes, dealt out in turn."""
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
        """The groups as sets of clients."""
        sides = {group: frozenset() for group in self.groups.values()}
        for client, group in self.groups.items():
            sides[group] |= {client}
        return set(sides.values())

    def state(self) -> CFLState:
        """The state before the first round."""
        return CFLState(ParameterTree.initial(vector(np.zeros(DIM)), self.clients))

    def changed(self, groups: dict[int, int]) -> "Federation":
        """The same clients; these, by number, have the data of another group."""
        new = {f"client-{client}": group for client, group in groups.items()}
        return replace(self, groups=self.groups | new)

    def reply(self, cfl: CFL, state: CFLState, ask: Ask) -> Reply:
        """One local step, or the loss, of the model that the client gets."""
        away = self.centers[self.groups[ask.client]] - state.model_of(ask).trained
        if ask.task == "evaluate":
            return Reply(ask, 36.0, {"loss": float(away @ away) / 2})
        noise = generator(0, "noise", ask.server_round, ask.client).normal(size=DIM)
        examples = 1.0 if self.num_examples is None else self.num_examples[ask.client]
        return trained_reply(cfl, ask, vector(self.step * away + self.noise * noise), examples)

    def replies(
        self, cfl: CFL, state: CFLState, server_round: int, clients: Iterable[str] | None = None
    ) -> list[Reply]:
        """The replies to the first asks of a round."""
        return [self.reply(cfl, state, ask) for ask in cfl.asks(state, server_round, clients)]

    def half(self, state: CFLState, server_round: int) -> list[str]:
        """Half of every cluster's clients and all unassigned ones, as the strategy samples."""
        rng, chosen = generator(0, "half", server_round), []
        for leaf in state.tree.leaves:
            order = [leaf.members[i] for i in rng.permutation(len(leaf.members))]
            chosen += order[: max(1, len(order) // 2)]
        return [name for name in self.clients if name in chosen or name in state.tree.unassigned]


def ended(
    federation: Federation,
    cfl: CFL,
    heard: RoundResult,
    opinions: Opinions | None = None,
    *,
    last: bool = False,
) -> RoundResult:
    """A round after its clients have answered its questions: by their loss without opinions."""
    tree, accuracies, replies = heard.state.tree, {}, []
    for ask in heard.asks:
        reply = federation.reply(cfl, heard.state, ask)
        if opinions is not None:
            if ask.role is Role.CANDIDATE and ask.number not in accuracies:
                accuracy = ACCURACIES[next(opinions)]
                # The candidate is a common model, or that of a part of a split that is proposed.
                accuracies[ask.number] = (
                    accuracy if ask.cluster in tree.clusters else 1.4 - accuracy
                )
            accuracy = accuracies[ask.number] if ask.role is Role.CANDIDATE else 0.7
            reply = replace(reply, metrics={"accuracy": accuracy})
        replies.append(reply)
    if not replies:
        return heard
    return cfl.heard(heard.state, replies, heard.asks[0].server_round, last=last)


class Round(NamedTuple):
    """One round of a run."""

    before: CFLState
    result: RoundResult


def run(
    federation: Federation,
    cfl: CFL,
    num_rounds: int,
    *,
    state: CFLState | None = None,
    done: int = 0,
    partial: bool = False,
    clients: Iterable[str] | None = None,
    opinions: Opinions | None = None,
    last: int = 0,
) -> Iterator[Round]:
    """Run rounds from a state on, by default the first; all clients take part, half, or these.

    Round ``last`` is the last one that was planned. The clusters partition the clients after every
    round.
    """
    state = federation.state() if state is None else state
    for server_round in range(done + 1, done + num_rounds + 1):
        chosen = federation.half(state, server_round) if partial else clients
        replies = federation.replies(cfl, state, server_round, chosen)
        is_last = server_round == last
        heard = cfl.heard(state, replies, server_round, last=is_last)
        result = ended(federation, cfl, heard, opinions, last=is_last)
        assert_partitions(result.state.tree, federation.clients)
        yield Round(state, result)
        state = result.state


def final(federation: Federation, cfl: CFL, num_rounds: int, **settings: object) -> CFLState:
    """The state after the last round of `run`."""
    *_, (_, result) = run(federation, cfl, num_rounds, **settings)
    return result.state


def clusters_of(state: CFLState) -> set[frozenset[str]]:
    """The clusters in training as sets of clients."""
    return {frozenset(leaf.members) for leaf in state.tree.leaves}


def assert_partitions(tree: ParameterTree, clients: Iterable[str]) -> None:
    """Law: every client is in exactly one leaf, and in every cluster on the path to it."""
    dealt = [name for leaf in tree.leaves for name in leaf.members]
    assert sorted(dealt) == sorted(clients)
    for cluster in tree.clusters.values():
        if cluster.children:
            below = [name for child in cluster.children for name in tree.clusters[child].members]
            assert sorted(below) == sorted(cluster.members)
    for place in tree.unassigned.values():
        assert not tree.clusters[place].is_leaf
