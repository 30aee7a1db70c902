"""The settings of a client's data: each run-config key of this layer, declared once."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cflower.data.drift import changes_of
from cflower.data.options import PARTITIONERS, SHIFTS, STANDARDISINGS, TOKENS
from cflower.errors import ConfigError
from cflower.settings import check_fields, choice, number

if TYPE_CHECKING:
    from cflower.data.columns import Roles


@dataclass(frozen=True)
class DataSettings:
    """Where examples come from, how they are dealt out, what makes clients differ.

    Each field is the run-config key of the same name in kebab-case.

    Attributes
    ----------
    dataset : str
        See `cflower.data.sources.load_source`.
    dataset_size : int
        At most so many examples of it in all, >= 0; 0 takes all.
    label_column, input_columns, group_column : str
        See `cflower.data.columns.Roles`; the group is what a run is judged by, never an input.
    tokens, series_channels
        See `cflower.data.columns.Roles`.
    standardise : str
        See `prepared`.
    partitioner, dirichlet_alpha, shards_per_client, natural_id_column
        See `cflower.data.partition.deal_out`.
    shift, num_groups, group_sizes, missing_labels
        See `cflower.data.shifts.apply_shift` and `cflower.data.shifts.groups_of`.
    drift : str
        Clients that change their group in mid-run, see `cflower.data.drift.changes_of`.
    validation_fraction : float
        Share of every client's examples that it is judged by and never trains on, in (0, 1).
    seed : int
        Decides all of it, >= 0.

    Raises
    ------
    ConfigError
        If a value is unknown or out of range.
    """

    dataset: str = "digits"
    dataset_size: int = number(0, least=0)
    label_column: str = ""
    input_columns: str = ""
    group_column: str = ""
    tokens: str = choice("words", TOKENS)
    series_channels: int = number(0, least=0)
    standardise: str = choice("none", STANDARDISINGS)
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
    seed: int = number(0, least=0)

    def __post_init__(self) -> None:
        check_fields(self)
        if self.group_sizes and not all(
            size.strip().isdecimal() and int(size) > 0 for size in self.group_sizes.split(",")
        ):
            raise ConfigError(
                f"Got group-sizes={self.group_sizes!r}, but expected whole numbers above 0 "
                'separated by commas, such as "6,4,2".'
            )
        if self.group_column and self.shift != "none":
            raise ConfigError(
                f"Got group-column={self.group_column!r} with shift={self.shift!r}, which makes "
                "groups of its own: set shift='none' to judge a run by the groups in the data."
            )
        if not self.dataset.strip():
            raise ConfigError("dataset is empty: expected a name or a folder.")
        if self.partitioner == "natural-id" and not self.natural_id_column:
            raise ConfigError(
                "partitioner = 'natural-id' needs natural-id-column: name the column that says "
                "whose example it is."
            )
        if self.tokens != "words" and not self.is_text:
            raise ConfigError(
                f"Got tokens={self.tokens!r} with dataset={self.dataset!r}, but only texts are "
                "made of words or characters: set dataset='text:FOLDER' or leave it 'words'."
            )
        if self.missing_labels and self.shift != "label-subset":
            raise ConfigError(
                f"missing-labels = {self.missing_labels!r} has no effect with shift = "
                f"{self.shift!r}: set shift = 'label-subset' or leave it empty."
            )

        if changes_of(self.drift) and self.shift in ("none", "topic"):
            raise ConfigError(
                f"Got drift={self.drift!r} with shift={self.shift!r}, which has no groups to "
                "change between: choose another shift, or leave drift empty."
            )

    @property
    def is_text(self) -> bool:
        """Whether the examples are texts, and what comes next in them is to be predicted."""
        return self.dataset.startswith("text:")

    @property
    def roles(self) -> "Roles":
        """Which column of the source is what."""
        from cflower.data.columns import Roles  # loads pyarrow

        topic = "topic" if self.shift == "topic" else ""
        names = (self.label_column, self.input_columns, self.group_column, self.natural_id_column)
        tokens = self.tokens if self.is_text else ""
        return Roles(*names, topic, tokens, self.series_channels)
