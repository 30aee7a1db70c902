"""Dealing a source out to the clients, with the partitioners of flwr-datasets.

- ``iid``: equal shares at random.
- ``dirichlet``: each class is shared out in proportions drawn from a Dirichlet distribution
  (Hsu, Qi, Brown, arXiv 1909.06335; small alpha: each client sees few classes).
- ``shards``: sorted by label, cut into equal shards, each client gets a few of them (McMahan
  et al., arXiv 1602.05629).
- ``natural-id``: each client gets the examples of one value of a column, e.g. a writer.
"""

import warnings
from typing import TYPE_CHECKING

import datasets
import numpy as np
from numpy.typing import NDArray

from cflower.choices import check_choice
from cflower.data.columns import label_column
from cflower.data.names import PARTITIONERS
from cflower.errors import DataError

if TYPE_CHECKING:
    from flwr_datasets.partitioner import Partitioner


def deal_out(
    source: datasets.Dataset,
    num_partitions: int,
    partitioner: str = "iid",
    *,
    dirichlet_alpha: float = 1.0,
    shards_per_client: int = 2,
    natural_id_column: str = "",
    seed: int = 0,
) -> tuple[NDArray[np.int64], ...]:
    """Positions in the source of every partition's examples.

    Parameters
    ----------
    source : datasets.Dataset
        As `cflower.data.sources.load_source` gives it: shuffled, with a ClassLabel column.
    num_partitions : int
        How many clients there are.
    partitioner : str
        One of `PARTITIONERS`.
    dirichlet_alpha : float
        Concentration, > 0. At 100 the clients are nearly alike, at 0.1 they share few classes.
    shards_per_client : int
        Shards that each client gets, >= 1.
    natural_id_column : str
        Column whose values are dealt out, one to a client, in sorted order; values beyond the
        number of clients are not used.
    seed : int
        Decides the Dirichlet proportions and which shards a client gets.

    Returns
    -------
    tuple of NDArray[np.int64]
        One array per partition; disjoint, none empty. They cover the source, except for
        surplus natural ids and, with shards, a remainder smaller than the number of shards.

    Raises
    ------
    ConfigError
        If the partitioner is unknown.
    DataError
        If the examples do not suffice for so many partitions.
    """
    # Loads plotting libraries, for which a node with data of its own should not have to wait at
    # every message: a deployment starts a new process for each.
    from flwr_datasets import partitioner as dealers

    check_choice("partitioner", partitioner, PARTITIONERS)
    num_examples = len(source)
    if not 1 <= num_partitions <= num_examples:
        raise DataError(
            f"{num_examples} examples cannot be dealt out to {num_partitions} clients: use 1 to "
            f"{num_examples} clients, or a larger dataset-size."
        )
    label = label_column(source, "the source")
    if partitioner == "dirichlet":
        mean = num_examples // num_partitions
        fewest = max(min(2, mean), min(10, mean // 4))  # 2: one to train on, one held out
        dealer: Partitioner = dealers.DirichletPartitioner(
            num_partitions,
            partition_by=label,
            alpha=float(dirichlet_alpha),
            min_partition_size=fewest,
            self_balancing=False,
            seed=seed,
        )
        failure = (
            f"partitioner = 'dirichlet' with dirichlet-alpha = {dirichlet_alpha} found no way to "
            f"give each of {num_partitions} clients at least {fewest} of {num_examples} examples: "
            "use a larger dirichlet-alpha, fewer clients or more examples."
        )
    elif partitioner == "shards":
        dealer = dealers.ShardPartitioner(
            num_partitions,
            partition_by=label,
            num_shards_per_partition=shards_per_client,
            seed=seed,
        )
        failure = (
            f"partitioner = 'shards' cannot cut {num_examples} examples into shards for "
            f"{num_partitions} clients with shards-per-client = {shards_per_client}: use fewer "
            "shards, fewer clients or more examples."
        )
    elif partitioner == "natural-id":
        _check_natural_ids(source, natural_id_column, num_partitions)
        dealer = dealers.NaturalIdPartitioner(partition_by=natural_id_column)
        failure = (
            f"natural-id-column = {natural_id_column!r} cannot be dealt out: expected one text "
            "or whole number in every row."
        )
    else:
        dealer = dealers.IidPartitioner(num_partitions)
        failure = f"{num_examples} examples cannot be dealt out to {num_partitions} clients."
    return _positions(dealer, source, {label, natural_id_column}, num_partitions, failure)


def _positions(
    dealer: "Partitioner",
    source: datasets.Dataset,
    columns: set[str],
    num_partitions: int,
    failure: str,
) -> tuple[NDArray[np.int64], ...]:
    """Deal out the positions instead of the examples: the images are never touched."""
    kept = [name for name in source.column_names if name in columns]
    # combined: a shuffled table is one chunk per row, and dealing that out again takes gigabytes
    table = source.select_columns(kept).with_format("arrow")[:].combine_chunks()
    position = "position in the source"
    table = table.append_column(position, [np.arange(len(source))])
    features = datasets.Features(
        {name: source.features[name] for name in kept} | {position: datasets.Value("int64")}
    )
    dealer.dataset = datasets.Dataset(table, info=datasets.DatasetInfo(features=features))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # flwr-datasets warns at each of ten Dirichlet draws
        try:
            partitions = [dealer.load_partition(place) for place in range(num_partitions)]
        except (ValueError, TypeError, ZeroDivisionError):
            raise DataError(failure) from None
    positions = tuple(
        part.with_format("arrow")[:][position].to_numpy().astype(np.int64) for part in partitions
    )
    if any(len(chosen) == 0 for chosen in positions):
        raise DataError(failure)
    return positions


def _check_natural_ids(source: datasets.Dataset, column: str, num_partitions: int) -> None:
    if column not in source.column_names:
        raise DataError(
            f"natural-id-column = {column!r} is no column of the data: expected one of "
            f"{', '.join(source.column_names)}."
        )
    num_ids = len(source.unique(column))
    if num_ids < num_partitions:
        raise DataError(
            f"natural-id-column = {column!r} has only {num_ids} different values for "
            f"{num_partitions} clients: use at most {num_ids} clients or another column."
        )
