"""NumPy archives (``.npz``) as columns of a table."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cflower.errors import DataError, first_line
from cflower.settings import require_data


def read_archives(name: str, files: list[Path]) -> dict[str, NDArray[Any]]:
    """The arrays that all archives of a folder have, joined."""
    archives = [_read(file) for file in files]
    names = [key for key in archives[0] if all(key in archive for archive in archives)]
    require_data(
        len(names) > 0,
        f"{name} has NPZ files without a common array: use the same names in all of them.",
    )
    columns = {}
    for key in names:
        first, *others = (archive.pop(key) for archive in archives)
        for file, part in zip(files[1:], others, strict=True):
            require_data(
                (part.shape[1:], part.dtype.kind) == (first.shape[1:], first.dtype.kind),
                f"{name} has arrays of different kinds, {first.shape[1:]} {first.dtype} in "
                f"{files[0].name} and {part.shape[1:]} {part.dtype} in {file.name}: bring "
                "them all to one shape and type.",
            )
        columns[key] = np.concatenate([first, *others]) if others else first
    return columns


def _read(file: Path) -> dict[str, NDArray[Any]]:
    try:
        with np.load(file) as archive:  # no pickles: those could run code
            return {key: np.atleast_1d(array) for key, array in archive.items()}
    except Exception as error:  # NumPy's and zipfile's, of many kinds
        raise DataError(
            f"{file} cannot be read ({first_line(error)}): write it with "
            "numpy.savez(file, x=..., y=...), without arrays of objects."
        ) from None
