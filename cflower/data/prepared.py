"""A client's examples in three parts, checked and standardised."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cflower.data.examples import Examples
from cflower.settings import require_data


@dataclass(frozen=True, eq=False)
class ClientData:
    """A client's examples in three parts, and its true group, if known, as a number or a name."""

    train: Examples
    decide: Examples
    """Votes, the personal step and `selection` decide by these and by no others."""
    report: Examples
    """All figures are of these; the same object as ``decide`` if the same examples decide."""
    group: int | str | None
    table: dict[str, Any] | None = None
    """What the server has to know of a table before it is prepared (`cflower.tables`)."""

    @property
    def num_bytes(self) -> int:
        parts = {id(part): part for part in (self.train, self.decide, self.report)}.values()
        return sum(part.inputs.nbytes + part.labels.nbytes for part in parts)

    @property
    def classes_here(self) -> list[str]:
        parts = self.train, self.decide, self.report
        occur = {label for part in parts for label in np.unique(part.labels)}
        return [name for label, name in enumerate(self.train.class_names) if label in occur]

    @property
    def apart(self) -> bool:
        """Whether nothing is decided by the examples that are reported."""
        return self.decide is not self.report


def prepared(parts: Sequence[Examples], group: int | str | None, standardise: str) -> ClientData:
    """A client's parts in read-only arrays, standardised if the setting is ``"client"``.

    The first is to train on, the last to report; one between them decides, else the last does.
    Standardising is not the default: an offset or a unit may be just what separates the groups.
    """
    if standardise == "client":
        parts = standardised(parts)
    for part in parts:
        part.inputs.flags.writeable = part.labels.flags.writeable = False
    return ClientData(parts[0], parts[1], parts[-1], group)


def standardised(parts: Sequence[Examples]) -> list[Examples]:
    """All parts by the mean and deviation of every column of the first; constant columns are 0."""
    train = parts[0]
    require_data(
        train.inputs.ndim == 2 and train.labels.ndim == 1,
        f"standardise = 'client' is for tables of numbers, but inputs have shape "
        f"{train.input_shape} and labels {train.labels.shape[1:]}: set standardise = 'none'.",
    )
    mean = train.inputs.mean(axis=0, dtype=np.float64)
    deviation = train.inputs.std(axis=0, dtype=np.float64)
    deviation[deviation == 0] = 1
    scaled = (((part.inputs - mean) / deviation).astype(np.float32) for part in parts)
    return [replace(part, inputs=inputs) for part, inputs in zip(parts, scaled, strict=True)]
