"""What a real client learns from: a folder of its own, its classes matched by name."""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from cflower.algorithm.tree import in_order
from cflower.data.client_data import ClientData, held_out
from cflower.data.columns import class_names, labels_of, listed, with_classes
from cflower.data.decoding import inputs_of
from cflower.data.examples import Examples
from cflower.data.sources import load_folder
from cflower.errors import DataError
from cflower.seeding import generator


@dataclass(frozen=True)
class OwnData:
    """One client's own folder, and how to read it.

    Attributes
    ----------
    path : str
        A folder of images per class, of Parquet, CSV or NPZ files.
    class_names : tuple of str
        The classes of the run; empty: the folder's own, in natural order of their names.
    validation_fraction : float
        Share of the examples that the client is judged by and never trains on, in (0, 1).
    seed : int
        Decides which.
    key : str
        The setting that names the folder, for errors.
    """

    path: str
    class_names: tuple[str, ...] = ()
    validation_fraction: float = 0.2
    seed: int = 0
    key: str = "data-path"


@lru_cache(maxsize=16)
def load_own_data(own: OwnData) -> ClientData:
    """The examples of a client's own folder; kept, so that a process reads it once.

    Real clients differ by themselves: nothing is dealt out or shifted, so there is no true group.
    Which examples are held out depends on the seed and on what lies in the folder only, so they
    are the same after a restart.

    Raises
    ------
    DataError
        If the folder is missing or empty, cannot be read, or does not fit the classes.
    """
    name = f"{own.key} = {own.path!r}"
    source = with_classes(load_folder(Path(own.path).expanduser(), own.key), name)
    if not len(source):
        raise DataError(f"{name} has no examples: put data there or correct the path.")
    labels, theirs = labels_of(source, name), class_names(source, name, least=1)
    wanted = own.class_names or in_order(theirs)
    if len(wanted) < 2:
        class_names(source, name)  # says why that does not do
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
    return held_out(
        Examples(inputs_of(source, name), mapping[labels], wanted),
        own.validation_fraction,
        generator(own.seed, "hold-out", "own-data"),
    )
