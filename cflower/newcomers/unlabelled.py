"""Assigns a newcomer without labels, where its inputs suffice for that.

Algorithm 4 with the labels that a leaf's model predicts: on inputs like its training data they are
mostly right, and the update resembles those of the leaf's members; on other inputs they are noise.
Where groups differ only in their labels, it confirms several leaves.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from posixpath import commonpath
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cflower.algorithm.placement import Branches, Placement, descend
from cflower.algorithm.tree import ROOT, Cluster, ParameterTree
from cflower.data.prepared import ClientData
from cflower.errors import ConfigError
from cflower.learning.training import predict
from cflower.newcomers.assign import Progress, PyTorchClient, check_assignable, newcomers_data
from cflower.newcomers.pytorch_run import SavedRun

Outcome = Literal["placed", "ambiguous", "stranger"]


class Candidate(NamedTuple):
    """A leaf, compared with the newcomer."""

    cluster: str
    members: int
    entropy: float
    """Mean entropy of this leaf's model on the newcomer's examples, in nats."""
    confirmed: bool
    """Whether Algorithm 4, with this leaf's pseudo-labels, leads here, and the newcomer resembles
    the members. Here is also a leaf whose model predicts the same: right after a split two have one
    model."""


@dataclass(frozen=True)
class Recognition:
    """The leaves that a newcomer without labels may belong to."""

    candidates: tuple[Candidate, ...]
    """Every leaf: the confirmed ones first, then by entropy."""
    num_examples: int

    @property
    def in_question(self) -> tuple[str, ...]:
        """The confirmed leaves, the one with the lowest entropy first; none for a stranger."""
        return tuple(leaf.cluster for leaf in self.candidates if leaf.confirmed)

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
        As for `assign`; also for text, which contains its labels.
    """
    path = Path(run).expanduser()
    saved = SavedRun(path, seed_file, own_code)
    if saved.own.is_regression:
        raise ConfigError(
            f"The run {path.name} predicts numbers, and without labels only classifiers can be "
            "compared: label some of the newcomer's rows, and leave out --unlabelled."
        )
    check_assignable(saved)
    if saved.own.is_text:
        raise ConfigError(
            f"The run {path.name} learned from text, where every next token is a label: give the "
            "newcomer's text without --unlabelled."
        )
    progress("Reading the data")
    examples = newcomers_data(saved, data, labelled=False)
    return compare_with_leaves(saved, examples, progress)


def compare_with_leaves(saved: SavedRun, data: ClientData, progress: Progress) -> Recognition:
    """Compare the newcomer's inputs with those of every leaf; see `assign_unlabelled`."""
    candidates = [compared(saved, leaf, data, progress) for leaf in saved.tree.leaves]
    candidates.sort(key=lambda leaf: (not leaf.confirmed, leaf.entropy))
    return Recognition(tuple(candidates), len(data.train) + len(data.report))


def compared(saved: SavedRun, leaf: Cluster, data: ClientData, progress: Progress) -> Candidate:
    """One leaf; it is confirmed only if the newcomer resembles the members of every child."""
    model = saved.module(leaf.model)
    logits = predict(model, data.train), predict(model, data.report)
    labels = logits[0].argmax(axis=1)
    labelled = replace(data, train=replace(data.train, labels=labels))
    steps = [*descend(saved.tree, PyTorchClient(saved, labelled, progress).update)]
    reached = predict(saved.module(saved.tree.clusters[steps[-1].child].model), data.train)
    same = np.array_equal(reached.argmax(axis=1), labels)
    confirmed = same and all(resembles_members(saved.tree, step) for step in steps)
    entropy = mean_entropy(np.concatenate(logits))
    return Candidate(leaf.name, len(leaf.members), entropy, confirmed)


def resembles_members(tree: ParameterTree, step: Placement) -> bool:
    """Whether a newcomer is as similar as the least similar member, if there are more than one.

    With labels the bar of Algorithm 4 suffices; a leaf's pseudo-labels for inputs that are nearly
    like its own, such as digits upside down, are right often enough to pass it.
    """
    least = Branches.of(tree, step.cluster).least_similarity(step.child)
    return step.familiar and (step.similarity >= least or least == np.inf)


def mean_entropy(logits: NDArray[np.floating]) -> float:
    """Mean entropy of the probabilities that logits (n, num_classes) predict, in nats.

    >>> round(mean_entropy(np.zeros((3, 2))), 4), mean_entropy(np.array([[900.0, 0.0]]))
    (0.6931, 0.0)
    >>> mean_entropy(np.array([[np.inf, 0.0]]))
    nan
    """
    from scipy.special import entr, softmax  # half a second to import

    with np.errstate(over="ignore", invalid="ignore"):  # a model that diverged: NaN stays NaN
        return float(entr(softmax(logits.astype(np.float64), axis=1)).sum(axis=1).mean())
