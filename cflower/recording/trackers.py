"""Experiment trackers: they receive the figures of ``rounds.jsonl`` after every round.

A figure is named by its path in the record: cluster ``0.1``'s ``mean_norm`` is ``0.1/mean_norm``,
its mean accuracy ``0.1/metrics/accuracy``, a client's ``clients/partition-3/accuracy``.
"""

import os
import re
from collections import ChainMap
from collections.abc import Mapping
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


class TensorBoard:
    """Event files in ``<run>/tensorboard``, for ``tensorboard --logdir <output-dir>``."""

    def __init__(self, run: Path, config: Mapping[str, Any]) -> None:
        from tensorboard.summary import Writer

        self._writer = Writer(str(run / "tensorboard"))
        self.close = self._writer.close

    def log(self, figures: Figures, server_round: int) -> None:
        for name, value in figures.items():
            self._writer.add_scalar(name, value, server_round)
        self._writer.flush()


class WeightsAndBiases:
    """An offline run in ``<run>/wandb``, for ``wandb sync``; ``WANDB_MODE`` can change that."""

    def __init__(self, run: Path, config: Mapping[str, Any]) -> None:
        import wandb

        mode = os.environ.get("WANDB_MODE", "offline")
        project = os.environ.get("WANDB_PROJECT", "cflower")
        settings = wandb.Settings(mode=mode, project=project, silent=True, console="off")
        self._run = wandb.init(name=run.name, dir=str(run), config=dict(config), settings=settings)
        self.close = self._run.finish

    def log(self, figures: Figures, server_round: int) -> None:
        self._run.log({**figures, "round": server_round}, step=server_round)


class MLflow:
    """A run of the experiment "cflower" in ``<run>/mlflow.db`` or ``MLFLOW_TRACKING_URI``."""

    def __init__(self, run: Path, config: Mapping[str, Any]) -> None:
        from mlflow import MlflowClient

        database = f"sqlite:///{run / 'mlflow.db'}"
        self._client = MlflowClient(os.environ.get("MLFLOW_TRACKING_URI", database))
        existing = self._client.get_experiment_by_name("cflower")
        number = existing.experiment_id if existing else self._client.create_experiment("cflower")
        self._id = self._client.create_run(number, run_name=run.name).info.run_id
        self.close = partial(self._client.set_terminated, self._id)
        for key, value in config.items():
            self._client.log_param(self._id, key, value)

    def log(self, figures: Figures, server_round: int) -> None:
        from mlflow.entities import Metric

        # Characters that MLflow refuses in a name become _.
        metrics = [
            Metric(re.sub(r"[^\w\-. :/]", "_", name), value, 0, server_round)
            for name, value in figures.items()
        ]
        for start in range(0, len(metrics), 1000):  # most that MLflow takes at once
            self._client.log_batch(self._id, metrics[start : start + 1000])


Backend = TensorBoard | WeightsAndBiases | MLflow
BACKENDS: dict[str, type[Backend]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
    "mlflow": MLflow,
}


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
        self._backend = BACKENDS[self._name](self._recorder.path, self._recorder.config)

    def on_round(self, report: RoundReport) -> None:
        lines = (tracked_figures(round_line(report, one)) for one in report.decisions)
        self._backend.log(dict(ChainMap(*lines)), report.server_round)

    def on_end(self, report: FinalReport | None) -> None:
        self._backend.close()
