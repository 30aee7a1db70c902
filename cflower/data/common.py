"""Arrays that one of several processes makes and the others read."""

import os
from collections.abc import Callable
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


class CommonArrays:
    """Arrays in a folder, by what they were made of; without a folder each process makes them."""

    folder: Path | None = None

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        """How much this process writes at most."""

    def found_or_made(self, make: Callable[[], NDArray[Any]], *key: bytes) -> NDArray[Any]:
        """The array of this key, which is everything that decides what ``make`` returns."""
        if self.folder is None:
            return make()
        digest = blake2b(digest_size=16)
        for part in key:
            digest.update(len(part).to_bytes(8) + part)
        path = self.folder / f"{digest.hexdigest()}.npy"
        with suppress(OSError):
            found: NDArray[Any] = np.load(path)
            return found
        made = make()
        if made.nbytes <= self.most_bytes:
            with suppress(OSError):  # such as a full disk
                part_of_it = self.folder / f"{os.getpid()}.npy"
                np.save(part_of_it, made)
                part_of_it.replace(path)
                self.most_bytes -= made.nbytes
        return made
