"""Algorithm 4 after the run: which cluster a client that did not take part belongs to."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

from cflower.algorithm.placement import Placement, descend
from cflower.algorithm.tree import ROOT, Cluster
from cflower.algorithm.weights import Vector
from cflower.data.examples import ClientData
from cflower.data.own_data import load_own_data
from cflower.data.settings import DataSettings
from cflower.errors import ConfigError, DataError, RunFolderError
from cflower.learning.models import arrays_of
from cflower.learning.training import evaluate, train
from cflower.messages.arrays import record_of
from cflower.metric import Metric
from cflower.newcomers.local_client import LocalClient, load_client_app
from cflower.newcomers.pytorch_run import SavedRun
from cflower.privacy.permutation import permuted
from cflower.runs.record import RunRecord
from cflower.runs.records import PersonalLine
from cflower.seeding import torch_seed
from cflower.tables.agreement import as_text

Progress = Callable[[str], None]
NEWCOMER = "newcomer"
"""Its name in the seed of its training."""
DARKEST = 0.1
"""A largest pixel below this is a sign of another range, such as 0 to 16."""


class Level(NamedTuple):
    """A cluster on the newcomer's path from the root to its leaf."""

    cluster: str
    members: int
    metrics: Mapping[str, Any]
    """Metrics of this cluster's model on the newcomer's held-out examples."""
    step: Placement | None
    """The placement among this cluster's children; None at the leaf."""


@dataclass(frozen=True)
class Assignment:
    """The leaf that Algorithm 4 assigns a newcomer to, with the path to it."""

    levels: tuple[Level, ...]
    num_train: int
    num_held_out: int
    metric: Metric = Metric()
    personal: PersonalLine | None = None
    """The personal step of the leaf, as in ``summary.json``."""

    @property
    def share(self) -> float:
        """The share of a model of its own that serves the newcomer best, by its leaf's κ."""
        if self.personal is None or self.personal.kappa is None:
            return 0.0
        return self.num_train / (self.num_train + self.personal.kappa)

    @property
    def cluster(self) -> str:
        return self.levels[-1].cluster

    @property
    def best(self) -> Level:
        values = [level.metrics.get(self.metric.name) for level in self.levels]
        best = self.metric.best(value for value in values if value is not None)
        return self.levels[values.index(best)]

    @property
    def stranger_at(self) -> Placement | None:
        """The first placement in which the newcomer resembles no child; None if there is none."""
        steps = (level.step for level in self.levels)
        return next((step for step in steps if step and not step.familiar), None)


def assign(
    run: Path | str,
    data: ClientData | Path | str | None = None,
    progress: Progress = lambda text: None,
    *,
    app: ClientApp | str | None = None,
    node_config: Mapping[str, Any] | None = None,
    seed_file: str = "",
    own_code: bool = False,
) -> Assignment:
    """Algorithm 4 (Sattler, Müller, Samek, arXiv 1910.01991) for a client that did not take part.

    At every split cluster on its path the newcomer trains that cluster's model as the run's
    clients did, and is assigned to the child with the most similar updates; all on this machine.

    Parameters
    ----------
    run : Path or str
        The folder of a finished run.
    data : ClientData, Path or str
        For a run of cflower's own app: the newcomer's examples, or a folder of them: images by
        class, Parquet, CSV or NPZ files, read as the ``data-path`` of a SuperNode is.
    progress : callable
        Receives a few words about each step.
    app : ClientApp or str
        For a run of any other app, instead of ``data``: its ClientApp, or ``package.module:name``.
    node_config : mapping
        With ``app``: what its node config would be, such as ``{"partition-id": 10}``.
    seed_file : str
        The clients' secret, if the weights of a run of cflower's own app were permuted.
    own_code : bool
        Permits running the Python function that the run's config may name as its model.

    Returns
    -------
    Assignment
        The path with the similarities at every split, and the metrics of every model on it.

    Raises
    ------
    RunFolderError, ConfigError
        If the run is not finished, was never split, or its folder is damaged.
    DataError, FederationError
        If the examples do not fit the run's, or the app's replies cannot be used.
    """
    path = Path(run).expanduser()
    client: LocalClient | PyTorchClient
    if app is not None and data is None:
        record = RunRecord(path)
        check_assignable(record)
        client_app = load_client_app(app) if isinstance(app, str) else app
        client = LocalClient(record, client_app, node_config or {})
    elif data is not None and app is None:
        record = saved = SavedRun(path, seed_file, own_code)
        check_assignable(saved)
        progress("Reading the data")
        client = PyTorchClient(saved, newcomers_data(saved, data))
    else:
        raise ConfigError(
            "Give the newcomer's data (--data, for a run of cflower's own app) or its ClientApp "
            f"(--app, for a run of any other): got {'neither' if app is None else 'both'}."
        )

    def update(cluster: Cluster) -> Vector:
        progress(f"Training from the model of cluster {cluster.name}")
        return client.update(cluster)

    steps = tuple(descend(record.tree, update))
    way = [record.tree.serving(c.name) for c in record.tree.path(steps[-1].child)]
    levels = tuple(
        Level(cluster.name, len(cluster.members), client.evaluate(cluster), step)
        for cluster, step in zip_longest(way, steps)
    )
    personal = record.summary.personal.get(levels[-1].cluster)
    return Assignment(levels, *client.sizes, record.metric, personal)


