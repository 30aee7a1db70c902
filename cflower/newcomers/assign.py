"""A newcomer after the run: which of its models is the one for a client that was not there."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from flwr.app import MessageType
from flwr.clientapp import ClientApp

from cflower.algorithm.difference import Vector
from cflower.algorithm.placement import Step, descend
from cflower.algorithm.tree import Cluster, ParameterTree
from cflower.data.client_data import ClientData
from cflower.data.columns import Roles
from cflower.data.own_data import OwnData, load_own_data
from cflower.data.settings import DataSettings
from cflower.errors import ConfigError, DataError
from cflower.learning.settings import TrainingSettings
from cflower.learning.training import evaluate, train
from cflower.newcomers.local_client import LocalClient, load_client_app
from cflower.newcomers.pytorch_run import SavedRun
from cflower.runs.stored_run import StoredRun, check_assignable
from cflower.seeding import torch_seed
from cflower.strategy.reports import Metric


class Level(NamedTuple):
    """A cluster on the newcomer's path from the root to its leaf."""

    cluster: str
    members: int
    metrics: Mapping[str, Any]
    """Of this cluster's model on the newcomer's held-out examples."""
    step: Step | None
    """How it went on from here; None at the leaf."""

    @property
    def accuracy(self) -> float:
        """Of the metrics."""
        return float(self.metrics["accuracy"])

    @property
    def loss(self) -> float:
        """Of the metrics."""
        return float(self.metrics["loss"])


@dataclass(frozen=True)
class Assignment:
    """Where Algorithm 4 took a newcomer."""

    levels: tuple[Level, ...]
    """From the root to the leaf."""
    num_train: int
    num_held_out: int
    metric: Metric = Metric()
    """The run's, by which its models are judged."""

    @property
    def cluster(self) -> str:
        """The leaf."""
        return self.levels[-1].cluster

    @property
    def best(self) -> Level:
        """The level whose model serves the newcomer best."""
        values = [level.metrics.get(self.metric.name) for level in self.levels]
        best = self.metric.best(value for value in values if value is not None)
        return self.levels[values.index(best)]

    @property
    def stranger_at(self) -> Step | None:
        """The first fork at which the newcomer resembles nobody, if there is one."""
        steps = (level.step for level in self.levels if level.step is not None)
        return next((step for step in steps if not step.familiar), None)


def assign(
    run: Path | str,
    data: ClientData | Path | str | None = None,
    say: Callable[[str], None] = lambda text: None,
    *,
    app: ClientApp | str | None = None,
    node_config: Mapping[str, Any] | None = None,
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
        For a run of cflower's own app: the newcomer's examples, or a folder of them: images by
        class, Parquet, CSV or NPZ files, read as the ``data-path`` of a SuperNode is.
    say : callable
        Told, in a few words, what goes on.
    app : ClientApp or str
        For a run of any other app, instead of ``data``: its ClientApp, or ``package.module:name``.
    node_config : mapping
        With ``app``: what its node config would be, such as ``{"partition-id": 10}``.
    seed_file : str
        The clients' secret, if the weights of a run of cflower's own app were permuted.

    Returns
    -------
    Assignment
        The way down, with similarities at every fork, and the metrics of every model on it.

    Raises
    ------
    RunFolderError, ConfigError
        If the run is not finished, was never split, or its folder is damaged.
    DataError
        If the examples cannot be read or do not fit the run's.
    FederationError
        If the app's replies cannot be used.
    """
    path = Path(run).expanduser()
    if (app is None) == (data is None):
        raise ConfigError(
            "A newcomer has either data (of a run of cflower's own app) or an app (of a run of "
            f"any other): got {'neither' if app is None else 'both'}."
        )
    if app is not None:
        return assign_with_app(path, app, node_config or {}, say)
    assert data is not None
    saved = SavedRun.read(path, seed_file)
    check_assignable(path, saved.own.method)
    roles = saved.own.part(DataSettings).roles
    data = data if isinstance(data, ClientData) else load_newcomer(saved, data, roles, say)
    check_fits(saved, data)
    validation = data.validation
    say("Reading the run")
    levels = way_down(
        saved.tree,
        partial(newcomers_update, saved, data, say),
        lambda cluster: evaluate(saved.module(cluster.model), validation),
    )
    return Assignment(levels, len(data.train), len(validation))


def load_newcomer(
    saved: SavedRun, data: Path | str, roles: Roles, say: Callable[[str], None]
) -> ClientData:
    """The examples in a newcomer's folder, read as those of the run's clients."""
    say("Reading the data")
    config = saved.own
    return load_own_data(
        OwnData(
            str(data),
            saved.kind.class_names,
            config.validation_fraction,
            config.seed,
            key="--data",
            roles=roles,
            standardise=config.standardise,
        )
    )


def check_fits(saved: SavedRun, data: ClientData) -> None:
    """Refuse examples of another shape or with other classes than the run's.

    Raises
    ------
    DataError
    """
    told = {"input-shape": data.train.input_shape, "class-names": data.train.class_names}
    if problem := saved.kind.problem_with(told):
        raise DataError(f"The newcomer does not fit the run: {problem}.")


def assign_with_app(
    path: Path, app: ClientApp | str, node_config: Mapping[str, Any], say: Callable[[str], None]
) -> Assignment:
    """Algorithm 4 through the app's own ClientApp; see `assign`."""
    stored = StoredRun.read(path)
    check_assignable(path, stored.settings["method"])
    client_app = load_client_app(app) if isinstance(app, str) else app
    client = LocalClient(stored, client_app, node_config)
    say("Training")
    levels = way_down(stored.tree, client.update, client.measured)
    told = client.num_examples
    metric = Metric(stored.settings["metric"], stored.settings["higher-is-better"])
    return Assignment(levels, int(told[MessageType.TRAIN]), int(told[MessageType.EVALUATE]), metric)


def way_down(
    tree: ParameterTree,
    update_of: Callable[[Cluster], Vector],
    measured: Callable[[Cluster], Mapping[str, Any]],
) -> tuple[Level, ...]:
    """Where `descend` leads, and how the newcomer measures every model on the way."""
    steps = descend(tree, update_of)
    by_cluster = {step.cluster: step for step in steps}
    return tuple(
        Level(c.name, len(c.members), measured(c.grown), by_cluster.get(c.name))
        for c in tree.path(steps[-1].fork.child)
    )


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
    config, server_round = saved.own, cluster.split_round
    assert server_round is not None
    model = saved.module(cluster.model)
    seed = torch_seed(config.seed, "train", server_round, name)
    train(model, data.train, config.part(TrainingSettings), server_round=server_round, seed=seed)
    return saved.compared(model, cluster.model)
