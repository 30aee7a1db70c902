"""A newcomer whose examples have no labels: which leaf's model is the one for it, if that shows.

Two kinds of evidence, and neither suffices alone. How sure the leaves' models are of its inputs,
against how sure they were of their own members' and of each other's: that has honest
probabilities, see `cflower.newcomers.entropies`, but a stranger's inputs may by chance be nearer
to one leaf. And Algorithm 4 with labels that a leaf's model gives: on inputs like those that it
learned from they are mostly right, and the update made with them resembles that leaf's own; on
others they are noise, and it does not. Where groups differ in their labels alone, every leaf's
labels are as good as any other's.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

import numpy as np

from cflower.algorithm.difference import Vector
from cflower.algorithm.placement import confirms
from cflower.algorithm.tree import ROOT, Cluster
from cflower.data.client_data import ClientData
from cflower.data.settings import DataSettings
from cflower.errors import ConfigError, RunFolderError
from cflower.learning.selection import mean_entropy
from cflower.learning.training import predict
from cflower.newcomers.assign import check_fits, load_newcomer, newcomers_update
from cflower.newcomers.entropies import NEGLIGIBLE, SURE, MembersEntropies
from cflower.newcomers.pytorch_run import SavedRun
from cflower.ordering import in_order
from cflower.runs.run_files import read_json
from cflower.runs.stored_run import check_assignable


class Outcome(StrEnum):
    """What a newcomer's inputs say."""

    PLACED = "placed"
    UNTOLD = "cannot be told without labels"
    STRANGER = "resembles nobody"


class Candidate(NamedTuple):
    """A leaf, as far as it is in question."""

    cluster: str
    members: int
    entropy: float
    """Mean over the newcomer's examples, of the predictions of this leaf's model, in nats."""
    usual: float | None
    """The same of its members, on examples held out; None if none of them told it."""
    probability: float
    """That the newcomer is of it, if it is of any; 0 if Algorithm 4 leads away from it."""
    confirmed: bool | None
    """Whether with its labels Algorithm 4 leads to it; None: it was out of the question before."""


@dataclass(frozen=True)
class Recognition:
    """Where a newcomer without labels belongs, or why that cannot be said."""

    outcome: Outcome
    cluster: str
    """The leaf; if it cannot be told, the smallest cluster that holds all leaves in question; of a
    stranger the root."""
    candidates: tuple[Candidate, ...]
    """Every leaf; first the one whose model knows the newcomer best."""
    in_question: tuple[str, ...]
    """The leaves that it is of in all likelihood; none for a stranger."""
    num_examples: int


def assign_unlabelled(
    run: Path | str,
    data: ClientData | Path | str,
    say: Callable[[str], None] = lambda text: None,
    *,
    seed_file: str = "",
) -> Recognition:
    """Find the leaf for a client that was not there and has no labels, where that can be told.

    Everything is computed here, and nothing leaves this machine.

    Parameters
    ----------
    run : Path or str
        The folder of a finished run of cflower's own app.
    data : ClientData, Path or str
        The newcomer's examples, or a folder of them as `assign` takes it; labels are not looked
        at and need not be there.
    say : callable
        Told, in a few words, what goes on.
    seed_file : str
        The clients' secret, if the run's weights were permuted.

    Returns
    -------
    Recognition

    Raises
    ------
    RunFolderError, ConfigError
        If the run is not finished, was never split, learned from text, whose labels lie in
        itself, or was made before clients told how sure the models are.
    DataError
        If the examples cannot be read or do not fit the run's.
    """
    path = Path(run).expanduser()
    saved = SavedRun.read(path, seed_file)
    check_assignable(path, saved.own.method)
    roles = saved.own.part(DataSettings).roles
    if roles.tokens:
        raise ConfigError(
            f"The run {path.name} learned from text, where every next token is a label: give the "
            "newcomer's text without --unlabelled."
        )
    members = members_entropies(saved)
    if not isinstance(data, ClientData):
        data = load_newcomer(saved, data, replace(roles, unlabelled=True), say)
    check_fits(saved, data)
    say("Reading the run")
    return recognise(saved, members, data, say)


