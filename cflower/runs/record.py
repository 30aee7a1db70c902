"""What a run folder tells, read back: also of a run that is still going on."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from cflower.algorithm.criteria import Outcome
from cflower.algorithm.trial import Standing
from cflower.errors import RunFolderError
from cflower.ordering import in_order
from cflower.recording.serialization import ABOUT_TRIALS
from cflower.runs.baselines import BASELINES, against
from cflower.runs.run_files import read_json, read_lines
from cflower.strategy.reports import Metric

Line = Mapping[str, Any]
"""One line of ``rounds.jsonl``: one cluster in one round."""
Row = tuple[str, Mapping[str, Any]]
"""A client's name and its part of ``summary.json``."""


class RecordedMatrix(NamedTuple):
    """A similarity matrix that the run computed."""

    clients: tuple[str, ...]
    values: NDArray[np.floating]
    """Shape (m, m), in the order of ``clients``."""


@dataclass(frozen=True)
class RunRecord:
    """A run as its folder has it: whole, or as far as it has come."""

    path: Path
    config: Mapping[str, Any]
    """The app's own run config, whatever is in it."""
    settings: Mapping[str, Any]
    """How strategy and criterion describe themselves, see `ClusteredFL.settings`."""
    planned: int
    """The rounds that the run was started for."""
    versions: Mapping[str, str]
    summary: Mapping[str, Any]
    clusters: Mapping[str, Mapping[str, Any]]
    """Of ``tree.json``, in natural order."""
    lines: tuple[Line, ...]
    data: Mapping[str, Any]
    """``clients.json``: what the clients' data look like, where the run knows; else empty."""

    @classmethod
    def read(cls, path: Path) -> "RunRecord":
        """Read a run folder.

        Raises
        ------
        RunFolderError
            If ``config.json`` is missing, or a file is damaged.
        """
        begun = read_json(path, "config.json")
        config = begun.get("config", {})
        start = {"run_id": path.name, "finished": False, "rounds": 0, "clusters": {}, "splits": []}
        start |= {"clients": {}, "metrics": {}, "groups": None, "adjusted_rand_index": None}
        start |= {"baselines": None}
        tree = optional(path, "tree.json").get("clusters", {})
        return cls(
            path,
            config,
            begun.get("settings") or settings_of(config),
            begun.get("num_rounds") or config.get("num-server-rounds", 0),
            begun.get("versions", {}),
            start | optional(path, "summary.json"),
            {name: tree[name] for name in in_order(tree)},
            read_lines(path / "rounds.jsonl"),
            optional(path, "clients.json"),
        )

    @property
    def name(self) -> str:
        """The run's id."""
        return self.path.name

    @property
    def metric(self) -> Metric:
        """The metric that leads."""
        return metric_of(self.summary)

    @property
    def criterion(self) -> Mapping[str, Any]:
        """The criterion's ``name`` and its settings."""
        criterion: Mapping[str, Any] = self.settings["criterion"]
        return criterion

    @property
    def finished(self) -> bool:
        """Whether the final evaluation is in the summary."""
        return bool(self.summary["finished"])

    @cached_property
    def rounds(self) -> int:
        """The last round there is."""
        return max((line["round"] for line in self.lines), default=0)

    @cached_property
    def by_cluster(self) -> dict[str, list[Line]]:
        """The lines of each cluster before it was split, by round."""
        return by_cluster(line for line in self.lines if line["decision"] not in ABOUT_TRIALS)

    @cached_property
    def trials(self) -> dict[str, list[Line]]:
        """The lines of each cluster whose split was on trial, of these rounds."""
        return by_cluster(line for line in self.lines if line["decision"] in ABOUT_TRIALS)

    def born(self, cluster: str) -> int:
        """The round after which it began; one whose split was taken back began before that."""
        lines = self.by_cluster.get(cluster)
        if lines and self.clusters[cluster].get("undone"):
            return int(lines[0]["round"]) - 1
        return int(self.clusters[cluster]["born"])

    @property
    def leaves(self) -> list[str]:
        """Clusters that were not split."""
        return [name for name, cluster in self.clusters.items() if not cluster["children"]]

    def has_matrix(self, line: Line) -> bool:
        """Whether the similarity matrix of this cluster in this round was recorded."""
        return self._matrix_path(line).is_file()

    def matrix(self, line: Line) -> RecordedMatrix | None:
        """The similarity matrix of this cluster in this round, if it was recorded."""
        path = self._matrix_path(line)
        if not path.is_file():
            return None
        try:
            with np.load(path, allow_pickle=False) as content:
                return RecordedMatrix(tuple(content["clients"].tolist()), content["similarity"])
        except (OSError, ValueError, KeyError, BadZipFile) as error:
            raise RunFolderError(f"{path} is damaged: {error}.") from None

    def _matrix_path(self, line: Line) -> Path:
        return self.path / "similarity" / f"{line['round']}-{line['cluster']}.npz"


