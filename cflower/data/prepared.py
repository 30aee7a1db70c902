"""A client's examples in three parts, checked and standardised."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cflower.data.examples import Examples
from cflower.settings import require_data


@dataclass(frozen=True, eq=False)
class ClientData:
    """A client's examples to train on, to decide by and to report, and its true group if known.

    A shift numbers its groups; a column of groups names them.
    """

    train: Examples
    decide: Examples
    """Trials, joins, the personal step and `selection` decide by these and by no others."""
    report: Examples
    """All figures are of these; the same object as ``decide`` if the parts are not kept apart."""
    group: int | str | None

    @property
    def apart(self) -> bool:
        """Whether nothing is decided by the examples that are reported."""
        return self.decide is not self.report


def prepared(parts: Sequence[Examples], group: int | str | None, standardise: str) -> ClientData:
    """A client's three parts in read-only arrays, standardised if the setting is ``"client"``.

    The last two may be one object.

    Standardising is not the default: clients that differ by an offset or a unit only then look
    alike, and that may be just what separates the groups.
    """
    train, decide, report = parts
    apart = decide is not report
    if standardise == "client":
        train, report, *others = standardised(train, report, *([decide] if apart else []))
        decide = others[0] if apart else report
    for part in (train, decide, report):
        part.inputs.flags.writeable = part.labels.flags.writeable = False
    return ClientData(train, decide, report, group)


def standardised(train: Examples, *others: Examples) -> list[Examples]:
    """All parts by the mean and deviation of every column of the first; constant columns are 0.

    Raises a DataError if the inputs are no rows of numbers.
    """
    require_data(
        train.inputs.ndim == 2 and train.labels.ndim == 1,
        f"standardise = 'client' is for tables of numbers, but inputs have shape "
        f"{train.input_shape} and labels {train.labels.shape[1:]}: set standardise = 'none'.",
    )
    mean = train.inputs.mean(axis=0, dtype=np.float64)
    deviation = train.inputs.std(axis=0, dtype=np.float64)
    deviation[deviation == 0] = 1

    def scaled(part: Examples) -> Examples:
        inputs = ((part.inputs - mean) / deviation).astype(np.float32)
        return Examples(inputs, part.labels, part.class_names)

    return list(map(scaled, (train, *others)))


def check_one_shape(source: str, first: tuple[int, ...], other: tuple[int, ...]) -> None:
    """Refuse images of different sizes.

    Raises a DataError that names both shapes.
    """
    require_data(
        first == other,
        f"{source} has images of different sizes, {first} and {other} (channels, height, width): "
        "bring them all to one size and mode.",
    )
