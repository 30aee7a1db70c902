"""What one client learns from: its share of the source, shifted as its group, split in two."""

from dataclasses import dataclass
from functools import lru_cache, partial
from threading import RLock

import numpy as np
from numpy.typing import NDArray

from cflower.data.columns import Roles, check_classes
from cflower.data.drift import check_changes
from cflower.data.examples import Examples
from cflower.data.partition import deal_out
from cflower.data.settings import DataSettings
from cflower.data.shifts import apply_shift, groups_of
from cflower.data.sources import load_source
from cflower.data.stored import Stored, most_common
from cflower.data.topics import deal_out_topics
from cflower.errors import DataError
from cflower.seeding import generator

_LOADING = RLock()
"""Clients may run in threads of one process: the first loads, the others wait for it."""


@dataclass(frozen=True, eq=False)
class ClientData:
    """What one client trains on and is judged by, and its true group, if one is known.

    A shift counts its groups; a column of groups names them.
    """

    train: Examples
    validation: Examples
    group: int | str | None


@lru_cache(maxsize=512)
def load_client_data(
    settings: DataSettings, partition: int, num_partitions: int, group: int | None = None
) -> ClientData:
    """The examples of one client; kept, so that a later round gets the same arrays at once.

    Parameters
    ----------
    settings : DataSettings
        The same for all clients of a run.
    partition, num_partitions : int
        Which client of how many, 0 <= partition < num_partitions.
    group : int, optional
        The group of a shift that its examples are of, if it is not its first one.

    Returns
    -------
    ClientData
        Read-only arrays. Which examples are held out depends on the seed, the partition and
        the number of its examples only. `group` is None without a shift or a group-column.

    Raises
    ------
    ConfigError, DataError
        If the settings do not fit each other, the data or the number of clients.
    """
    with _LOADING:
        stored = _dealt(settings, partition, num_partitions)
    return _as_client(
        stored, _decoded(stored, settings), settings, partition, num_partitions, group
    )


def outline_of(settings: DataSettings, partition: int, num_partitions: int) -> ClientData:
    """As `load_client_data`, but its inputs are zeros: ten thousand clients' pictures take minutes.

    Numbers of examples, shapes, labels and group are right.
    """
    with _LOADING:
        stored = _dealt(settings, partition, num_partitions)
    shape = (len(stored), *_source_of(settings).input_shape)
    zeros = np.broadcast_to(np.float32(0), shape)
    examples = Examples(zeros, stored.labels, stored.class_names)
    return _as_client(stored, examples, settings, partition, num_partitions)


def _as_client(
    stored: Stored,
    examples: Examples,
    settings: DataSettings,
    partition: int,
    num_partitions: int,
    now: int | None = None,
) -> ClientData:
    """What was dealt out, shifted as the client's group and split in two."""
    group: int | str | None = None
    if settings.shift != "none":
        check_changes(settings.drift, num_partitions, settings.num_groups)
        groups = groups_of(num_partitions, settings.num_groups, settings.group_sizes)
        group = groups[partition] if now is None else now
        examples = apply_shift(
            examples,
            settings.shift,
            group=group,
            num_groups=settings.num_groups,
            client=partition,
            seed=settings.seed,
            missing_labels=settings.missing_labels,
        )
    elif settings.group_column:
        group = most_common(stored.tell(settings.group_column))
    rng = generator(settings.seed, "hold-out", partition)
    train, validation = examples.hold_out(settings.validation_fraction, rng)
    return prepared(train, validation, group, settings.standardise)


def prepared(
    train: Examples, validation: Examples, group: int | str | None, standardise: str
) -> ClientData:
    """A client's two parts as it uses them, in read-only arrays.

    With ``standardise = "client"`` each column of numbers is shifted and scaled so that its mean
    over the training part is 0 and its standard deviation 1, in both parts. That is not the
    default: clients that differ by an offset or a unit only then look alike, and that may be just
    what tells groups apart.
    """
    if standardise == "client":
        train, validation = standardised(train, validation)
    for array in (train.inputs, train.labels, validation.inputs, validation.labels):
        array.flags.writeable = False
    return ClientData(train, validation, group)


def standardised(train: Examples, validation: Examples) -> tuple[Examples, Examples]:
    """Both parts by the mean and deviation of every column of the first; constant columns are 0.

    Raises
    ------
    DataError
        If the inputs are no rows of numbers.
    """
    if train.inputs.ndim != 2 or train.labels.ndim != 1:
        raise DataError(
            f"standardise = 'client' is for tables of numbers, but inputs have shape "
            f"{train.input_shape}{' of words' if train.labels.ndim > 1 else ''}: set standardise = "
            "'none'."
        )
    mean = train.inputs.mean(axis=0, dtype=np.float64)
    deviation = train.inputs.std(axis=0, dtype=np.float64)
    deviation[deviation == 0] = 1
    first, second = (
        Examples(
            ((part.inputs - mean) / deviation).astype(np.float32), part.labels, part.class_names
        )
        for part in (train, validation)
    )
    return first, second


def _dealt(settings: DataSettings, partition: int, num_partitions: int) -> Stored:
    """The examples dealt to one client, as they are stored."""
    if not 0 <= partition < num_partitions:
        raise DataError(
            f"partition-id = {partition} is none of {num_partitions} partitions: expected 0 to "
            f"{num_partitions - 1} and the same num-partitions on every node."
        )
    return _source_of(settings).take(
        _positions(
            settings.dataset,
            settings.dataset_size,
            settings.seed,
            settings.roles,
            num_partitions,
            settings.partitioner,
            settings.dirichlet_alpha,
            settings.shards_per_client,
            (settings.num_groups, settings.group_sizes) if settings.shift == "topic" else None,
        )[partition]
    )


def _decoded(stored: Stored, settings: DataSettings) -> Examples:
    """These examples before any shift, of the same shape as those of the other clients."""
    examples = stored.examples()
    source = _source_of(settings)
    if examples.input_shape != source.input_shape:
        raise DataError(
            f"{stored.name} has images of different sizes, {source.input_shape} and "
            f"{examples.input_shape} (channels, height, width): bring them all to one size and "
            "mode."
        )
    return examples


def _source_of(settings: DataSettings) -> Stored:
    return _source(settings.dataset, settings.dataset_size, settings.seed, settings.roles)


@lru_cache(maxsize=2)
def _source(name: str, size: int, seed: int, roles: Roles) -> Stored:
    source = load_source(name, size=size, seed=seed, roles=roles)
    check_classes(source.class_names, source.name)
    return source


@lru_cache(maxsize=8)
def _positions(
    name: str,
    size: int,
    seed: int,
    roles: Roles,
    num_partitions: int,
    partitioner: str,
    dirichlet_alpha: float,
    shards_per_client: int,
    topics: tuple[int, str] | None,
) -> tuple[NDArray[np.int64], ...]:
    deal = partial(
        deal_out,
        partitioner=partitioner,
        dirichlet_alpha=dirichlet_alpha,
        shards_per_client=shards_per_client,
        natural_id_column=roles.natural_id,
        seed=seed,
    )
    source = _source(name, size, seed, roles)
    if topics is None:
        return deal(source, num_partitions)
    return deal_out_topics(source, groups_of(num_partitions, *topics), deal)
