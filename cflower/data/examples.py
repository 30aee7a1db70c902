"""Labelled examples in memory, and those of a client in three parts, checked and standardised."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cflower.errors import DataError
from cflower.settings import require_data


@dataclass(frozen=True, eq=False)
class Examples:
    """Labelled examples, all of one shape."""

    inputs: NDArray[np.float32]
    """Images (n, channels, height, width) with values in [0, 1], rows of numbers (n, features), or
    sequences (n, length), the numbers of their words."""
    labels: NDArray[Any]
    """Positions in `class_names`, shape (n,); of sequences (n, length); or numbers to predict."""
    class_names: tuple[str, ...]
    """The classes of the whole source, also those that these examples lack; none where numbers are
    predicted."""

    def __post_init__(self) -> None:
        shapes = self.inputs.shape[:1], self.inputs.shape[:2]
        require_data(
            self.labels.shape in shapes,
            f"{len(self.inputs)} inputs came with labels of shape {self.labels.shape}: "
            "every input needs exactly one label, or one for each place of a sequence.",
        )
        if self.class_names and not np.all((self.labels >= 0) & (self.labels < self.num_classes)):
            raise DataError(
                f"labels go from {self.labels.min()} to {self.labels.max()}, but there are "
                f"{self.num_classes} classes: expected 0 to {self.num_classes - 1}; remove "
                "unlabelled rows (often -1) from the data."
            )

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def input_shape(self) -> tuple[int, ...]:
        return self.inputs.shape[1:]

    @property
    def sizes(self) -> tuple[tuple[int, ...], int]:
        """Shape of one input and number of outputs, one for each class or one: the model's."""
        return self.input_shape, self.num_classes or 1

    def take(self, indices: NDArray[Any]) -> "Examples":
        """The examples at `indices` (positions or a boolean mask), in that order."""
        return Examples(self.inputs[indices], self.labels[indices], self.class_names)

    def with_others(self, others: "Examples") -> "Examples":
        inputs = np.concatenate((self.inputs, others.inputs))
        labels = np.concatenate((self.labels, others.labels))
        return Examples(inputs, labels, self.class_names)


def split(
    labels: NDArray[Any], fraction: float, rng: np.random.Generator, decide: float = 0.0
) -> list[NDArray[np.int64]]:
    """Positions of a client's parts in ascending order: to train on, to decide by, to report.

    Each class is shared out in proportion, to within one example, and so are numbers to predict by
    their size; of sequences, labels (n, length), the examples are drawn without regard to them.
    ``fraction`` in (0, 1) is the share to hold out, ``decide`` in [0, 1) that of the held-out
    examples that decide; with 0 there is no such part. No part is empty.
    """
    least, parts = (2, "train on, decide by and report") if decide else (1, "train on and report")
    num_examples = len(labels)
    require_data(
        num_examples > least,
        f"a client has too few examples ({num_examples}), but at least {least + 1} are needed, to "
        f"{parts}: use fewer clients, more data or a milder partitioner or shift"
        + (", or set decide-fraction = 0." if decide else "."),
    )
    num_held_out = min(max(round(fraction * num_examples), least), num_examples - 1)
    order = rng.permutation(num_examples)
    if labels.ndim == 1:
        order = order[np.argsort(labels[order], kind="stable")]
    out = at_equal_distances(num_examples, num_held_out, rng)
    train, held_out = order[~out], order[out]
    if not decide:
        return [np.sort(train), np.sort(held_out)]
    num_deciding = min(max(round(decide * num_held_out), 1), num_held_out - 1)
    decides = at_equal_distances(num_held_out, num_deciding, rng)
    return [np.sort(part) for part in (train, held_out[decides], held_out[~decides])]


def at_equal_distances(num: int, chosen: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """So many of ``num`` places, as far from each other as they can be, from a random one on.

    >>> at_equal_distances(6, 2, np.random.default_rng(0)).nonzero()[0].tolist()
    [1, 4]
    """
    steps = np.floor(rng.random() + np.arange(num + 1) * chosen / num)
    return np.diff(steps) > 0


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
    """The description of a table for the server, before it is prepared (`cflower.tables`)."""

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
