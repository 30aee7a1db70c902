"""Dealing a source out to the clients, with the partitioners of flwr-datasets.

- ``iid``: equal shares at random.
- ``dirichlet``: each class is shared out in proportions drawn from a Dirichlet distribution
  (Hsu, Qi, Brown, arXiv 1909.06335; small alpha: each client sees few classes).
- ``shards``: sorted by label, cut into equal shards, each client gets a few of them (McMahan
  et al., arXiv 1602.05629).
- ``natural-id``: each client gets the examples of one value of a column, e.g. a writer; values are
  dealt out in sorted order.

With shift ``topic`` the examples of each topic are dealt out to the clients of one group.
"""

import warnings
from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cflower.data.settings import TOPIC, DataSettings
from cflower.data.shifts import groups_of
from cflower.data.stored import Stored
from cflower.errors import DataError
from cflower.ordering import listed
from cflower.settings import require_data

LABEL, POSITION = "the label", "position in the source"
"""Columns of the table that is dealt out: not to be taken for columns of the source."""

Positions = tuple[NDArray[np.int64], ...]
"""Positions in a source of each client's examples: disjoint, none empty."""


def deal_out(source: Stored, num_clients: int, settings: DataSettings) -> Positions:
    """Deal a source out to the clients of a run; with shift ``topic`` each group holds one topic.

    The positions cover the source, which is shuffled, except for surplus topics and natural ids
    and, with shards, a remainder smaller than the number of shards.
    """
    if settings.shift != "topic":
        return _deal(source, num_clients, settings)
    require_data(
        TOPIC in source.metadata,
        "shift = 'topic' needs the topic of every example: use dataset = 'text:FOLDER', or data "
        "with a column 'topic'.",
    )
    topics = source.metadata_of(TOPIC)
    sizes = Counter(topics.tolist())
    ranked = sorted(sizes, key=lambda topic: (-sizes[topic], topic))
    clients = Counter(groups_of(num_clients, settings.num_groups, settings.group_sizes))
    require_data(
        len(ranked) >= len(clients),
        f"shift = 'topic' has {len(ranked)} topics for {len(clients)} groups "
        f"({listed(map(str, ranked))}): use at most num-groups = {len(ranked)}.",
    )
    positions: list[NDArray[np.int64]] = []
    for group, topic in enumerate(ranked[: len(clients)]):
        rows = np.flatnonzero(topics == topic)
        positions += [rows[part] for part in _deal(source.take(rows), clients[group], settings)]
    return tuple(positions)


def _deal(source: Stored, num_clients: int, settings: DataSettings) -> Positions:
    num_examples = len(source)
    require_data(
        1 <= num_clients <= num_examples,
        f"{num_examples} examples cannot be dealt out to {num_clients} clients: use 1 to "
        f"{num_examples} clients, or a larger dataset-size.",
    )
    if settings.partitioner == "iid":
        # As its IidPartitioner cuts them, which takes milliseconds for every partition.
        return tuple(np.array_split(np.arange(num_examples), num_clients))
    if settings.partitioner == "natural-id":
        return _by_natural_id(source, settings.natural_id_column, num_clients)
    mean, shards = num_examples // num_clients, settings.shards_per_client
    fewest = max(min(3, mean), min(10, mean // 4))  # 3: one for each part
    # They load plotting libraries, for which a node with data of its own should not have to wait
    # at every message: a deployment starts a new process for each.
    import datasets
    from flwr_datasets.partitioner import DirichletPartitioner, ShardPartitioner

    dealer: DirichletPartitioner | ShardPartitioner
    if settings.partitioner == "dirichlet":
        alpha = float(settings.dirichlet_alpha)
        dealer = DirichletPartitioner(
            num_clients, LABEL, alpha, fewest, self_balancing=False, seed=settings.seed
        )
        failure = (
            f"partitioner = 'dirichlet' with dirichlet-alpha = {alpha} cannot give each of "
            f"{num_clients} clients at least {fewest} of {num_examples} examples: use a larger "
            "dirichlet-alpha, fewer clients or more examples."
        )
    else:
        dealer = ShardPartitioner(
            num_clients, LABEL, num_shards_per_partition=shards, seed=settings.seed
        )
        failure = (
            f"partitioner = 'shards' cannot cut {num_examples} examples into shards for "
            f"{num_clients} clients with shards-per-client = {shards}: use fewer shards, fewer "
            "clients or more examples."
        )
    # The positions instead of the examples are dealt out: the images are never touched.
    columns: dict[str, Any] = {LABEL: source.labels, POSITION: np.arange(num_examples)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # flwr-datasets warns at each of ten Dirichlet draws
        try:
            dealer.dataset = datasets.Dataset.from_dict(columns)
            parts = [dealer.load_partition(place) for place in range(num_clients)]
        except (ValueError, TypeError, ZeroDivisionError):
            raise DataError(failure) from None
    require_data(all(map(len, parts)), failure)
    arrays = (part.with_format("arrow")[:][POSITION].to_numpy() for part in parts)
    return tuple(array.astype(np.int64) for array in arrays)


def _by_natural_id(source: Stored, column: str, num_clients: int) -> Positions:
    """The same as by flwr-datasets' NaturalIdPartitioner, without its progress bar."""
    require_data(
        column in source.metadata,
        f"natural-id-column = {column!r} is no column of the data: expected one of "
        f"{listed(source.column_names)}. In a folder with a CSV or Parquet file for each client "
        "it is 'file'.",
    )
    failure = (
        f"natural-id-column = {column!r} cannot be dealt out: expected one text or whole number in "
        "every row."
    )
    try:
        ids, places, counts = np.unique(
            source.metadata_of(column), return_inverse=True, return_counts=True
        )
    except TypeError:  # a row without a value, or texts among numbers
        raise DataError(failure) from None
    require_data(all(one is not None and one == one for one in ids), failure)
    require_data(
        len(ids) >= num_clients,
        f"natural-id-column = {column!r} has only {len(ids)} different values for {num_clients} "
        f"clients: use at most {len(ids)} clients (in a simulation --clients {len(ids)}) or "
        "another column.",
    )
    order = np.argsort(places, kind="stable")
    return tuple(np.split(order, counts.cumsum()[:-1])[:num_clients])