def settings_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run of cflower 0.1, whose folder has only the run config."""
    method = config.get("method", "clustered")
    name = config.get("split-criterion", "auto") if method == "clustered" else "never"
    keys = ("eps1", "eps2", "gamma-max", "linkage", "min-cluster-size", "heard-share")
    criterion = {key: config[key] for key in keys if key in config}
    return {**config, "method": method, "criterion": {"name": name, **criterion}}


def by_cluster(lines: Iterable[Line]) -> dict[str, list[Line]]:
    """Lines by their cluster, in natural order."""
    found: dict[str, list[Line]] = {}
    for line in lines:
        found.setdefault(line["cluster"], []).append(line)
    return {name: found[name] for name in in_order(found)}


def is_judgement(line: Line) -> bool:
    """Whether clients judged: else a line about a trial only tells that it goes on."""
    return line["decision"] != Outcome.ON_TRIAL or bool(line.get("figures"))


def lasting(splits: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The splits of a summary that were not taken back."""
    return [split for split in splits if split.get("trial") != Standing.UNDONE]


def metric_of(summary: Mapping[str, Any]) -> Metric:
    """The metric that leads in a run; accuracy in folders of cflower 0.1."""
    return Metric(**summary["metric"]) if "metric" in summary else Metric()


def optional(path: Path, name: str) -> dict[str, Any]:
    """A JSON file of a run; empty if it is not there yet."""
    return read_json(path, name) if (path / name).is_file() else {}


def finding(summary: Mapping[str, Any]) -> str:
    """What was found, and how well each model serves the clients, in a few sentences.

    >>> start = {"rounds": 1, "clusters": {"0": ["a", "b"]}, "splits": []}
    >>> finding({**start, "finished": False})
    '1 cluster among 2 clients so far, after 1 round.'
    >>> finding({**start, "finished": True, "metrics": {"accuracy": 0.5}})
    '1 cluster among 2 clients after 1 round. Own model: mean accuracy 50.0%.'
    """
    clusters, metric = summary["clusters"], metric_of(summary)
    members = sum(len(names) for names in clusters.values())
    text = (
        f"{counted(len(clusters), 'cluster')} among {counted(members, 'client')} "
        f"{'after' if summary['finished'] else 'so far, after'} "
        f"{counted(summary['rounds'], 'round')}."
    )
    metrics = summary.get("metrics") or {}
    own, common = metrics.get(metric.name), metrics.get(f"fl_{metric.name}")
    if own is not None:
        text += f" Own model: mean {metric.name} {metric.in_words(own)}"
        if lasting(summary["splits"]) and common is not None:
            text += (
                f"; {common_in_words(summary)}: {metric.in_words(common)}; "
                f"{BASELINES['federated']}: {federated_in_words(summary)}"
            )
        text += "."
    if summary.get("adjusted_rand_index") is not None:
        text += (
            f" Adjusted Rand index against the true groups {summary['adjusted_rand_index']:.3f}."
        )
    return text


def common_in_words(summary: Mapping[str, Any]) -> str:
    """What the common model is: it learned in some of the rounds only.

    >>> common_in_words({"common_rounds": 8, "rounds": 30, "splits": []})
    'common model (8 of 30 rounds)'
    """
    rounds = summary.get("common_rounds")  # not in folders of 0.2
    if rounds is None:
        rounds = min((split["round"] for split in summary["splits"]), default=1) - 1
    return f"common model ({rounds} of {summary['rounds']} rounds)"


def federated_in_words(summary: Mapping[str, Any]) -> str:
    """The leading metric of conventional FL for all rounds, or why there is none."""
    baselines, metric = summary.get("baselines"), metric_of(summary)
    if baselines is None:
        return "not measured"
    if "federated" not in baselines:
        return "measured next"
    return metric.in_words(baselines["federated"][metric.name])


def baseline_lines(summary: Mapping[str, Any]) -> list[str]:
    """What the run is worth: a line for its own models, one for each measured baseline."""
    metric, baselines = metric_of(summary), summary.get("baselines") or {}
    if not baselines:
        return []
    lines = [f"own model: {metric.in_words(summary['metrics'].get(metric.name))}"]
    for name, baseline in baselines.items():
        text = f"{BASELINES[name]}: {metric.in_words(baseline[metric.name])}"
        found = against(summary, baseline["clients"], metric)
        lines.append(f"{text}. Own model: {found.sentence}" if found else text)
    return lines


def all_clients(summary: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The clients, each with its value under each baseline too; while a run goes on, as it is."""
    metric = metric_of(summary).name
    baselines = {
        f"{name}_{metric}": baseline["clients"]
        for name, baseline in (summary.get("baselines") or {}).items()
    }
    return {
        name: {
            f"leaf_{metric}": client.get(metric),
            **client,
            **{key: values.get(name) for key, values in baselines.items()},
        }
        for name, client in summary["clients"].items()
    }


def total(rows: Sequence[Row]) -> float | None:
    """The held-out examples of all these clients; None if one's number is not known."""
    told = [client["held_out"] for _, client in rows if client.get("held_out")]
    return sum(told) if len(told) == len(rows) else None


def weighted(key: str, rows: Iterable[Row]) -> float | None:
    """The mean of a figure, weighted by held-out examples; None if no client has it."""
    told = [(c.get("held_out") or 1, c[key]) for _, c in rows if c.get(key) is not None]
    return sum(n * value for n, value in told) / sum(n for n, _ in told) if told else None


def counted(number: int, noun: str) -> str:
    """A number with its noun.

    >>> counted(1, "round"), counted(2, "round")
    ('1 round', '2 rounds')
    """
    return f"{number} {noun}{'s' * (number != 1)}"
