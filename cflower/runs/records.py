"""The content of a run folder: the recorder writes these records, and every reader reads them.

A field without a default must be in its file. docs/reference/run-folder.md describes all fields.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum
from operator import not_
from typing import Annotated, Any, ClassVar, Self

from pydantic import (
    BaseModel,
    Field,
    PlainSerializer,
    SerializerFunctionWrapHandler,
    model_serializer,
)

from cflower.algorithm.criteria import Outcome
from cflower.algorithm.state import Move
from cflower.algorithm.tree import ROOT, Status
from cflower.metric import Metric
from cflower.pooled import Pooled

LONGEST_LABEL = 600
"""Characters of a name of a run or an app, which stand in every list of runs."""
FORMAT = 2
"""The version of the format; a folder of another one is refused."""

UNDONE = "undone"
TRIAL_STATUS = {
    Outcome.CONFIRMED: Status.CONFIRMED.value,
    Outcome.UNDONE: UNDONE,
    Outcome.UNJUDGED: None,
}
"""Status of a split, by the further decision about it; None if its clients could not judge it."""

Number = int | float
Round = Annotated[int, Field(ge=0, le=10**6)]
Label = Annotated[str, Field(max_length=LONGEST_LABEL)]
Metrics = dict[str, Number]
MoveLine = Annotated[Move, PlainSerializer(Move._asdict)]


class File(StrEnum):
    """The names in a run folder."""

    CONFIG = "config.json"
    SUMMARY = "summary.json"
    ROUNDS = "rounds.jsonl"
    TREE = "tree.json"
    EXAMPLES = "examples.json"
    CLIENTS = "clients.json"
    CHECKPOINTS = "checkpoints"


class Record(BaseModel, defer_build=True, ser_json_inf_nan="constants"):
    """A JSON object of the run folder, checked where it is made and where it is read."""

    def as_json(self, indent: int | None = None, exclude: Collection[str] = ()) -> bytes:
        text = self.model_dump_json(indent=indent, exclude={*exclude}, ensure_ascii=True)
        return f"{text}\n".encode()

    @classmethod
    def of(cls, source: object, **fields: Any) -> Self:
        """The record with these fields, and with the others as a source has them."""
        shared = {name: getattr(source, name) for name in cls.model_fields if hasattr(source, name)}
        return cls.model_validate(shared | fields)


class FileRecord(Record):
    FILE: ClassVar[File]


class Config(FileRecord):
    FILE: ClassVar = File.CONFIG

    format: int
    app: Label
    name: Label
    config: dict[str, Any]
    """The app's own run config, whatever is in it."""
    settings: dict[str, Any]
    """The settings of strategy and criterion, see `ClusteredFL.settings`."""
    arrays: list[list[Any]]
    """Key, shape, dtype, and whether it is trained."""
    num_rounds: int
    versions: dict[str, str]
    seed: int = 0
    permutation: str = Field("", exclude_if=not_)
    """The commitment to the clients' secret; empty if the models are not permuted."""


class Line(Record):
    """One line of ``rounds.jsonl``: one cluster in one round."""

    round: Round
    cluster: str
    members: list[str] = []
    """Not in the file where they are those of the line before about this cluster."""
    unplaced: int = Field(default=0, exclude_if=not_)
    """Members whose place in this leaf is not settled yet."""
    heard: list[str]
    mean_norm: Number
    max_norm: Number
    alpha_cross: Number | None
    decision: str
    reason: str
    children: list[str]
    figures: dict[str, Number | None]
    left_out: dict[str, str] = {}
    metrics: Metrics
    central: Metrics = Field({}, exclude_if=not_)
    seconds: Number
    moves: list[MoveLine] = []
    placed: list[MoveLine] = Field([], exclude_if=not_)
    """The steps of its members that Algorithm 4 placed, each from the split cluster it trained."""
    clients: dict[str, Metrics]
    problems: dict[str, str]
    late: dict[str, int] = {}
    outstanding: dict[str, int] = {}


class SplitLine(Record):
    round: int
    cluster: str
    children: list[str]
    alpha_cross: Number | None
    mean_norm: Number = 0.0
    max_norm: Number = 0.0
    trial: str | None
    verdict: str = ""


class RefusedLine(Record):
    round: int
    cluster: str
    reason: str


class ServedBy(Record):
    model: str = "leaf"
    cluster: str
    share: Number = 0.0
    start: str | None = None
    file: str | None


