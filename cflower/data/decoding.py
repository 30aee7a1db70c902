"""Stored inputs as arrays: pixels scaled, channels first, image files opened by Pillow."""

import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cflower.errors import DataError
from cflower.settings import require_data

if TYPE_CHECKING:
    from PIL.Image import Image


class CommonArrays:
    """Arrays in a folder, by what they were made of; without a folder each process makes them."""

    folder: Path | None = None

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        """How much this process writes at most."""

    def found_or_made(self, make: Callable[[], NDArray[Any]], *key: bytes) -> NDArray[Any]:
        """The array of this key, which is everything that decides what ``make`` returns."""
        if self.folder is None:
            return make()
        digest = blake2b(digest_size=16)
        for part in key:
            digest.update(len(part).to_bytes(8) + part)
        path = self.folder / f"{digest.hexdigest()}.npy"
        with suppress(OSError):
            found: NDArray[Any] = np.load(path)
            return found
        made = make()
        if made.nbytes <= self.most_bytes:
            with suppress(OSError):  # such as a full disk
                part_of_it = self.folder / f"{os.getpid()}.npy"
                np.save(part_of_it, made)
                part_of_it.replace(path)
                self.most_bytes -= made.nbytes
        return made


PICTURES = CommonArrays(most_bytes=2 * 10**9)
"""Opening a client's pictures takes as long as training on them."""


def decoded(
    inputs: NDArray[Any] | pa.ChunkedArray,
    rows: NDArray[np.int64],
    source: str,
    names: tuple[str, ...],
) -> NDArray[np.float32]:
    """Some rows of the stored inputs of a source, whose columns have these ``names``.

    Inputs are numbers, shape (n, ...), or image files: mappings or structs of ``bytes`` and
    ``path``. Images become (m, channels, height, width): whole numbers divided by 255, floats as
    they are, palettes and transparency turned to RGB. Columns of numbers become (m, features).
    """
    if not isinstance(inputs, np.ndarray) or inputs.dtype == object:
        make = partial(_opened, inputs, rows, source)
        pixels = PICTURES.found_or_made(make, source.encode(), rows.tobytes())
        return _channels_first(_scaled(pixels))
    numbers = _channels_first(_scaled(inputs[rows]))
    wrong = ~np.isfinite(numbers)
    if wrong.any():
        place = int(wrong.any(axis=0).ravel().argmax()) if len(names) > 1 else 0
        raise DataError(
            f"{source} has {wrong.sum()} missing or infinite values, the first in column "
            f"{names[place]!r}: fill or remove them."
        )
    return numbers


def _opened(
    files: NDArray[Any] | pa.ChunkedArray,
    rows: NDArray[np.int64],
    source: str,
) -> NDArray[Any]:
    """The pixels of stored image files, shape (m, height, width) or (m, height, width, 3)."""
    from PIL import Image  # a table of numbers does without

    pictures: list[NDArray[Any]] = []
    for row in (0, *rows.tolist()):  # all must have the size of the first
        place, file = f"image {row}", files[row]
        stored = file if isinstance(file, dict) else file.as_py()
        try:
            content, place = stored["bytes"], stored["path"] or place
            with Image.open(BytesIO(content) if content else place) as picture:
                pictures.append(_pixels(picture))
        except Exception as error:  # Pillow's readers raise whatever a damaged file makes them
            raise DataError(
                f"{source} has an image that cannot be opened ({place}: "
                f"{type(error).__name__}): remove or repair it."
            ) from None
        require_data(
            pictures[-1].shape == pictures[0].shape,
            f"{source} has images of different sizes, {_size(pictures[0])} and "
            f"{_size(pictures[-1])} ({place}): bring them all to one size and mode.",
        )
    return np.stack(pictures[1:])


def _pixels(picture: "Image") -> NDArray[Any]:
    """Pixels (height, width) of a grey picture or (height, width, 3) of any other."""
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
        scaled: NDArray[np.float32] = np.divide(pixels, np.float32(255), dtype=np.float32)
        return scaled
    return pixels.astype(np.float32, copy=False)


def _channels_first(pixels: NDArray[np.float32]) -> NDArray[np.float32]:
    """(n, height, width[, channels]) or (n, channels, height, width) as the latter."""
    if pixels.ndim == 3:
        return pixels[:, None]
    if pixels.ndim == 4 and pixels.shape[-1] in (1, 3) and pixels.shape[1] not in (1, 3):
        return np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))
    return pixels


def _size(pixels: NDArray[Any]) -> str:
    return f"{pixels.shape[1]}x{pixels.shape[0]} {'colour' if pixels.ndim == 3 else 'grey'}"


def as_series(rows: NDArray[np.float32], channels: int, source: str) -> NDArray[np.float32]:
    """Rows of numbers, one moment after the other, as time series (n, channels, length).

    >>> as_series(np.arange(6, dtype=np.float32)[None], 2, "a table")
    array([[[0., 2., 4.],
            [1., 3., 5.]]], dtype=float32)
    """
    require_data(
        rows.ndim == 2 and rows.shape[1] % channels == 0,
        f"series-channels = {channels} does not fit the inputs of {source}, of shape "
        f"{rows.shape[1:]}: expected rows of numbers, a multiple of {channels} in each.",
    )
    return np.ascontiguousarray(rows.reshape(len(rows), -1, channels).transpose(0, 2, 1))
