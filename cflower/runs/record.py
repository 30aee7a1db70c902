"""A run folder read back: the one reader, also of a run that is still going on."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from io import BytesIO
from itertools import chain
from math import prod
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray
from safetensors.numpy import load

from cflower.algorithm.criteria import Outcome
from cflower.algorithm.projection import Projection
from cflower.algorithm.tree import ROOT, ParameterTree
from cflower.algorithm.weights import Weights
from cflower.errors import RunFolderError
from cflower.messages.claims import DataSpec
from cflower.messages.layout import Layout
from cflower.messages.own_models import restored
from cflower.metric import Metric
from cflower.ordering import in_order, listed, only
from cflower.runs.checkpoint import Checkpoints
from cflower.runs.findings import led_by
from cflower.runs.reading import file_in, outside, read_file
from cflower.runs.records import (
    TRIAL_STATUS,
    ClientsData,
    ClusterLine,
    Config,
    Examples,
    File,
    Line,
    Summary,
    Tree,
)
from cflower.runs.run_files import FileContent, printable, read_lines, read_record
from cflower.runs.ways import Ways

MOST_HEADER = 10**8
"""Bytes of a file of arrays in addition to the arrays."""


class RecordedMatrix(NamedTuple):
    """A similarity matrix that the run computed."""

    clients: tuple[str, ...]
    values: NDArray[np.floating]
    """Shape (m, m), in the order of ``clients``."""


class RunRecord:
    """The content of a run folder, whole or up to the last round so far.

    Every file is read when it is first needed; `read` reads all but matrices and models at once.
    ``metric`` leads instead of the run's, see `led_by`. A `RunFolderError` names a file that is
    missing or damaged, and a folder of an earlier version.
    """

    def __init__(self, path: Path, metric: str = "") -> None:
        self.path, self._metric = path, metric
        self.begun = read_record(path, Config)
        self.config: Mapping[str, Any] = self.begun.config
        self.settings: Mapping[str, Any] = self.begun.settings

    @classmethod
    def read(cls, path: Path, metric: str = "") -> "RunRecord":
        """The whole folder as it is now, its names checked against each other."""
        run = RunRecord(path, metric)
        run._check_names(File.ROUNDS, chain.from_iterable(line.clients for line in run.lines))
        run._check_names(File.SUMMARY, (move.client for move in run.summary.moves))
        return run

    def _check_names(self, file: str, names: Iterable[str]) -> None:
        if unknown := in_order(set(names).difference(self.client_names)):
            raise RunFolderError(
                f"{self.path / file} is damaged: it has figures of {listed(unknown, 3)}, but no "
                "such client was in a cluster."
            )

    @property
    def name(self) -> str:
        return str(printable(self.path.name))

    def _before_first_round(self, nothing: FileContent) -> FileContent | None:
        """``nothing`` in place of a file; None after a first round: then the file is missing."""
        has_round = any((self.path / File.CHECKPOINTS).glob("*.sha256"))
        return None if has_round else nothing

    @cached_property
    def summary(self) -> Summary:
        """``summary.json``, without rounds before the end of the first one."""
        nothing = Summary(run_id=self.name, rounds=0, clusters={}, clients={})
        summary = read_record(self.path, Summary, self._before_first_round(nothing))
        return led_by(summary, self._metric)

    @cached_property
    def clusters(self) -> Mapping[str, ClusterLine]:
        """The clusters of ``tree.json``, in natural order."""
        nothing = self._before_first_round(Tree(clusters={}))
        clusters = read_record(self.path, Tree, nothing).clusters
        return only(clusters, in_order(clusters))

    @cached_property
    def lines(self) -> tuple[Line, ...]:
        return read_lines(self.path / File.ROUNDS)

    @cached_property
    def data(self) -> ClientsData:
        """A preview of the clients' data; without clients in most runs."""
        return read_record(self.path, ClientsData, ClientsData())

    @cached_property
    def data_spec(self) -> DataSpec:
        """Input shape and class names, from ``examples.json``."""
        if not (self.path / File.EXAMPLES).is_file():
            raise RunFolderError(
                f"The run {self.name} has no {File.EXAMPLES}: it is of another app than cflower's "
                "own (then give --app instead of --data), or its folder was not copied whole."
            )
        content = read_record(self.path, Examples)
        return DataSpec(tuple(content.input_shape), tuple(content.class_names))

    @cached_property
    def preparation(self) -> dict[str, Any] | None:
        """How the columns of a table become inputs, from ``examples.json``; None of other data."""
        return read_record(self.path, Examples).preparation

    @cached_property
    def layout(self) -> Layout:
        """The arrays of a model, in the order of the initial one."""
        with outside(self.path / File.CONFIG):
            arrays = {
                key: Array(str(np.dtype(dtype)), tuple(shape), "numpy.ndarray", b"")
                for key, shape, dtype, _ in self.begun.arrays
            }
            return Layout.of(ArrayRecord(arrays), self.settings["untrained"])

    @property
    def model_bytes(self) -> int:
        return sum(prod(entry.shape) * entry.dtype.itemsize for entry in self.layout.entries)

    @cached_property
    def projection(self) -> Projection:
        """The part of an update that the run compared."""
        with outside(self.path / File.CONFIG):
            length, seed = self.settings["projection-dim"], self.settings["seed"]
            return self.layout.projection(length, seed, self.settings["similarity-layers"])

    @cached_property
    def tree(self) -> ParameterTree:
        """The tree of the newest checkpoint, with all models as clients receive them, and edges.

        No earlier checkpoint is taken if that one is damaged.
        """
        tree = Checkpoints(self.path / File.CHECKPOINTS).newest(self._refuse).state.tree
        shape, clusters = (self.projection.num_compared,), tree.clusters.values()
        with outside(self.path / File.CHECKPOINTS):
            edges = list(chain.from_iterable(cluster.edge.items() for cluster in clusters))
            names = "".join([*tree.clusters, *tree.clients, *map(itemgetter(0), edges)])
            fit = all(np.isfinite(edge).all() and edge.shape == shape for _, edge in edges)
            if not fit or not names.isprintable():
                raise ValueError(f"the updates do not fit {File.CONFIG}")
            as_sent = self.layout.as_sent
            sent = {one.name: replace(one, model=as_sent(one.model)) for one in clusters}
        return ParameterTree(sent, tree.unassigned)

    def _refuse(self, problem: str) -> None:
        raise RunFolderError(f"{problem} Copy the whole run folder again.")

    def own_model(self, file: str, leaf: str) -> Weights:
        """The model of one client of a leaf, from its file in the run folder."""
        with outside(self.path / file):
            arrays = load(read_file(file_in(self.path, file), MOST_HEADER + 2 * self.model_bytes))
            return restored(self.layout, arrays, self.tree.clusters[leaf].model)

    @cached_property
    def metric(self) -> Metric:
        return self.summary.leading

    @cached_property
    def ways(self) -> Ways:
        """The leading metric of each client under every way to serve it."""
        return Ways(self.summary)

    @property
    def criterion(self) -> dict[str, Any]:
        return dict(self.settings["criterion"])

    @property
    def finished(self) -> bool:
        return self.summary.finished

    @cached_property
    def rounds(self) -> int:
        """The last round so far."""
        return max((line.round for line in self.lines), default=0)

    @cached_property
    def verdicts(self) -> list[Line]:
        """The lines about clusters that were not split before, by round."""
        return [line for line in self.lines if line.decision not in TRIAL_STATUS]

    @cached_property
    def by_cluster(self) -> dict[str, list[Line]]:
        """The verdicts on each cluster, by round; the clusters in natural order."""
        grouped: dict[str, list[Line]] = {}
        for line in self.verdicts:
            grouped.setdefault(line.cluster, []).append(line)
        return only(grouped, in_order(grouped))

    @cached_property
    def decided(self) -> list[Line]:
        """The verdicts on the clusters that are in the tree."""
        return [line for line in self.verdicts if line.cluster in self.clusters]

    @cached_property
    def judgements(self) -> list[tuple[Line, int]]:
        """The lines with what clients judged, each with the round of the split, by round."""
        began, judged = dict[str, int](), list[tuple[Line, int]]()
        for line in self.lines:
            if line.decision == Outcome.SPLIT:
                began[line.cluster] = line.round
            elif line.decision in TRIAL_STATUS:
                judged.append((line, began[line.cluster]))
            elif line.decision == Outcome.REFUSED:
                judged.append((line, line.round))
        return judged

    def born(self, cluster: str) -> int:
        """The round after which it began; a split that was taken back does not count."""
        if self.clusters[cluster].undone and cluster in self.by_cluster:
            return self.by_cluster[cluster][0].round - 1
        return self.clusters[cluster].born

    @cached_property
    def client_names(self) -> tuple[str, ...]:
        """All clients there ever were, in natural order."""
        entries: list[ClusterLine | Line] = [*self.clusters.values(), *self.lines]
        names = {*self.summary.clients, *self.data.clients}
        return in_order(names.union(*(entry.members for entry in entries)))

    @cached_property
    def position(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.client_names)}

    @property
    def seconds(self) -> float:
        return float(sum({line.round: line.seconds for line in self.lines}.values()))

    @cached_property
    def scores_by_round(self) -> NDArray[np.floating]:
        """The leading metric in each round, shape (clients, rounds); NaN without a reply."""
        scores = np.full((len(self.client_names), self.rounds), np.nan)
        for line in self.lines:
            for client, metrics in line.clients.items():
                value = metrics.get(self.metric.name, np.nan)
                scores[self.position[client], line.round - 1] = value
        return scores

    @cached_property
    def best_rounds(self) -> dict[str, tuple[int, float]]:
        """The round with the best mean of the leading metric, and this mean.

        Of each leaf, and under the root's name of all clients: of the rounds in which as many of
        them replied as in any.
        """
        known = np.isfinite(self.scores_by_round)
        sums, counts = np.where(known, self.scores_by_round, 0).sum(axis=0), known.sum(axis=0)
        most = np.flatnonzero(counts == counts.max(initial=1)).tolist()
        means: dict[str, dict[int, float]] = {ROOT: {i + 1: sums[i] / counts[i] for i in most}}
        for leaf in self.leaves if len(self.leaves) > 1 else ():
            lines, name = self.by_cluster.get(leaf, []), self.metric.name
            means[leaf] = {one.round: one.metrics[name] for one in lines if name in one.metrics}
        choose = max if self.metric.higher_is_better else min
        best = {c: choose(of, key=of.__getitem__) for c, of in means.items() if of}
        return {
            cluster: (number, float(means[cluster][number])) for cluster, number in best.items()
        }

    @cached_property
    def leaves(self) -> list[str]:
        return [name for name, cluster in self.clusters.items() if not cluster.children]

    def has_matrix(self, line: Line) -> bool:
        return self._matrix_path(line).is_file()

    def matrix(self, line: Line) -> RecordedMatrix | None:
        """The similarity matrix of this cluster in this round, if it was recorded."""
        path = self._matrix_path(line)
        if not path.is_file():
            return None
        file = str(path.relative_to(self.path))
        with outside(path), np.load(BytesIO(read_file(path)), allow_pickle=False) as content:
            clients, values = printable(content["clients"].tolist()), content["similarity"]
        self._check_names(file, clients)
        return RecordedMatrix(tuple(clients), values)

    def _matrix_path(self, line: Line) -> Path:
        return file_in(self.path, f"similarity/{line.round}-{line.cluster}.npz")
