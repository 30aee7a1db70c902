"""A client's examples, checked, standardised and split into those to train on and held-out ones."""

from dataclasses import dataclass

import numpy as np

from cflower.data.examples import Examples
from cflower.settings import require_data


@dataclass(frozen=True, eq=False)
class ClientData:
    """A client's examples to train on and to evaluate with, and its true group, if it is known.

    A shift numbers its groups; a column of groups names them.
    """

    train: Examples
    validation: Examples
    group: int | str | None


def prepared(
    train: Examples, validation: Examples, group: int | str | None, standardise: str
) -> ClientData:
    """A client's two parts in read-only arrays, standardised if the setting is ``"client"``.

    Standardising is not the default: clients that differ by an offset or a unit only then look
    alike, and that may be just what separates the groups.
    """
    if standardise == "client":
        train, validation = standardised(train, validation)
    for array in (train.inputs, train.labels, validation.inputs, validation.labels):
        array.flags.writeable = False
    return ClientData(train, validation, group)


def standardised(train: Examples, validation: Examples) -> tuple[Examples, Examples]:
    """Both parts by the mean and deviation of every column of the first; constant columns are 0.

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

    return scaled(train), scaled(validation)


def check_one_shape(source: str, first: tuple[int, ...], other: tuple[int, ...]) -> None:
    """Refuse images of different sizes.

    Raises a DataError that names both shapes.
    """
    require_data(
        first == other,
        f"{source} has images of different sizes, {first} and {other} (channels, height, width): "
        "bring them all to one size and mode.",
    )
