"""Federations of kinds that users have, made on 28 November 2026 before the rules were fixed.

They were committed before any method had run on one of them, and nothing was changed in view of a
result. As a rule 20 clients of 200 examples, two fifths to report, `mlp`, 20 rounds, as those of
`unseen`; half of the images are MNIST's, half Fashion-MNIST's, all at 14 x 14 pixels. The folder
of the data set ``fresh`` has the folders ``mnist``, ``fashion-mnist`` and ``20newsgroups``, each of
Parquet files with the columns ``image`` or ``text``, and ``label``.

- ``fresh-shares``: a client's images are labelled by A or by B, which names half of the classes
  otherwise; B's share is anything from none to all. Groups: by whom most are labelled.
- ``fresh-news``: articles of four sections of 20 Newsgroups, each of which numbers its own four
  newsgroups, by the words that they contain.
- ``fresh-one-beside``: 16 clients, three and a single one, who name half of the classes otherwise.
- ``fresh-two-large``: two clients with 1,000 images on their side beside 18 with 60.
- ``fresh-five-examples``: eight of 20 clients have five images to train on, in two groups.
- ``fresh-pairs``: ten groups of two.
- ``fresh-coefficients``: a table; a third of the coefficients differ between three groups.
- ``fresh-sampling-rate``: the frequency of a noisy wave; eight of 20 clients take half as many
  samples a second.
- ``fresh-tenth``: 100 clients, a tenth of them in each of 40 rounds; 50 see clothes as they are,
  30 exchange six names, 20 have them upside down.
- ``fresh-all-skews``: uneven labels, uneven numbers of images, and three ways to hold a camera.
- ``fresh-everybody``: each client has names of its own.
- ``fresh-thresholds``: digits in three grades, with other limits in each of three groups.
- ``fresh-skew-and-swap``: uneven labels, and eight of 20 clients exchange four names.
- ``fresh-calibration``: a table of 16 sensors; each of three makers has gains and offsets of its
  own, and each device differs a little from its maker's.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from families.planted import Keys

from cflower.seeding import generator
from peers.levels import images_of
from peers.unseen import (
    CLASSES,
    KEYS,
    Group,
    Images,
    Labels,
    Rng,
    as_it_is,
    clients,
    dealt,
    named,
    permuted,
    swapped,
    turned_and_named,
    written,
)

Clients = list[tuple[Images, Labels, int]]
"""Each client's inputs, labels and group; the largest group first."""
HALF = CLASSES // 2
WORDS = 1_000
"""So many of the most frequent words of 20 Newsgroups are seen, common English ones left out."""
SECTIONS = ("comp.", "rec.", "sci.", "talk.")
PREFERENCE = 0.5
"""Of Dirichlet distributions over the classes of clients with uneven labels."""


def half_otherwise(rng: Rng, *counts: int) -> list[Group]:
    """Groups of so many clients, each with other names for half of the classes."""
    return [Group(clients(count), named(permuted(rng, first=HALF))) for count in counts]


def shares(rng: Rng) -> list[Group]:
    names = permuted(rng, first=HALF)

    def mixed(least: float, most: float) -> Callable[[Images, Labels], tuple[Images, Labels]]:
        def mix(images: Images, labels: Labels) -> tuple[Images, Labels]:
            by_b = rng.random(len(labels)) < rng.uniform(least, most)
            return images, np.where(by_b, names[labels], labels)

        return mix

    return [Group(clients(10), mixed(0, 0.5)), Group(clients(10), mixed(0.5, 1))]


def one_beside(rng: Rng) -> list[Group]:
    return half_otherwise(rng, 16, 3, 1)


def two_large(rng: Rng) -> list[Group]:
    on_its_side = turned_and_named(1, np.arange(CLASSES))
    return [Group((60,) * 18, as_it_is), Group((1_000,) * 2, on_its_side)]


def five_examples(rng: Rng) -> list[Group]:
    sizes = (*clients(6), *(10,) * 4)
    return [group._replace(sizes=sizes) for group in half_otherwise(rng, 10, 10)]


def pairs(rng: Rng) -> list[Group]:
    return half_otherwise(rng, *(2,) * 10)


def tenth(rng: Rng) -> list[Group]:
    names = swapped(*rng.permutation(CLASSES)[:6].reshape(3, 2).tolist())
    upside_down = turned_and_named(2, np.arange(CLASSES))
    return [
        Group((80,) * count, seen)
        for count, seen in ((50, as_it_is), (30, named(names)), (20, upside_down))
    ]


def all_skews(rng: Rng) -> list[Group]:
    def sizes(count: int) -> tuple[int, ...]:
        return tuple(np.clip(200 * rng.lognormal(-0.3, 0.8, count), 40, 800).astype(int).tolist())

    return [
        Group(sizes(count), turned_and_named(quarters, np.arange(CLASSES)))
        for count, quarters in ((8, 0), (7, 1), (5, 2))
    ]


def everybody(rng: Rng) -> list[Group]:
    return [Group(clients(1), named(permuted(rng))) for _ in range(20)]


def thresholds(rng: Rng) -> list[Group]:
    digits = np.arange(CLASSES)
    return [
        Group(clients(count), named(np.digitize(digits, limits)))
        for count, limits in ((7, (3, 7)), (7, (2, 5)), (6, (5, 8)))
    ]


def skew_and_swap(rng: Rng) -> list[Group]:
    names = swapped(*rng.permutation(CLASSES)[:4].reshape(2, 2).tolist())
    return [Group(clients(12), as_it_is), Group(clients(8), named(names))]


