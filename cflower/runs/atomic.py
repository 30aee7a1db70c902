"""Files of a run folder are replaced whole or not at all."""

import os
from contextlib import suppress
from pathlib import Path


def replace_file(path: Path, content: bytes, *, lasting: bool = True) -> None:
    """Replace a file as a whole; the target of a link of its name is not touched.

    With ``lasting``, the file survives a power cut.
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
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power cut, on systems that can."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
