"""Groups that hold different topics: shift ``topic``, for the sources that have such a column.

The topic of an example is in the column ``topic``: of text (``text:...``), what its label says;
of the toy problems, which part of the plane.
"""

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from cflower.data.stored import Stored
from cflower.errors import DataError

TOPIC = "topic"


def deal_out_topics(
    source: Stored,
    groups: Sequence[int],
    deal_out: Callable[[Stored, int], tuple[NDArray[np.int64], ...]],
) -> tuple[NDArray[np.int64], ...]:
    """Positions in the source of every client's examples; each group holds one topic.

    Parameters
    ----------
    source : Stored
        One that tells a ``topic``.
    groups : sequence of int, length num_clients
        The group of every client, ascending from 0: group g holds the topic with the
        g-th most examples.
    deal_out : callable
        Deals a data set out to so many clients.

    Raises
    ------
    DataError
        If the source tells no topics, or fewer than there are groups.
    """
    if TOPIC not in source.told:
        raise DataError(
            "shift = 'topic' needs examples that tell their topic: use dataset = 'text:FOLDER', "
            "or data with a column 'topic'."
        )
    topics = source.tell(TOPIC)
    sizes = Counter(topics.tolist())
    ranked = sorted(sizes, key=lambda topic: (-sizes[topic], topic))
    num_groups = max(groups) + 1
    if len(ranked) < num_groups:
        raise DataError(
            f"shift = 'topic' has {len(ranked)} topics for {num_groups} groups "
            f"({', '.join(map(str, ranked))}): use at most num-groups = {len(ranked)}."
        )
    positions: list[NDArray[np.int64]] = []
    for group, topic in enumerate(ranked[:num_groups]):
        theirs = np.flatnonzero(topics == topic)
        shares = deal_out(source.take(theirs), list(groups).count(group))
        positions += [theirs[share] for share in shares]
    return tuple(positions)
