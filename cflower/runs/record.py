"""A run folder read back, also of a run that is still going on, and its summary in words."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from cflower.algorithm.criteria import Outcome
from cflower.algorithm.robust_mean import limited
from cflower.errors import RunFolderError
from cflower.messages.claims import listed
from cflower.messages.metrics import Metric
from cflower.ordering import counted, in_order, only
from cflower.runs.baselines import BASELINES, Baseline, against, fairness_in_words
from cflower.runs.format import (
    CLIENTS,
    COLUMNS,
    CONFIG,
    NO_SUMMARY,
    OWN_FIELDS,
    ROUNDS,
    SUMMARY,
    TREE,
    TRIAL_STATUS,
    UNDONE,
)
from cflower.runs.run_files import printable, read_json, read_lines

SAME_EXAMPLES = (
    "The reported examples also decided about the clusters: the ClientApp does not keep them apart."
)
Line = Mapping[str, Any]
"""One line of ``rounds.jsonl``: one cluster in one round."""


class Judgement(NamedTuple):
    """A line about a split on trial."""

    line: Line
    began: int
    """The round of the split."""


class RecordedMatrix(NamedTuple):
    """A similarity matrix that the run computed."""

    clients: tuple[str, ...]
    values: NDArray[np.floating]
    """Shape (m, m), in the order of ``clients``."""


@dataclass(frozen=True)
class RunRecord:
    """The content of a run folder, whole or up to the last round so far."""

    path: Path
    config: Mapping[str, Any]
    """The app's own run config, whatever is in it."""
    settings: Mapping[str, Any]
    """The settings of strategy and criterion, see `ClusteredFL.settings`."""
    planned: int
    """The rounds that the run was started for."""
    versions: Mapping[str, str]
    summary: Mapping[str, Any]
    clusters: Mapping[str, Mapping[str, Any]]
    """The clusters of ``tree.json``, in natural order."""
    lines: tuple[Line, ...]
    data: Mapping[str, Any]
    """``clients.json``: a preview of the clients' data; without clients in most runs."""

    @classmethod
    def read(cls, path: Path, metric: str = "") -> "RunRecord":
        """Read a run folder; ``metric`` leads instead of the run's, see `by_metric`.

        Raises a `RunFolderError` if a file is damaged.
        """
        begun = read_json(path, CONFIG)
        tree = optional(path, TREE, {"clusters": {}})["clusters"]
        record = cls(
            path,
            begun["config"],
            begun["settings"],
            begun["num_rounds"],
            begun["versions"],
            by_metric(optional(path, SUMMARY, {**NO_SUMMARY, "run_id": path.name}), metric),
            only(tree, in_order(tree)),
            read_lines(path / ROUNDS),
            optional(path, CLIENTS, {"class_names": [], "clients": {}}),
        )
        record._check_names(ROUNDS, chain.from_iterable(map(itemgetter("clients"), record.lines)))
        record._check_names(SUMMARY, map(itemgetter("client"), record.summary["moves"]))
        return record

    def _check_names(self, file: str, names: Iterable[str]) -> None:
        if unknown := set(names).difference(self.client_names):
            raise RunFolderError(
                f"{self.path / file} is damaged: it has figures of {listed(unknown, 3)}, but no "
                "such client was in a cluster."
            )

    @property
    def name(self) -> str:
        return self.path.name

    @cached_property
    def metric(self) -> Metric:
        return metric_of(self.summary)

    @property
    def criterion(self) -> dict[str, Any]:
        """The criterion's ``name`` and its settings."""
        return dict(self.settings["criterion"])

    @property
    def finished(self) -> bool:
        return bool(self.summary["finished"])

    @cached_property
    def rounds(self) -> int:
        """The last round so far."""
        return max((line["round"] for line in self.lines), default=0)

    @cached_property
    def verdicts(self) -> list[Line]:
        """The lines about clusters that were not split before, by round."""
        return [line for line in self.lines if line["decision"] not in TRIAL_STATUS]

    @cached_property
    def by_cluster(self) -> dict[str, list[Line]]:
        """The verdicts on each cluster, by round; the clusters in natural order."""
        grouped: dict[str, list[Line]] = {}
        for line in self.verdicts:
            grouped.setdefault(line["cluster"], []).append(line)
        return only(grouped, in_order(grouped))

    @cached_property
    def decided(self) -> list[Line]:
        """The verdicts on the clusters that are in the tree."""
        return [line for line in self.verdicts if line["cluster"] in self.clusters]

    @cached_property
    def judgements(self) -> list[Judgement]:
        """The judgements of each split on trial, and the last line of one that is open."""
        began, judged, last = dict[str, int](), list[Judgement](), dict[str, Judgement]()
        for line in self.lines:
            cluster, outcome = line["cluster"], line["decision"]
            if outcome == Outcome.SPLIT:
                began[cluster] = line["round"]
            if outcome not in TRIAL_STATUS:
                continue
            last[cluster] = Judgement(line, began[cluster])
            if line["figures"] or outcome != Outcome.ON_TRIAL:
                judged.append(last.pop(cluster))
        return sorted([*judged, *last.values()], key=lambda judgement: int(judgement.line["round"]))

    def born(self, cluster: str) -> int:
        """The round after which it began; a split that was taken back does not count."""
        if self.clusters[cluster].get("undone") and cluster in self.by_cluster:
            return int(self.by_cluster[cluster][0]["round"]) - 1
        return int(self.clusters[cluster]["born"])

    @property
    def scores(self) -> dict[str, float]:
        """The leading metric of every client that has it."""
        clients, name = self.summary["clients"], self.metric.name
        return {client: line[name] for client, line in clients.items() if name in line}

    @cached_property
    def client_names(self) -> tuple[str, ...]:
        """All clients there ever were, in natural order."""
        members = map(itemgetter("members"), chain(self.clusters.values(), self.lines))
        names = {*self.summary["clients"], *self.data["clients"]}
        return in_order(names.union(*members))

    @cached_property
    def scores_by_round(self) -> NDArray[np.floating]:
        """The leading metric in each round, shape (clients, rounds); NaN without a reply."""
        scores = {client: np.full(self.rounds, np.nan) for client in self.client_names}
        for line in self.lines:
            for client, metrics in line["clients"].items():
                scores[client][line["round"] - 1] = metrics.get(self.metric.name, np.nan)
        return np.array(list(scores.values())).reshape(len(scores), self.rounds)

    @cached_property
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
                clients, values = printable(content["clients"].tolist()), content["similarity"]
        except (OSError, ValueError, KeyError, BadZipFile) as error:
            raise RunFolderError(f"{path} is damaged: {error}.") from None
        self._check_names(str(path.relative_to(self.path)), clients)
        return RecordedMatrix(tuple(clients), values)

    def _matrix_path(self, line: Line) -> Path:
        return self.path / "similarity" / f"{line['round']}-{line['cluster']}.npz"


