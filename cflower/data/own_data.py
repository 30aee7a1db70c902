"""What a real client learns from: a folder of its own, its classes matched by name."""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cflower.data.client_data import ClientData, prepared
from cflower.data.columns import FOUND, Roles, check_classes, listed
from cflower.data.examples import Examples, split
from cflower.data.folders import load_folder
from cflower.data.stored import Stored, most_common
from cflower.data.text import windows
from cflower.errors import DataError
from cflower.ordering import in_order
from cflower.seeding import generator


@dataclass(frozen=True)
class OwnData:
    """One client's own folder, and how to read it.

    Attributes
    ----------
    path : str
        A folder of images per class, of Parquet, CSV or NPZ files; texts are in a column "text".
    class_names : tuple of str
        The classes of the run, of texts its vocabulary; empty: the folder's own, in natural order
        of their names.
    validation_fraction : float
        Share of the examples that the client is judged by and never trains on, in (0, 1).
    seed : int
        Decides which.
    key : str
        The setting that names the folder, for errors.
    roles : Roles
        Which column is what; where it names tokens, the examples are texts.
    standardise : str
        See `cflower.data.client_data.prepared`.
    """

    path: str
    class_names: tuple[str, ...] = ()
    validation_fraction: float = 0.2
    seed: int = 0
    key: str = "data-path"
    roles: Roles = FOUND
    standardise: str = "none"


@lru_cache(maxsize=16)
def load_own_data(own: OwnData) -> ClientData:
    """The examples of a client's own folder; kept, so that a process reads it once.

    Real clients differ by themselves: nothing is dealt out or shifted, and the true group is known
    only if a column tells it. Which examples are held out depends on the seed and on what lies in
    the folder only, so they are the same after a restart.

    Raises
    ------
    DataError
        If the folder is missing or empty, cannot be read, or does not fit the classes.
    """
    table = load_folder(Path(own.path).expanduser(), own.key, own.roles)
    if own.roles.tokens:
        source = windows(table, own.roles, own.class_names)
    else:
        source = Stored.of(table, own.roles)
    name = f"{own.key} = {own.path!r}"
    if not len(source):
        raise DataError(f"{name} has no examples: put data there or correct the path.")
    labels, theirs = source.labels, source.class_names
    wanted = own.class_names or in_order(theirs)
    if own.roles.unlabelled:
        theirs = wanted[:1]  # labels are zeros, and nobody reads them
    check_classes(wanted, name)
    places = {label: place for place, label in enumerate(wanted)}
    unlabelled = int((labels < 0).sum())
    if unlabelled:
        raise DataError(f"{name} has {unlabelled} rows without a label (-1): remove or label them.")
    unknown = [theirs[i] for i in np.unique(labels) if theirs[i] not in places]
    if unknown:
        raise DataError(
            f"{name} has the class(es) {listed(unknown)}, which the run does not know: its "
            f"class-names are {listed(wanted)}; rename these classes or correct class-names."
        )
    mapping = np.array([places.get(label, -1) for label in theirs], dtype=np.int64)
    group = most_common(source.tell(own.roles.group)) if own.roles.group else None
    rng = generator(own.seed, "hold-out", "own-data")

    def chosen(rows: NDArray[Any]) -> Examples:
        return Examples(source.take(rows).examples().inputs, mapping[labels[rows]], wanted)

    # Divided before they are decoded: as floats, images take four times the memory, and once is
    # enough.
    train, validation = map(chosen, split(len(source), own.validation_fraction, rng))
    if train.input_shape != validation.input_shape:
        raise DataError(
            f"{name} has images of different sizes, {train.input_shape} and "
            f"{validation.input_shape} (channels, height, width): bring them all to one size and "
            "mode."
        )
    return prepared(train, validation, group, own.standardise)
