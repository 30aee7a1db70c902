"""Experiment trackers: they receive the figures of ``rounds.jsonl`` after every round.

A figure is named by its path in the record: cluster ``0.1``'s ``mean_norm`` is ``0.1/mean_norm``,
its mean accuracy ``0.1/metrics/accuracy``, a client's ``clients/partition-3/accuracy``.
"""

import os
import re
from collections import ChainMap
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cflower.errors import ConfigError
from cflower.recording.serialization import Figures, round_line, tracked_figures
from cflower.settings import check_choice
from cflower.strategy.observers import Observer, RunStart
from cflower.strategy.reports import FinalReport, RoundReport

if TYPE_CHECKING:
    from cflower.recording.recorder import Recorder


Log = Callable[[Figures, int], None]


def tensorboard(run: Path, config: Mapping[str, Any]) -> tuple[Log, Callable[[], None]]:
    """Event files in ``<run>/tensorboard``, for ``tensorboard --logdir <output-dir>``."""
    from tensorboard.summary import Writer

    writer = Writer(str(run / "tensorboard"))

    def log(figures: Figures, server_round: int) -> None:
        for name, value in figures.items():
            writer.add_scalar(name, value, server_round)
        writer.flush()

    return log, writer.close


def weights_and_biases(run: Path, config: Mapping[str, Any]) -> tuple[Log, Callable[[], None]]:
    """An offline run in ``<run>/wandb``, for ``wandb sync``; ``WANDB_MODE`` can change that."""
    import wandb

    mode = os.environ.get("WANDB_MODE", "offline")
    project = os.environ.get("WANDB_PROJECT", "cflower")
    settings = wandb.Settings(mode=mode, project=project, silent=True, console="off")
    opened = wandb.init(name=run.name, dir=str(run), config=dict(config), settings=settings)

    def log(figures: Figures, server_round: int) -> None:
        opened.log({**figures, "round": server_round}, step=server_round)

    return log, opened.finish


def mlflow(run: Path, config: Mapping[str, Any]) -> tuple[Log, Callable[[], None]]:
    """A run of the experiment "cflower" in ``<run>/mlflow.db`` or ``MLFLOW_TRACKING_URI``."""
    from mlflow import MlflowClient
    from mlflow.entities import Metric

    database = f"sqlite:///{run / 'mlflow.db'}"
    client = MlflowClient(os.environ.get("MLFLOW_TRACKING_URI", database))
    existing = client.get_experiment_by_name("cflower")
    number = existing.experiment_id if existing else client.create_experiment("cflower")
    opened = client.create_run(number, run_name=run.name).info.run_id
    for key, value in config.items():
        client.log_param(opened, key, value)

    def log(figures: Figures, server_round: int) -> None:
        # Characters that MLflow refuses in a name become _.
        metrics = [
            Metric(re.sub(r"[^\w\-. :/]", "_", name), value, 0, server_round)
            for name, value in figures.items()
        ]
        for start in range(0, len(metrics), 1000):  # most that MLflow takes at once
            client.log_batch(opened, metrics[start : start + 1000])

    return log, partial(client.set_terminated, opened)


BACKENDS = {"tensorboard": tensorboard, "wandb": weights_and_biases, "mlflow": mlflow}


class Tracker(Observer):
    """Sends every round's figures to an experiment tracker.

    Parameters
    ----------
    name : {"tensorboard", "wandb", "mlflow"}
    recorder : Recorder
        Gives the config to show, and the folder to write into unless the tracker's own environment
        variables name another place.
    """

    def __init__(self, name: str, recorder: "Recorder") -> None:
        check_choice("tracker", name, BACKENDS)
        if find_spec(name) is None:
            raise ConfigError(
                f"tracker={name!r} needs the package {name}, which is not installed: "
                f"pip install {name}."
            )
        self._name, self._recorder = name, recorder

    def on_start(self, run: RunStart) -> None:
        self._log, self._close = BACKENDS[self._name](self._recorder.path, self._recorder.config)

    def on_round(self, report: RoundReport) -> None:
        lines = (tracked_figures(round_line(report, one)) for one in report.decisions)
        self._log(dict(ChainMap(*lines)), report.server_round)

    def on_end(self, report: FinalReport | None) -> None:
        self._close()