def optional(path: Path, name: str, default: dict[str, Any]) -> dict[str, Any]:
    """A JSON file of a run, or a default until it is written."""
    return read_json(path, name) if (path / name).is_file() else default


def lasting(splits: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The splits of a summary that were not taken back."""
    return [split for split in splits if split["trial"] != UNDONE]


def by_metric(summary: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The summary with another leading metric, without what was only kept for the run's own.

    Raises a `RunFolderError` that names the metrics if no client sent this one.
    """
    if name in ("", summary["metric"]["name"]):
        return summary
    sent = metrics_in(summary)
    if name not in sent:
        raise RunFolderError(
            f"Got --metric {name}, but the clients sent {', '.join(sent) or 'none'}: give one of "
            "these."
        )
    clients = {client: {**line, "levels": {}} for client, line in summary["clients"].items()}
    metric = Metric.of(name)._asdict()
    return {**summary, "metric": metric, "clients": clients, "baselines": None}


def metrics_in(summary: Mapping[str, Any]) -> list[str]:
    """The names of the metrics of clients, sorted."""
    lines = summary["clients"].values()
    numbers = {key for line in lines for key in line if isinstance(line[key], int | float)}
    columns = {f"{column}_{key}" for column in COLUMNS for key in numbers}
    return sorted(numbers - columns - OWN_FIELDS)


def metric_of(summary: Mapping[str, Any]) -> Metric:
    return Metric(**summary["metric"])


def baselines_of(summary: Mapping[str, Any]) -> Mapping[Baseline, Mapping[str, Any]]:
    """The baselines that were measured."""
    return {name: line for name, line in (summary["baselines"] or {}).items() if line}


def headline(summary: Mapping[str, Any], parts: str = "cluster", link: str = "among") -> str:
    """The result in one sentence.

    >>> summary = {"rounds": 1, "clusters": {"0": ["a", "b"]}, "finished": False}
    >>> headline(summary)
    '1 cluster among 2 clients so far, after 1 round.'
    """
    members = sum(map(len, summary["clusters"].values()))
    so_far = "" if summary["finished"] else "so far, "
    return (
        f"{counted(len(summary['clusters']), parts)} {link} {counted(members, 'client')} "
        f"{so_far}after {counted(summary['rounds'], 'round')}."
    )


def finding(summary: Mapping[str, Any]) -> str:
    """The result, and how well each model serves the clients, in a few sentences.

    >>> metric = {"name": "accuracy", "higher_is_better": True}
    >>> summary = {"rounds": 1, "clusters": {"0": ["a", "b"]}, "splits": [], "metric": metric}
    >>> ended = {"finished": True, "metrics": {"accuracy": 0.5}, "adjusted_rand_index": None}
    >>> finding(summary | ended | {"not_split": "No split: 2 members, 3 needed for a split."})
    '1 cluster among 2 clients after 1 round. Own model: mean accuracy 50.0%. No split: 2 members, \
3 needed for a split.'
    """
    metric, common, text = metric_of(summary), common_score(summary), headline(summary)
    if metric.name in summary["metrics"]:
        own = metric.in_words(summary["metrics"][metric.name])
        text += f" Own model: mean {metric.name} {own}{even(summary)}"
        if common is not None:
            text += f"; {common_in_words(summary)}: {metric.in_words(common)}"
            text += f"; {BASELINES['federated']}: {federated_in_words(summary)}"
        text += "."
    if central := summary.get("central"):
        values = (f"{name} {Metric(name).in_words(value)}" for name, value in central.items())
        text += f" Central evaluation (evaluate_fn): {', '.join(values)}."
    text = " ".join([text, *remarks(summary)])
    if summary["adjusted_rand_index"] is not None:
        index = summary["adjusted_rand_index"]
        text += f" Adjusted Rand index against the true groups {index:.3f}."
    return text


def remarks(summary: Mapping[str, Any]) -> list[str]:
    """Sentences on what a reader of the figures has to know."""
    sentences = [summary["not_split"]] if summary["not_split"] else []
    if summary.get("decided_by") == "reported":
        sentences.append(SAME_EXAMPLES)
    steps = summary.get("personal", {}).values()
    if own := sum(step["clients"] for step in steps):
        accepted = sum(step["accepted"] for step in steps)
        leaves = counted(accepted, "cluster")
        sentences.append(
            f"Personal step: {counted(own, 'client')} of {leaves} have a model of their own, the "
            "cluster's moved towards one that they trained by themselves."
        )
    return sentences


def even(summary: Mapping[str, Any]) -> str:
    """The fairness of the own models in brackets; empty before the end of a run."""
    words = fairness_in_words(summary.get("fairness", {}).get("own", {}), metric_of(summary))
    return f" ({words})" if words else ""


def common_score(summary: Mapping[str, Any]) -> float | None:
    """The mean of the leading metric under the common model; None where it is the own model."""
    score: float | None = summary["metrics"].get(f"fl_{summary['metric']['name']}")
    return score if lasting(summary["splits"]) else None


def common_in_words(summary: Mapping[str, Any]) -> str:
    """Name the common model, which learned in some of the rounds only.

    >>> common_in_words({"common_rounds": 8, "rounds": 30})
    'common model (8 of 30 rounds)'
    """
    return f"common model ({summary['common_rounds']} of {counted(summary['rounds'], 'round')})"


def federated_in_words(summary: Mapping[str, Any]) -> str:
    """The leading metric of conventional FL for all rounds, or why there is none."""
    metric, measured = metric_of(summary), baselines_of(summary)
    if "federated" in measured:
        return metric.in_words(measured["federated"][metric.name])
    return "measured next" if "federated" in (summary["baselines"] or {}) else "not measured"


def baseline_lines(summary: Mapping[str, Any]) -> list[str]:
    """A line for the own models, and one for each baseline; none without baselines."""
    metric, lines = metric_of(summary), []
    for name, baseline in baselines_of(summary).items():
        line = f"{BASELINES[name]}: {metric.in_words(baseline[metric.name])}"
        if words := fairness_in_words(baseline, metric):
            line += f" ({words})"
        if compared := against(summary, baseline["clients"], metric):
            line += f". Own model: {compared.sentence}"
        lines.append(line)
    own = f"own model: {metric.in_words(summary['metrics'].get(metric.name))}{even(summary)}"
    return [own, *lines] if lines else []


def all_clients(summary: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The clients in natural order, with their groups and values under each baseline.

    As far as the run has come: ``held_out`` and the values under other models may be None.
    """
    metric, groups = summary["metric"]["name"], summary["groups"] or {}
    clients = {}
    for name in in_order(summary["clients"]):
        client = {"held_out": None, "group": groups.get(name), **summary["clients"][name]}
        client.setdefault(f"leaf_{metric}", client.get(metric))
        client[f"own_{metric}"] = client[f"leaf_{metric}"]
        if summary["selection"] == "leaf":
            client[f"own_{metric}"] = client.get(metric)
        client["share"] = client.get("served_by", {}).get("share") or None
        for key, baseline in baselines_of(summary).items():
            client[f"{key}_{metric}"] = baseline["clients"].get(name)
        clients[name] = client
    return clients


def weighted(key: str, clients: Iterable[Mapping[str, Any]]) -> float | None:
    """The mean of a figure, weighted by `limited` held-out examples; None if no client has it."""
    pairs = [(one[key], one.get("held_out") or 1) for one in clients if one.get(key) is not None]
    if not pairs:
        return None
    values, sizes = np.transpose(pairs)
    return float(np.average(values, weights=limited(sizes)))
