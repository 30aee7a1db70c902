"""Labelled examples in memory: what a client trains on and is judged by."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cflower.errors import DataError


@dataclass(frozen=True, eq=False)
class Examples:
    """Labelled examples, all of one shape.

    Attributes
    ----------
    inputs : NDArray[np.float32], shape (n, *input_shape)
        Images are (n, channels, height, width) with values in [0, 1]; rows of numbers are
        (n, features); sequences are (n, length), the numbers of their words.
    labels : NDArray[np.int64], shape (n,); of sequences (n, length)
        Positions in `class_names`.
    class_names : tuple of str
        The classes of the whole source, also those that these examples lack.

    Raises
    ------
    DataError
        If the lengths differ or a label is outside the classes.
    """

    inputs: NDArray[np.float32]
    labels: NDArray[np.int64]
    class_names: tuple[str, ...]

    def __post_init__(self) -> None:
        count = (len(self.inputs),)
        if self.labels.shape not in (count, (*count, *self.inputs.shape[1:2])):
            raise DataError(
                f"{len(self.inputs)} inputs came with labels of shape {self.labels.shape}: "
                "every input needs exactly one label, or one for each place of a sequence."
            )
        if len(self.labels) and not 0 <= self.labels.min() <= self.labels.max() < self.num_classes:
            raise DataError(
                f"labels go from {self.labels.min()} to {self.labels.max()}, but there are "
                f"{self.num_classes} classes: expected 0 to {self.num_classes - 1}; remove "
                "unlabelled rows (often -1) from the data."
            )

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def num_classes(self) -> int:
        """Number of classes of the whole source."""
        return len(self.class_names)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input, e.g. (channels, height, width)."""
        return self.inputs.shape[1:]

    def take(self, indices: NDArray[Any]) -> "Examples":
        """The examples at `indices` (positions or a boolean mask), in that order."""
        return Examples(self.inputs[indices], self.labels[indices], self.class_names)

    def hold_out(self, fraction: float, rng: np.random.Generator) -> tuple["Examples", "Examples"]:
        """Split at random into examples to train on and held-out examples.

        Parameters
        ----------
        fraction : float
            Share of the examples to hold out, 0 < fraction < 1. Rounded to whole examples,
            at least one on either side.
        rng : numpy.random.Generator
            Decides which: the same stream and length hold out the same positions.

        Returns
        -------
        train, held_out : Examples
            Disjoint, together all the examples, neither empty.

        Raises
        ------
        DataError
            With fewer than two examples, or a fraction outside (0, 1).
        """
        kept, held = split(len(self), fraction, rng)
        return self.take(kept), self.take(held)


def split(
    num_examples: int, fraction: float, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Positions of examples to train on and of those held out; see `Examples.hold_out`."""
    if not 0 < fraction < 1:
        raise DataError(
            f"validation-fraction = {fraction} holds out nothing or everything: expected a "
            "number between 0 and 1, e.g. 0.2."
        )
    if num_examples < 2:
        count = "no examples" if num_examples == 0 else "only 1 example"
        raise DataError(
            f"a client has {count}, but at least 2 are needed, one to train on and one held "
            "out: use fewer clients, more data or a milder partitioner or shift."
        )
    num_held_out = min(max(round(fraction * num_examples), 1), num_examples - 1)
    order = rng.permutation(num_examples)
    return np.sort(order[num_held_out:]), np.sort(order[:num_held_out])
