"""A preview of a client's data for the report: how many of each class, and what they look like."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cflower.data.examples import Examples

SAMPLES = 5
LARGEST_SIDE = 28
"""Pixels; larger images are thinned out."""
MOST_CLASSES = 200
MOST_POINTS = 50
"""Of a mean curve; longer ones are thinned out."""
MOST_NUMBERS = 20_000
"""Of all mean curves together."""


def preview(examples: Examples, *, pictures: bool = True) -> dict[str, list[int] | bytes]:
    """Label counts, and the first examples of different classes where they are images.

    Parameters
    ----------
    examples : Examples
    pictures : bool
        Whether to show any.

    Returns
    -------
    dict
        ``label_counts`` by class, unless there are very many classes; for images also
        ``sample_images`` (bytes in the order n, height, width, channels), ``sample_shape``
        (height, width, channels) and ``sample_labels``; for time series and tables
        ``mean_examples`` and ``mean_shape``, see `mean_examples`.

    Examples
    --------
    >>> two = Examples(np.ones((2, 3), np.float32), np.array([1, 1]), ("a", "b"))
    >>> told = preview(two)
    >>> told["label_counts"], told["mean_shape"]
    ([0, 2], [1, 3])
    >>> text = Examples(np.ones((2, 3), np.float32), np.ones((2, 3), int), ("a", "b"))
    >>> preview(text)
    {'label_counts': [0, 6]}
    """
    told: dict[str, list[int] | bytes] = {}
    if examples.num_classes <= MOST_CLASSES:
        told["label_counts"] = counts_of(examples)
    if pictures and len(examples.input_shape) == 3 and examples.input_shape[0] in (1, 3):
        chosen = varied(examples.labels, SAMPLES)
        images = as_pixels(examples.inputs[chosen])
        told["sample_images"] = images.tobytes()
        told["sample_shape"] = list(images.shape[1:])
        told["sample_labels"] = [int(label) for label in examples.labels[chosen]]
    # Texts have a label for every token; means of tokens say nothing.
    if pictures and len(examples.input_shape) < 3 and examples.labels.ndim == 1:
        means = mean_examples(examples)
        if means.size <= MOST_NUMBERS:
            told["mean_examples"] = means.tobytes()
            told["mean_shape"] = list(means.shape[1:])
    return told


def mean_examples(examples: Examples) -> NDArray[np.float16]:
    """The mean example of each class, shape (classes, channels, points).

    Of inputs with one axis or two. NaN for a class of fewer than two examples, so that no single
    one is shown.

    >>> two = Examples(np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([1, 1]), ("a", "b"))
    >>> mean_examples(two)
    array([[[nan, nan]],
    <BLANKLINE>
           [[ 2.,  3.]]], dtype=float16)
    """
    series = examples.inputs.reshape(len(examples), -1, examples.input_shape[-1])
    series = series[:, :, :: -(-series.shape[2] // MOST_POINTS)]
    means = np.full((examples.num_classes, *series.shape[1:]), np.nan, np.float16)
    for label in range(examples.num_classes):
        mine = series[examples.labels == label]
        if len(mine) > 1:
            means[label] = mine.mean(0).clip(-6e4, 6e4)
    return means


def counts_of(examples: Examples) -> list[int]:
    """Number of examples of each class."""
    counts = np.bincount(examples.labels.ravel(), minlength=examples.num_classes)
    return [int(count) for count in counts]


def varied(labels: NDArray[Any], most: int) -> NDArray[Any]:
    """Positions of the first example of each class, then of any, at most so many.

    >>> varied(np.array([7, 7, 3, 3, 7]), 3)
    array([0, 1, 2])
    """
    firsts = np.unique(labels, return_index=True)[1]
    others = np.setdiff1d(np.arange(len(labels)), firsts)
    return np.sort(np.concatenate([np.sort(firsts), others])[:most])


def as_pixels(images: NDArray[np.floating]) -> NDArray[np.uint8]:
    """Images (n, channels, height, width) in [0, 1] as bytes (n, height, width, channels).

    >>> as_pixels(np.ones((1, 1, 56, 30))).shape
    (1, 28, 15, 1)
    """
    step = -(-max(images.shape[2:]) // LARGEST_SIDE)
    thinned = np.moveaxis(images[:, :, ::step, ::step], 1, -1)
    pixels: NDArray[np.uint8] = np.rint(np.clip(np.nan_to_num(thinned), 0, 1) * 255).astype(
        np.uint8
    )
    return pixels
