"""Reading the files of a run folder, which may be of somebody else.

Only regular files of fixed names below the folder are read: no link, pipe or device, and nothing
that a name in another file leads to outside. Each is read only up to a limit of its size.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import IO

from cflower.errors import CFlowerError, RunFolderError, first_line
from cflower.runs.writing import no_link

SUBFOLDERS = ("checkpoints", "models", "general", "personal", "similarity")
NAMES = re.compile(rf"[a-z]+\.jsonl?|(?:{'|'.join(SUBFOLDERS)})/[\w.-]+")
"""The names of files in a run folder."""
LARGEST = 2**30
"""Bytes of a file without another limit."""
COPY = "Copy the whole run folder again, as files."


def file_in(run: Path, name: str) -> Path:
    """The path of a file of a run folder; `RunFolderError` for another name."""
    if not NAMES.fullmatch(name):
        raise RunFolderError(f"{run} refers to {name[:60]!r}, no file of a run folder. {COPY}")
    return run / name


def open_file(path: Path, most: float = inf) -> IO[bytes]:
    """A regular file, of at most so many bytes, opened for reading.

    `RunFolderError` for any other kind of file, for one in a subfolder that is a link, and for a
    larger one; FileNotFoundError if there is none.
    """
    check_folder(path.parent)
    status = path.lstat()
    if not S_ISREG(status.st_mode):
        raise RunFolderError(f"{path} is not a regular file, but a link or a device. {COPY}")
    if status.st_size > most:
        raise RunFolderError(f"{path} has {status.st_size:,} bytes, more than {most:,}. {COPY}")
    return open(path, "rb", opener=no_link)


def read_file(path: Path, most: int = LARGEST) -> bytes:
    with open_file(path, most) as file:
        return file.read(most)


def check_folder(folder: Path) -> None:
    """Refuse a subfolder of a run folder that is a link: what is read or removed there is not the
    run's.
    """
    if folder.name not in SUBFOLDERS:
        return
    try:
        mode = folder.lstat().st_mode
    except FileNotFoundError:
        return
    if not S_ISDIR(mode):
        raise RunFolderError(
            f"{folder} is a link or a file, but expected a folder below the run folder: move the "
            "whole run folder to another place instead of a part of it."
        )


@contextmanager
def outside(what: object) -> Iterator[None]:
    """Turn an error in the content of a file or folder into a `RunFolderError`."""
    try:
        yield
    except (CFlowerError, BrokenPipeError):
        raise
    except Exception as error:  # a folder from outside can be wrong in any way
        raise RunFolderError(
            f"{what} is damaged ({type(error).__name__}: {first_line(error)}). {COPY}"
        ) from error
