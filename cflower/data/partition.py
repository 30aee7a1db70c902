"""Dealing a source out to the clients, with the partitioners of flwr-datasets.

- ``iid``: equal shares at random.
- ``dirichlet``: each class is shared out in proportions drawn from a Dirichlet distribution
  (Hsu, Qi, Brown, arXiv 1909.06335; small alpha: each client sees few classes).
- ``shards``: sorted by label, cut into equal shards, each client gets a few of them (McMahan
  et al., arXiv 1602.05629).
- ``natural-id``: each client gets the examples of one value of a column, e.g. a writer.
"""

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cflower.data.columns import listed
from cflower.data.options import PARTITIONERS
from cflower.data.stored import Stored
from cflower.errors import DataError
from cflower.settings import check_choice

if TYPE_CHECKING:
    from flwr_datasets.partitioner import Partitioner

LABEL, POSITION = "the label", "position in the source"
"""Columns of the table that is dealt out: not to be taken for columns of the source."""


def deal_out(
    source: Stored,
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
    source : Stored
        As `cflower.data.sources.load_source` gives it: shuffled.
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
    check_choice("partitioner", partitioner, PARTITIONERS)
    num_examples = len(source)
    if not 1 <= num_partitions <= num_examples:
        raise DataError(
            f"{num_examples} examples cannot be dealt out to {num_partitions} clients: use 1 to "
            f"{num_examples} clients, or a larger dataset-size."
        )
    if partitioner == "iid":
        # As its IidPartitioner cuts them, which takes milliseconds for every partition.
        return tuple(np.array_split(np.arange(num_examples), num_partitions))
    # Loads plotting libraries, for which a node with data of its own should not have to wait at
    # every message: a deployment starts a new process for each.
    from flwr_datasets import partitioner as dealers

    if partitioner == "dirichlet":
        mean = num_examples // num_partitions
        fewest = max(min(2, mean), min(10, mean // 4))  # 2: one to train on, one held out
        dealer: Partitioner = dealers.DirichletPartitioner(
            num_partitions,
            partition_by=LABEL,
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
            partition_by=LABEL,
            num_shards_per_partition=shards_per_client,
            seed=seed,
        )
        failure = (
            f"partitioner = 'shards' cannot cut {num_examples} examples into shards for "
            f"{num_partitions} clients with shards-per-client = {shards_per_client}: use fewer "
            "shards, fewer clients or more examples."
        )
    else:
        _check_natural_ids(source, natural_id_column, num_partitions)
        dealer = dealers.NaturalIdPartitioner(partition_by=natural_id_column)
        failure = (
            f"natural-id-column = {natural_id_column!r} cannot be dealt out: expected one text "
            "or whole number in every row."
        )
    return _positions(dealer, source, natural_id_column, num_partitions, failure)


def _positions(
    dealer: "Partitioner",
    source: Stored,
    natural_id: str,
    num_partitions: int,
    failure: str,
) -> tuple[NDArray[np.int64], ...]:
    """Deal out the positions instead of the examples: the images are never touched."""
    import datasets

    columns: dict[str, Any] = {LABEL: source.labels, POSITION: np.arange(len(source))}
    if natural_id in source.told:
        columns[natural_id] = source.tell(natural_id).tolist()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # flwr-datasets warns at each of ten Dirichlet draws
        try:
            dealer.dataset = datasets.Dataset.from_dict(columns)
            partitions = [dealer.load_partition(place) for place in range(num_partitions)]
        except (ValueError, TypeError, ZeroDivisionError):
            raise DataError(failure) from None
    positions = tuple(
        part.with_format("arrow")[:][POSITION].to_numpy().astype(np.int64) for part in partitions
    )
    if any(len(chosen) == 0 for chosen in positions):
        raise DataError(failure)
    return positions


def _check_natural_ids(source: Stored, column: str, num_partitions: int) -> None:
    if column not in source.told:
        raise DataError(
            f"natural-id-column = {column!r} is no column of the data: expected one of "
            f"{listed(source.column_names)}."
        )
    num_ids = len(set(source.tell(column).tolist()))
    if num_ids < num_partitions:
        raise DataError(
            f"natural-id-column = {column!r} has only {num_ids} different values for "
            f"{num_partitions} clients: use at most {num_ids} clients or another column."
        )
