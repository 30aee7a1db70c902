"""Tables in a local folder: CSV, Parquet, NumPy archives, one folder of images per class.

A folder of only one of these kinds is read here, column by column. Anything else is left to
`datasets`, which takes a second and more to import, and long for tables of many columns.
"""

import re
from collections import Counter
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from cflower.data.columns import Table
from cflower.data.npz import Archives
from cflower.data.values import Column, text_among_numbers
from cflower.errors import DataError, first_line
from cflower.ordering import listed, without
from cflower.settings import require_data

PICTURES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm"}
MISSING = [*pa.csv.ConvertOptions().null_values, "<NA>", "None"]
"""The texts that mean a missing value in a CSV file: those of pandas."""
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
    """The training examples in a local folder.

    It holds CSV, Parquet or NPZ files, one folder of images per class, or anything else that
    ``datasets.load_dataset`` reads. Raises a DataError, with the key that names the folder, if it
    is missing, empty, cannot be read or has no training examples.
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
        return Table(name, Archives(name, archives))
    files = [path for path in files if not _is_no_data(path.relative_to(folder), path)]
    kinds = {path.suffix.lower() for path in files}
    for suffix, read in ((".csv", _csv), (".parquet", _parquet)):
        if kinds == {suffix}:
            files = training_files(folder, files, name)
            places = {str(file.relative_to(folder)): file for file in files}
            return _joined(name, {place: read(file) for place, file in places.items()})
    if kinds and kinds <= PICTURES:
        return _pictures(name, folder, training_files(folder, files, name, class_folders=True))
    from cflower.data.hub import load_with_datasets

    return load_with_datasets(str(folder), name)


def _parquet(file: Path) -> pa.Table:
    return pa.parquet.ParquetFile(file).read()


def training_files(
    folder: Path, files: list[Path], name: str, *, class_folders: bool = False
) -> list[Path]:
    """Those files that folder or file names mark as training examples; all, if none is marked.

    With ``class_folders`` the innermost folder is a class, whatever its name, unless all of them
    are named like splits. Raises a DataError if there are test or validation examples only.
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
    """Whether a file is hidden, of the desktop, or a text about the data."""
    if any(part.startswith((".", "__")) for part in relative.parts):
        return True
    if path.name == "README.md":  # may begin with instructions for `datasets`
        return not path.read_bytes().startswith(b"---")
    return path.name in ("Thumbs.db", "desktop.ini", "LICENSE", "LICENSE.txt")


def _csv(file: Path) -> pa.Table:
    """A CSV file in UTF-8, its types inferred from all of its rows."""
    content = file.read_bytes()
    most = 2**31 - 1
    try:
        content.decode()  # Arrow would not name the place
        return pa.csv.read_csv(
            pa.BufferReader(content),
            pa.csv.ReadOptions(block_size=min(len(content) + 1, most), use_threads=False),
            pa.csv.ParseOptions(newlines_in_values=True),
            pa.csv.ConvertOptions(null_values=MISSING, strings_can_be_null=True),
        )
    except (UnicodeDecodeError, pa.ArrowInvalid) as error:
        raise DataError(
            f"{file} cannot be read ({first_line(error)}): expected CSV in UTF-8, a line of column "
            "names, then as many values in every row, separated by commas."
        ) from None


def _joined(name: str, tables: dict[str, pa.Table]) -> Table:
    """The rows of all tables, which are named by their files' places in the folder.

    Of several files the column "file" has the name of each, without its ending, and "folder" that
    of its folder if all lie in some: clients for ``natural-id-column``.
    """
    _check_names(name, tables)
    if len(tables) == 1:
        return Table.of(name, *tables.values())
    try:
        joined = Table.of(name, pa.concat_tables(tables.values(), promote_options="permissive"))
    except pa.ArrowTypeError:
        raise DataError(
            f"{name} has files of different types: {_odd_type(tables)}; correct it."
        ) from None
    places, lengths = list(map(Path, tables)), list(map(len, tables.values()))
    origins = {"file": [place.stem for place in places]}
    if all(place.parent.name for place in places):
        origins["folder"] = [place.parent.name for place in places]
    added = {n: np.repeat(np.array(of, dtype=object), lengths) for n, of in origins.items()}
    return replace(joined, columns={**joined.columns, **without(added, joined.columns)})


def _check_names(name: str, tables: dict[str, pa.Table]) -> None:
    """Raise a DataError for the first file whose columns are not those of most files."""
    names = {place: frozenset(Table.of(name, table).columns) for place, table in tables.items()}
    usual = Counter(names.values()).most_common(1)[0][0]
    for place, columns in names.items():
        odd = {"lacks": usual - columns, "has": columns - usual}
        found = [f"{verb} {listed(map(repr, sorted(some)))}" for verb, some in odd.items() if some]
        require_data(
            not found,
            f"{name} has files with different columns: {place} {' and '.join(found)}, unlike "
            "most files: give all of them the same columns.",
        )


def _odd_type(tables: dict[str, pa.Table]) -> str:
    """The first file and column whose type does not go with that of most files."""
    for column in next(iter(tables.values())).column_names:
        having = {place: table for place, table in tables.items() if column in table.column_names}
        fields = {place: table.schema.field(column) for place, table in having.items()}
        usual = Counter(fields.values()).most_common(1)[0][0]
        for place, field in fields.items():
            try:
                pa.unify_schemas(map(pa.schema, ([usual], [field])), promote_options="permissive")
            except pa.ArrowTypeError:
                text = text_among_numbers(tables[place][column])
                held = field.type if text is None else repr(text)
                return f"{place} has {held} in column {column!r}, most files have {usual.type}"
    raise AssertionError("Arrow joins columns one by one")


def _pictures(name: str, folder: Path, files: list[Path]) -> Table:
    """Images, each labelled with the name of its folder; without labels if some lie in none.

    In CLIENT/CLASS/ the column "folder" names the folder above, for ``natural-id-column``.
    """
    names = sorted({file.parent.name for file in files})
    stored = [{"bytes": None, "path": str(file)} for file in files]  # opened when decoded
    columns: dict[str, Column] = {"image": np.array(stored, dtype=object)}
    if all(file.parent != folder for file in files):
        columns["label"] = np.searchsorted(names, [file.parent.name for file in files])
    if all(folder not in (file.parent, file.parent.parent) for file in files):
        columns["folder"] = np.array([file.parent.parent.name for file in files], dtype=object)
    return Table(name, columns, {"label": tuple(names)}, ("image",))
