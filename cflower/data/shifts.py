"""Shifts make clients differ: contiguous groups of clients, and one shift per group.

The groups are the truth that a run is judged by; the strategy never sees them. Sources:

- ``rotation``: the classroom lab (two groups, one of them upside down);
- ``label-swap``: the paper (Sattler, Müller, Samek, arXiv 1910.01991), section VI;
- ``label-permutation``: the paper, section VI-C, equation 52;
- ``label-subset``: the paper, section VI-B (digits 0 to 4 and 5 to 9), and the Flower article
  (clients that lack some digits);
- ``label-noise``: adversaries with random labels;
- ``nested``: pairs of groups, with a large difference between pairs (turned) and a small one within
  (one pair of labels swapped in every second group): the case that needs two levels of splits;
- ``topic``: the paper, section VI-C (language model): every group has examples of a topic of its
  own, which `cflower.data.partition` deals out.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import chain, combinations
from math import comb, factorial

import numpy as np
from numpy.typing import NDArray

from cflower.data.examples import Examples
from cflower.data.settings import DataSettings, sizes_in
from cflower.ordering import listed
from cflower.seeding import generator
from cflower.settings import require, require_data


@lru_cache(maxsize=8)
def groups_of(num_clients: int, num_groups: int, group_sizes: str = "") -> tuple[int, ...]:
    """The group of every client, from 0 to num_groups - 1: contiguous blocks.

    Without `group_sizes` they are as equal as can be, the larger ones first.

    >>> groups_of(5, 2)
    (0, 0, 0, 1, 1)
    >>> groups_of(4, 2, "1,3")
    (0, 1, 1, 1)
    """
    require(
        1 <= num_groups <= num_clients,
        f"num-groups = {num_groups} does not fit {num_clients} clients: every group needs a "
        "client, so use at least 1 group and at least as many clients as groups.",
    )
    equal = [len(block) for block in np.array_split(np.arange(num_clients), num_groups)]
    sizes = sizes_in(group_sizes) or equal
    require(
        len(sizes) == num_groups,
        f"group-sizes = {group_sizes!r} has {len(sizes)} groups, but num-groups = "
        f"{num_groups}: set num-groups = {len(sizes)} or leave group-sizes empty.",
    )
    require(
        sum(sizes) == num_clients,
        f"group-sizes = {group_sizes!r} sums to {sum(sizes)} for {num_clients} clients: "
        f"expected whole numbers that sum to {num_clients}.",
    )
    return tuple(np.repeat(np.arange(num_groups), sizes).tolist())


def apply_shift(examples: Examples, settings: DataSettings, group: int, client: int) -> Examples:
    """The examples dealt to one client as a member of its group sees them.

    ``client`` is its partition: each client has its own stream of label noise.
    """
    return SHIFTED[settings.shift](examples, settings, group, client)


def unchanged(examples: Examples, settings: DataSettings, group: int, client: int) -> Examples:
    """The examples as they were dealt out; those of "topic" differ by that alone."""
    return examples


def rotation(examples: Examples, settings: DataSettings, group: int, client: int) -> Examples:
    return replace(examples, inputs=rotated(examples.inputs, group, settings.num_groups))


def label_swap(examples: Examples, settings: DataSettings, group: int, client: int) -> Examples:
    mapping = swapped_labels(examples.num_classes, settings.num_groups, settings.seed)[group]
    return replace(examples, labels=mapping[examples.labels])


def label_permutation(
    examples: Examples, settings: DataSettings, group: int, client: int
) -> Examples:
    mapping = permuted_labels(examples.num_classes, settings.num_groups, settings.seed)[group]
    return replace(examples, labels=mapping[examples.labels])


def label_noise(examples: Examples, settings: DataSettings, group: int, client: int) -> Examples:
    if group < settings.num_groups - 1:
        return examples
    rng = generator(settings.seed, "label-noise", client)
    return replace(examples, labels=rng.integers(examples.num_classes, size=len(examples)))


def label_subset(examples: Examples, settings: DataSettings, group: int, client: int) -> Examples:
    names, num_groups, missing = examples.class_names, settings.num_groups, settings.missing_labels
    labels = held_classes(names, num_groups, settings.seed, missing)[group]
    kept = examples.take(np.isin(examples.labels, labels))
    require_data(
        len(kept) > 0 or not len(examples),
        f"shift = 'label-subset' leaves client {client} (group {group}) without examples, as it "
        f"has none of {listed(names[label] for label in labels)}: use fewer groups or clients, or "
        "partitioner = 'iid'.",
    )
    return kept


def nested(examples: Examples, settings: DataSettings, group: int, client: int) -> Examples:
    """Groups in pairs: pair p = group // 2 of k is turned by 360 p / k degrees; its odd group also
    swaps two labels, the same two in every pair.
    """
    num_groups = settings.num_groups
    require(
        num_groups % 2 == 0,
        f"shift = 'nested' needs groups in pairs, but num-groups = {num_groups}: use an even "
        "number, e.g. 4.",
    )
    inputs = rotated(examples.inputs, group // 2, num_groups // 2)
    mapping = swapped_labels(examples.num_classes, 1, settings.seed)[0]
    labels = mapping[examples.labels] if group % 2 else examples.labels
    return replace(examples, inputs=inputs, labels=labels)


SHIFTED: Mapping[str, Callable[[Examples, DataSettings, int, int], Examples]] = {
    "none": unchanged,
    "rotation": rotation,
    "label-swap": label_swap,
    "label-permutation": label_permutation,
    "label-subset": label_subset,
    "label-noise": label_noise,
    "nested": nested,
    "topic": unchanged,
}
"""Every shift: a function of the client's examples, the settings, its group and its number."""


def rotated(images: NDArray[np.float32], group: int, num_groups: int) -> NDArray[np.float32]:
    """Images, shape (n, channels, height, width), turned anticlockwise by 360 * group / num_groups
    degrees.

    Quarter turns of square images are exact; other angles interpolate linearly and keep the size.
    """
    require_data(
        images.ndim == 4,
        f"shift = 'rotation' needs images, but inputs have shape {images.shape[1:]}: choose "
        "an image dataset or another shift.",
    )
    quarters, rest = divmod(4 * group, num_groups)
    height, width = images.shape[2:]
    if rest == 0 and (height == width or quarters % 2 == 0):
        return np.ascontiguousarray(np.rot90(images, quarters, axes=(2, 3)))
    from scipy.ndimage import rotate  # most runs do without

    degrees = 360 * group / num_groups
    turned = rotate(images, degrees, axes=(3, 2), order=1, reshape=False)
    return np.asarray(turned, dtype=np.float32)


def swapped_labels(num_classes: int, num_groups: int, seed: int) -> NDArray[np.int64]:
    """Label swaps (section VI): each group exchanges one pair of labels.

    Row g, of shape (num_groups, num_classes), maps a label to that of group g. Pairs differ between
    groups, and share no label as long as there are two labels per group.
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

    Row g, of shape (num_groups, num_classes), maps a label to that of group g; no two rows are
    equal, and with at most as many groups as classes no two agree on any label.

    Differences: the paper draws permutations at random, which may by chance agree on labels. Here
    they are distinct turns of one random circle of labels; groups beyond the number of classes get
    the random permutation, out of 32, that agrees least with the others.
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
