"""Stored images and columns of numbers as one array of inputs.

Decoding reads Arrow buffers directly and lets Pillow open the image bytes, instead of going
through Python rows.
"""

from collections.abc import Sequence
from io import BytesIO
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from cflower.data.columns import IMAGE_COLUMNS, column_array, input_columns, listed
from cflower.errors import DataError


def inputs_of(
    dataset: datasets.Dataset,
    source: str,
    *,
    exclude: Sequence[str] = (),
    image_size: int | None = None,
) -> NDArray[np.float32]:
    """Inputs of a data set as one array.

    Parameters
    ----------
    dataset : datasets.Dataset
        One partition of a source.
    source : str
        Name of the source for errors.
    exclude : sequence of str
        Columns that are no input, e.g. who wrote the digit.
    image_size : int or None
        Height and width in pixels that stored images are resized to; None leaves them.

    Returns
    -------
    NDArray[np.float32]
        Images: (n, channels, height, width), bytes divided by 255, floats as they are, palettes
        and transparency turned to RGB. Number columns: (n, features), as they are.

    Raises
    ------
    DataError
        If images differ in size or number of channels, cannot be opened, or numbers are
        missing or infinite.
    """
    names = input_columns(dataset, source, exclude)
    table = dataset.select_columns(names).with_format("arrow")[:]
    if isinstance(dataset.features[names[0]], datasets.Image):
        return _images(table[names[0]], source, image_size)
    arrays = [column_array(table[name], name, source) for name in names]
    if names[0] in IMAGE_COLUMNS and len(names) == 1 and arrays[0].ndim > 1:
        inputs = _channels_first(_scaled(arrays[0]))
    else:
        inputs = np.stack([array.astype(np.float32) for array in arrays], axis=1)
    if not np.isfinite(inputs).all():
        raise DataError(
            f"{source} has missing or infinite numbers in {listed(names)}: fill or remove them."
        )
    return inputs


def _images(column: pa.ChunkedArray, source: str, size: int | None) -> NDArray[np.float32]:
    """Stored image files of one column, shape (n, channels, height, width)."""
    pictures: list[NDArray[Any]] = []
    for number, stored in enumerate(column.to_pylist()):
        place = (stored or {}).get("path") or f"image {number}"
        try:
            content = stored["bytes"]
            with Image.open(BytesIO(content) if content else stored["path"]) as picture:
                pictures.append(_pixels(picture, size))
        except (OSError, UnidentifiedImageError, TypeError, AttributeError):
            raise DataError(
                f"{source} has an image that cannot be opened ({place}): remove or repair it."
            ) from None
        if pictures[-1].shape != pictures[0].shape:
            raise DataError(
                f"{source} has images of different sizes, {_size(pictures[0])} and "
                f"{_size(pictures[-1])} ({place}): bring them all to one size and mode."
            )
    return _channels_first(_scaled(np.stack(pictures))) if pictures else np.zeros((0, 0), "f4")


def _pixels(picture: Image.Image, size: int | None) -> NDArray[Any]:
    """Pixels (height, width) of a grey picture or (height, width, 3) of any other."""
    if size is not None:
        picture.draft("RGB", (size, size))  # a JPEG is then decoded at a fraction of its size
        picture = picture.convert("RGB").resize((size, size), Image.Resampling.BILINEAR)
    if picture.mode in ("1", "LA"):
        picture = picture.convert("L")
    if picture.mode.startswith("I"):  # 16-bit grey, as scanners and microscopes write it
        return (np.asarray(picture, dtype=np.float64) / 65535).astype(np.float32)
    if picture.mode not in ("L", "F", "RGB"):
        picture = picture.convert("RGB")
    return np.asarray(picture)


def _scaled(pixels: NDArray[Any]) -> NDArray[np.float32]:
    """Pixels as float32: whole numbers are bytes and divided by 255, floats stay."""
    if np.issubdtype(pixels.dtype, np.integer):
        return pixels.astype(np.float32) / np.float32(255)
    return pixels.astype(np.float32)


def _channels_first(pixels: NDArray[np.float32]) -> NDArray[np.float32]:
    """(n, height, width[, channels]) or (n, channels, height, width) as the latter."""
    if pixels.ndim == 3:
        return pixels[:, None]
    if pixels.ndim == 4 and pixels.shape[-1] in (1, 3) and pixels.shape[1] not in (1, 3):
        return np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))
    return pixels


def _size(pixels: NDArray[Any]) -> str:
    """Size in words, e.g. ``28x28 grey``."""
    return f"{pixels.shape[1]}x{pixels.shape[0]} {'colour' if pixels.ndim == 3 else 'grey'}"
