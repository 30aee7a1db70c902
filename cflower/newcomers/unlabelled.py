"""Assigns a newcomer without labels, where its inputs suffice for that.

The entropies of the leaves' models give probabilities, assuming that the newcomer belongs to one of
the leaves. Algorithm 4 with a leaf's pseudo-labels checks that: on inputs like its training data
they are mostly right, and the update resembles the leaf's; on other inputs they are noise. Where
groups differ only in their labels, neither distinguishes them.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from posixpath import commonpath
from typing import Literal, NamedTuple

import numpy as np

from cflower.algorithm.placement import descend
from cflower.algorithm.tree import ROOT, is_below
from cflower.data.prepared import ClientData
from cflower.errors import ConfigError, RunFolderError
from cflower.learning.selection import mean_entropy
from cflower.learning.training import predict
from cflower.newcomers.assign import Progress, PyTorchClient, check_assignable, newcomers_data
from cflower.newcomers.entropies import MembersEntropies
from cflower.newcomers.pytorch_run import SavedRun
from cflower.ordering import in_order

CONFIDENCE = 0.9  # total probability of the leaves in question
Outcome = Literal["placed", "ambiguous", "stranger"]


class Candidate(NamedTuple):
    """A leaf, compared with the newcomer."""

    cluster: str
    members: int
    entropy: float
    """Mean entropy of this leaf's model on the newcomer's examples, in nats."""
    usual: float | None
    """Mean of the same over its members' held-out examples; None if none of them reported it."""
    probability: float
    """Of this leaf, if the newcomer belongs to any; 0 if it is ruled out."""
    confirmed: bool | None
    """Whether Algorithm 4 leads here with this leaf's pseudo-labels; None if not in question."""


@dataclass(frozen=True)
class Recognition:
    """The leaves that a newcomer without labels may belong to."""

    in_question: tuple[str, ...]
    """The fewest leaves with a total probability of `CONFIDENCE`; none for a stranger."""
    candidates: tuple[Candidate, ...]
    """Every leaf, the most probable first, then by entropy."""
    num_examples: int

    @property
    def outcome(self) -> Outcome:
        """Placed in one leaf, ambiguous between several, or a stranger."""
        if not self.in_question:
            return "stranger"
        return "placed" if len(self.in_question) == 1 else "ambiguous"

    @property
    def cluster(self) -> str:
        """The smallest cluster above all leaves in question; the root for a stranger."""
        paths = [name.replace(".", "/") for name in self.in_question]
        return commonpath(paths or [ROOT]).replace("/", ".")


def assign_unlabelled(
    run: Path | str,
    data: ClientData | Path | str,
    progress: Progress = lambda text: None,
    *,
    seed_file: str = "",
    own_code: bool = False,
) -> Recognition:
    """Assign a client that did not take part and has no labels, where its inputs suffice.

    Parameters
    ----------
    run, data, progress, seed_file, own_code
        As for `assign`, but labels in ``data`` are ignored.

    Returns
    -------
    Recognition
        The leaves in question, and how each leaf compares with the newcomer.

    Raises
    ------
    RunFolderError, ConfigError, DataError
        As for `assign`; also for runs without entropies, and for text, which contains its labels.
    """
    path = Path(run).expanduser()
    saved = SavedRun(path, seed_file, own_code)
    check_assignable(saved)
    if saved.own.is_text:
        raise ConfigError(
            f"The run {path.name} learned from text, where every next token is a label: give the "
            "newcomer's text without --unlabelled."
        )
    members = members_entropies(saved)
    progress("Reading the data")
    examples = newcomers_data(saved, data, labelled=False)
    progress("Reading the run")
    return compare_with_leaves(saved, members, examples, progress)


def members_entropies(saved: SavedRun) -> MembersEntropies:
    """The valid entropies among those that the members reported in the final evaluation."""
    largest = math.log(len(saved.kind.class_names)) + 1e-6  # nats: a uniform prediction
    clients = saved.summary["clients"]
    valid = {
        name: client["entropies"]
        for name, client in clients.items()
        if client["cluster"] in client.get("entropies", {})
        and max(client["entropies"].values()) <= largest
    }
    if not valid:
        raise RunFolderError(
            f"No client of the run {saved.path.name} reported the entropies of its models: give "
            "the newcomer's labels, or run it again."
        )
    return MembersEntropies({name: clients[name]["cluster"] for name in valid}, valid)


def compare_with_leaves(
    saved: SavedRun, members: MembersEntropies, data: ClientData, progress: Progress
) -> Recognition:
    """Compare the newcomer's inputs with those of every leaf; see `assign_unlabelled`."""
    leaves, parts = saved.tree.leaves, (data.train, data.report)
    entropies = {}
    for leaf in leaves:
        logits = [predict(saved.module(leaf.model), part) for part in parts]
        entropies[leaf.name] = mean_entropy(np.concatenate(logits))
    nearest = most_probable(members.probabilities(entropies))
    confirmed = {name: pseudo_labels_confirm(saved, name, data, progress) for name in nearest}
    plausible = plausible_leaves(members, confirmed)
    if members.is_unusual(entropies, nearest[0]):
        plausible = []
    probability = members.probabilities({name: entropies[name] for name in plausible})
    candidates = [
        Candidate(
            leaf.name,
            len(leaf.members),
            entropies[leaf.name],
            members.own.means.get(leaf.name),
            probability.get(leaf.name, 0.0),
            confirmed.get(leaf.name),
        )
        for leaf in leaves
    ]
    candidates.sort(key=lambda candidate: (-candidate.probability, candidate.entropy))
    in_question = in_order(most_probable(probability))
    return Recognition(in_question, tuple(candidates), sum(map(len, parts)))


def plausible_leaves(members: MembersEntropies, confirmed: Mapping[str, bool]) -> list[str]:
    """The confirmed leaves, and those with nearly the same model as the first of them.

    Right after a split two leaves' models give the same pseudo-labels, which confirm only one.
    """
    first = next((leaf for leaf, leads_there in confirmed.items() if leads_there), "")
    return [
        leaf
        for leaf, leads_there in confirmed.items()
        if leads_there or (first and not members.distinguishes(first, leaf))
    ]


def pseudo_labels_confirm(saved: SavedRun, leaf: str, data: ClientData, progress: Progress) -> bool:
    """Whether Algorithm 4 leads to a leaf with the labels that the leaf's model predicts.

    The newcomer must resemble every child on the path.
    """
    model = saved.module(saved.tree.clusters[leaf].model)
    labels = predict(model, data.train).argmax(axis=1)
    labelled = replace(data, train=replace(data.train, labels=labels))
    steps = descend(saved.tree, PyTorchClient(saved, labelled, progress).update)
    return all(step.familiar and is_below(leaf, step.child) for step in steps)


def most_probable(probability: Mapping[str, float]) -> list[str]:
    """The fewest leaves with a total probability of `CONFIDENCE`, the most probable first.

    >>> most_probable({"0.0": 0.02, "0.1.0": 0.38, "0.1.1": 0.6})
    ['0.1.1', '0.1.0']
    """
    names = sorted(probability, key=lambda name: -probability[name])
    totals = np.cumsum([probability[name] for name in names])
    return names[: int(np.searchsorted(totals, CONFIDENCE)) + 1]
