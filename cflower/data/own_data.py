"""The data of a real client: a folder of its own, its classes matched by name."""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cflower.data.columns import DEFAULT_ROLES, Roles, check_classes
from cflower.data.examples import Examples, split
from cflower.data.folders import load_folder
from cflower.data.prepared import ClientData, prepared
from cflower.data.stored import Stored, most_common
from cflower.data.text import windows
from cflower.ordering import in_order, listed
from cflower.seeding import generator
from cflower.settings import require_data


@dataclass(frozen=True)
class OwnData:
    """One client's own folder, and how to read it; settings as in `DataSettings`."""

    path: str
    """A folder of images per class, of Parquet, CSV or NPZ files; texts are in a column "text"."""
    class_names: tuple[str, ...] = ()
    """The classes of the run, or the vocabulary of texts; empty for the folder's own, in natural
    order of their names."""
    validation_fraction: float = 0.2
    seed: int = 0
    key: str = "data-path"
    """The setting that names the folder, for errors."""
    roles: Roles = DEFAULT_ROLES
    """The role of each column; if it names tokens, the examples are texts."""
    standardise: str = "none"
    decide_fraction: float = 0.0


@lru_cache(maxsize=16)
def load_own_data(own: OwnData) -> ClientData:
    """The examples of a client's own folder; cached, so that a process reads it once.

    Real clients differ by themselves: nothing is dealt out or shifted, and the true group is known
    only from a group column. Which examples are in which part depends on the seed and on
    the content of the folder only, so they are the same after a restart.

    Raises a DataError if the folder is missing or empty, cannot be read, or does not fit the
    classes.
    """
    roles, table = own.roles, load_folder(Path(own.path).expanduser(), own.key)
    source = windows(table, roles, own.class_names) if roles.tokens else Stored.of(table, roles)
    name = source.name
    require_data(len(source) > 0, f"{name} has no examples: put data there or correct the path.")
    require_data(
        len(source) > 1,
        f"{name} has only one example: at least 3 are needed, to train on, decide by and report; "
        "put more data there.",
    )
    classes = own.class_names or in_order(source.class_names)
    check_classes(classes, name)
    labels = source.labels if roles.unlabelled else _labels_in(source, classes)

    def chosen(rows: NDArray[Any]) -> Examples:
        return Examples(source.take(rows).examples().inputs, labels[rows], classes)

    # Divided before they are decoded: as floats, images take four times the memory, and once is
    # enough.
    rng = generator(own.seed, "hold-out", "own-data")
    places = split(len(source), own.validation_fraction, rng, own.decide_fraction)
    group = most_common(source.metadata_of(roles.group)) if roles.group else None
    return prepared(list(map(chosen, places)), group, own.standardise)


def _labels_in(source: Stored, classes: tuple[str, ...]) -> NDArray[np.int64]:
    """The labels of a source as positions in the classes of the run."""
    name, labels, names = source.name, source.labels, source.class_names
    unlabelled = int((labels < 0).sum())
    require_data(
        not unlabelled,
        f"{name} has {unlabelled} rows without a label (-1): remove or label them.",
    )
    unknown = sorted({names[label] for label in np.unique(labels)} - set(classes))
    require_data(
        not unknown,
        f"{name} has the class(es) {listed(unknown)}, which the run does not know: its "
        f"class-names are {listed(classes)}; rename these classes or correct class-names.",
    )
    places = {label: place for place, label in enumerate(classes)}
    return np.array([places.get(label, -1) for label in names], dtype=np.int64)[labels]
