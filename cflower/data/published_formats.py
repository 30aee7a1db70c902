"""Published data sets in the folder layout that their authors give out.

- EMNIST ``byclass`` (Cohen, Afshar, Tapson, van Schaik, arXiv 1702.05373) as torchvision
  stores it: 62 classes, digits, then upper case, then lower case.
- HAM10000 (Tschandl, Rosendahl, Kittler, Scientific Data 5, 180161): a metadata table whose
  column ``dx`` is the diagnosis, and two folders of 600x450 JPEG images.
"""

import csv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cflower.data.columns import Table
from cflower.errors import DataError

Choose = Callable[[int], NDArray[np.int64]]
"""Which of n examples to keep, in which order."""

HAM10000_SIZE = 32
"""Pixels: height and width that HAM10000 images are resized to, as in the FedAvg notebook."""

HAM10000_NAMES = ("akiec", "bcc", "bkl", "df", "mel", "nv", "vasc")


def image_files(paths: Sequence[str]) -> NDArray[Any]:
    """A column of image files, which are opened only when decoded."""
    return np.array([{"bytes": None, "path": path} for path in paths], dtype=object)


def emnist(root: Path) -> Table:
    """The training part of EMNIST ``byclass``, upright.

    Parameters
    ----------
    root : Path
        Folder that holds ``EMNIST/raw/emnist-byclass-train-images-idx3-ubyte`` and the labels.

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
    # EMNIST stores images column by column: (n, width, height)
    pixels = source.data.numpy().transpose(0, 2, 1)
    columns = {"image": pixels, "label": source.targets.numpy().astype(np.int64)}
    return Table(f"emnist:{root}", columns, {"label": tuple(source.classes)})


def ham10000(folder: Path) -> Table:
    """Skin lesions with their diagnosis; image files are opened only when decoded.

    Parameters
    ----------
    folder : Path
        Holds ``HAM10000_metadata.csv`` and the ``HAM10000_images_part_1`` and ``_2`` folders.

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
    missing = [row["image_id"] for row in rows if row["image_id"] not in paths]
    if missing:
        raise DataError(
            f"{folder} lacks {len(missing)} images of its table, e.g. {missing[0]}.jpg: unzip "
            "both HAM10000_images_part_1 and HAM10000_images_part_2 there."
        )
    place = {name: number for number, name in enumerate(HAM10000_NAMES)}
    columns = {
        "image": image_files([paths[row["image_id"]] for row in rows]),
        "lesion_id": np.array([row.get("lesion_id") for row in rows], dtype=object),
        "label": np.array([place[row["dx"]] for row in rows], np.int64),
    }
    return Table(f"ham10000:{folder}", columns, {"label": HAM10000_NAMES}, frozenset({"image"}))
