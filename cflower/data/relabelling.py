"""Which labels a group of clients sees in place of the true ones, and which it sees at all.

Tables for all groups at once, so that what tells groups apart can be checked: they are drawn
from the seed alone and are the same on every client.
"""

from itertools import combinations
from math import comb, factorial

import numpy as np
from numpy.typing import NDArray

from cflower.errors import ConfigError, DataError
from cflower.seeding import generator


def swapped_labels(num_classes: int, num_groups: int, seed: int) -> NDArray[np.int64]:
    """Label swaps (section VI): each group exchanges one pair of labels.

    Returns
    -------
    NDArray[np.int64], shape (num_groups, num_classes)
        Row g maps a label to the label that group g gives it. Pairs are different for every
        group, and share no label as long as there are two labels per group.

    Raises
    ------
    DataError
        If there are more groups than pairs of labels.
    """
    if num_groups > comb(num_classes, 2):
        raise DataError(
            f"shift = 'label-swap' needs a different pair of labels for each of {num_groups} "
            f"groups, but {num_classes} classes have {comb(num_classes, 2)} pairs: use fewer "
            "groups."
        )
    rng = generator(seed, "label-swap")
    order = rng.permutation(num_classes)
    disjoint = [frozenset(order[i : i + 2].tolist()) for i in range(0, num_classes - 1, 2)]
    others = [frozenset(pair) for pair in combinations(range(num_classes), 2)]
    others = [pair for pair in others if pair not in disjoint]
    pairs = disjoint + [others[i] for i in rng.permutation(len(others))]
    mappings = np.tile(np.arange(num_classes, dtype=np.int64), (num_groups, 1))
    for mapping, pair in zip(mappings, pairs, strict=False):
        first, second = sorted(pair)
        mapping[[first, second]] = second, first
    return mappings


def permuted_labels(num_classes: int, num_groups: int, seed: int) -> NDArray[np.int64]:
    """Label permutations P_c(i) (equation 52): group 0 keeps its labels, others permute them.

    Returns
    -------
    NDArray[np.int64], shape (num_groups, num_classes)
        Row g maps a label to the label that group g gives it; no two rows are equal. With at
        most as many groups as classes, no two groups agree on any label.

    Raises
    ------
    DataError
        If there are more groups than permutations.

    Notes
    -----
    Differences: the paper draws permutations at random, which may by chance agree on labels.
    Here they are distinct turns of one random circle of labels; groups beyond the number of
    classes get the random permutation, out of 32, that agrees least with the others.
    """
    if num_classes < 10 and num_groups > factorial(num_classes):
        raise DataError(
            f"shift = 'label-permutation' needs a different permutation for each of {num_groups} "
            f"groups, but {num_classes} labels have {factorial(num_classes)}: use fewer groups."
        )
    rng = generator(seed, "label-permutation")
    circle = rng.permutation(num_classes)
    place = np.argsort(circle)
    turns = [0, *(1 + rng.permutation(num_classes - 1)).tolist()][:num_groups]
    mappings = [circle[(place + turn) % num_classes] for turn in turns]
    while len(mappings) < num_groups:
        drawn = [rng.permutation(num_classes) for _ in range(32)]
        agreements = (np.array(drawn)[:, None] == np.array(mappings)).sum(axis=2).max(axis=1)
        best = int(agreements.argmin())
        if agreements[best] < num_classes:  # else all 32 are taken already
            mappings.append(drawn[best])
    return np.array(mappings, dtype=np.int64)


def held_classes(
    class_names: tuple[str, ...], num_groups: int, seed: int, missing_labels: str = ""
) -> tuple[tuple[int, ...], ...]:
    """The classes that each group holds, as positions in `class_names`.

    Without `missing_labels`, each group holds its own random share of the classes (cf. the
    congruent clients of section VI-B: digits 0 to 4 and 5 to 9). With them, a group lacks
    those and holds all others (the article: ``"1,3,7;2,5,8;4,6,9"``).

    Raises
    ------
    ConfigError
        If `missing_labels` has not one part per group, or names an unknown class.
    DataError
        If there are fewer classes than groups, or a group would lack every class.

    Examples
    --------
    >>> held_classes(("a", "b", "c"), 2, 0, "a,b;c")
    ((2,), (0, 1))
    """
    everything = range(len(class_names))
    if not missing_labels.strip():
        if len(class_names) < num_groups:
            raise DataError(
                f"shift = 'label-subset' cannot share {len(class_names)} classes among "
                f"{num_groups} groups: use at most {len(class_names)} groups."
            )
        order = generator(seed, "label-subset").permutation(len(class_names))
        return tuple(tuple(sorted(s.tolist())) for s in np.array_split(order, num_groups))
    parts = missing_labels.split(";")
    if len(parts) != num_groups:
        raise ConfigError(
            f"missing-labels = {missing_labels!r} has {len(parts)} parts for {num_groups} groups: "
            "expected one part per group, separated by semicolons."
        )
    held = []
    for part in parts:
        names = {name.strip() for name in part.split(",")} - {""}
        unknown = sorted(names - set(class_names))
        if unknown:
            raise ConfigError(
                f"missing-labels = {missing_labels!r} names {unknown[0]!r}, which is no class of "
                f"the data: expected some of {', '.join(class_names)}."
            )
        held.append(tuple(label for label in everything if class_names[label] not in names))
    if not all(held):
        raise DataError(
            f"missing-labels = {missing_labels!r} leaves a group without any class: leave out "
            "fewer of them."
        )
    return tuple(held)
