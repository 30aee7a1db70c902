"""The data of one client: its share of the source, shifted as its group, in three parts."""

from collections import OrderedDict
from dataclasses import replace
from functools import lru_cache
from threading import Lock
from typing import Any

import numpy as np

from cflower.data.examples import ClientData, Examples, prepared, split
from cflower.data.partition import Positions, deal_out
from cflower.data.settings import DataSettings, check_changes
from cflower.data.shifts import apply_shift, groups_of
from cflower.data.sources import load_source
from cflower.data.stored import Stored, usual_value
from cflower.seeding import generator
from cflower.settings import require_data

_LOADING = Lock()
"""Clients may run in threads of one process: the first loads, the others wait for it."""


def client_data(
    settings: DataSettings,
    partition: int,
    num_partitions: int,
    group: int | None = None,
    preparation: str = "",
    *,
    outline: bool = False,
) -> ClientData:
    """The examples of one client; of a table by a ``preparation`` (`cflower.tables`).

    Which examples are in which part depends on the seed, the partition and its labels only.
    ``group`` is the group of a shift, if it is not the client's first one. An ``outline`` has zeros
    as inputs, as ten thousand clients' pictures take minutes.
    """
    stored = _dealt(settings, partition, num_partitions)
    true_group: int | str | None = None
    if outline:
        source = _source_of(settings)
        shape = (len(stored), *(() if source.table else source.input_shape))
        zeros = np.broadcast_to(np.float32(0), shape)
        examples = Examples(zeros, stored.labels, stored.class_names)
    else:
        examples = stored.examples(preparation)
    if settings.shift != "none":
        check_changes(settings.drift, num_partitions, settings.num_groups)
        if group is None:
            group = groups_of(num_partitions, settings.num_groups, settings.group_sizes)[partition]
        examples = apply_shift(examples, settings, group, partition)
        true_group = group
    elif settings.group_column:
        true_group = usual_value(stored.metadata_of(settings.group_column))
    rng = generator(settings.seed, "hold-out", partition)
    same = len(stored) == len(examples)
    # As before a shift that changes labels: a drift must not move an example to another part.
    labels = stored.labels if same else examples.labels
    places = split(labels, settings.validation_fraction, rng, settings.decide_fraction)
    data = prepared(list(map(examples.take, places)), true_group, settings.standardise)
    if preparation:
        return data
    return replace(data, table=stored.described(places[0] if same else np.arange(len(stored))))


class KeptData:
    """`client_data`, up to so many bytes of it: decoding takes as long as training."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self._lock = Lock()
        self.cache_clear()

    def cache_clear(self) -> None:
        self._kept, self._bytes = OrderedDict[Any, ClientData](), 0

    def __call__(
        self,
        settings: DataSettings,
        partition: int,
        num_partitions: int,
        group: int | None = None,
        preparation: str = "",
    ) -> ClientData:
        key = settings, partition, num_partitions, group, preparation
        with self._lock:
            if (data := self._kept.get(key)) is not None:
                self._kept.move_to_end(key)
                return data
        data = client_data(*key)
        with self._lock:
            if key not in self._kept:  # two threads may have made them
                self._kept[key], self._bytes = data, self._bytes + data.num_bytes
            while self._bytes > self.most_bytes and len(self._kept) > 1:
                self._bytes -= self._kept.popitem(last=False)[1].num_bytes
        return data


load_client_data = KeptData(most_bytes=2 * 10**9)


def natural_id_of(settings: DataSettings, partition: int, num_partitions: int) -> str:
    """The natural id that a client was dealt, a number with the name of its column.

    Empty with another partitioner, and with shift ``topic``, where several clients share an id.
    """
    if settings.partitioner != "natural-id" or settings.shift == "topic":
        return ""
    column = settings.natural_id_column
    value = usual_value(_dealt(settings, partition, num_partitions).metadata_of(column))
    return f"{column}-{value}" if value.isdigit() else value


def mixes_files(settings: DataSettings) -> bool:
    """Whether clients are dealt rows of several files of a folder, which may be clients' own."""
    by_file = settings.partitioner == "natural-id"
    return not by_file and "file" in _source_of(settings).column_names


def _dealt(settings: DataSettings, partition: int, num_partitions: int) -> Stored:
    """The examples dealt to one client, as they are stored."""
    require_data(
        0 <= partition < num_partitions,
        f"partition-id = {partition} is none of {num_partitions} partitions: expected 0 to "
        f"{num_partitions - 1} and the same num-partitions on every node.",
    )
    with _LOADING:
        return _source_of(settings).take(_positions(settings, num_partitions)[partition])


_source_of = lru_cache(maxsize=2)(load_source)


@lru_cache(maxsize=8)
def _positions(settings: DataSettings, num_partitions: int) -> Positions:
    return deal_out(_source_of(settings), num_partitions, settings)
