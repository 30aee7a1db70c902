"""Adding to a run folder and locking it; whole files are replaced by `cflower.runs.atomic`."""

import os
from contextlib import suppress
from pathlib import Path
from typing import IO

from cflower.errors import RunFolderError

LOCK = ".lock"
NO_LINKS = getattr(os, "O_NOFOLLOW", 0)  # Windows has none


def append_lines(path: Path, lines: bytes) -> None:
    """Add whole lines to a file, all of them or none."""
    before = path.stat().st_size if path.is_file() else 0
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | NO_LINKS, 0o666)
    try:
        # Unbuffered: what is left in a buffer would be written as soon as there is room.
        rest = memoryview(lines)
        while rest:
            rest = rest[os.write(file, rest) :]
        os.fsync(file)
    except OSError:
        with suppress(OSError):
            os.ftruncate(file, before)
        raise
    finally:
        os.close(file)


def locked(run: Path) -> IO[bytes] | None:
    """Lock a run folder for this process until the returned file is closed.

    Returns None where the system has no such locks (Windows), and raises `RunFolderError` if
    another process has the lock.
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
