"""Federations by which nothing was decided: made after the last constant of `auto` was chosen.

MNIST at 14 x 14 pixels, 20 clients of 200 images, two fifths to report, `mlp`, 20 rounds. The first
eight are those of an earlier review, built anew; the next four have no groups that need models of
their own; the others are new. ``soft`` has six clients of each of two groups and eight that hold
both groups' images, half and half: they are a third group to the judge.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from families.planted import Keys
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter, shift

from cflower.seeding import generator
from peers.levels import images_of

Images = NDArray[np.float32]
Labels = NDArray[np.int64]
Rng = np.random.Generator
CLASSES, SIDE, EXAMPLES = 10, 14, 200
NATURAL: Keys = {
    "partitioner": "natural-id",
    "natural-id-column": "partition",
    "group-column": "group",
    "label-column": "label",
    "shift": "none",
    "standardise": "none",  # they are pixels, and the other methods get them as they are
}
"""How `written` clients are read."""
KEYS: Keys = {
    "model": "mlp",
    "num-server-rounds": 20,
    "validation-fraction": 0.5,
    "decide-fraction": 0.2,
}
"""A tenth of a client's images decides, two fifths are reported."""


class Group(NamedTuple):
    """Clients that want the same model."""

    sizes: tuple[int, ...]
    """The number of images of each client."""
    seen: Callable[[Images, Labels], tuple[Images, Labels]]
    """How the group's clients see images of shape (n, 14, 14), in [0, 1], and their labels."""


def clients(count: int) -> tuple[int, ...]:
    """So many clients of the usual size."""
    return (EXAMPLES,) * count


def as_it_is(images: Images, labels: Labels) -> tuple[Images, Labels]:
    """Nothing changed."""
    return images, labels


def named(names: NDArray[np.int64]) -> Callable[[Images, Labels], tuple[Images, Labels]]:
    """Other names for the classes."""
    return lambda images, labels: (images, names[labels])


def swapped(*pairs: Sequence[int]) -> NDArray[np.int64]:
    """Names in which these classes are exchanged."""
    names = np.arange(CLASSES)
    for one, other in pairs:
        names[[one, other]] = other, one
    return names


def permuted(rng: Rng, first: int = 0) -> NDArray[np.int64]:
    """Names in which the classes from a first one on change places by chance."""
    return np.concatenate([np.arange(first), first + rng.permutation(CLASSES - first)])


def turned_and_named(
    quarters: int, names: NDArray[np.int64]
) -> Callable[[Images, Labels], tuple[Images, Labels]]:
    """Images turned by so many right angles, and other names for the classes."""
    return lambda images, labels: (np.rot90(images, quarters, (1, 2)), names[labels])


def rotations_by_permutations(rng: Rng) -> list[Group]:
    names = [np.arange(CLASSES), permuted(rng)]
    return [
        Group(clients(5), turned_and_named(quarters, own)) for quarters in (0, 1) for own in names
    ]


def uneven_clients(rng: Rng) -> list[Group]:
    sizes = (60, 60, 120, 120, 120, 600)
    return [Group(sizes, named(permuted(rng))) for _ in range(3)]


def uneven_groups(rng: Rng) -> list[Group]:
    return [Group(clients(count), named(permuted(rng))) for count in (14, 4, 2)]


def hierarchy(rng: Rng) -> list[Group]:
    names = [swapped(pair) for pair in rng.permutation(CLASSES)[:6].reshape(3, 2).tolist()]
    return [
        Group(clients(3), turned_and_named(quarters, own)) for quarters in (0, 2) for own in names
    ]


def two_classes(rng: Rng) -> list[Group]:
    pair = rng.permutation(CLASSES)[:2].tolist()
    return [Group(clients(10), as_it_is), Group(clients(10), named(swapped(pair)))]


def half_shared(rng: Rng) -> list[Group]:
    return [Group(clients(5), named(permuted(rng, first=5))) for _ in range(4)]


def inverted(rng: Rng) -> list[Group]:
    return [Group(clients(10), as_it_is), Group(clients(10), lambda x, y: (1 - x, y))]


