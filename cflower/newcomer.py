"""A newcomer after the run: which of its models is the one for a client that was not there."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from cflower.algorithm.newcomer import Step, descend
from cflower.algorithm.tree import Cluster, Vector
from cflower.data.client_data import ClientData, DataSettings
from cflower.data.own_data import OwnData, load_own_data
from cflower.errors import DataError, RunFolderError
from cflower.learning.training import TrainingSettings, evaluate, train
from cflower.runs.reading import read_json
from cflower.saved_run import SavedRun
from cflower.seeding import torch_seed


class Level(NamedTuple):
    """A cluster on the newcomer's way from the root to its leaf."""

    cluster: str
    members: int
    accuracy: float
    """Of this cluster's model on the newcomer's held-out examples."""
    loss: float
    step: Step | None
    """How it went on from here; None at the leaf."""


@dataclass(frozen=True)
class Assignment:
    """Where Algorithm 4 took a newcomer."""

    levels: tuple[Level, ...]
    """From the root to the leaf."""
    num_train: int
    num_held_out: int

    @property
    def cluster(self) -> str:
        """The leaf."""
        return self.levels[-1].cluster

    @property
    def stranger_at(self) -> Step | None:
        """The first fork at which the newcomer resembles nobody, if there is one."""
        steps = (level.step for level in self.levels if level.step is not None)
        return next((step for step in steps if not step.familiar), None)


def assign(
    run: Path | str,
    data: ClientData | Path | str,
    say: Callable[[str], None] = lambda text: None,
    *,
    seed_file: str = "",
) -> Assignment:
    """Algorithm 4 (Sattler, Müller, Samek, arXiv 1910.01991) for a client that was not there.

    From the model of every fork of the run's parameter tree the newcomer trains as the run's
    clients did, and goes into the branch that holds the update most like its own. Everything is
    computed here, so neither the newcomer's examples nor its updates leave this machine.

    Parameters
    ----------
    run : Path or str
        The folder of a finished run.
    data : ClientData, Path or str
        The newcomer's examples, or a folder of them: images by class, Parquet, CSV or NPZ files,
        read as the ``data-path`` of a SuperNode is.
    say : callable
        Told, in a few words, what goes on.
    seed_file : str
        The clients' secret, if the run's weights were permuted.

    Returns
    -------
    Assignment
        The way down, with similarities at every fork, and the accuracy of every model on it.

    Raises
    ------
    RunFolderError, ConfigError
        If the run is not finished, was never split, or its folder is damaged.
    DataError
        If the examples cannot be read or do not fit the run's.
    """
    path = Path(run).expanduser()
    saved = SavedRun.read(path, seed_file)
    check_assignable(saved)
    if not isinstance(data, ClientData):
        say("Reading the data")
        classes, config = saved.kind.class_names, saved.config
        own = OwnData(
            str(data),
            classes,
            config.validation_fraction,
            config.seed,
            key="--data",
            roles=config.part(DataSettings).roles,
            standardise=config.standardise,
        )
        data = load_own_data(own)
    train_shape, names = data.train.input_shape, data.train.class_names
    problem = saved.kind.problem_with({"input-shape": train_shape, "class-names": names})
    if problem:
        raise DataError(f"The newcomer does not fit the run: {problem}.")
    say("Reading the run")
    tree = saved.tree
    steps = descend(tree, partial(newcomers_update, saved, data, say))
    by_cluster = {step.cluster: step for step in steps}
    levels = []
    for cluster in tree.path(steps[-1].fork.child):
        measured = evaluate(saved.module(cluster.model), data.validation)
        step = by_cluster.get(cluster.name)
        levels.append(Level(cluster.name, len(cluster.members), **measured, step=step))
    return Assignment(tuple(levels), len(data.train), len(data.validation))


def newcomers_update(
    saved: SavedRun,
    data: ClientData,
    say: Callable[[str], None],
    cluster: Cluster,
    *,
    name: str = "newcomer",
) -> Vector:
    """Train from a fork's model as in the round of its split; the update as it was compared.

    Under a member's ``name`` and with its data this is the update on its edge.
    """
    say(f"Training from the model of cluster {cluster.name}")
    config, server_round = saved.config, cluster.split_round
    assert server_round is not None
    model = saved.module(cluster.model)
    seed = torch_seed(config.seed, "train", server_round, name)
    train(model, data.train, config.part(TrainingSettings), server_round=server_round, seed=seed)
    return saved.compared(model, cluster.model)


def check_assignable(saved: SavedRun) -> None:
    """Refuse a run whose tree is not final, or has no fork.

    Raises
    ------
    RunFolderError
        If the run is not finished, trained every client alone, or was never split.
    """
    name, summary = saved.path.name, read_json(saved.path, "summary.json")
    if not summary.get("finished"):
        raise RunFolderError(
            f"The run {name} is not finished (round {summary.get('rounds')}): its clusters may "
            "still split, so let it finish, or go on with it (resume) if it was interrupted."
        )
    if saved.config.method == "isolated":
        raise RunFolderError(
            f"The run {name} trained every client alone (method = 'isolated'): it has no groups "
            "to assign a newcomer to."
        )
    if not summary.get("splits"):
        raise RunFolderError(
            f"The run {name} was never split: all its clients share the model of cluster 0, which "
            "is a newcomer's too."
        )
