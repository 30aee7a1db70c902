"""Writing into a run folder: all or nothing, never through a link, under a lock."""

import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from cflower.errors import RunFolderError

LOCK = ".lock"
PRIVATE, PRIVATE_FOLDER = 0o600, 0o700
"""Modes: a run folder has the clients' names, samples of their data, and models."""


def no_link(path: str, flags: int) -> int:
    """Open a file, but not through a link of its name (Windows has no such flag)."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), PRIVATE)


def replace_file(path: Path, *contents: Any, lasting: bool = True) -> None:
    """Replace a file as a whole by bytes and arrays; with ``lasting``, it survives a power cut."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        with new_file(temporary) as file:
            for content in contents:
                file.write(content)
            file.flush()
            if lasting:
                os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    if lasting:
        sync_folder(path.parent)


def new_file(path: Path) -> IO[bytes]:
    """Open a new file for writing, in place of one that was left there."""
    try:
        return open(path, "xb", opener=no_link)
    except FileExistsError:
        path.unlink()
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
    return open(path, "xb", opener=no_link)


def make_last(paths: Collection[Path]) -> None:
    """Make files that are still there, and were not synchronised, survive a power cut."""
    for path in paths:
        with suppress(FileNotFoundError), open(path, "r+b", buffering=0, opener=no_link) as file:
            os.fsync(file.fileno())
    for folder in {path.parent for path in paths}:
        sync_folder(folder)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power cut, on systems that can."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def append_lines(path: Path, lines: bytes) -> None:
    """Add whole lines to a file, all of them or none."""
    # Unbuffered: what is left in a buffer would be written as soon as there is room.
    with open(path, "ab", buffering=0, opener=no_link) as file:
        before = file.tell()
        try:
            while lines:
                lines = lines[file.write(lines) :]
        except OSError:
            with suppress(OSError):
                file.truncate(before)
            raise


def locked(run: Path) -> IO[bytes]:
    """Lock a run folder for this process until the returned file is closed.

    Without effect on systems and file systems without such locks.
    """
    file = os.fdopen(no_link(str(run / LOCK), os.O_RDWR | os.O_CREAT), "r+b")
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise RunFolderError(
            f"The run {run.name} is being written by another process: let that one end, or end it, "
            "before you resume the run."
        ) from None
    except (ImportError, OSError):  # Windows; a file system without locks
        pass
    return file
