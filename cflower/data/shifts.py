"""What makes clients differ: contiguous groups of clients, and one shift per group.

The groups are the truth that a run is judged by; the strategy never sees them. Sources:

- ``rotation``: the classroom lab (two groups, one of them upside down);
- ``label-swap``: the paper (Sattler, Müller, Samek, arXiv 1910.01991), section VI;
- ``label-permutation``: the paper, section VI-C, equation 52;
- ``label-subset``: the paper, section VI-B (digits 0 to 4 and 5 to 9), and the Flower article
  (clients that lack some digits);
- ``label-noise``: adversaries, whose labels say nothing about their inputs;
- ``nested``: pairs of groups, far apart from each other (turned) and near within (one pair of
  labels swapped in every second group): the case that needs two levels of splits;
- ``topic``: the paper, section VI-C (language model): every group has examples of a topic of its
  own. That is a matter of dealing out, see `cflower.data.topics`; here they stay as they are.
"""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from cflower.data.examples import Examples
from cflower.data.options import SHIFTS
from cflower.data.relabelling import held_classes, permuted_labels, swapped_labels
from cflower.errors import ConfigError, DataError
from cflower.seeding import generator
from cflower.settings import check_choice


@lru_cache(maxsize=8)
def groups_of(num_clients: int, num_groups: int, group_sizes: str = "") -> tuple[int, ...]:
    """The group of every client: contiguous blocks.

    Parameters
    ----------
    num_clients, num_groups : int
        At least one client per group.
    group_sizes : str
        E.g. ``"6,4,2"``; empty for groups as equal as can be, the larger ones first.

    Returns
    -------
    tuple of int, length num_clients
        Ascending, from 0 to num_groups - 1.

    Raises
    ------
    ConfigError
        If the groups and the clients do not fit.

    Examples
    --------
    >>> groups_of(5, 2)
    (0, 0, 0, 1, 1)
    >>> groups_of(4, 2, "1,3")
    (0, 1, 1, 1)
    """
    if not 1 <= num_groups <= num_clients:
        raise ConfigError(
            f"num-groups = {num_groups} does not fit {num_clients} clients: every group needs a "
            "client, so use at least 1 group and at least as many clients as groups."
        )
    if not group_sizes.strip():
        blocks = np.array_split(np.arange(num_clients), num_groups)
        sizes = [len(block) for block in blocks]
    else:
        try:
            sizes = [int(size) for size in group_sizes.split(",")]
        except ValueError:
            raise ConfigError(
                f"group-sizes = {group_sizes!r} is not a list of whole numbers: expected e.g. "
                "'6,4,2'."
            ) from None
        if len(sizes) != num_groups:
            raise ConfigError(
                f"group-sizes = {group_sizes!r} has {len(sizes)} groups, but num-groups = "
                f"{num_groups}: set num-groups = {len(sizes)} or leave group-sizes empty."
            )
        if min(sizes) < 1 or sum(sizes) != num_clients:
            raise ConfigError(
                f"group-sizes = {group_sizes!r} sums to {sum(sizes)} for {num_clients} clients: "
                f"expected positive whole numbers that sum to {num_clients}."
            )
    return tuple(group for group, size in enumerate(sizes) for _ in range(size))


