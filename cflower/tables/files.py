"""Files with tables: CSV, with its separator and packing, and Parquet."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from cflower.errors import DataError, first_line
from cflower.ordering import listed
from cflower.settings import require_data
from cflower.tables.values import NUMBERS

PACKED = {".gz", ".bz2", ".zst"}
TABLE_FILES = (
    re.compile(r".*\.((csv|tsv|tab)(\.(gz|bz2|zst))?|zip)", re.I),
    re.compile(r".*\.parquet", re.I),
)
"""Names of the files of each kind."""
ABOUT = {".txt", ".md", ".pdf", ".doc", ".docx", ".rtf", ".html", ".log"}
"""Endings of files about the data, which may lie next to tables."""
MISSING = [*pa.csv.ConvertOptions().null_values, "<NA>", "None"]
"""The texts that mean a missing value in a CSV file: those of pandas."""
ROW_NUMBERS = re.compile(r"|Unnamed: \d+|__index_level_\d+__")
"""Names of columns that pandas numbers rows with."""


def tables_among(files: list[Path]) -> list[Path]:
    """The files of tables of one kind, if the others are about the data only; else none."""
    for kind in TABLE_FILES:
        tables = [path for path in files if kind.fullmatch(path.name)]
        if tables and all(path in tables or path.suffix.lower() in ABOUT for path in files):
            return tables
    return []


def read_table(file: Path) -> pa.Table:
    """A file of a table; a DataError with the cause if a CSV file cannot be read."""
    if TABLE_FILES[1].fullmatch(file.name):
        return pa.parquet.ParquetFile(file).read()
    return read_text(file)


def read_text(file: Path) -> pa.Table:
    """A CSV file in UTF-8, its types inferred from all rows, its separator from the first."""
    content, most = bytes_in(file), 2**31 - 1
    first = content.partition(b"\n")[0]
    separator = max(",;\t", key=first.decode(errors="replace").count)
    comma = separator == ";" and re.search(rb"\d,\d", content[:most]) is not None
    try:
        content.decode()  # Arrow would not name the place
        return pa.csv.read_csv(
            pa.BufferReader(content),
            pa.csv.ReadOptions(block_size=min(len(content) + 1, most), use_threads=False),
            pa.csv.ParseOptions(delimiter=separator, newlines_in_values=True),
            pa.csv.ConvertOptions(
                null_values=MISSING,
                strings_can_be_null=True,
                decimal_point="," if comma else ".",
            ),
        )
    except (UnicodeDecodeError, pa.ArrowInvalid) as error:
        raise DataError(
            f"{file} cannot be read ({first_line(error)}): expected CSV in UTF-8, a line of column "
            "names, then as many values in every row, separated by commas, semicolons or tabs."
        ) from None


def bytes_in(file: Path) -> bytes:
    """The bytes of a file, unpacked; of a ZIP archive those of the one file in it."""
    if file.suffix.lower() != ".zip":
        with pa.input_stream(str(file), compression="detect") as stream:
            return bytes(stream.read())
    with ZipFile(file) as archive:
        names = [entry for entry in archive.namelist() if not entry.startswith("__MACOSX")]
        require_data(len(names) == 1, f"{file} holds {listed(names, 3)}: expected one CSV file.")
        return archive.read(names[0])


def name_of(place: Path) -> str:
    """The name of a table's file without its ending, as of its client.

    >>> name_of(Path("north.2/site.a.csv.gz"))
    'site.a'
    """
    endings = place.suffixes[-2:] if place.suffix.lower() in PACKED else place.suffixes[-1:]
    return place.name.removesuffix("".join(endings))


def joined_tables(name: str, tables: dict[str, pa.Table]) -> pa.Table:
    """The rows of all tables, which are named by their files' places in the folder."""
    check_names(name, tables)
    for place, table in tables.items():
        require_data(len(table) > 0, f"{name} has no rows in {place}: fill or remove this file.")
    if len(tables) == 1:
        return next(iter(tables.values()))
    return pa.concat_tables(alike(tables), promote_options="permissive")


def check_names(name: str, tables: dict[str, pa.Table]) -> None:
    """Raise a DataError for the first file whose columns are not those of most files."""
    names = {
        place: frozenset(n for n in table.column_names if not ROW_NUMBERS.fullmatch(n))
        for place, table in tables.items()
    }
    usual = Counter(names.values()).most_common(1)[0][0]
    for place, columns in names.items():
        odd = {"lacks": usual - columns, "has": columns - usual}
        found = [f"{verb} {listed(map(repr, sorted(some)))}" for verb, some in odd.items() if some]
        require_data(
            not found,
            f"{name} has files with different columns: {place} {' and '.join(found)}, unlike "
            "most files: give all of them the same columns.",
        )


def alike(tables: dict[str, pa.Table]) -> Iterator[pa.Table]:
    """The tables; a column of numbers in some of them and of others in others as texts."""
    types = defaultdict[str, set[pa.DataType]](set)
    for table in tables.values():
        for field in table.schema:
            types[field.name].add(field.type)
    texts = {name for name, kinds in types.items() if len(kinds) > 1 and not kinds <= NUMBERS}
    for table in tables.values():
        fields = [f.with_type(pa.string()) if f.name in texts else f for f in table.schema]
        yield table.cast(pa.schema(fields))
