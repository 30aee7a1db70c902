"""Writing into a run folder: files whole or not at all, and lasting where it matters."""

import os
from contextlib import suppress
from pathlib import Path
from typing import IO

from cflower.errors import RunFolderError

LOCK = ".lock"
NO_LINKS = getattr(os, "O_NOFOLLOW", 0)  # Windows has none


def replace_file(path: Path, content: bytes, *, lasting: bool = True) -> None:
    """Replace a file as a whole; what a link of its name points to stays as it is.

    Parameters
    ----------
    path : Path
    content : bytes
    lasting : bool
        Whether it must be there after a power cut.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    temporary.unlink(missing_ok=True)
    try:
        with os.fdopen(
            os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb"
        ) as file:
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
        settle(path.parent)


def append_lines(path: Path, lines: str) -> None:
    """Add whole lines to a file, all of them or none."""
    before = path.stat().st_size if path.is_file() else 0
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | NO_LINKS
    with os.fdopen(os.open(path, flags, 0o666), "ab") as file:
        try:
            file.write(lines.encode())
            file.flush()
            os.fsync(file.fileno())
        except OSError:
            with suppress(OSError):
                os.ftruncate(file.fileno(), before)
            raise


def settle(folder: Path) -> None:
    """Let the names in a folder survive a power cut; not every system can."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def locked(run: Path) -> IO[bytes] | None:
    """Claim a run folder for this process until the file returned is closed.

    Returns
    -------
    file or None
        None where the system has no such locks (Windows).

    Raises
    ------
    RunFolderError
        If another process writes it.
    """
    try:
        import fcntl
    except ImportError:
        return None
    file = os.fdopen(os.open(run / LOCK, os.O_RDWR | os.O_CREAT | NO_LINKS, 0o666), "r+b")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise RunFolderError(
            f"The run {run.name} is being written by another process: let that one end, or end it, "
            "before you resume the run."
        ) from None
    except OSError:  # a file system without locks
        file.close()
        return None
    return file
