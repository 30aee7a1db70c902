"""The labels that a group of clients sees in place of the true ones, and those it sees at all.

Tables for all groups at once, so that the differences between groups can be checked: they are
drawn from the seed alone and are the same on every client.
"""

from itertools import chain, combinations
from math import comb, factorial

import numpy as np
from numpy.typing import NDArray

from cflower.seeding import generator
from cflower.settings import require, require_data


def swapped_labels(num_classes: int, num_groups: int, seed: int) -> NDArray[np.int64]:
    """Label swaps (section VI): each group exchanges one pair of labels.

    Row g, of shape (num_groups, num_classes), maps a label to the label that group g gives it.
    Pairs are different for every group, and share no label as long as there are two labels per
    group.
    """
    require_data(
        num_groups <= comb(num_classes, 2),
        f"shift = 'label-swap' needs a different pair of labels for each of {num_groups} "
        f"groups, but {num_classes} classes have {comb(num_classes, 2)} pairs: use fewer groups.",
    )
    rng = generator(seed, "label-swap")
    order = rng.permutation(num_classes)
    disjoint = np.sort(order[: num_classes // 2 * 2].reshape(-1, 2), axis=1).tolist()
    every = map(list, combinations(range(num_classes), 2))
    others = [pair for pair in every if pair not in disjoint]
    pairs = disjoint + [others[i] for i in rng.permutation(len(others))]
    mappings = np.tile(np.arange(num_classes, dtype=np.int64), (num_groups, 1))
    for mapping, pair in zip(mappings, pairs, strict=False):
        mapping[pair] = pair[::-1]
    return mappings


def permuted_labels(num_classes: int, num_groups: int, seed: int) -> NDArray[np.int64]:
    """Label permutations P_c(i) (equation 52): group 0 keeps its labels, others permute them.

    Row g, of shape (num_groups, num_classes), maps a label to the label that group g gives it; no
    two rows are equal. With at most as many groups as classes, no two groups agree on any label.

    Differences: the paper draws permutations at random, which may by chance agree on labels.
    Here they are distinct turns of one random circle of labels; groups beyond the number of
    classes get the random permutation, out of 32, that agrees least with the others.
    """
    require_data(
        num_groups <= factorial(num_classes),
        f"shift = 'label-permutation' needs a different permutation for each of {num_groups} "
        f"groups, but {num_classes} labels have too few: use fewer groups.",
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

    >>> held_classes(("a", "b", "c"), 2, 0, "a,b;c")
    ((2,), (0, 1))
    """
    num_classes = len(class_names)
    if not missing_labels.strip():
        require_data(
            num_groups <= num_classes,
            f"shift = 'label-subset' cannot share {num_classes} classes among {num_groups} groups: "
            f"use at most {num_classes} groups.",
        )
        order = generator(seed, "label-subset").permutation(num_classes)
        return tuple(tuple(sorted(part.tolist())) for part in np.array_split(order, num_groups))
    parts = [[name.strip() for name in part.split(",")] for part in missing_labels.split(";")]
    setting = f"missing-labels = {missing_labels!r}"
    require(
        len(parts) == num_groups,
        f"{setting} has {len(parts)} parts for {num_groups} groups: expected one part per group, "
        "separated by semicolons.",
    )
    unknown = sorted({*chain.from_iterable(parts)} - {"", *class_names})
    require(
        not unknown,
        f"{setting} names {', '.join(map(repr, unknown))}, which is no class of the data: expected "
        f"some of {', '.join(class_names)}.",
    )
    held = tuple(
        tuple(label for label, name in enumerate(class_names) if name not in missing)
        for missing in parts
    )
    require_data(
        all(held),
        f"{setting} leaves a group without any class: leave out fewer of them.",
    )
    return held