def soft(rng: Rng) -> list[Group]:
    names = permuted(rng)

    def both(images: Images, labels: Labels) -> tuple[Images, Labels]:
        return images, np.where(np.arange(len(labels)) % 2, names[labels], labels)

    pure = [Group(clients(6), as_it_is), Group(clients(6), named(names))]
    return [*pure, Group(clients(8), both)]


def noisy(rng: Rng) -> list[Group]:
    def noise(images: Images, labels: Labels) -> tuple[Images, Labels]:
        return np.clip(images + rng.normal(0, 0.5, images.shape), 0, 1), labels

    return [Group(clients(10), as_it_is), Group(clients(10), noise)]


def blurred(rng: Rng) -> list[Group]:
    def blur(images: Images, labels: Labels) -> tuple[Images, Labels]:
        return gaussian_filter(images, (0, 1.2, 1.2)), labels

    return [Group(clients(10), as_it_is), Group(clients(10), blur)]


def darkened(rng: Rng) -> list[Group]:
    return [
        Group(clients(count), lambda x, y, f=factor: (x * f, y))
        for count, factor in ((7, 1.0), (7, 0.3), (6, 0.1))
    ]


def one_group(rng: Rng) -> list[Group]:
    return [Group(tuple(EXAMPLES * 3 // (1 + i // 4) for i in range(20)), as_it_is)]


def mirrored(rng: Rng) -> list[Group]:
    return [Group(clients(10), as_it_is), Group(clients(10), lambda x, y: (x[:, :, ::-1], y))]


def counted_on(rng: Rng) -> list[Group]:
    return [Group(clients(4), named((np.arange(CLASSES) + k) % CLASSES)) for k in range(0, 10, 2)]


def halves_hidden(rng: Rng) -> list[Group]:
    def hidden(columns: slice) -> Callable[[Images, Labels], tuple[Images, Labels]]:
        def hide(images: Images, labels: Labels) -> tuple[Images, Labels]:
            images = images.copy()
            images[:, :, columns] = 0
            return images, labels

        return hide

    half = SIDE // 2
    return [Group(clients(10), hidden(slice(half))), Group(clients(10), hidden(slice(half, None)))]


def shifted(rng: Rng) -> list[Group]:
    def moved(pixels: int) -> Callable[[Images, Labels], tuple[Images, Labels]]:
        return lambda x, y: (shift(x, (0, 0, pixels), order=0), y)

    return [Group(clients(count), moved(k)) for count, k in ((7, -3), (7, 0), (6, 3))]


def few_of_another(rng: Rng) -> list[Group]:
    few = Group((60,) * 6, named(permuted(rng)))
    return [Group(clients(14), as_it_is), few]


def parity_turned(rng: Rng) -> list[Group]:
    def odd(images: Images, labels: Labels) -> tuple[Images, Labels]:
        which = labels % 2 == 1
        return np.where(which[:, None, None], np.rot90(images, 2, (1, 2)), images), labels

    return [Group(clients(12), as_it_is), Group(clients(8), odd)]


def three_swaps(rng: Rng) -> list[Group]:
    pairs = rng.permutation(CLASSES)[:6].reshape(3, 2).tolist()
    return [
        Group(clients(count), named(swapped(*pairs[:k])))
        for count, k in ((6, 0), (5, 1), (5, 2), (4, 3))
    ]


MADE: dict[str, Callable[[Rng], list[Group]]] = {
    "unseen-rotations-by-permutations": rotations_by_permutations,
    "unseen-uneven-clients": uneven_clients,
    "unseen-uneven-groups": uneven_groups,
    "unseen-hierarchy": hierarchy,
    "unseen-two-classes": two_classes,
    "unseen-half-shared": half_shared,
    "unseen-inverted": inverted,
    "unseen-soft": soft,
    "unseen-noise": noisy,
    "unseen-blur": blurred,
    "unseen-brightness": darkened,
    "unseen-one-group": one_group,
    "unseen-mirrored": mirrored,
    "unseen-counted-on": counted_on,
    "unseen-halves-hidden": halves_hidden,
    "unseen-shifted": shifted,
    "unseen-few-of-another": few_of_another,
    "unseen-parity-turned": parity_turned,
    "unseen-three-swaps": three_swaps,
}
"""The federations by name: the groups, the largest first, of a random generator."""
NAMES = tuple(MADE)


def two_large(rng: Rng) -> list[Group]:
    """Two groups of nine small clients and a large one; four classes are exchanged."""
    names = swapped(*rng.permutation(CLASSES)[:4].reshape(2, 2).tolist())
    return [Group((900, *[50] * 9), seen) for seen in (as_it_is, named(names))]


def hundred(rng: Rng) -> list[Group]:
    """100 small clients of three label permutations, of which a tenth takes part in a round."""
    return [Group((60,) * count, named(permuted(rng))) for count in (50, 30, 20)]


SEEN: dict[str, tuple[Callable[[Rng], list[Group]], Keys]] = {
    "two-large": (two_large, {}),
    "hundred-at-a-tenth": (hundred, {"fraction-train": 0.1, "num-server-rounds": 40}),
}
"""Federations by which rules were decided, with the keys that differ; in no table of peers."""


def federation(name: str, folder: str, seed: int, place: Path) -> Keys:
    """The run config of one of `NAMES` or `SEEN`, whose examples are then in the folder `place`."""
    images, labels = images_of(Path(folder))
    rng = generator(seed, "unseen", name)
    groups, keys = SEEN[name] if name in SEEN else (MADE[name], {})
    return KEYS | written(dealt(groups, images, labels, rng), place) | keys


def halved(images: NDArray[np.uint8]) -> Images:
    """Half as many pixels in each direction, each the mean of four, in [0, 1]."""
    blocks = images.reshape(len(images), SIDE, 2, SIDE, 2)
    return (blocks.mean(axis=(2, 4)) / 255).astype(np.float32)


def dealt(
    groups: Callable[[Rng], list[Group]],
    images: NDArray[np.uint8],
    labels: Labels,
    rng: Rng,
    preference: float = 0.0,
    as_seen: Callable[[NDArray[Any]], NDArray[Any]] = halved,
) -> list[tuple[Images, Labels, int]]:
    """What the clients of these groups have, each image only one of them.

    With a preference a client draws its images by a Dirichlet distribution over the classes.
    A client's images are as ``as_seen`` leaves them.
    """
    free, made = rng.permutation(len(labels)), []
    for number, group in enumerate(groups(rng)):
        for size in group.sizes:
            if preference:
                liking = rng.dirichlet(np.full(CLASSES, preference))[labels[free]]
                mine = rng.choice(free, size, replace=False, p=liking / liking.sum())
                free = free[~np.isin(free, mine)]
            else:
                mine, free = free[:size], free[size:]
            made.append((*group.seen(as_seen(images[mine]), labels[mine]), number))
    return made


def written(made: Sequence[tuple[Images, Labels, int]], place: Path) -> Keys:
    """The run-config keys of clients, whose examples are then in `place`.

    Each client's inputs, labels and group; the clients in the order of their groups. Bytes are
    pictures, in an NPZ file; other inputs are rows of a table.
    """
    lengths = [len(labels) for _, labels, _ in made]
    columns = {
        "partition": np.repeat(np.arange(len(made)), lengths),  # a client is called as everywhere
        "group": np.repeat([f"group {group:02}" for *_, group in made], lengths),
        "label": np.concatenate([labels for _, labels, _ in made]),
    }
    inputs = np.concatenate([inputs for inputs, *_ in made])
    place.mkdir(parents=True, exist_ok=True)
    if inputs.dtype == np.uint8:
        np.savez(place / "train.npz", image=inputs, **columns)
    else:
        table = pd.DataFrame(inputs.reshape(len(inputs), -1).astype(np.float32)).add_prefix("p")
        pd.concat([pd.DataFrame(columns), table], axis=1).to_parquet(
            place / "train.parquet", index=False
        )
    counts = np.unique([group for *_, group in made], return_counts=True)[1].tolist()
    return NATURAL | {
        "dataset": str(place),
        "num-groups": len(counts),
        "group-sizes": ",".join(map(str, counts)),
        "min-available-nodes": len(made),
    }