class Measured(Record, extra="allow"):
    """A record with metrics as further fields; those that were not set are not written."""

    __pydantic_extra__: dict[str, Number | None] = Field(init=False)

    @model_serializer(mode="wrap")
    def _known(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {k: v for k, v in write(self).items() if k in self.model_fields_set}

    @property
    def figures(self) -> dict[str, Number | None]:
        return self.__pydantic_extra__


class ClientLine(Measured):
    """A client in the summary."""

    cluster: str
    """Its leaf; empty for a client in no cluster, see `Summary.not_placed`."""
    num_examples: Number | None = None
    held_out: Number | None = None
    """The examples that its figures are of."""
    trainings: int = 0
    evaluations: int = 0
    best_cluster: str | None = None
    levels: dict[str, Number | None] = Field(default_factory=dict)  # `{}` is copied for each client
    served_by: ServedBy | None = None

    @property
    def served(self) -> ServedBy:
        """The model that serves it; while the run goes on, that of its leaf."""
        return self.served_by or ServedBy(cluster=self.cluster or ROOT, file=None)

    @property
    def share(self) -> Number | None:
        """The share of a model of its own, if it has one."""
        return self.served.share or None


class Fairness(Record):
    worst_tenth: Number
    spread: Number


class BaselineLine(Measured):
    """A baseline: the mean of the leading metric, and how the run compares with it."""

    worst_tenth: Number | None = None
    spread: Number | None = None
    rounds: int = 0
    trainings: Number | None = None
    """Mean number of trainings of a client."""
    bytes: int | None = None
    """Bytes of the arrays that were sent."""
    by_round: list[Number | None] = []
    clients: Metrics = {}
    held_out: Number | None = None
    better: int | None = None
    worse: int | None = None
    difference: Number | None = None
    interval: list[Number] | None = None
    verdict: str | None = None


class PersonalLine(Record):
    accepted: bool
    reason: str
    kappa: Number | None
    start: str | None
    length: int
    clients: int
    trainings: int = 0
    evaluations: int = 0


class Summary(FileRecord):
    FILE: ClassVar = File.SUMMARY

    run_id: str
    finished: bool = False
    rounds: int
    seed: int | None = None
    metric: Annotated[Metric, PlainSerializer(Metric.as_json)] = Metric()
    selection: str = "leaf"
    decided_by: str = "none"
    clusters: dict[str, list[str]]
    splits: list[SplitLine] = []
    refused: list[RefusedLine] = Field(default=[], exclude_if=not_)
    not_split: str | None = None
    left_out: dict[str, str] = {}
    not_placed: list[str] = []
    """The clients in no cluster: no usable update of theirs has come."""
    moves: list[MoveLine] = []
    common_rounds: int = 0
    clients: dict[str, ClientLine]
    metrics: Metrics = {}
    pooled: dict[str, Pooled] = {}
    """The figures of all clients' examples together, by model: ``own``, ``fl``, and each leaf."""
    class_names: list[str] = []
    """Names of the classes in `pooled`, where they are known."""
    fairness: dict[str, Fairness] = {}
    personal: dict[str, PersonalLine] = {}
    central: Metrics = {}
    groups: dict[str, Any] | None = None
    adjusted_rand_index: Number | None = None
    baselines: dict[str, BaselineLine | None] | None = None
    bytes: int | None = None
    """Bytes of the arrays that the run sent, where `cflower try` counted them."""
    problems: dict[str, int] = {}
    excluded: dict[str, str] = {}

    @property
    def leading(self) -> Metric:
        """The metric that leads; no share if the clients' values are above 1."""
        values = [client.figures.get(self.metric.name) for client in self.clients.values()]
        return self.metric.seen(value for value in values if value is not None)

    @property
    def lasting(self) -> list[SplitLine]:
        """The splits that were not taken back."""
        return [split for split in self.splits if split.trial != UNDONE]

    @property
    def num_clients(self) -> int:
        return sum(map(len, self.clusters.values())) + len(self.not_placed)

    @property
    def measured(self) -> dict[str, BaselineLine]:
        return {name: line for name, line in (self.baselines or {}).items() if line}


class TrialLine(Record):
    began: int
    until: int
    parts: list[list[str]]
    status: str = ""
    reason: str = ""


class ClusterLine(Record):
    members: list[str]
    children: list[str]
    born: int
    split_round: int | None
    edge_clients: list[str]
    own_body: bool = True
    rounds: int = 0
    general: bool
    trial: TrialLine | None = None
    undone: list[TrialLine] = []


class Tree(FileRecord):
    FILE: ClassVar = File.TREE

    clusters: dict[str, ClusterLine]
    unassigned: dict[str, str] = {}

    @property
    def children(self) -> dict[str, list[str]]:
        return {name: cluster.children for name, cluster in self.clusters.items()}


def bodies(clusters: Mapping[str, ClusterLine]) -> dict[str, list[str]]:
    """The leaves that have the same layers below the output layer, by the cluster that has them."""

    def body_of(name: str) -> str:
        above = name.rpartition(".")[0]
        return name if clusters[name].own_body or not above else body_of(above)

    leaves = defaultdict[str, list[str]](list)
    for name, line in clusters.items():
        if line.members and not line.children:
            leaves[body_of(name)].append(name)
    return leaves


def sharing(clusters: Mapping[str, ClusterLine], leaf: str) -> list[str]:
    sets = bodies(clusters).values()
    return [other for names in sets if leaf in names for other in names if other != leaf]


class Examples(FileRecord):
    FILE: ClassVar = File.EXAMPLES

    input_shape: list[Annotated[int, Field(ge=1)]]
    class_names: list[str]
    preparation: dict[str, Any] | None = None
    """How the columns of a table become inputs (`cflower.tables`)."""


class ClientsData(FileRecord):
    """``clients.json``: previews of the clients' data, in simulations."""

    FILE: ClassVar = File.CLIENTS

    class_names: list[str] = []
    clients: dict[str, dict[str, Any]] = {}


def one_tree(children: Mapping[str, Iterable[str]]) -> bool:
    """Whether clusters, each with its children, are one tree, as their names have it.

    >>> one_tree({"0": ["0.0"], "0.0": []}), one_tree({"0": ["0.0"]})
    (True, False)
    """
    edges = [(name, child) for name, below in children.items() for child in below]
    named = [(name.rpartition(".")[0], name) for name in children]
    return sorted([("", ROOT), *edges]) == sorted(named)