def members_entropies(saved: SavedRun) -> MembersEntropies:
    """What the members told in the final evaluation, as far as it can be true.

    Raises
    ------
    RunFolderError
        If nobody told anything.
    """
    leaves = {leaf.name for leaf in saved.tree.leaves}
    most = math.log(len(saved.kind.class_names)) + 1e-6  # nats: of a model that knows nothing
    leaf_of, entropies = {}, {}
    for client, told in read_json(saved.path, "summary.json")["clients"].items():
        leaf, nats = told["cluster"], told.get("entropies", {})
        if leaf in nats and leaves.issuperset(nats) and max(nats.values()) <= most:
            leaf_of[client], entropies[client] = leaf, nats
    if not entropies:
        raise RunFolderError(
            f"The run {saved.path.name} does not say how sure its models are of its clients' "
            "examples, as earlier versions of cflower did not: give the newcomer's labels, or run "
            "it again."
        )
    return MembersEntropies.of(leaf_of, entropies)


def recognise(
    saved: SavedRun, members: MembersEntropies, data: ClientData, say: Callable[[str], None]
) -> Recognition:
    """Which leaf's inputs the newcomer's are like; see `assign_unlabelled`."""
    tree, parts = saved.tree, (data.train, data.validation)
    leaves = {leaf.name: leaf for leaf in tree.leaves}
    entropy = {
        name: mean_entropy(np.concatenate([predict(saved.module(leaf.model), p) for p in parts]))
        for name, leaf in leaves.items()
    }
    first = members.probabilities(entropy, leaves)
    confirmed = {
        name: confirms(tree, name, with_labels_of(saved, leaves[name], data, say))
        for name in leaves
        if first[name] > NEGLIGIBLE * max(first.values())
    }
    best = max(
        (name for name, found in confirmed.items() if found),
        key=lambda name: first[name],
        default="",
    )
    rivals = [
        name
        for name, found in confirmed.items()
        # Two models that are alike, as right after a split, give the same labels: one leaf's way.
        if found or (best and not members.told_apart(best, name))
    ]
    probability = members.probabilities(entropy, rivals)
    contradicted = sum(first[name] for name in rivals) < 0.5
    stranger = contradicted or members.unsure(entropy, best)
    left = () if stranger else likely(probability)
    outcome = {0: Outcome.STRANGER, 1: Outcome.PLACED}.get(len(left), Outcome.UNTOLD)
    cluster = common_cluster(left) or ROOT
    candidates = [
        Candidate(
            name,
            len(leaf.members),
            entropy[name],
            members.own[name].mean if name in members.own else None,
            probability.get(name, 0.0),
            confirmed.get(name),
        )
        for name, leaf in leaves.items()
    ]
    candidates.sort(key=lambda c: (-c.probability * (not stranger), -first[c.cluster]))
    return Recognition(outcome, cluster, tuple(candidates), left, sum(map(len, parts)))


def with_labels_of(
    saved: SavedRun, leaf: Cluster, data: ClientData, say: Callable[[str], None]
) -> Callable[[Cluster], Vector]:
    """The newcomer's update of any cluster's model, with the labels that a leaf's model gives."""
    labels = predict(saved.module(leaf.model), data.train).argmax(axis=1)
    labelled = replace(data, train=replace(data.train, labels=labels))
    return lambda cluster: newcomers_update(saved, labelled, say, cluster)


def likely(probability: Mapping[str, float]) -> tuple[str, ...]:
    """The fewest leaves that hold a newcomer with probability `SURE`.

    >>> likely({"0.0": 0.02, "0.1.0": 0.5, "0.1.1": 0.48})
    ('0.1.0', '0.1.1')
    """
    names = sorted(probability, key=lambda name: -probability[name])
    sums = np.cumsum([probability[name] for name in names])
    return in_order(names[: int(np.searchsorted(sums, SURE)) + 1])


def common_cluster(names: Iterable[str]) -> str:
    """The smallest cluster that is above all of these, or is the only one; empty of none.

    >>> common_cluster(["0.1.0", "0.1.1"]), common_cluster(["0.1.0", "0.10"])
    ('0.1', '0')
    """
    steps = []
    for level in zip(*(name.split(".") for name in names), strict=False):
        if len(set(level)) > 1:
            break
        steps.append(level[0])
    return ".".join(steps)
