"""The settings of a client's data: each run-config key of this layer, declared once."""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from cflower.errors import ConfigError
from cflower.settings import check_fields, choice, number, require

PARTITIONERS = ("iid", "dirichlet", "shards", "natural-id")
SHIFTS = (
    "none", "rotation", "label-swap", "label-permutation", "label-subset", "label-noise", "nested",
    "topic",
)  # fmt: skip
PREDICTED = ("classification", "regression")
TOKEN_NAMES = ("words", "characters")
STANDARDISINGS = ("common", "none", "client")
TOPIC = "topic"
"""The column with the topic of an example."""


@dataclass(frozen=True)
class DataSettings:
    """The source of the examples, how they are dealt out, and how clients are made to differ.

    Field ``label_column`` is the key ``label-column``; `pyproject.toml` explains each.
    """

    dataset: str = "digits"
    dataset_size: int = number(0, least=0)
    label_column: str = ""
    task: str = choice("classification", PREDICTED)
    input_columns: str = ""
    group_column: str = ""
    tokens: str = choice("words", TOKEN_NAMES)
    series_channels: int = number(0, least=0)
    standardise: str = choice("common", STANDARDISINGS)
    partitioner: str = choice("iid", PARTITIONERS)
    dirichlet_alpha: float = number(1.0, above=0)
    shards_per_client: int = number(2, least=1)
    natural_id_column: str = ""
    shift: str = choice("rotation", SHIFTS)
    num_groups: int = number(2, least=1)
    group_sizes: str = ""
    missing_labels: str = ""
    drift: str = ""
    validation_fraction: float = number(0.2, above=0, below=1)
    decide_fraction: float = number(0.5, least=0, below=1)
    seed: int = number(0, least=0, below=2**63)

    def __post_init__(self) -> None:
        check_fields(self)
        sizes_in(self.group_sizes)
        require(
            self.dataset.removeprefix("text:").strip() != "",
            "dataset is empty: expected a name or a folder.",
        )
        require(
            not self.group_column or self.shift == "none",
            f"Got group-column={self.group_column!r} with shift={self.shift!r}, which makes "
            "groups of its own: set shift='none' to judge a run by the groups in the data.",
        )
        require(
            self.partitioner != "natural-id" or self.natural_id_column != "",
            "partitioner = 'natural-id' needs natural-id-column: name the column of the client "
            "that each example belongs to.",
        )
        for key, value, fitting in (
            ("shift", self.shift, ("none", "rotation")),
            ("partitioner", self.partitioner, ("iid", "natural-id")),
        ):
            require(
                not self.is_regression or value in fitting,
                f"Got {key}={value!r} with task='regression', which has no classes: set {key} to "
                f"{' or '.join(map(repr, fitting))}.",
            )
        require(
            not self.is_regression or not self.is_text,
            f"Got task='regression' with dataset={self.dataset!r}, but the next token of a text is "
            "a class: leave out one of them.",
        )
        require(
            self.tokens == "words" or self.is_text,
            f"Got tokens={self.tokens!r} with dataset={self.dataset!r}, but only texts are "
            "made of words or characters: set dataset='text:FOLDER' or leave it 'words'.",
        )
        require(
            not self.missing_labels or self.shift == "label-subset",
            f"missing-labels = {self.missing_labels!r} has no effect with shift = "
            f"{self.shift!r}: set shift = 'label-subset' or leave it empty.",
        )
        require(
            not group_changes(self.drift) or self.shift not in ("none", "topic"),
            f"Got drift={self.drift!r} with shift={self.shift!r}, which has no groups to "
            "change between: choose another shift, or leave drift empty.",
        )

    @property
    def is_text(self) -> bool:
        """Whether the examples are texts, and the next token is to be predicted."""
        return self.dataset.startswith("text:")

    @property
    def is_regression(self) -> bool:
        return self.task == "regression"

    @property
    def metadata(self) -> tuple[str, ...]:
        """Columns that describe an example and are never an input."""
        topic = TOPIC if self.shift == "topic" else ""
        names = (self.group_column, self.natural_id_column, topic)
        return tuple(dict.fromkeys(filter(None, names)))


def sizes_in(group_sizes: str) -> tuple[int, ...]:
    """The sizes of groups in a text; none in an empty one.

    >>> sizes_in("6,4,2")
    (6, 4, 2)
    """
    sizes = group_sizes.split(",") if group_sizes.strip() else []
    if not all(re.fullmatch(r"\s*0*[1-9]\d*\s*", size) for size in sizes):
        raise ConfigError(
            f"Got group-sizes={group_sizes!r}, but expected whole numbers above 0 separated by "
            'commas, such as "6,4,2".'
        )
    return tuple(map(int, sizes))


class Change(NamedTuple):
    """From ``server_round`` on a client's examples are those of a member of ``group``."""

    server_round: int
    client: int
    """Its partition."""
    group: int


@lru_cache(maxsize=8)
def group_changes(drift: str) -> tuple[Change, ...]:
    """The changes that a text lists, in order of their rounds.

    ``ROUND:CLIENT=GROUP`` separated by commas; rounds count from 1, clients and groups from 0.

    >>> group_changes("20:3=1, 10:4=0")
    (Change(server_round=10, client=4, group=0), Change(server_round=20, client=3, group=1))
    """
    changes = []
    for part in drift.split(",") if drift.strip() else []:
        match = re.fullmatch(r"\s*(0*[1-9]\d*):(\d+)=(\d+)\s*", part)
        if match is None:
            raise ConfigError(
                f"Got drift={drift!r}, but expected ROUND:CLIENT=GROUP separated by commas, rounds "
                f"from 1 and clients from 0, such as '20:3=1,30:4=1'; {part.strip()!r} is not that."
            )
        changes.append(Change(*map(int, match.groups())))
    return tuple(sorted(changes))


def check_changes(drift: str, num_clients: int, num_groups: int) -> None:
    """Refuse changes of a client or to a group that does not exist."""
    for server_round, client, group in group_changes(drift):
        require(
            client < num_clients and group < num_groups,
            f"Got drift={drift!r}, but in round {server_round} there is no client {client} or no "
            f"group {group} among {num_clients} clients and {num_groups} groups, which are counted "
            "from 0.",
        )


def group_at(drift: str, client: int, server_round: int) -> int | None:
    """The group that a client has changed to by a round; None before its first change.

    >>> [group_at("20:3=1", 3, server_round) for server_round in (19, 20)]
    [None, 1]
    """
    before = (c for c in reversed(group_changes(drift)) if c.server_round <= server_round)
    return next((change.group for change in before if change.client == client), None)
