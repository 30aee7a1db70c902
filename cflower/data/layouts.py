"""Published data sets in the folder layout that their authors give out.

- EMNIST ``byclass`` (Cohen, Afshar, Tapson, van Schaik, arXiv 1702.05373) as torchvision
  stores it: 62 classes, digits, then upper case, then lower case.
- HAM10000 (Tschandl, Rosendahl, Kittler, Scientific Data 5, 180161): a metadata table whose
  column ``dx`` is the diagnosis, and two folders of 600x450 JPEG images.
"""

import csv
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
from datasets.features.features import Array2DExtensionType, Array3DExtensionType
from numpy.typing import NDArray

from cflower.errors import DataError

Choose = Callable[[int], NDArray[np.int64]]
"""Which of n examples to keep, in which order."""

HAM10000_SIZE = 32
"""Pixels: height and width that HAM10000 images are resized to, as in the FedAvg notebook."""

HAM10000_NAMES = ("akiec", "bcc", "bkl", "df", "mel", "nv", "vasc")


def embedded(pixels: NDArray[Any], labels: NDArray[np.int64], names: list[str]) -> datasets.Dataset:
    """Inputs in memory as a Dataset with the columns ``image`` and ``label``.

    Parameters
    ----------
    pixels : ndarray of numbers, shape (n, features), (n, height, width) or with channels
        Whole numbers are decoded as n/255 later, floats are taken as they are.
    labels : NDArray[np.int64], shape (n,)
        Positions in `names`.
    names : list of str
        The classes.

    Notes
    -----
    Builds the Arrow buffers itself: ``Dataset.from_dict`` takes a minute for EMNIST.
    """
    shape, dtype = pixels.shape[1:], str(pixels.dtype)
    images: Any = pa.array(np.ascontiguousarray(pixels).reshape(-1))
    for axis in range(len(shape), 0, -1):
        rows, length = math.prod(pixels.shape[:axis]), pixels.shape[axis]
        offsets = pa.array(np.arange(rows + 1, dtype=np.int64) * length, pa.int32())
        images = pa.ListArray.from_arrays(offsets, images)
    kind: Any = datasets.List(datasets.Value(dtype))
    if len(shape) > 1:
        extension, kind = {
            2: (Array2DExtensionType, datasets.Array2D(shape, dtype)),
            3: (Array3DExtensionType, datasets.Array3D(shape, dtype)),
        }[len(shape)]
        images = pa.ExtensionArray.from_storage(extension(shape, dtype), images)
    features = datasets.Features(image=kind, label=datasets.ClassLabel(names=names))
    table = pa.table({"image": images, "label": pa.array(labels, pa.int64())})
    return datasets.Dataset(table, info=datasets.DatasetInfo(features=features))


def emnist(root: Path, choose: Choose) -> datasets.Dataset:
    """The training part of EMNIST ``byclass``, upright.

    Parameters
    ----------
    root : Path
        Folder that holds ``EMNIST/raw/emnist-byclass-train-images-idx3-ubyte`` and the labels.
    choose : callable
        Which examples to keep.

    Raises
    ------
    DataError
        If torchvision is not installed or the files are not there.
    """
    try:
        from torchvision.datasets import EMNIST
    except ImportError:
        raise DataError(
            "dataset = 'emnist:...' needs torchvision: install it with pip install torchvision."
        ) from None
    try:
        source = EMNIST(root, split="byclass", train=True, download=False)
    except (RuntimeError, OSError, ValueError):
        raise DataError(
            f"{root} has no readable EMNIST byclass files: expected "
            "EMNIST/raw/emnist-byclass-train-images-idx3-ubyte in it; let torchvision download "
            "them there, or correct the path."
        ) from None
    chosen = choose(len(source.targets))
    # EMNIST stores images column by column: (n, width, height)
    pixels = source.data.numpy()[chosen].transpose(0, 2, 1)
    return embedded(pixels, source.targets.numpy()[chosen].astype(np.int64), list(source.classes))


def ham10000(folder: Path, choose: Choose) -> datasets.Dataset:
    """Skin lesions with their diagnosis; image files are opened only when decoded.

    Parameters
    ----------
    folder : Path
        Holds ``HAM10000_metadata.csv`` and the ``HAM10000_images_part_1`` and ``_2`` folders.
    choose : callable
        Which examples to keep.

    Raises
    ------
    DataError
        If the table, a column or an image of it is missing.
    """
    metadata = folder / "HAM10000_metadata.csv"
    if not metadata.is_file():
        raise DataError(
            f"{folder} has no HAM10000_metadata.csv: give the folder that holds it next to "
            "HAM10000_images_part_1 and HAM10000_images_part_2."
        )
    with metadata.open(newline="", encoding="utf-8-sig") as lines:
        rows = list(csv.DictReader(lines))
    if not rows or not {"image_id", "dx"} <= rows[0].keys():
        raise DataError(
            f"{metadata} has no rows with the columns image_id and dx: use the published file."
        )
    unknown = sorted({row["dx"] for row in rows} - set(HAM10000_NAMES))
    if unknown:
        raise DataError(
            f"{metadata} has the unknown diagnosis {unknown[0]!r} in column dx: expected one of "
            f"{', '.join(HAM10000_NAMES)}."
        )
    paths = {
        path.stem: str(path)
        for part in ("HAM10000_images_part_1", "HAM10000_images_part_2")
        for path in (folder / part).glob("*.jpg")
    }
    chosen = [rows[index] for index in choose(len(rows))]
    missing = [row["image_id"] for row in chosen if row["image_id"] not in paths]
    if missing:
        raise DataError(
            f"{folder} lacks {len(missing)} images of its table, e.g. {missing[0]}.jpg: unzip "
            "both HAM10000_images_part_1 and HAM10000_images_part_2 there."
        )
    features = datasets.Features(
        image=datasets.Image(),
        lesion_id=datasets.Value("string"),
        label=datasets.ClassLabel(names=list(HAM10000_NAMES)),
    )
    columns = {
        "image": [{"path": paths[row["image_id"]], "bytes": None} for row in chosen],
        "lesion_id": [row.get("lesion_id") for row in chosen],
        "label": [row["dx"] for row in chosen],
    }
    return datasets.Dataset.from_dict(columns, features=features)
