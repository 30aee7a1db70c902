"""The format of a run folder: the names of its files, and the fields that each must have."""

from collections.abc import Mapping
from enum import StrEnum
from functools import cache
from typing import Any, NotRequired

from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict

from cflower.algorithm.criteria import Outcome
from cflower.algorithm.tree import ROOT, Status

FORMAT = 2
"""The version of the format; a folder of another one is refused."""

TRIAL_STATUS = {
    Outcome.ON_TRIAL: Status.OPEN.value,
    Outcome.CONFIRMED: Status.CONFIRMED.value,
    Outcome.UNDONE: Status.UNDONE.value,
    Outcome.UNJUDGED: None,
}
"""Status of a split that its clients judge, by the decision about it; None if they did not."""

OWN_FIELDS = frozenset(
    {"cluster", "num_examples", "best_cluster", "levels", "held_out", "served_by"}
    | {"trainings", "evaluations"}
)
"""Fields of a client in the summary; a metric with such a name is left out."""
COLUMNS = ("fl", "leaf", "best", "ensemble")
"""The ways to serve a client; each prefixes a metric of a client in the summary."""

Number = int | float
Metrics = dict[str, Number]


class File(StrEnum):
    """The names in a run folder."""

    CONFIG = "config.json"
    SUMMARY = "summary.json"
    ROUNDS = "rounds.jsonl"
    TREE = "tree.json"
    EXAMPLES = "examples.json"
    CLIENTS = "clients.json"
    CHECKPOINTS = "checkpoints"


class Config(TypedDict):
    format: int
    app: str
    name: str
    tags: list[str]
    config: dict[str, Any]
    settings: dict[str, Any]
    arrays: list[list[Any]]
    num_rounds: int
    versions: dict[str, str]


class Line(TypedDict):
    round: int
    cluster: str
    members: list[str]
    heard: list[str]
    mean_norm: Number
    max_norm: Number
    alpha_cross: Number | None
    decision: str
    reason: str
    children: list[str]
    figures: dict[str, Number | None]
    left_out: NotRequired[dict[str, str]]
    metrics: Metrics
    central: NotRequired[Metrics]
    clients: dict[str, Metrics]
    problems: dict[str, str]
    seconds: Number


class LeadingMetric(TypedDict):
    name: str
    higher_is_better: bool


class Split(TypedDict):
    round: int
    cluster: str
    children: list[str]
    alpha_cross: Number | None
    trial: str | None


class Move(TypedDict):
    server_round: int
    client: str
    origin: str
    target: str
    reason: str


class ServedBy(TypedDict):
    model: str
    cluster: str
    share: Number
    file: str | None


class Client(TypedDict, extra_items=Number | None):  # type: ignore[call-arg]  # its metrics
    cluster: str
    best_cluster: NotRequired[str | None]
    levels: NotRequired[dict[str, Number | None]]
    served_by: NotRequired[ServedBy]


class Personal(TypedDict):
    accepted: bool
    reason: str
    kappa: Number | None
    start: str | None
    length: int
    clients: int


class Summary(TypedDict):
    run_id: str
    finished: bool
    rounds: int
    metric: LeadingMetric
    selection: str
    clusters: dict[str, list[str]]
    splits: list[Split]
    not_split: str | None
    left_out: NotRequired[dict[str, str]]
    moves: list[Move]
    common_rounds: int
    clients: dict[str, Client]
    metrics: Metrics
    fairness: dict[str, Metrics]
    personal: dict[str, Personal]
    central: NotRequired[Metrics]
    groups: dict[str, Any] | None
    adjusted_rand_index: Number | None
    baselines: dict[str, dict[str, Any] | None] | None


class TreeCluster(TypedDict):
    members: list[str]
    children: list[str]
    born: int
    split_round: int | None
    edge_clients: list[str]
    general: bool


class Tree(TypedDict):
    clusters: dict[str, TreeCluster]


class Examples(TypedDict):
    input_shape: list[int]
    class_names: list[str]


class ClientData(TypedDict):
    class_names: list[str]
    clients: dict[str, dict[str, Any]]


SCHEMAS: Mapping[str, Any] = {
    File.CONFIG: Config,
    File.SUMMARY: Summary,
    File.TREE: Tree,
    File.EXAMPLES: Examples,
    File.CLIENTS: ClientData,
}
"""The required fields of each file; `Line` has those of a line of ``rounds.jsonl``."""

NO_SUMMARY: Mapping[str, Any] = {
    "finished": False,
    "rounds": 0,
    "metric": {"name": "accuracy", "higher_is_better": True},
    "selection": "leaf",
    "decided_by": "none",
    "clusters": {},
    "splits": [],
    "not_split": None,
    "moves": [],
    "common_rounds": 0,
    "clients": {},
    "metrics": {},
    "fairness": {},
    "personal": {},
    "groups": None,
    "adjusted_rand_index": None,
    "baselines": None,
}
"""The summary of a run before the end of its first round."""

adapter = cache(TypeAdapter)


def misfit(content: Any, schema: Any) -> str:
    """Describe the first value that does not have its type; empty if all do.

    >>> misfit({"input_shape": [1, 8.5], "class_names": []}, Examples)
    'input_shape.1: Input should be a valid integer'
    """
    try:
        adapter(schema).validate_python(content, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return ""


def tree_misfit(clusters: Mapping[str, Mapping[str, Any]]) -> str:
    """Describe why clusters are not one tree, as their names have it; empty if they are.

    >>> tree_misfit({"0": {"children": ["0.0"]}})
    'its clusters are not one tree'
    """
    edges = [(name, child) for name in clusters for child in clusters[name]["children"]]
    named = [(name.rpartition(".")[0], name) for name in clusters]
    one_tree = sorted([("", ROOT), *edges]) == sorted(named)
    return "" if one_tree else "its clusters are not one tree"
