"""A preview of a client's data for the report: label counts, sample images, mean curves."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cflower.data.examples import Examples

SAMPLES = 5
LARGEST_SIDE = 28
"""Pixels; larger images are thinned out."""
MOST_COUNTED = 200
MOST_POINTS = 50
"""Points per mean curve; longer ones are thinned out."""
MOST_NUMBERS = 20_000
"""Points of all mean curves together."""


def preview(examples: Examples, *, pictures: bool = True) -> dict[str, list[int] | bytes]:
    """Label counts and, if `pictures` are wanted, samples of images or mean curves.

    ``label_counts`` by class, unless there are very many; for images ``sample_images`` (bytes in
    the order n, height, width, channels), ``sample_shape`` (height, width, channels) and
    ``sample_labels``; for time series and tables `mean_examples` and ``mean_shape``.

    >>> two = Examples(np.ones((2, 3), np.float32), np.array([1, 1]), ("a", "b"))
    >>> preview(two)["label_counts"], preview(two)["mean_shape"]
    ([0, 2], [1, 3])
    >>> text = Examples(np.ones((2, 3), np.float32), np.ones((2, 3), int), ("a", "b"))
    >>> preview(text)
    {'label_counts': [0, 6]}
    """
    counts: dict[str, list[int] | bytes] = {}
    if not examples.class_names:  # numbers are predicted
        return counts
    if examples.num_classes <= MOST_COUNTED:
        labels = examples.labels.ravel()
        counts["label_counts"] = np.bincount(labels, minlength=examples.num_classes).tolist()
    is_text = examples.labels.ndim > 1  # with a label for every token
    if not pictures or is_text:
        return counts
    if len(examples.input_shape) == 3:
        if examples.input_shape[0] not in (1, 3) or not len(examples):  # neither grey nor RGB
            return counts
        chosen = varied(examples.labels, SAMPLES)
        images = as_pixels(examples.inputs[chosen])
        counts |= {"sample_images": images.tobytes(), "sample_shape": list(images.shape[1:])}
        return counts | {"sample_labels": examples.labels[chosen].tolist()}
    means = mean_examples(examples)
    if means.size > MOST_NUMBERS or not counts:
        return counts
    return counts | {"mean_examples": means.tobytes(), "mean_shape": list(means.shape[1:])}


def mean_examples(examples: Examples) -> NDArray[np.float16]:
    """The mean example of each class, shape (classes, channels, points).

    For inputs with one axis or two. NaN for a class of fewer than two examples, so that no single
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
    scaled = np.clip(np.nan_to_num(thinned), 0, 1) * 255
    return np.rint(scaled).astype(np.uint8)  # type: ignore[no-any-return]