def check_assignable(run: RunRecord) -> None:
    """Refuse a run without groups to choose from: not finished, or without a split."""
    if not run.finished:
        text = (
            f"is not finished (round {run.summary.rounds}): its clusters may still split, so "
            "let it finish, or resume it if it was interrupted."
        )
    elif run.settings["method"] == "isolated":
        text = (
            "trained every client alone (method = 'isolated'): it has no groups to assign a "
            "newcomer to."
        )
    elif run.summary.lasting:
        return
    else:
        text = (
            "was never split: all its clients share the model of cluster 0, which is a newcomer's "
            "too."
        )
        step = run.summary.personal.get(ROOT)
        if step and step.accepted:
            text += (
                " Its clients moved it towards models of their own: with n training examples "
                f"n / (n + {step.kappa:g}) of the way to one trained by itself for "
                f"{step.length} rounds from the {step.start} model serves a newcomer."
            )
    raise RunFolderError(f"The run {run.name} {text}")


def newcomers_data(saved: SavedRun, data: ClientData | Path | str) -> ClientData:
    """The newcomer's examples, read as those of the run's clients; refused if they do not fit."""
    if not isinstance(data, ClientData):
        settings = replace(saved.own.part(DataSettings), decide_fraction=0.0)
        known = saved.kind.class_names, as_text(saved.preparation) if saved.preparation else ""
        data = load_own_data(str(data), settings, *known, key="--data")
    facts = {"input-shape": data.train.input_shape, "class-names": data.train.class_names}
    if problem := saved.kind.problem_with(facts):
        raise DataError(f"The newcomer does not fit the run: {problem}.")
    check_pixels(data.train.inputs)
    return data


def check_pixels(inputs: NDArray[np.floating]) -> None:
    """Raise a DataError for images with pixels in another range than those of the run, 0 to 1."""
    if inputs.ndim != 4 or inputs.min() < 0:
        return  # no images, or standardised ones
    largest = float(inputs.max())
    if not DARKEST < largest <= 1:
        raise DataError(
            f"The newcomer's largest pixel is {largest:.4g} after whole numbers were divided by "
            "255: expected up to 1. Scale its pixels to 0 to 255 (whole numbers) or 0 to 1."
        )


class PyTorchClient(NamedTuple):
    """A newcomer to a run of cflower's own app."""

    run: SavedRun
    data: ClientData

    @property
    def sizes(self) -> tuple[int, int]:
        return len(self.data.train), len(self.data.report)

    def update(self, cluster: Cluster) -> Vector:
        """Its update of a split cluster's model, as the run compared updates, shape (k,)."""
        run, server_round = self.run, cluster.split_round
        assert server_round is not None
        model, seed = run.module(cluster.model), run.own.seed
        seed = torch_seed(seed, "train", server_round, NEWCOMER)
        train(model, self.data.train, run.own, server_round=server_round, seed=seed)
        sent = arrays_of(model)
        if run.secret is not None:
            sent = permuted(sent, run.secret)
        trained = run.layout.weights(record_of(sent)).trained
        return run.projection.seen(run.projection.keep(trained - cluster.model.trained))

    def evaluate(self, cluster: Cluster) -> Mapping[str, float]:
        return evaluate(self.run.module(cluster.model), self.data.report)