class Pictures(NamedTuple):
    """How a federation of images is made."""

    groups: Callable[[Rng], list[Group]]
    images: str = "mnist"
    """The data set's folder."""
    preference: float = 0.0
    """Of the Dirichlet distribution of a client's labels; 0: they are as in the data set."""
    keys: Keys = {}  # noqa: RUF012 (never changed)
    """Run-config keys that differ from `KEYS`."""


FASHION = "fashion-mnist"
PICTURES = {
    "fresh-shares": Pictures(shares),
    "fresh-one-beside": Pictures(one_beside, FASHION),
    "fresh-two-large": Pictures(two_large),
    "fresh-five-examples": Pictures(five_examples),
    "fresh-pairs": Pictures(pairs, FASHION),
    "fresh-tenth": Pictures(tenth, FASHION, keys={"fraction-train": 0.1, "num-server-rounds": 40}),
    "fresh-all-skews": Pictures(all_skews, preference=PREFERENCE),
    "fresh-everybody": Pictures(everybody, FASHION),
    "fresh-thresholds": Pictures(thresholds),
    "fresh-skew-and-swap": Pictures(skew_and_swap, FASHION, PREFERENCE),
}


def news(rng: Rng, folder: Path) -> Clients:
    return by_section(rng, *articles(folder / "20newsgroups"))


def by_section(
    rng: Rng,
    words: Images,
    newsgroups: Labels,
    names: list[str],
    counts: tuple[int, ...] = (8, 5, 4, 3),
) -> Clients:
    """Clients with articles of one section each, whose first four newsgroups are the classes."""
    made = []
    for group, (section, count) in enumerate(zip(SECTIONS, counts, strict=True)):
        own = [place for place, name in enumerate(names) if name.startswith(section)][:4]
        here = rng.permutation(np.flatnonzero(np.isin(newsgroups, own)))[: 200 * count]
        for mine in np.split(here, count):
            made.append((words[mine], np.searchsorted(own, newsgroups[mine]), group))
    return made


@cache
def articles(folder: Path) -> tuple[Images, Labels, list[str]]:
    """Which of the words an article has, shape (n, `WORDS`), its newsgroup, and their names."""
    from sklearn.feature_extraction.text import CountVectorizer

    texts, newsgroups, names = texts_of(folder)
    counted = CountVectorizer(stop_words="english", max_features=WORDS, binary=True)
    return counted.fit_transform(texts).toarray().astype(np.float32), newsgroups, names


def texts_of(folder: Path) -> tuple[list[str], Labels, list[str]]:
    """The articles of 20 Newsgroups, the newsgroup of each, and the newsgroups' names."""
    from datasets import load_dataset

    rows = load_dataset("parquet", data_files=str(folder / "*.parquet"), split="train")
    return list(rows["text"]), np.array(rows["label"]), rows.features["label"].names


def coefficients(rng: Rng, folder: Path) -> Clients:
    common, made = rng.normal(size=12), []
    for group, count in enumerate((9, 7, 4)):
        own = np.concatenate([common[:8], rng.normal(size=4)])
        for _ in range(count):
            inputs = rng.normal(size=(120, 12))
            score = inputs @ own + inputs[:, 0] * inputs[:, 1] + rng.logistic(0, 0.3, 120)
            made.append((inputs, (score > 0).astype(np.int64), group))
    return made


def sampling_rate(rng: Rng, folder: Path) -> Clients:
    moments, made = np.arange(64) / 64, []
    for group, (count, factor) in enumerate(((12, 1), (8, 2))):
        for _ in range(count):
            labels = rng.integers(6, size=200)
            phase = rng.uniform(0, 2 * np.pi, (2, 200, 1))
            angles = 2 * np.pi * factor * (2 * 1.4**labels)[:, None] * moments
            waves = np.sin(angles + phase[0]) + 0.5 * np.sin(2 * angles + phase[1])
            made.append((waves + rng.normal(0, 0.5, waves.shape), labels, group))
    return made


def calibration(rng: Rng, folder: Path) -> Clients:
    centres, made = rng.normal(size=(6, 2, 16)), []  # two ways to be of each class
    for group, count in enumerate((9, 6, 5)):
        gain, offset = rng.normal(0, 0.5, 16), rng.normal(size=16)
        for _ in range(count):
            labels, way = rng.integers(6, size=150), rng.integers(2, size=150)
            inputs = centres[labels, way] + rng.normal(0, 0.8, (150, 16))
            device = np.exp(gain + rng.normal(0, 0.1, 16))
            made.append((device * inputs + offset + rng.normal(0, 0.1, 16), labels, group))
    return made


TABLES: dict[str, tuple[Callable[[Rng, Path], Clients], Keys]] = {
    "fresh-news": (news, {}),
    "fresh-coefficients": (coefficients, {}),
    "fresh-sampling-rate": (sampling_rate, {"series-channels": 1, "model": "conv1d"}),
    "fresh-calibration": (calibration, {}),
}
"""The others: the clients of a random generator and the folder, and the keys that differ."""
NAMES = (*PICTURES, *TABLES)


def federation(name: str, folder: str, seed: int, place: Path) -> Keys:
    """The run config of one of `NAMES`, whose examples are then in the folder `place`."""
    rng = generator(seed, "fresh", name)
    if name in TABLES:
        make, keys = TABLES[name]
        made = make(rng, Path(folder))
    else:
        groups, data, preference, keys = PICTURES[name]
        images, labels = images_of(Path(folder) / data)
        made = dealt(groups, images, labels, rng, preference)
    return KEYS | written(made, place) | keys
