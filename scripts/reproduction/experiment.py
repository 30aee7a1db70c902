"""What an experiment is, and how it runs a federation through cflower's own apps."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from cflower.algorithm.bipartition import bipartition
from cflower.algorithm.criteria import Criterion, Decision, Evidence, Memory, NeverSplit
from cflower.config import RunConfig, read_overrides
from cflower.errors import ConfigError
from cflower.runs.record import RunRecord
from cflower.runs.records import Config, Summary
from cflower.runs.run_files import read_record

CONFIGS = Path(__file__).parents[1] / "experiments"
HUB = {
    "mnist": "ylecun/mnist",
    "cifar10": "uoft-cs/cifar10",
    "20newsgroups": "SetFit/20_newsgroups",
}

Results = dict[str, Any]
"""What is kept of an experiment: small, JSON."""


@dataclass(frozen=True)
class Setting:
    """One call of `run.py`."""

    quick: bool
    """Small data and few rounds: whether it runs, not what it shows. Without downloads."""
    out: Path
    """For run folders and whatever else is not kept."""
    data: Path | None = None
    """Folder of local data sets by name, such as ``mnist/``; the Hub's where it is not given."""
    seed: int = 0

    def source(self, name: str) -> str:
        """The run-config key ``dataset`` for a data set such as ``"mnist"``."""
        if self.data is None and name in HUB:
            return HUB[name]
        if self.data is None:
            raise ConfigError(f"{name!r} is on no Hub: name the folder that holds it with --data.")
        if not (self.data / name).is_dir():
            raise ConfigError(f"There is no folder {name!r} in --data {self.data}.")
        return str(self.data / name)


@dataclass(frozen=True)
class Experiment:
    """One experiment."""

    name: str
    source: str
    """Where it stands in the seeds, such as ``"lab, Table 3"``."""
    what: str
    """One line."""
    run: Callable[[Setting], Results]


@dataclass(frozen=True)
class Watch:
    """Another criterion's decisions, each with the similarity matrix of its round's updates."""

    inner: Criterion = field(default_factory=NeverSplit)

    def decide(self, evidence: Evidence, memory: Memory) -> tuple[Decision, Memory]:
        """What the other decides, with the matrix."""
        decision, memory = self.inner.decide(evidence, memory)
        if not evidence.clients:
            return decision, memory
        seen = {"clients": evidence.clients, "similarity": evidence.similarity}
        return replace(decision, **seen), memory

    def inherit(self, memory: Memory) -> Memory:
        """What the other hands down."""
        return self.inner.inherit(memory)


def read_config(name: str) -> dict[str, Any]:
    """The run-config keys in ``scripts/experiments/NAME.toml``."""
    return read_overrides([str(CONFIGS / f"{name}.toml")])


def simulate(
    setting: Setting,
    name: str,
    keys: Mapping[str, Any],
    criterion: Criterion | None = None,
) -> RunRecord:
    """One run in this process, as by `cflower simulate`; what its folder holds.

    The folder is below ``setting.out / name``, one name per run of an experiment. A finished run of
    the same config that is there is taken as it is. ``setting.seed`` counts where ``keys``, a run
    config, has none; ``min-available-nodes`` is the number of clients.
    """
    from cflower import simulate
    from cflower.client_app import app as client_app
    from cflower.data.client_data import load_client_data
    from cflower.server_app import run

    place = (setting.out / name).absolute()
    given = {"seed": setting.seed} | dict(keys) | {"output-dir": str(place)}
    config = RunConfig.read(given).as_keys()
    for folder in sorted(path.parent for path in place.glob("*/summary.json")):
        same = read_record(folder, Config).config == config
        if same and read_record(folder, Summary).finished:
            print(f"{name}: taken from {folder}")
            return RunRecord.read(folder)
    print(f"{name}: {config['num-server-rounds']} rounds")
    server = partial(run, say=lambda text: None, criterion=criterion)
    clients = config["min-available-nodes"]
    summary = simulate(client_app, clients, server_app=server, run_config=config)
    load_client_data.cache_clear()  # the next run's data are others
    return RunRecord.read(place / str(summary["run_id"]))


def summary_of(run: RunRecord) -> dict[str, Any]:
    """The content of a run's ``summary.json``."""
    return run.summary.model_dump()


def separation_gap(similarity: ArrayLike, groups: ArrayLike) -> float:
    """Separation gap g(alpha) of eqs. 28, 48; above 0 the bipartition is correct (Remark 2).

    Parameters
    ----------
    similarity : array_like, shape (m, m)
    groups : array_like, shape (m,)
        The true group of each client. Used for evaluation, never for decisions.

    Examples
    --------
    >>> round(separation_gap([[1.0, 0.9, -0.8], [0.9, 1.0, -0.7], [-0.8, -0.7, 1.0]], [0, 0, 1]), 2)
    1.6
    """
    matrix, labels = np.asarray(similarity), np.asarray(groups)
    intra = matrix[labels[:, None] == labels[None, :]].min()
    return float(intra - bipartition(matrix).alpha_cross)
