"""Published data sets in the folder layout that their authors give out.

- EMNIST ``byclass`` (Cohen, Afshar, Tapson, van Schaik, arXiv 1702.05373) as torchvision
  stores it: 62 classes, digits, then upper case, then lower case.
- HAM10000 (Tschandl, Rosendahl, Kittler, Scientific Data 5, 180161): a metadata table with the
  diagnosis in its column ``dx``, and two folders of 600x450 JPEG images.
"""

import csv
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cflower.data.columns import Table
from cflower.errors import DataError
from cflower.ordering import listed
from cflower.settings import require_data

HAM10000_SIZE = 32
"""Pixels: height and width that HAM10000 images are resized to, as in the FedAvg notebook."""

HAM10000_NAMES = ("akiec", "bcc", "bkl", "df", "mel", "nv", "vasc")


def image_files(paths: Iterable[str]) -> NDArray[Any]:
    """A column of image files, which are opened only when decoded."""
    return np.array([{"bytes": None, "path": path} for path in paths], dtype=object)


def emnist(root: Path) -> Table:
    """The training part of EMNIST ``byclass``, upright.

    The root holds ``EMNIST/raw/emnist-byclass-train-images-idx3-ubyte`` and the labels. Raises a
    DataError if they are missing.
    """
    from torchvision.datasets import EMNIST  # loads PyTorch

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

    The folder holds ``HAM10000_metadata.csv``, ``HAM10000_images_part_1`` and ``_2``. Raises a
    DataError if the table, a column or an image of it is missing.
    """
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
    paths = {path.stem: str(path) for path in folder.glob("HAM10000_images_part_[12]/*.jpg")}
    missing = sorted({row["image_id"] for row in rows} - paths.keys())
    require_data(
        not missing,
        f"{folder} lacks {len(missing)} images of its table ({listed(missing)}): unzip both "
        "HAM10000_images_part_1 and HAM10000_images_part_2 there.",
    )
    columns = {
        "image": image_files(paths[row["image_id"]] for row in rows),
        "lesion_id": np.array([row.get("lesion_id") for row in rows], dtype=object),
        "label": np.array([HAM10000_NAMES.index(row["dx"]) for row in rows], np.int64),
    }
    classes = {"label": HAM10000_NAMES}
    return Table(f"ham10000:{folder}", columns, classes, ("image",), HAM10000_SIZE)
