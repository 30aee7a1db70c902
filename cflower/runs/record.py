"""What a run folder tells, read back: also of a run that is still going on."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from cflower.algorithm.tree import ROOT
from cflower.algorithm.trial import Standing
from cflower.errors import RunFolderError
from cflower.federation.reports import Metric
from cflower.ordering import in_order
from cflower.runs.run_files import read_json
from cflower.runs.serialization import ABOUT_TRIALS

Line = Mapping[str, Any]
"""One line of ``rounds.jsonl``: one cluster in one round."""


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
        """Whether the closing evaluation is in the summary."""
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


def lasting(splits: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The splits of a summary that were not taken back."""
    return [split for split in splits if split.get("trial") != Standing.UNDONE]


def metric_of(summary: Mapping[str, Any]) -> Metric:
    """The metric that leads in a run; accuracy in folders of cflower 0.1."""
    return Metric(**summary["metric"]) if "metric" in summary else Metric()


def in_words(value: float, metric: Metric) -> str:
    """A value of a metric: accuracies as percentages, others as they are.

    >>> in_words(0.975, Metric()), in_words(26.6, Metric("perplexity", False))
    ('97.5%', '26.6')
    """
    return f"{value:.1%}" if "acc" in metric.name else f"{value:.4g}"


def read_lines(path: Path) -> tuple[Line, ...]:
    """The lines of ``rounds.jsonl`` so far; a last one that is still being written is left out.

    Raises
    ------
    RunFolderError
        If a line is damaged.
    """
    if not path.is_file():
        return ()
    texts = path.read_text().splitlines(keepends=True)
    whole = [text for text in texts if text.endswith("\n")]
    try:
        return tuple(json.loads(text) for text in whole)
    except json.JSONDecodeError as error:
        raise RunFolderError(f"{path} is damaged: {error}.") from None


def optional(path: Path, name: str) -> dict[str, Any]:
    """A JSON file of a run; empty if it is not there yet."""
    return read_json(path, name) if (path / name).is_file() else {}


def finding(summary: Mapping[str, Any]) -> str:
    """What was found and what it brought, in one sentence.

    >>> finding({"finished": False, "rounds": 1, "clusters": {"0": ["a", "b"]}, "clients": {}})
    'So far 1 cluster among 2 clients after 1 round.'
    """
    clusters, rounds = summary["clusters"], summary["rounds"]
    members = sum(len(names) for names in clusters.values())
    found = (
        f"{counted(len(clusters), 'cluster')} among {counted(members, 'client')} "
        f"after {counted(rounds, 'round')}"
    )
    metrics = summary.get("metrics") or {}
    if not summary["finished"]:
        return f"So far {found}."
    metric = metric_of(summary)
    own, federated = metrics.get(metric.name), metrics.get(f"fl_{metric.name}")
    if own is None:
        return f"The run found {found}."
    text = f"The run found {found}, with a mean {metric.name} of {in_words(own, metric)}"
    if federated is None:
        return f"{text}."
    if len(clusters) > 1 and not lasting(summary["splits"]):
        return f"{text}: every client trained alone, so there is no model for all to compare with."
    if len(clusters) == 1 and list(clusters) == [ROOT]:
        return f"{text}: no cluster was split, so this is conventional federated learning."
    gained, lost, _ = gains(summary)
    return (
        f"{text}; the common model before the first split{first_split(summary)} has "
        f"{in_words(federated, metric)}, and conventional federated learning for all rounds was "
        f"not measured; "
        f"against it {counted(gained, 'client')} gained and {lost} lost."
    )


def first_split(summary: Mapping[str, Any]) -> str:
    """When the FL model stopped learning: it is not what more rounds would have made of it."""
    rounds = [split["round"] for split in lasting(summary["splits"])]
    return f" (round {min(rounds)})" if rounds else ""


def gains(summary: Mapping[str, Any]) -> tuple[int, int, int]:
    """How many clients are served better, worse, and as well as by the FL model."""
    metric = metric_of(summary)
    own, federated = metric.name, f"fl_{metric.name}"
    sign = 1 if metric.higher_is_better else -1
    differences = [
        sign * (client[own] - client[federated])
        for client in summary["clients"].values()
        if client.get(own) is not None and client.get(federated) is not None
    ]
    gained, lost = sum(d > 0 for d in differences), sum(d < 0 for d in differences)
    return gained, lost, len(differences) - gained - lost


def counted(number: int, noun: str) -> str:
    """A number with its noun.

    >>> counted(1, "round"), counted(2, "round")
    ('1 round', '2 rounds')
    """
    return f"{number} {noun}{'s' * (number != 1)}"
