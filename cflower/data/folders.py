"""Tables in a local folder: CSV, Parquet, NumPy archives, one folder of images per class.

A folder of only one of these kinds is read here, column by column. Anything else is left to
`datasets`, which takes a second and more to import, and long for tables of many columns.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cflower.data.columns import Table
from cflower.errors import DataError, first_line
from cflower.ordering import listed, without
from cflower.settings import require_data
from cflower.tables.files import joined_tables, name_of, read_table, tables_among
from cflower.tables.values import Column

IMAGES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm"}
WORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "dev", "val"),
    "test": ("test", "testing", "eval", "evaluation"),
}
"""Words that mark a split in the names of folders and files: those of `datasets`."""
SPLITS = {
    split: re.compile(rf"(.*[-._ 0-9])?({'|'.join(words)})([-._ 0-9].*)?")
    for split, words in WORDS.items()
}


def load_folder(folder: Path, key: str = "dataset") -> Table:
    """The training examples in a local folder, which the setting ``key`` names.

    It holds CSV, Parquet or NPZ files, one folder of images per class, or anything else that
    ``datasets.load_dataset`` reads.
    """
    name = f"{key} = {str(folder)!r}"
    require_data(
        folder.is_dir(),
        f"{name} is no folder: give the path of the one that holds the data (an absolute path is "
        "safest).",
    )
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    require_data(
        len(files) > 0,
        f"{name} is an empty folder: put Parquet, CSV or NPZ files or one folder of images "
        "per class into it.",
    )
    try:
        return _read(name, folder, files)
    except DataError:
        raise
    except Exception as error:  # of Arrow and `datasets`, of many kinds
        raise DataError(
            f"{name} cannot be read ({first_line(error.__cause__ or error)}): it should hold "
            "Parquet, CSV or NPZ files of one form or one folder of images per class."
        ) from None


def _read(name: str, folder: Path, files: list[Path]) -> Table:
    if archives := [path for path in files if path.suffix == ".npz"]:
        return Table(name, read_archives(name, archives))
    files = [path for path in files if not _is_no_data(path.relative_to(folder), path)]
    excel = [path.name for path in files if path.suffix.lower() in (".xlsx", ".xls", ".ods")]
    require_data(
        not excel,
        f"{name} has files that are not read ({listed(excel, 3)}): save each sheet as CSV (UTF-8).",
    )
    if tables := tables_among(files):
        tables = training_files(folder, tables, name)
        read_ones = {str(file.relative_to(folder)): read_table(file) for file in tables}
        return _with_origins(Table.of(name, joined_tables(name, read_ones)), read_ones)
    kinds = {path.suffix.lower() for path in files}
    if kinds and kinds <= IMAGES:
        return _pictures(name, folder, training_files(folder, files, name, class_folders=True))
    from cflower.data.hub import load_with_datasets

    return load_with_datasets(str(folder), name)


def training_files(
    folder: Path, files: list[Path], name: str, *, class_folders: bool = False
) -> list[Path]:
    """Those files that folder or file names mark as training examples; all, if none is marked.

    With ``class_folders`` the innermost folder is a class, unless all of them are named like
    splits.
    """
    inner = {path.parent.name for path in files}
    depth = -2 if class_folders and not inner <= {*chain.from_iterable(WORDS.values())} else -1
    splits = [_split_of(*path.relative_to(folder).parts[:depth]) for path in files]
    if not any(splits):
        splits = [_split_of(path.name) for path in files]
    if not any(splits):
        return files
    require_data(
        "train" in splits,
        f"{name} has no training examples, only {listed(sorted({*splits} - {''}))}: name the files "
        "or their folder 'train'.",
    )
    return [path for path, split in zip(files, splits, strict=True) if split == "train"]


def _split_of(*names: str) -> str:
    """The split that one of these names marks, as a word of its own; empty if none does."""
    for split, pattern in SPLITS.items():
        if any(map(pattern.fullmatch, names)):
            return split
    return ""


def _is_no_data(relative: Path, path: Path) -> bool:
    """Whether a file is hidden, of the desktop or of an open Excel, or a text about the data."""
    if any(part.startswith((".", "__", "~$")) for part in relative.parts):
        return True
    if path.name == "README.md":  # may begin with instructions for `datasets`
        return not path.read_bytes().startswith(b"---")
    return path.name in ("Thumbs.db", "desktop.ini", "LICENSE", "LICENSE.txt")


def _with_origins(table: Table, files: dict[str, pa.Table]) -> Table:
    """A table with the file of each row, and its folder, as clients for ``natural-id-column``."""
    places = list(map(Path, files))
    origins = {"file": [name_of(place) for place in places]}
    if all(place.parent.name for place in places):
        origins["folder"] = [place.parent.name for place in places]
    lengths = list(map(len, files.values()))
    added = {n: np.repeat(np.array(of, dtype=object), lengths) for n, of in origins.items()}
    more = without(added, table.columns) if len(files) > 1 else {}
    return replace(table, columns={**table.columns, **more})


def _pictures(name: str, folder: Path, files: list[Path]) -> Table:
    """Images, each labelled with its folder's name; CLIENT/CLASS/ names the client too."""
    names = sorted({file.parent.name for file in files})
    stored = [{"bytes": None, "path": str(file)} for file in files]  # opened when decoded
    columns: dict[str, Column] = {"image": np.array(stored, dtype=object)}
    if all(file.parent != folder for file in files):
        columns["label"] = np.searchsorted(names, [file.parent.name for file in files])
    if all(folder not in (file.parent, file.parent.parent) for file in files):
        columns["folder"] = np.array([file.parent.parent.name for file in files], dtype=object)
    return Table(name, columns, {"label": tuple(names)}, ("image",))


def read_archives(name: str, files: list[Path]) -> dict[str, NDArray[Any]]:
    """The arrays that all archives of a folder have, joined; the others are not read."""
    in_each = [_in_archive(file, list) for file in files]
    names = [key for key in in_each[0] if all(key in keys for keys in in_each)]
    require_data(
        len(names) > 0,
        f"{name} has NPZ files without a common array: use the same names in all of them.",
    )
    columns = {}
    for key in names:
        parts = [np.atleast_1d(_in_archive(file, itemgetter(key))) for file in files]
        first = parts[0]
        for file, part in zip(files, parts, strict=True):
            require_data(
                (part.shape[1:], part.dtype.kind) == (first.shape[1:], first.dtype.kind),
                f"{name} has arrays of different kinds, {first.shape[1:]} {first.dtype} in "
                f"{files[0].name} and {part.shape[1:]} {part.dtype} in {file.name}: bring "
                "them all to one shape and type.",
            )
        columns[key] = np.concatenate(parts) if len(parts) > 1 else first
    return columns


def _in_archive(file: Path, read: Callable[[Any], Any]) -> Any:
    try:
        with np.load(file) as archive:  # no pickles: those could run code
            return read(archive)
    except Exception as error:  # NumPy's and zipfile's, of many kinds
        raise DataError(
            f"{file} cannot be read ({first_line(error)}): write it with "
            "numpy.savez(file, x=..., y=...), without arrays of objects."
        ) from None
