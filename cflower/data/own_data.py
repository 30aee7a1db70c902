"""The data of a real client: a folder of its own, its classes matched by name."""

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cflower.data.columns import check_classes
from cflower.data.examples import ClientData, Examples, prepared, split
from cflower.data.folders import load_folder
from cflower.data.settings import DataSettings
from cflower.data.stored import Stored, usual_value
from cflower.data.text import windows
from cflower.ordering import counted, in_order, listed
from cflower.seeding import generator
from cflower.settings import require_data
from cflower.tables.agreement import alone, as_text


@lru_cache(maxsize=16)
def load_own_data(
    path: str,
    settings: DataSettings,
    class_names: tuple[str, ...] = (),
    preparation: str = "",
    *,
    key: str = "data-path",
) -> ClientData:
    """The examples of a client's own folder; cached, so that a process reads it once.

    ``class_names`` are the classes of the run, or the vocabulary of texts; if empty, the folder's
    own, in natural order. ``key`` names the folder in errors. A table is prepared by a
    ``preparation``, see `Stored.examples`. Nothing is dealt out or shifted; the true group is known
    only from a group column. The parts depend on the seed and the folder's content only, so they
    are the same after a restart.
    """
    table = load_folder(Path(path).expanduser(), key)
    if settings.is_text:
        source = windows(table, settings, class_names)
    else:
        source = Stored.of(table, settings)
    least, uses = (3, "train on, decide by") if settings.decide_fraction else (2, "train on")
    require_data(
        len(source) >= least,
        f"{source.name} has {counted(len(source), 'example')}: at least {least} are needed, to "
        f"{uses} and report; put more data there.",
    )
    classes = class_names or in_order(source.class_names)
    labels = source.labels
    if not settings.is_regression:
        check_classes(classes, source.name)
        labels = _labels_in(source, classes)

    def chosen(rows: NDArray[Any]) -> Examples:
        return Examples(source.take(rows).examples(known).inputs, labels[rows], classes)

    # Divided before they are decoded: as floats, images take four times the memory, and once is
    # enough.
    rng = generator(settings.seed, "hold-out", "own-data")
    places = split(labels, settings.validation_fraction, rng, settings.decide_fraction)
    column = settings.group_column
    group = usual_value(source.metadata_of(column)) if column else None
    described = None if preparation else source.described(places[0])
    known = preparation or (as_text(alone(described)) if described else "")
    data = prepared(list(map(chosen, places)), group, settings.standardise)
    return replace(data, table=described)


def _labels_in(source: Stored, classes: tuple[str, ...]) -> NDArray[np.int64]:
    """The labels of a source as positions in the classes of the run."""
    name, names = source.name, source.class_names
    labels: NDArray[np.int64] = source.labels
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