def apply_shift(
    examples: Examples,
    shift: str,
    *,
    group: int,
    num_groups: int,
    client: int,
    seed: int,
    missing_labels: str = "",
) -> Examples:
    """One client's examples as a member of its group sees them.

    Parameters
    ----------
    examples : Examples
        What the client was dealt; never changed.
    shift : str
        One of `SHIFTS`.
    group, num_groups : int
        The client's group and how many there are.
    client : int
        The client's partition: each has its own stream of label noise.
    seed : int
        Decides which labels move; the same for all clients of a run.
    missing_labels : str
        For "label-subset" only: the classes that each group lacks, e.g. ``"1,3,7;2,5,8;4,6,9"``.

    Raises
    ------
    ConfigError
        If the shift is unknown, `missing_labels` does not fit the groups, or the groups of
        "nested" do not come in pairs.
    DataError
        If the data do not suffice: too few classes, no images, or nothing left of them.
    """
    check_choice("shift", shift, SHIFTS)
    num_classes = examples.num_classes
    if shift == "rotation":
        return _relabelled(examples, inputs=rotated(examples.inputs, group, num_groups))
    if shift == "label-swap":
        mapping = swapped_labels(num_classes, num_groups, seed)[group]
        return _relabelled(examples, labels=mapping[examples.labels])
    if shift == "label-permutation":
        mapping = permuted_labels(num_classes, num_groups, seed)[group]
        return _relabelled(examples, labels=mapping[examples.labels])
    if shift == "label-subset":
        held = held_classes(examples.class_names, num_groups, seed, missing_labels)[group]
        kept = examples.take(np.isin(examples.labels, held))
        if len(kept) == 0 and len(examples):
            names = ", ".join(examples.class_names[label] for label in held)
            raise DataError(
                f"shift = 'label-subset' leaves client {client} (group {group}) without examples, "
                f"as it has none of {names}: use fewer groups or clients, or partitioner = 'iid'."
            )
        return kept
    if shift == "label-noise" and group == num_groups - 1:
        noise = generator(seed, "label-noise", client).integers(num_classes, size=len(examples))
        return _relabelled(examples, labels=noise)
    if shift == "nested":
        return nested(examples, group, num_groups, seed)
    return examples


def rotated(images: NDArray[np.float32], group: int, num_groups: int) -> NDArray[np.float32]:
    """Images turned by 360 * group / num_groups degrees, anticlockwise.

    The lab turns half of its clients' images by 180 degrees: that is two groups. Quarter turns
    of square images are exact; other angles interpolate linearly and keep the image's size.

    Parameters
    ----------
    images : NDArray[np.float32], shape (n, channels, height, width)
        Upright images.
    group, num_groups : int
        Which group of how many; group 0 stays upright.

    Raises
    ------
    DataError
        If the inputs are no images.
    """
    if images.ndim != 4:
        raise DataError(
            f"shift = 'rotation' needs images, but inputs have shape {images.shape[1:]}: choose "
            "an image dataset or another shift."
        )
    quarters, rest = divmod(4 * group, num_groups)
    height, width = images.shape[2:]
    if rest == 0 and (height == width or quarters % 2 == 0):
        return np.ascontiguousarray(np.rot90(images, quarters, axes=(2, 3)))
    from scipy.ndimage import rotate  # most runs do without

    degrees = 360 * group / num_groups
    turned = rotate(images, degrees, axes=(3, 2), order=1, reshape=False)
    return np.asarray(turned, dtype=np.float32)


def nested(examples: Examples, group: int, num_groups: int, seed: int) -> Examples:
    """Groups in pairs: 2k groups are k rotations, each with and without one pair of labels swapped.

    Pair p = group // 2 is turned by 360 * p / k degrees; its odd group also swaps two labels,
    the same two in every pair.

    Parameters
    ----------
    examples : Examples
        What the client was dealt.
    group, num_groups : int
        Which group of how many, an even number.
    seed : int
        Decides which two labels.

    Raises
    ------
    ConfigError
        If the number of groups is odd.
    DataError
        If the inputs are no images.
    """
    if num_groups % 2:
        raise ConfigError(
            f"shift = 'nested' needs groups in pairs, but num-groups = {num_groups}: use an even "
            "number, e.g. 4."
        )
    turned = _relabelled(examples, inputs=rotated(examples.inputs, group // 2, num_groups // 2))
    if group % 2 == 0:
        return turned
    mapping = swapped_labels(examples.num_classes, 1, seed)[0]
    return _relabelled(turned, labels=mapping[examples.labels])


def _relabelled(
    examples: Examples,
    *,
    inputs: NDArray[np.float32] | None = None,
    labels: NDArray[np.int64] | None = None,
) -> Examples:
    """`examples` with other inputs or labels."""
    return Examples(
        examples.inputs if inputs is None else inputs,
        examples.labels if labels is None else labels,
        examples.class_names,
    )
