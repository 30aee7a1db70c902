"""Tables in a local folder: CSV, Parquet, NumPy archives, one folder of images per class.

What is only of these kinds is read here, columns as blocks. Anything else is left to
`datasets`, which takes a second and more to import, and long for tables of many columns.
"""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from cflower.data.columns import FOUND, Roles, Table, listed
from cflower.data.npz import read_npz
from cflower.data.published_formats import image_files
from cflower.data.values import Column
from cflower.errors import DataError, first_line

PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm")
MISSING = (
    "", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN",
    "<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null",
)  # fmt: skip
"""What stands for a missing value in a CSV file: as for pandas."""
SPLITS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "dev", "val"),
    "test": ("test", "testing", "eval", "evaluation"),
}
"""Words in the name of a folder or file that say what is in it: as for `datasets`."""


def load_folder(folder: Path, key: str = "dataset", roles: Roles = FOUND) -> Table:
    """The training examples in a local folder.

    Parameters
    ----------
    folder : Path
        Holds CSV, Parquet or NPZ files (see `read_npz`), one folder of images per class, or
        whatever else ``datasets.load_dataset`` reads.
    key : str
        The setting that names the folder, for errors.
    roles : Roles
        Which column is what; decides what is read of NumPy archives.

    Raises
    ------
    DataError
        If it is missing, empty, cannot be read or has no training examples.
    """
    name = f"{key} = {str(folder)!r}"
    instead = " or use 'digits'" if key == "dataset" else ""
    if not folder.exists():
        raise DataError(
            f"{name}: there is no such folder; correct the path (an absolute one is safest)"
            f"{instead}."
        )
    if not folder.is_dir():
        raise DataError(f"{name} is a file: give the folder that holds it, {str(folder.parent)!r}.")
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    if not files:
        raise DataError(
            f"{name} is an empty folder: put Parquet, CSV or NPZ files or one folder of images "
            "per class into it."
        )
    if archives := [path for path in files if path.suffix == ".npz"]:
        return read_npz(name, archives, roles)
    files = [path for path in files if not _is_no_data(path.relative_to(folder), path)]
    kinds = {path.suffix.lower() for path in files}
    try:
        if kinds == {".csv"}:
            return _joined(name, [_csv(path) for path in training_files(folder, files, name)])
        if kinds == {".parquet"}:
            return _parquet(name, training_files(folder, files, name))
        if kinds and kinds <= set(PICTURES):
            return _pictures(name, folder, training_files(folder, files, name))
        from cflower.data.hub import load_with_datasets

        return load_with_datasets(str(folder), name)
    except DataError:
        raise
    except Exception as error:  # of Arrow and `datasets`, of many kinds
        raise DataError(
            f"{name} cannot be read ({first_line(error.__cause__ or error)}): it should hold "
            "Parquet, CSV or NPZ files of one form or one folder of images per class."
        ) from None


def training_files(folder: Path, files: list[Path], name: str) -> list[Path]:
    """Those files that folder or file names mark as training examples; all, if none is marked.

    Raises
    ------
    DataError
        If they mark test or validation examples only.
    """
    paths = {path: path.relative_to(folder) for path in files}
    by_folder = {path: _split_of(list(parts.parts[:-1]), "") for path, parts in paths.items()}
    by_name = {path: _split_of([parts.name], ".") for path, parts in paths.items()}
    marked = next((found for found in (by_folder, by_name) if any(found.values())), None)
    if marked is None:
        return files
    if "train" not in marked.values():
        raise DataError(
            f"{name} has no training examples, only {listed(sorted(set(marked.values()) - {''}))}: "
            "name the files or their folder 'train'."
        )
    return [path for path, split in marked.items() if split == "train"]


def _split_of(names: list[str], after: str) -> str:
    """The split that one of these names speaks of, as a word of its own; empty if none does."""
    end = "[-._ 0-9].*" if after else "([-._ 0-9].*)?"
    for split, words in SPLITS.items():
        pattern = re.compile(f"(.*[-._ 0-9])?({'|'.join(words)}){end}")
        if any(pattern.fullmatch(name) for name in names):
            return split
    return ""


def _is_no_data(relative: Path, path: Path) -> bool:
    """Whether a file is hidden, of the desktop, or says in words what lies beside it."""
    if any(part.startswith((".", "__")) for part in relative.parts):
        return True
    if path.name == "README.md":  # may begin with instructions for `datasets`
        return not path.read_bytes().startswith(b"---")
    return path.name in ("Thumbs.db", "desktop.ini", "LICENSE", "LICENSE.txt")


def _csv(file: Path) -> pa.Table:
    """A CSV file in UTF-8, its types judged by all of its rows."""
    content = file.read_bytes()
    try:
        content.decode()
    except UnicodeDecodeError as error:
        raise DataError(
            f"{file} is not in UTF-8 ({error}): save it as CSV in UTF-8, which every table "
            "program offers."
        ) from None
    if not content.strip():
        raise DataError(f"{file} is empty: remove it, or put rows into it.")
    most = 2**31 - 1
    try:
        return pa.csv.read_csv(
            pa.BufferReader(content),
            pa.csv.ReadOptions(block_size=min(len(content) + 1, most), use_threads=False),
            pa.csv.ParseOptions(newlines_in_values=True),
            pa.csv.ConvertOptions(null_values=MISSING, strings_can_be_null=True),
        )
    except pa.ArrowInvalid as error:
        raise DataError(
            f"{file} cannot be read ({first_line(error)}): expected a line of column names, then "
            "as many values in every row, separated by commas."
        ) from None


def _joined(name: str, tables: list[pa.Table], **told: Any) -> Table:
    """The rows of several tables with the same columns."""
    first = tables[0].column_names
    for table in tables:
        if sorted(table.column_names) != sorted(first):
            odd = sorted(set(first) ^ set(table.column_names))
            raise DataError(
                f"{name} has files with different columns (not in all: {listed(odd)}): bring them "
                "to one form."
            )
    table = Table.of(name, tables[0], **told)  # refuses two columns of one name
    if len(tables) == 1:
        return table
    return Table.of(name, pa.concat_tables(tables, promote_options="permissive"), **told)


def _parquet(name: str, files: list[Path]) -> Table:
    """Parquet files; classes and images as `datasets` notes them in the file."""
    tables = [pa.parquet.ParquetFile(file).read() for file in files]
    noted = (tables[0].schema.metadata or {}).get(b"huggingface", b"{}")
    features = json.loads(noted).get("info", {}).get("features", {})
    kinds = {column: told for column, told in features.items() if isinstance(told, dict)}
    classes = {
        column: tuple(told["names"])
        for column, told in kinds.items()
        if told.get("_type") == "ClassLabel"
    }
    images = [column for column, told in kinds.items() if told.get("_type") == "Image"]
    return _joined(name, tables, classes=classes, images=images)


def _pictures(name: str, folder: Path, files: list[Path]) -> Table:
    """Images, each labelled with the name of its folder; without labels if some lie in none."""
    names = sorted({file.parent.name for file in files})
    places = {label: place for place, label in enumerate(names)}
    labels = np.array([places[file.parent.name] for file in files], np.int64)
    columns: dict[str, Column] = {"image": image_files([str(file) for file in files])}
    if all(file.parent != folder for file in files):
        columns["label"] = labels
    return Table(name, columns, {"label": tuple(names)}, frozenset({"image"}))
