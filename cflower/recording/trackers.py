"""Experiment trackers: the figures of ``rounds.jsonl``, under the same names, as they come in.

A metric is named by its path in the record: cluster ``0.1``'s ``mean_norm`` is ``0.1/mean_norm``,
its mean accuracy ``0.1/metrics/accuracy``, a client's ``clients/partition-3/accuracy``.
"""

import os
import re
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from cflower.errors import ConfigError
from cflower.recording.serialization import Figures, round_measures
from cflower.settings import check_choice
from cflower.strategy.observers import Observer, RunStart
from cflower.strategy.reports import FinalReport, RoundReport

if TYPE_CHECKING:
    from cflower.recording.recorder import Recorder

TRACKERS = ("tensorboard", "wandb", "mlflow")


class Backend(Protocol):
    """Where the figures of a run go, besides its folder."""

    def log(self, figures: Figures, server_round: int) -> None:
        """Take in the figures of one round."""

    def close(self) -> None:
        """The run is over."""


def start_tracker(name: str, run: Path, config: Mapping[str, Any]) -> Backend | None:
    """The tracker that the key ``tracker`` names; None for "".

    Parameters
    ----------
    name : {"", "tensorboard", "wandb", "mlflow"}
    run : Path
        The run folder, into which all of them write unless their own environment variables say
        otherwise.
    config : mapping
        The run config, which the tracker shows too.

    Raises
    ------
    ConfigError
        If the tracker's package is not installed.
    """
    makers: dict[str, Callable[[Path, Mapping[str, Any]], Backend]] = {
        "tensorboard": TensorBoard,
        "wandb": WeightsAndBiases,
        "mlflow": MLflow,
    }
    check_tracker(name)
    return makers[name](run, config) if name else None


def check_tracker(name: str) -> None:
    """Refuse a tracker whose package is missing, before anything has started.

    Raises
    ------
    ConfigError
        If the tracker's package is not installed.
    """
    if name:
        check_choice("tracker", name, TRACKERS)
    if name and find_spec(name) is None:
        raise ConfigError(
            f"tracker={name!r} needs the package {name}, which is not installed: "
            "pip install 'cflower[tracking]'."
        )


class Tracker(Observer):
    """Sends every round's figures to an experiment tracker.

    Parameters
    ----------
    name : {"tensorboard", "wandb", "mlflow", ""}
        "": to none.
    recorder : Recorder
        Of the same run: the tracker writes into its folder and shows its config.

    Raises
    ------
    ConfigError
        If there is no such tracker, or its package is not installed.
    """

    def __init__(self, name: str, recorder: "Recorder") -> None:
        check_tracker(name)
        self._name, self._recorder = name, recorder
        self._backend: Backend | None = None

    def on_start(self, run: RunStart) -> None:
        """Begin the tracker's run."""
        self._backend = start_tracker(self._name, self._recorder.path, self._recorder.config)

    def on_round(self, report: RoundReport) -> None:
        """Send one round's figures."""
        if self._backend is not None:
            self._backend.log(round_measures(report), report.server_round)

    def on_end(self, report: FinalReport | None) -> None:
        """End the tracker's run."""
        if self._backend is not None:
            self._backend.close()


class TensorBoard:
    """Event files in ``<run>/tensorboard``: ``tensorboard --logdir <output-dir>`` shows them."""

    def __init__(self, run: Path, config: Mapping[str, Any]) -> None:
        from tensorboard.summary import Writer

        self._writer = Writer(str(run / "tensorboard"))

    def log(self, figures: Figures, server_round: int) -> None:
        """One scalar a figure."""
        for name, value in figures.items():
            self._writer.add_scalar(name, value, server_round)
        self._writer.flush()

    def close(self) -> None:
        """Finish the event file."""
        self._writer.close()


class WeightsAndBiases:
    """A run in ``<run>/wandb``, kept on this machine: ``wandb sync`` uploads it if one wants.

    ``WANDB_MODE``, ``WANDB_PROJECT`` and the like are respected; without them it is offline.
    """

    def __init__(self, run: Path, config: Mapping[str, Any]) -> None:
        import wandb

        # Any: wandb's own type is known only where wandb is installed, and mypy runs without it.
        mode: Any = os.environ.get("WANDB_MODE", "offline")
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "cflower"),
            name=run.name,
            dir=str(run),
            config=dict(config),
            mode=mode,
            settings=wandb.Settings(silent=True, console="off"),
        )

    def log(self, figures: Figures, server_round: int) -> None:
        """All of a round in one step."""
        self._run.log({**figures, "round": server_round}, step=server_round)

    def close(self) -> None:
        """Finish the run's files."""
        self._run.finish()


class MLflow:
    """A run in ``<run>/mlflow.db``, or wherever ``MLFLOW_TRACKING_URI`` says.

    ``mlflow ui --backend-store-uri sqlite:///<run>/mlflow.db`` shows it.
    """

    BATCH = 1000
    """Figures that MLflow takes at once."""

    def __init__(self, run: Path, config: Mapping[str, Any]) -> None:
        from mlflow import MlflowClient

        local = f"sqlite:///{run / 'mlflow.db'}"
        self._client = MlflowClient(os.environ.get("MLFLOW_TRACKING_URI", local))
        found = self._client.get_experiment_by_name("cflower")
        place = (run / "mlflow").as_uri() if "MLFLOW_TRACKING_URI" not in os.environ else None
        experiment = (
            found.experiment_id if found else self._client.create_experiment("cflower", place)
        )
        self._id = self._client.create_run(experiment, run_name=run.name).info.run_id
        for key, value in config.items():
            self._client.log_param(self._id, key, value)

    def log(self, figures: Figures, server_round: int) -> None:
        """One metric a figure; MLflow allows fewer signs in a name, the others become ``_``."""
        from mlflow.entities import Metric

        metrics = [
            Metric(re.sub(r"[^\w\-. :/]", "_", name), value, 0, server_round)
            for name, value in figures.items()
        ]
        for start in range(0, len(metrics), self.BATCH):
            self._client.log_batch(self._id, metrics[start : start + self.BATCH])

    def close(self) -> None:
        """Mark the run as finished."""
        self._client.set_terminated(self._id)
