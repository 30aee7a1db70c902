"""What one client learns from: its share of the source, shifted as its group, split in two."""

from dataclasses import dataclass
from functools import lru_cache, partial
from threading import RLock

import datasets
import numpy as np
from numpy.typing import NDArray

from cflower.choices import check_fields, choice, number
from cflower.data.columns import class_names, labels_of
from cflower.data.decoding import inputs_of
from cflower.data.examples import Examples
from cflower.data.names import PARTITIONERS, SHIFTS
from cflower.data.partition import deal_out
from cflower.data.shifts import apply_shift, groups_of
from cflower.data.sources import image_size, load_source
from cflower.data.topics import TOPIC, deal_out_topics
from cflower.errors import ConfigError, DataError
from cflower.seeding import generator

_LOADING = RLock()
"""Clients may run in threads of one process: the first loads, the others wait for it."""


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
    partitioner, dirichlet_alpha, shards_per_client, natural_id_column
        See `cflower.data.partition.deal_out`.
    shift, num_groups, group_sizes, missing_labels
        See `cflower.data.shifts.apply_shift` and `cflower.data.shifts.groups_of`.
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
    partitioner: str = choice("iid", PARTITIONERS)
    dirichlet_alpha: float = number(1.0, above=0)
    shards_per_client: int = number(2, least=1)
    natural_id_column: str = ""
    shift: str = choice("none", SHIFTS)
    num_groups: int = number(2, least=1)
    group_sizes: str = ""
    missing_labels: str = ""
    validation_fraction: float = number(0.2, above=0, below=1)
    seed: int = number(0, least=0)

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.dataset.strip():
            raise ConfigError("dataset is empty: expected a name or a folder.")
        if self.partitioner == "natural-id" and not self.natural_id_column:
            raise ConfigError(
                "partitioner = 'natural-id' needs natural-id-column: name the column that says "
                "whose example it is."
            )
        if self.missing_labels and self.shift != "label-subset":
            raise ConfigError(
                f"missing-labels = {self.missing_labels!r} has no effect with shift = "
                f"{self.shift!r}: set shift = 'label-subset' or leave it empty."
            )


@dataclass(frozen=True, eq=False)
class ClientData:
    """What one client trains on and is judged by, and the group that a shift put it in."""

    train: Examples
    validation: Examples
    group: int | None


@lru_cache(maxsize=512)
def load_client_data(settings: DataSettings, partition: int, num_partitions: int) -> ClientData:
    """The examples of one client; kept, so that a later round gets the same arrays at once.

    Parameters
    ----------
    settings : DataSettings
        The same for all clients of a run.
    partition, num_partitions : int
        Which client of how many, 0 <= partition < num_partitions.

    Returns
    -------
    ClientData
        Read-only arrays. Which examples are held out depends on the seed, the partition and
        the number of its examples only. `group` is None without a shift.

    Raises
    ------
    ConfigError, DataError
        If the settings do not fit each other, the data or the number of clients.
    """
    if not 0 <= partition < num_partitions:
        raise DataError(
            f"partition-id = {partition} is none of {num_partitions} partitions: expected 0 to "
            f"{num_partitions - 1} and the same num-partitions on every node."
        )
    group = None
    if settings.shift != "none":
        group = groups_of(num_partitions, settings.num_groups, settings.group_sizes)[partition]
    with _LOADING:
        examples = _examples(settings, partition, num_partitions)
    if group is not None:
        examples = apply_shift(
            examples,
            settings.shift,
            group=group,
            num_groups=settings.num_groups,
            client=partition,
            seed=settings.seed,
            missing_labels=settings.missing_labels,
        )
    rng = generator(settings.seed, "hold-out", partition)
    return held_out(examples, settings.validation_fraction, rng, group)


def held_out(
    examples: Examples, fraction: float, rng: np.random.Generator, group: int | None = None
) -> ClientData:
    """A client's examples split in two, in read-only arrays; see `Examples.hold_out`."""
    train, validation = examples.hold_out(fraction, rng)
    for array in (train.inputs, train.labels, validation.inputs, validation.labels):
        array.flags.writeable = False
    return ClientData(train, validation, group)


def _examples(settings: DataSettings, partition: int, num_partitions: int) -> Examples:
    """The examples dealt to one client, before any shift."""
    name = settings.dataset
    source = _source(name, settings.dataset_size, settings.seed)
    positions = _positions(
        name,
        settings.dataset_size,
        settings.seed,
        num_partitions,
        settings.partitioner,
        settings.dirichlet_alpha,
        settings.shards_per_client,
        settings.natural_id_column,
        (settings.num_groups, settings.group_sizes) if settings.shift == "topic" else None,
    )[partition]
    part = source.select(positions)
    names = [settings.natural_id_column] if settings.natural_id_column else []
    names += [TOPIC] if settings.shift == "topic" else []  # it may be a number, but is no input
    inputs = inputs_of(part, name, exclude=names, image_size=image_size(name))
    expected = _input_shape(name, settings.dataset_size, settings.seed, tuple(names))
    if inputs.shape[1:] != expected:
        raise DataError(
            f"{name} has images of different sizes, {expected} and {inputs.shape[1:]} (channels, "
            "height, width): bring them all to one size and mode."
        )
    return Examples(inputs, labels_of(part, name), class_names(source, name))


@lru_cache(maxsize=2)
def _source(name: str, size: int, seed: int) -> datasets.Dataset:
    return load_source(name, size=size, seed=seed)


@lru_cache(maxsize=8)
def _input_shape(name: str, size: int, seed: int, exclude: tuple[str, ...]) -> tuple[int, ...]:
    """Shape of the first input of the source, which all partitions must have."""
    first = _source(name, size, seed).select([0])
    return inputs_of(first, name, exclude=exclude, image_size=image_size(name)).shape[1:]


@lru_cache(maxsize=8)
def _positions(
    name: str,
    size: int,
    seed: int,
    num_partitions: int,
    partitioner: str,
    dirichlet_alpha: float,
    shards_per_client: int,
    natural_id_column: str,
    topics: tuple[int, str] | None,
) -> tuple[NDArray[np.int64], ...]:
    deal = partial(
        deal_out,
        partitioner=partitioner,
        dirichlet_alpha=dirichlet_alpha,
        shards_per_client=shards_per_client,
        natural_id_column=natural_id_column,
        seed=seed,
    )
    source = _source(name, size, seed)
    if topics is None:
        return deal(source, num_partitions)
    return deal_out_topics(source, groups_of(num_partitions, *topics), deal)
