"""Published data sets in the folder layout that their authors give out, as functions of one's own.

- ``dataset = "reproduction.layouts:emnist"``: EMNIST ``byclass`` (Cohen, Afshar, Tapson, van
  Schaik, arXiv 1702.05373) as torchvision stores it: 62 classes, digits, then upper case, then
  lower case.
- ``dataset = "reproduction.layouts:ham10000"``: HAM10000 (Tschandl, Rosendahl, Kittler, Scientific
  Data 5, 180161): a metadata table with the diagnosis in its column ``dx``, and two folders of
  600x450 JPEG images.

The environment variable ``EMNIST`` or ``HAM10000`` names the folder, in every process of a run.
"""

import csv
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from cflower.errors import DataError
from cflower.ordering import listed
from cflower.settings import require_data

HAM10000_SIZE = 32
"""Pixels: height and width that HAM10000 images are resized to, as in the FedAvg notebook."""

HAM10000_NAMES = ("akiec", "bcc", "bkl", "df", "mel", "nv", "vasc")


def emnist() -> tuple[NDArray[np.uint8], NDArray[Any]]:
    """The training part of EMNIST ``byclass``, upright: images (n, 28, 28) and their characters.

    The folder holds ``EMNIST/raw/emnist-byclass-train-images-idx3-ubyte`` and the labels. Raises a
    DataError if they are missing.
    """
    from torchvision.datasets import EMNIST

    root = folder_of("EMNIST")
    try:
        source = EMNIST(root, split="byclass", train=True, download=False)
    except (RuntimeError, OSError, ValueError):
        raise DataError(
            f"{root} has no readable EMNIST byclass files: expected "
            "EMNIST/raw/emnist-byclass-train-images-idx3-ubyte in it; let torchvision download "
            "them there, or correct the path."
        ) from None
    # EMNIST stores images column by column: (n, width, height)
    return source.data.numpy().transpose(0, 2, 1), np.array(source.classes)[source.targets.numpy()]


def ham10000() -> dict[str, NDArray[Any]]:
    """Skin lesions: images (n, 3, 32, 32), the names of the lesions and their diagnoses.

    The folder holds ``HAM10000_metadata.csv``, ``HAM10000_images_part_1`` and ``_2``. Raises a
    DataError if the table, a column or an image of it is missing.
    """
    folder = folder_of("HAM10000")
    metadata = folder / "HAM10000_metadata.csv"
    require_data(
        metadata.is_file(),
        f"{folder} has no HAM10000_metadata.csv: give the folder that holds it next to "
        "HAM10000_images_part_1 and HAM10000_images_part_2.",
    )
    with metadata.open(newline="", encoding="utf-8-sig") as lines:
        rows = list(csv.DictReader(lines))
    require_data(
        len(rows) > 0 and all("image_id" in r and r.get("dx") in HAM10000_NAMES for r in rows),
        f"{metadata} needs the columns image_id and dx, with one of {listed(HAM10000_NAMES)} in "
        "every row of dx: use the published file.",
    )
    paths = {path.stem: path for path in folder.glob("HAM10000_images_part_[12]/*.jpg")}
    missing = sorted({row["image_id"] for row in rows} - paths.keys())
    require_data(
        not missing,
        f"{folder} lacks {len(missing)} images of its table ({listed(missing)}): unzip both "
        "HAM10000_images_part_1 and HAM10000_images_part_2 there.",
    )
    return {
        "image": np.stack([pixels_of(paths[row["image_id"]]) for row in rows]),
        "lesion_id": np.array([row.get("lesion_id", "") for row in rows]),
        "label": np.array([row["dx"] for row in rows]),
    }


def pixels_of(path: Path) -> NDArray[np.uint8]:
    """A picture of `HAM10000_SIZE` pixels a side, shape (3, height, width)."""
    size = HAM10000_SIZE, HAM10000_SIZE
    with Image.open(path) as picture:
        picture.draft("RGB", size)  # a JPEG is then decoded at a fraction of its size
        small = picture.convert("RGB").resize(size, Image.Resampling.BILINEAR)
    return np.asarray(small).transpose(2, 0, 1)


def folder_of(variable: str) -> Path:
    """The folder that an environment variable names. Raises a DataError if it names none."""
    require_data(
        bool(os.environ.get(variable)),
        f"The environment variable {variable} is not set: let it name the folder of the data set.",
    )
    return Path(os.environ[variable]).expanduser()
