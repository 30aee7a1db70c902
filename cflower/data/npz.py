"""NumPy archives (``.npz``) as columns of a table."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cflower.errors import DataError, first_line
from cflower.settings import require_data


class Archives(Mapping[str, NDArray[Any]]):
    """The arrays that all archives of a folder have, joined; each is read when it is first used.

    Raises a DataError if an archive cannot be read, or its arrays have another shape or type than
    those of the same name in the others.
    """

    def __init__(self, name: str, files: list[Path]) -> None:
        self._name, self._files = name, files
        self._arrays: dict[str, NDArray[Any]] = {}
        first, *others = (_read(file, list) for file in files)
        self._names = [name for name in first if all(name in names for names in others)]
        require_data(
            len(self._names) > 0,
            f"{name} has NPZ files without a common array: use the same names in all of them.",
        )

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name not in self._arrays:
            self._arrays[name] = self._joined(name)
        return self._arrays[name]

    def _joined(self, name: str) -> NDArray[Any]:
        parts = [_read(file, lambda archive: np.atleast_1d(archive[name])) for file in self._files]
        first = parts[0]
        for file, part in zip(self._files, parts, strict=True):
            require_data(
                (part.shape[1:], part.dtype.kind) == (first.shape[1:], first.dtype.kind),
                f"{self._name} has arrays of different kinds, {first.shape[1:]} {first.dtype} in "
                f"{self._files[0].name} and {part.shape[1:]} {part.dtype} in {file.name}: bring "
                "them all to one shape and type.",
            )
        return first if len(parts) == 1 else np.concatenate(parts)  # it may fill half the memory


def _read(file: Path, read: Callable[[Any], Any]) -> Any:
    try:
        with np.load(file) as archive:  # no pickles: those could run code
            return read(archive)
    except Exception as error:  # NumPy's and zipfile's, of many kinds
        raise DataError(
            f"{file} cannot be read ({first_line(error)}): write it with "
            "numpy.savez(file, x=..., y=...), without arrays of objects."
        ) from None
